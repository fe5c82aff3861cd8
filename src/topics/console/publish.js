/** Publish: append one record, or add one job. */

import { field, h, place, problem, show } from "./dom.js";
import { parse } from "./exact.js";
import { count } from "./format.js";

export function publish({ handle, name, row }) {
  const isQueue = row.type === "queue";
  const data = h("textarea", { rows: "8", spellcheck: "false", required: true });
  data.value = '{\n  "hello": "world"\n}';
  const tag = h("input", { type: "text" });
  const node = h("input", { type: "text" });
  const meta = h("input", { type: "text", placeholder: '{"key": "value"}' });
  const delay = h("input", { type: "number", min: "0", placeholder: "0" });
  const note = h("div", { role: "status" });
  const send = async (event) => {
    event.preventDefault();
    try {
      const value = read("The data", data.value);
      const fields = { tag: tag.value || undefined, node: node.value || undefined, meta: meta.value ? read("The meta", meta.value) : undefined };
      if (isQueue && delay.value) fields.delayMs = Number(delay.value);
      const seq = await handle.write(value, fields);
      show(note, h("p", { class: "good" }, `Written as seq ${count(seq)}. `, h("a", { href: place(name, "browse", String(seq)) }, "Show it")));
    } catch (error) {
      show(note, problem(error));
    }
  };
  return {
    element: h(
      "section",
      {},
      h("h2", {}, isQueue ? "Add a job" : "Publish a record"),
      h(
        "form",
        { onsubmit: send },
        field("Data, any JSON", data),
        h("div", { class: "grid top" }, field("Tag", tag, "One text to find and to delete it by."), field("Node", node, "Which machine or client it is from."), field("Meta", meta, "An object with texts as values."), isQueue && field("Delay in ms", delay, "No worker gets it earlier.")),
        h("button", { class: "main" }, isQueue ? "Add" : "Publish"),
        note,
      ),
    ),
  };
}

function read(what, text) {
  try {
    return parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}
