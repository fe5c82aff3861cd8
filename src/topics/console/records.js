/** Records as rows: one line each, unfolded to its whole JSON by a click or Enter; what was lost is a visible gap. */

import { Tombstone } from "/topics.js";

import { h } from "./dom.js";
import { count, plural, time } from "./format.js";
import { line, tree, visible } from "./json.js";

const REASONS = {
  cap: "evicted by the cap of the topic",
  ttl: "expired by its time to live",
  mixed: "evicted by the cap or expired",
  recreated: "the topic was deleted and created again, or its head moved back",
  crash: "a crash took them before they were on disk",
  restart: "an ephemeral topic does not survive a restart",
  corruption: "the stored records are damaged",
  restore: "a backup was restored: what was written after it is gone, and its seqs are not used again",
  source_trim: "the source of the router lost them before they were copied",
  from_seq_too_old: "evicted or expired before this reader came",
};

/** Why records were lost, in words. */
export function reasonOf(reason) {
  return REASONS[reason] ?? reason;
}

/** The row of a record or of a gap; `more` stands after the unfolded record. */
export function row(item, more = null) {
  return item instanceof Tombstone ? gap(item) : record(item, more);
}

/** Which records somebody wants to see: by exact tag or prefix*, by node, by text anywhere in them. Gaps always. */
export function wanted({ tag = "", node = "", text = "" }) {
  const [prefix, lower] = [tag.endsWith("*") ? tag.slice(0, -1) : null, text.toLowerCase()];
  return (item) => {
    if (item instanceof Tombstone) return true;
    if (tag && (item.tag === null || (prefix === null ? item.tag !== tag : !item.tag.startsWith(prefix)))) return false;
    if (node && item.node !== node) return false;
    if (!text) return true;
    return `${item.seq} ${item.tag ?? ""} ${item.node ?? ""} ${JSON.stringify(item.data)} ${JSON.stringify(item.meta)}`.toLowerCase().includes(lower);
  };
}

/** A tag as it was typed, as the API matches it. */
export function matchOf(tag) {
  return tag ? (tag.endsWith("*") ? ["tag", "Glob", tag] : ["tag", "Eq", tag]) : undefined;
}

function record(item, more) {
  const body = h("div", { class: "body" });
  const details = h(
    "details",
    { class: "record" },
    h(
      "summary",
      {},
      h("span", { class: "seq" }, count(item.seq)),
      h("time", { datetime: new Date(item.ts).toISOString() }, time(item.ts)),
      item.tag !== null && h("span", { class: "tag", title: "tag" }, visible(item.tag)),
      item.node !== null && h("span", { class: "node", title: "node" }, visible(item.node)),
      h("code", { class: "line" }, line(item.data)),
    ),
    body,
  );
  details.addEventListener("toggle", () => {
    if (!body.childElementCount) unfold(body, item, more);
  });
  return h("li", {}, details);
}

/** The whole of a record: its data as a tree, its meta, and a switch to the plain text of it. */
function unfold(body, item, more) {
  const folded = h("div", {}, tree(item.data, 2));
  const raw = h("pre", { hidden: true, tabindex: "0", "aria-label": `record ${item.seq} as text` }, visible(JSON.stringify(item.data, null, 2)));
  const toggle = h("button", { type: "button", class: "small", "aria-pressed": "false" }, "As text");
  toggle.addEventListener("click", () => {
    raw.hidden = !raw.hidden;
    folded.hidden = !raw.hidden;
    toggle.setAttribute("aria-pressed", String(!raw.hidden));
  });
  const meta = Object.keys(item.meta).length > 0 && [h("h4", {}, "meta"), tree(item.meta, 1)];
  body.append(folded, raw);
  if (meta) body.append(...meta);
  body.append(h("p", { class: "bar-line" }, toggle, more?.(item)));
}

function gap(item) {
  const lost = item.gapTo - item.gapFrom + 1;
  // A restore leaves out far more seqs than were ever written: how many records that were, nobody knows.
  const what = item.reason === "restore" ? "Records may be lost" : `${plural(lost, "record")} lost`;
  const seqs = lost === 1 ? `seq ${count(item.gapFrom)}` : `seq ${count(item.gapFrom)} to ${count(item.gapTo)}`;
  return h("li", { class: "gap" }, h("code", {}, item.reason), h("strong", {}, what), ` – ${seqs}: ${reasonOf(item.reason)}`);
}
