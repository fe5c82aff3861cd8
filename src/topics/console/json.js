/** A value as a tree that folds and unfolds; text is text, whatever it holds. */

import { h } from "./dom.js";
import { isExact } from "./exact.js";

const CHILDREN_MAX = 200;
// Controls, marks of direction and spaces without a width: they could show a record as something that it is not.
const UNSEEN = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The element of a value; the first `open` levels are unfolded. A value within another one has a `key`. */
export function tree(value, open = 1, key = null) {
  const label = key === null ? [] : [h("span", { class: "key" }, visible(String(key))), ": "];
  if (value === null || typeof value !== "object" || isExact(value)) return h("div", { class: "json" }, label, leaf(value));
  const entries = Array.isArray(value) ? value.map((item, i) => [i, item]) : Object.entries(value);
  if (entries.length === 0) return h("div", { class: "json" }, label, Array.isArray(value) ? "[]" : "{}");
  const body = h("div", { class: "members" });
  const details = h("details", { class: "json", open: open > 0 }, h("summary", {}, label, summary(value, entries)), body);
  let drawn = 0;
  const more = () => {
    for (const [name, item] of entries.slice(drawn, drawn + CHILDREN_MAX)) body.append(tree(item, open - 1, name));
    drawn += CHILDREN_MAX;
    if (entries.length <= drawn) return;
    const next = h("button", { type: "button", class: "small" }, `${entries.length - drawn} more`);
    next.addEventListener("click", () => (next.remove(), more()));
    body.append(next);
  };
  if (open > 0) more();
  details.addEventListener("toggle", () => body.childElementCount || more());
  return details;
}

/** A value in one line, cut off where it is long. */
export function line(value, max = 160) {
  const text = JSON.stringify(value) ?? "";
  return visible(text.length > max ? `${text.slice(0, max)}…` : text);
}

/** A text with what would change how it is drawn, or is drawn as nothing, as the escapes of JSON. */
export function visible(text) {
  return text.replace(UNSEEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function leaf(value) {
  const kind = value === null ? "null" : isExact(value) ? "number" : typeof value;
  return h("span", { class: kind }, visible(JSON.stringify(value)));
}

function summary(value, entries) {
  const what = Array.isArray(value) ? "item" : "field";
  return `${Array.isArray(value) ? "[ ]" : "{ }"} ${entries.length} ${what}${entries.length === 1 ? "" : "s"}`;
}
