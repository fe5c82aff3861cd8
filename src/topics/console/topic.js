/** A topic: what arrives, what it holds, and what can be done with it. */

import { Tombstone } from "/topics.js";

import { field, h, show } from "./dom.js";
import { bytes, count, rate, time } from "./format.js";
import { sparkline } from "./picture.js";
import { holds, row } from "./records.js";
import { configForm } from "./config.js";

const KEPT = 500;
const PAGE = 50;
const PREVIEW_MAX = 100_000;

export function topic({ client, pulse, name, part, may }) {
  const handle = client.topic(name);
  const facts = h("p", { class: "facts" });
  const chart = h("span");
  const ended = new AbortController();
  const parts = {
    live: ["Live", () => live(handle, ended.signal)],
    browse: ["Browse", () => browse(handle, ended.signal)],
    publish: ["Publish", () => publish(handle), may.write],
    config: ["Config", () => configForm(client, handle, may.admin)],
    delete: ["Delete", () => erase(handle, ended.signal), may.delete],
  };
  const chosen = parts[part] && parts[part][2] !== false ? part : "live";
  const tabs = Object.entries(parts)
    .filter(([, [, , allowed]]) => allowed !== false)
    .map(([key, [label]]) => h("a", { href: `#/topics/${encodeURIComponent(name)}/${key}`, "aria-current": key === chosen ? "page" : null }, label));
  const describe = async () => {
    const state = await handle.state();
    if (state === null) return show(facts, "There is no such topic. It is created by the first write.");
    show(
      facts,
      `${state.config.type}, ${state.config.durability}: ${count(state.count)} records, ${bytes(state.bytes)}; seq ${count(state.earliest_seq)} to ${count(state.head_seq)}`,
      state.last_write_ts ? `; last write ${time(state.last_write_ts)}` : "",
    );
  };
  return {
    title: name,
    element: h(
      "div",
      {},
      h("h1", {}, h("span", { class: "name" }, name), " ", chart),
      facts,
      h("nav", { class: "tabs", "aria-label": "parts of this topic" }, tabs),
      parts[chosen][1](),
    ),
    beat: () => {
      describe().catch(() => {});
      const values = pulse.of(name);
      show(chart, sparkline(values, `rate of ${name}: ${rate(values.at(-1) ?? 0)}`));
    },
    close: () => ended.abort(),
  };
}

