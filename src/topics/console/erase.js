/**
 * Erase: delete by tag, here and wherever records of this topic go, after a look at how many that would be: the topics
 * that routers copy to, and those that dead letters move to.
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
      for (const [topic, kind] of await placesOf(client, name, signal)) counted.push({ ...(await countIn(client, topic, tag.value, signal)), kind });
    } catch (error) {
      return signal.aborted ? undefined : show(note, problem(error));
    }
    present();
  };
  const present = () => {
    for (const each of counted) each.box = h("input", { type: "checkbox", "aria-label": `delete in ${each.topic}`, checked: each.number > 0, disabled: !each.number, onchange: total });
    const rows = counted.map((each) => h("tr", {}, h("td", {}, each.box), h("th", { scope: "row" }, h("a", { href: place(each.topic, "browse") }, each.topic), each.kind && h("span", { class: "badge" }, each.kind)), h("td", { class: "num" }, each.error ? h("span", { class: "wrong" }, each.error) : count(each.number))));
    show(note, table("Records with this tag", ["", "topic", "#records with this tag"], rows), total());
  };
  const total = () => {
    const number = counted.filter((each) => each.box.checked).reduce((sum, each) => sum + each.number, 0);
    confirm.textContent = `Delete ${plural(number, "record")} for good`;
    confirm.hidden = number === 0;
    return h("p", {}, number ? "Deleting cannot be undone. A delete is silent: readers get no tombstone for it." : "No record has this tag.");
  };
  confirm.addEventListener("click", async () => {
    tag.focus({ preventScroll: true });
    confirm.hidden = true;
    try {
      let deleted = 0;
      for (const each of counted.filter((one) => one.box.checked)) deleted += await client.topic(each.topic).delete({ match: matchOf(tag.value), signal });
      show(note, h("p", { class: "good" }, `${plural(deleted, "record")} deleted. The text leaves every file of the server within the time that TOPICS_ERASE_AFTER_MS sets. Other topics, lakes and backups keep what they have.`));
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

/** This topic and where its records go, step by step, with what is there: copies or dead letters; what this key may see. */
async function placesOf(client, name, signal) {
  const found = new Map([[name, ""]]);
  const add = (topic, kind) => found.size < TOPICS_MAX && !found.has(topic) && found.set(topic, kind);
  // What is added on the way is gone through as well.
  for (const topic of found.keys()) {
    for await (const router of client.routers({ source: topic, signal })) add(router.dest, "copies");
    const letters = await deadLetterOf(client.topic(topic), signal);
    if (letters) add(letters, "dead letters");
  }
  return found;
}

async function deadLetterOf(handle, signal) {
  try {
    return (await handle.state({ signal }))?.config.dead_letter;
  } catch (error) {
    if (error.status !== 403) throw error;
    return null;
  }
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
    h("form", { onsubmit: send }, h("p", {}, `${plural(row.count ?? 0, "record")}, the config, and the routers from and to it go with it.`), field("Type its name", typed), h("p", {}, button), note),
  );
}
