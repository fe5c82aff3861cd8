/**
 * Browse: what a topic holds, page by page in both directions, from a seq or a time, by tag, node and text.
 *
 * The server looks tags up. For node and text the records are read and left out here: a search stops after a bounded
 * number of them and says so, and goes on at a press.
 */

import { Tombstone } from "/topics.js";

import { field, h, problem, show } from "./dom.js";
import { count, plural } from "./format.js";
import { matchOf, row, wanted } from "./records.js";

const PAGE = 50;
const LOOKED_MAX = 20_000;

export function browse({ handle, item, signal, row: topicRow }) {
  const list = h("ol", { class: "records", "aria-label": "records" });
  const note = h("div", { class: "soft", role: "status" });
  const from = h("input", { type: "number", min: "0", value: /^\d+$/.test(item ?? "") ? item : "" , placeholder: "the first" });
  const since = h("input", { type: "datetime-local", step: "1" });
  const tag = h("input", { type: "text", placeholder: "exact, or prefix*" });
  const node = h("input", { type: "text" });
  const text = h("input", { type: "search" });
  const filter = () => ({ tag: tag.value, node: node.value, text: text.value });
  let shown = { first: 1, after: 0 };

  const present = ({ found, first, after, looked, stopped }) => {
    shown = { first, after };
    const records = found.filter((each) => !(each instanceof Tombstone));
    const range = records.length ? `${plural(records.length, "record")}, seq ${count(records[0].seq)} to ${count(records.at(-1).seq)}.` : "No record there.";
    show(list, found.map((each) => row(each)));
    show(note, h("p", {}, range, stopped ? ` Stopped after ${count(looked)} records; Newer and Older go on from here.` : ""));
  };
  const busy = async (reading) => {
    show(note, h("p", {}, "Reading …"));
    try {
      present(await reading);
    } catch (error) {
      if (!signal.aborted) show(note, problem(error));
    }
  };
  const forwards = (start) => busy(readForwards(handle, start, filter(), signal));
  const backwards = (end) => busy(readBackwards(handle, end, filter(), signal));
  const begin = () => forwards(since.value ? { fromTs: new Date(since.value).getTime() } : { fromSeq: Math.max(0, Number(from.value) - 1) });
  const button = (label, act) => h("button", { type: "button", onclick: act }, label);
  const pager = () =>
    h(
      "div",
      { class: "bar-line" },
      button("First", () => forwards({ fromSeq: 0 })),
      button("Older", () => backwards(shown.first)),
      button("Newer", () => forwards({ fromSeq: shown.after })),
      button("Last", async () => backwards(((await handle.state({ signal }).catch(() => null))?.head_seq ?? 0) + 1)),
    );
  const form = h(
    "form",
    { class: "grid tight", onsubmit: (event) => (event.preventDefault(), begin()) },
    field("From seq", from),
    field("or from time", since),
    field("Tag", tag),
    field("Node", node),
    field("Text", text),
    h("div", { class: "field" }, h("button", { class: "main" }, "Read")),
  );
  if (item || !(topicRow.head_seq > PAGE)) begin();
  else backwards(topicRow.head_seq + 1);
  return { element: h("section", {}, h("h2", {}, "Browse"), form, pager(), note, list, pager()) };
}

/** A page from a cursor or a time on. */
async function readForwards(handle, start, filter, signal) {
  const keep = wanted(filter);
  const found = [];
  let looked = 0;
  let last = start.fromSeq ?? 0;
  let first = null;
  for await (const each of handle.read({ ...start, match: matchOf(filter.tag), onLoss: "yield", limit: 1_000, signal })) {
    looked++;
    last = each instanceof Tombstone ? each.gapTo : each.seq;
    first ??= each instanceof Tombstone ? each.gapFrom : each.seq;
    if (keep(each)) found.push(each);
    if (found.length === PAGE || looked === LOOKED_MAX) break;
  }
  return { found, first: first ?? last + 1, after: last, looked, stopped: looked === LOOKED_MAX && found.length < PAGE };
}

/** The page that ends before the seq `end`: ever larger pieces before it are read until it is full. */
async function readBackwards(handle, end, filter, signal) {
  const keep = wanted(filter);
  let found = [];
  let looked = 0;
  let low = end;
  for (let size = PAGE; low > 1 && found.length < PAGE && looked < LOOKED_MAX; size *= 4) {
    const high = low;
    low = Math.max(1, high - size);
    const piece = [];
    for await (const each of handle.read({ fromSeq: low - 1, match: matchOf(filter.tag), onLoss: "yield", limit: Math.min(1_000, size), signal })) {
      if ((each instanceof Tombstone ? each.gapFrom : each.seq) >= high) break;
      looked++;
      // A gap that reaches down below this piece is all that there is below it.
      if (each instanceof Tombstone) low = Math.min(low, each.gapFrom);
      if (keep(each)) piece.push(each);
    }
    // A gap is met again in every piece that it reaches into: what was seen of it before is a part of it.
    const reached = Math.max(0, ...piece.filter((each) => each instanceof Tombstone).map((each) => each.gapTo));
    found = [...piece, ...found.filter((each) => !(each instanceof Tombstone && each.gapTo <= reached))];
  }
  found = found.slice(-PAGE);
  const edge = found.length === PAGE ? (found[0].seq ?? found[0].gapFrom) : low;
  return { found, first: edge, after: end - 1, looked, stopped: looked >= LOOKED_MAX };
}
