/**
 * Erase: delete by tag, here and in the topics that routers copy to, after a look at how many that would be.
 *
 * The server counts with a dry run. What was counted is what the button names; a change of the tag takes the button away.
 */

import { field, h, place, problem, show, table } from "./dom.js";
import { count, plural } from "./format.js";
import { matchOf } from "./records.js";

const TOPICS_MAX = 50;

export function erase({ client, handle, name, row, signal }) {
  const tag = h("input", { type: "text", required: true, placeholder: "customer:42, or customer:*" });
  const note = h("div", { role: "status" });
  const confirm = h("button", { type: "button", class: "danger", hidden: true });
  let counted = [];
  const preview = async (event) => {
    event.preventDefault();
    confirm.hidden = true;
    show(note, h("p", {}, "Counting …"));
    try {
      counted = [];
      for (const topic of [name, ...(await copiesOf(client, name, signal))]) counted.push(await countIn(client, topic, tag.value, signal));
    } catch (error) {
      return signal.aborted ? undefined : show(note, problem(error));
    }
    present();
  };
  const present = () => {
    for (const each of counted) each.box = h("input", { type: "checkbox", "aria-label": `delete in ${each.topic}`, checked: each.number > 0, disabled: !each.number, onchange: total });
    const rows = counted.map((each) => h("tr", {}, h("td", {}, each.box), h("th", { scope: "row" }, h("a", { href: place(each.topic, "browse") }, each.topic), each.topic === name ? "" : h("span", { class: "badge" }, "copies")), h("td", { class: "num" }, each.error ? h("span", { class: "wrong" }, each.error) : count(each.number))));
    show(note, table("Records with this tag", ["", "topic", "#records with this tag"], rows), total());
  };
  const total = () => {
    const number = counted.filter((each) => each.box.checked).reduce((sum, each) => sum + each.number, 0);
    confirm.textContent = `Delete ${plural(number, "record")} for good`;
    confirm.hidden = number === 0;
    return h("p", {}, number ? "Deleting cannot be undone. A delete is silent: readers get no tombstone for it." : "No record has this tag.");
  };
  confirm.addEventListener("click", async () => {
    confirm.hidden = true;
    try {
      let deleted = 0;
      for (const each of counted.filter((one) => one.box.checked)) deleted += await client.topic(each.topic).delete({ match: matchOf(tag.value), signal });
      show(note, h("p", { class: "good" }, `${plural(deleted, "record")} deleted. Its text leaves every file of the server within the time that TOPICS_ERASE_AFTER_MS sets.`));
    } catch (error) {
      if (!signal.aborted) show(note, problem(error));
    }
  });
  tag.addEventListener("input", () => {
    confirm.hidden = true;
    show(note);
  });
  const form = h("form", { onsubmit: preview }, field("Tag", tag, "One tag, or all that begin alike with * at the end."), h("p", { class: "bar-line" }, h("button", { class: "main" }, "Count them"), confirm), note);
  return { element: h("div", {}, h("section", {}, h("h2", {}, "Delete by tag"), form), drop(handle, name, row)) };
}

/** The topics that routers copy to from here, step by step; those that this key may see. */
async function copiesOf(client, name, signal) {
  const found = new Set();
  for (const queue = [name]; queue.length && found.size < TOPICS_MAX; ) {
    for await (const router of client.routers({ source: queue.shift(), signal })) {
      if (router.dest === name || found.has(router.dest) || found.size === TOPICS_MAX) continue;
      found.add(router.dest);
      queue.push(router.dest);
    }
  }
  return found;
}

async function countIn(client, topic, tag, signal) {
  try {
    return { topic, number: await client.topic(topic).delete({ match: matchOf(tag), dryRun: true, signal }), error: null };
  } catch (error) {
    if (error.status !== 403 && error.code !== "topic_not_found") throw error;
    return { topic, number: 0, error: error.message };
  }
}

/** The delete of the whole topic, for somebody who types its name. */
function drop(handle, name, row) {
  const typed = h("input", { type: "text", autocomplete: "off" });
  const note = h("div", { role: "status" });
  const button = h("button", { class: "danger", disabled: true }, `Delete ${name} for good`);
  typed.addEventListener("input", () => (button.disabled = typed.value !== name));
  const send = async (event) => {
    event.preventDefault();
    if (typed.value !== name) return;
    try {
      await handle.drop();
      location.hash = "#/";
    } catch (error) {
      show(note, problem(error));
    }
  };
  return h(
    "section",
    {},
    h("h2", {}, "Delete the topic"),
    h("form", { onsubmit: send }, h("p", {}, `All ${plural(row.count ?? 0, "record")}, the config and the routers from and to it go with it.`), field("Type its name", typed), h("p", {}, button), note),
  );
}