/** Everything that is appended from now on, the newest first. */
function live(handle, signal) {
  const list = h("ol", { class: "records", "aria-live": "off" });
  const note = h("p", { class: "soft", role: "status" }, "Connecting …");
  const text = h("input", { type: "search", placeholder: "text, tag or node", "aria-label": "show only records with this text" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  let held = null;
  pause.addEventListener("click", () => {
    const paused = held === null;
    if (!paused) for (const item of held) add(item);
    held = paused ? [] : null;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Continue" : "Pause";
  });
  const add = (item) => {
    if (!holds(item, text.value)) return;
    list.prepend(row(item));
    while (list.childElementCount > KEPT) list.lastElementChild.remove();
  };
  const follow = async () => {
    const onCaughtUp = () => show(note, "Live: new records appear here, the newest first.");
    try {
      const head = (await handle.state({ signal }))?.head_seq ?? 0;
      const options = { fromSeq: Math.max(0, head - 20), onLoss: "yield", onCaughtUp, signal };
      for await (const item of handle.follow(options)) {
        if (held === null) add(item);
        else if (held.length < KEPT) held.push(item);
      }
    } catch (error) {
      if (!signal.aborted) show(note, error.message);
    }
  };
  follow();
  return h("section", {}, h("div", { class: "bar-line" }, h("h2", {}, "Live"), text, pause), note, list);
}

/** What the topic holds, page by page. */
function browse(handle, signal) {
  const list = h("ol", { class: "records" });
  const note = h("p", { class: "soft", role: "status" });
  const from = h("input", { type: "number", min: "0", value: "0" });
  const since = h("input", { type: "datetime-local", step: "1" });
  const tag = h("input", { type: "text", placeholder: "exact, or prefix*" });
  const node = h("input", { type: "text" });
  const text = h("input", { type: "search" });
  const older = h("button", { type: "button" }, "Older");
  const newer = h("button", { type: "button" }, "Newer");
  let first = 0;
  let last = 0;
  const load = async (start) => {
    show(note, "Reading …");
    const found = [];
    try {
      const match = tag.value ? (tag.value.endsWith("*") ? ["tag", "Glob", tag.value] : tag.value) : undefined;
      for await (const item of handle.read({ ...start, match, onLoss: "yield", limit: 1_000, signal })) {
        if (!holds(item, text.value) || (node.value && !(item instanceof Tombstone) && item.node !== node.value)) continue;
        found.push(item);
        if (found.length === PAGE) break;
      }
    } catch (error) {
      return show(note, error.message);
    }
    const records = found.filter((item) => !(item instanceof Tombstone));
    first = records[0]?.seq ?? first;
    last = records.at(-1)?.seq ?? last;
    show(list, found.map(row));
    show(note, records.length ? `${count(records.length)} records, seq ${count(first)} to ${count(last)}` : "Nothing there.");
  };
  const begin = () => load(since.value ? { fromTs: new Date(since.value).getTime() } : { fromSeq: Math.max(0, Number(from.value) - 1) });
  older.addEventListener("click", () => load({ fromSeq: Math.max(0, first - 1 - PAGE) }));
  newer.addEventListener("click", () => load({ fromSeq: last }));
  const form = h(
    "form",
    { class: "grid", onsubmit: (event) => (event.preventDefault(), begin()) },
    field("From seq", from),
    field("or from time", since),
    field("Tag", tag),
    field("Node", node),
    field("Text", text),
    h("div", { class: "field" }, h("button", { class: "main" }, "Read")),
  );
  begin();
  return h("section", {}, h("h2", {}, "Browse"), form, note, list, h("div", { class: "bar-line" }, older, newer));
}

/** Append one record. */
function publish(handle) {
  const data = h("textarea", { rows: "8", spellcheck: "false", required: true });
  data.value = '{\n  "hello": "world"\n}';
  const tag = h("input", { type: "text" });
  const node = h("input", { type: "text" });
  const meta = h("input", { type: "text", placeholder: '{"key": "value"}' });
  const note = h("p", { role: "status" });
  const send = async (event) => {
    event.preventDefault();
    try {
      const value = parse("The data", data.value);
      const fields = { tag: tag.value || undefined, node: node.value || undefined, meta: meta.value ? parse("The meta", meta.value) : undefined };
      const seq = await handle.write(value, fields);
      show(note, h("span", { class: "good" }, `Written as seq ${count(seq)}.`));
    } catch (error) {
      show(note, h("span", { class: "wrong" }, error.message));
    }
  };
  return h(
    "section",
    {},
    h("h2", {}, "Publish a record"),
    h("form", { onsubmit: send }, field("Data, any JSON", data), h("div", { class: "grid" }, field("Tag", tag), field("Node", node), field("Meta", meta)), h("button", { class: "main" }, "Publish"), note),
  );
}

/** Delete by tag, after a look at how many that would be. */
function erase(handle, signal) {
  const tag = h("input", { type: "text", required: true, placeholder: "customer:42, or customer:*" });
  const note = h("p", { role: "status" });
  const confirm = h("button", { type: "button", class: "danger", hidden: true });
  const matchOf = () => (tag.value.endsWith("*") ? ["tag", "Glob", tag.value] : tag.value);
  const preview = async (event) => {
    event.preventDefault();
    confirm.hidden = true;
    show(note, "Counting …");
    let found = 0;
    try {
      for await (const item of handle.read({ match: matchOf(), onLoss: "yield", limit: 1_000, signal })) {
        if (!(item instanceof Tombstone)) found++;
        if (found === PREVIEW_MAX) break;
      }
    } catch (error) {
      return show(note, h("span", { class: "wrong" }, error.message));
    }
    const many = found === PREVIEW_MAX ? `at least ${count(found)}` : count(found);
    show(note, found ? `${many} records have this tag now. Deleting them cannot be undone.` : "No record has this tag.");
    confirm.textContent = `Delete ${many} records for good`;
    confirm.hidden = found === 0;
  };
  confirm.addEventListener("click", async () => {
    confirm.hidden = true;
    try {
      show(note, h("span", { class: "good" }, `${count(await handle.delete({ match: matchOf(), signal }))} records deleted.`));
    } catch (error) {
      show(note, h("span", { class: "wrong" }, error.message));
    }
  });
  tag.addEventListener("input", () => (confirm.hidden = true));
  return h("section", {}, h("h2", {}, "Delete by tag"), h("form", { onsubmit: preview }, field("Tag", tag, "One tag, or all that begin alike with * at the end."), h("button", { class: "main" }, "Count them"), " ", confirm, note));
}

function parse(what, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}
