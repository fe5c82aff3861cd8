/** Records as rows: one line each, unfolded to its whole JSON by a click or Enter; what was lost is a visible gap. */

import { Tombstone } from "/topics.js";

import { h } from "./dom.js";
import { count, time } from "./format.js";
import { line, tree } from "./json.js";

const REASONS = {
  cap: "evicted by the cap of the topic",
  ttl: "expired by its time to live",
  mixed: "evicted by the cap or expired",
  recreated: "the topic was deleted and created again, or its head moved back",
  crash: "a crash took them before they were on disk",
  restart: "an ephemeral topic does not survive a restart",
  corruption: "the stored records are damaged",
  source_trim: "the source of the router lost them before they were copied",
  from_seq_too_old: "evicted or expired before this reader came",
};

/** The row of a record or of a gap. */
export function row(item) {
  return item instanceof Tombstone ? gap(item) : record(item);
}

/** Whether a record shows a text anywhere in it. */
export function holds(item, text) {
  if (!text || item instanceof Tombstone) return true;
  const all = `${item.seq} ${item.tag ?? ""} ${item.node ?? ""} ${JSON.stringify(item.data)} ${JSON.stringify(item.meta)}`;
  return all.toLowerCase().includes(text.toLowerCase());
}

function record(item) {
  const body = h("div", { class: "body" });
  const details = h(
    "details",
    { class: "record" },
    h(
      "summary",
      {},
      h("span", { class: "seq" }, count(item.seq)),
      h("time", {}, time(item.ts)),
      item.tag !== null && h("span", { class: "tag", title: "tag" }, item.tag),
      item.node !== null && h("span", { class: "node", title: "node" }, item.node),
      h("code", { class: "line" }, line(item.data)),
    ),
    body,
  );
  details.addEventListener("toggle", () => {
    if (!body.childElementCount) {
      body.append(tree(item.data, 2));
      if (Object.keys(item.meta).length) body.append(h("h4", {}, "meta"), tree(item.meta, 1));
    }
  });
  return h("li", {}, details);
}

function gap(item) {
  const lost = item.gapTo - item.gapFrom + 1;
  return h(
    "li",
    { class: "gap" },
    h("strong", {}, `${count(lost)} record${lost === 1 ? "" : "s"} lost`),
    ` seq ${count(item.gapFrom)} to ${count(item.gapTo)}: ${REASONS[item.reason] ?? item.reason} `,
    h("code", {}, item.reason),
  );
}
