/** A queue: how its jobs stand, which are waiting, and the dead letters with a way back. */

import { Tombstone } from "/topics.js";

import { h, show, table } from "./dom.js";
import { count, duration, rate, time } from "./format.js";
import { line, tree } from "./json.js";
import { sparkline } from "./picture.js";

const SHOWN_MAX = 50;
const STATES = { leased: "working", lapsed: "lease run out", delayed: "delayed" };

export function queue({ client, pulse, name, may }) {
  const handle = client.queue(name);
  const ended = new AbortController();
  const tiles = h("div", { class: "tiles" });
  const held = h("div");
  const waiting = h("ol", { class: "records" });
  const letters = h("div");
  const note = h("p", { role: "status" });
  const chart = h("span");

  const refresh = async () => {
    const state = await handle.state();
    if (state === null) return show(note, "There is no such queue.");
    const { ready, in_flight: leased, dead_lettered: dead } = state.queue;
    const delayed = state.queue.delayed ?? Math.max(0, state.count - ready - leased);
    show(
      tiles,
      tile("Ready", ready, "waiting for a worker"),
      tile("Leased", leased, "a worker has them"),
      tile("Delayed", delayed, "not due yet"),
      tile("Dead letters", dead, state.config.dead_letter ? `in ${state.config.dead_letter}` : "no dead_letter is set", dead > 0),
    );
    await Promise.all([showHeld(handle, held), showWaiting(handle, waiting, ended.signal), showLetters(state.config.dead_letter)]);
  };
  const redrive = async (seqs) => {
    try {
      const answer = await handle.redrive(seqs ? { seqs } : {});
      show(note, h("span", { class: "good" }, `${count(answer.redriven)} dead letter${answer.redriven === 1 ? "" : "s"} turned into jobs again.`));
      await refresh();
    } catch (error) {
      show(note, h("span", { class: "wrong" }, error.message));
    }
  };
  const showLetters = async (target) => {
    if (!target) return show(letters, h("p", { class: "soft" }, "Jobs that fail for ever are tried for ever: set max_deliveries and dead_letter in the config."));
    const found = [];
    try {
      for await (const item of client.topic(target).read({ onLoss: "yield", signal: ended.signal })) {
        if (!(item instanceof Tombstone) && item.meta.$dead_letter_from === name) found.push(item);
        if (found.length === SHOWN_MAX) break;
      }
    } catch (error) {
      if (error.code !== "topic_not_found") return show(letters, h("p", { class: "wrong" }, error.message));
    }
    if (!found.length) return show(letters, h("p", { class: "soft" }, "None."));
    const rows = found.map((item) =>
      h(
        "li",
        { class: "letter" },
        h("details", {}, h("summary", {}, h("span", { class: "seq" }, count(item.seq)), h("time", {}, time(item.ts)), h("span", { class: "badge" }, `${item.meta.$dead_letter_deliveries ?? "?"} deliveries`), item.meta.$dead_letter_reason && h("span", { class: "wrong" }, item.meta.$dead_letter_reason), h("code", { class: "line" }, line(item.data))), tree(item.data, 2), h("h4", {}, "meta"), tree(item.meta, 1)),
        may.write && h("button", { type: "button", onclick: () => redrive([item.seq]) }, "Redrive"),
      ),
    );
    show(letters, may.write && h("button", { type: "button", class: "main", onclick: () => redrive(null) }, "Redrive all"), h("ol", { class: "records" }, rows));
  };
  return {
    title: name,
    element: h(
      "div",
      {},
      h("h1", {}, h("span", { class: "name" }, name), " ", chart),
      h("p", { class: "facts" }, h("a", { href: `#/topics/${encodeURIComponent(name)}/browse` }, "Browse its jobs"), ", ", h("a", { href: `#/topics/${encodeURIComponent(name)}/config` }, "change its config"), " or ", h("a", { href: `#/topics/${encodeURIComponent(name)}/publish` }, "add a job"), "."),
      tiles,
      note,
      h("section", {}, h("h2", {}, "Leased and delayed"), held),
      h("section", {}, h("h2", {}, "Dead letters"), letters),
      h("section", {}, h("h2", {}, "First jobs in the queue"), waiting),
    ),
    beat: () => {
      const values = pulse.of(name);
      show(chart, sparkline(values, `rate of ${name}: ${rate(values.at(-1) ?? 0)}`));
      refresh().catch((error) => show(note, h("span", { class: "wrong" }, error.message)));
    },
    close: () => ended.abort(),
  };
}

/** Who holds what and until when, where the server tells. */
async function showHeld(handle, held) {
  let leases;
  try {
    leases = (await handle.client.request("GET", `${handle.path}/leases?limit=${SHOWN_MAX}`, undefined, { retry: false })).leases;
  } catch (error) {
    return show(held, h("p", { class: "wrong" }, error.message));
  }
  if (!leases.length) return show(held, h("p", { class: "soft" }, "No job is leased or delayed."));
  const now = Date.now();
  const rows = leases.map((lease) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, count(lease.seq)),
      h("td", {}, lease.node || "–"),
      h("td", {}, STATES[lease.state] ?? lease.state),
      h("td", { class: "num" }, count(lease.deliveries)),
      h("td", {}, time(lease.deadline)),
      h("td", { class: "num" }, lease.deadline > now ? duration(lease.deadline - now) : "run out"),
    ),
  );
  show(held, table("Leases", ["seq", "worker", "state", "#deliveries", "until", "#left"], rows));
}

async function showWaiting(handle, list, signal) {
  const found = [];
  for await (const item of handle.read({ onLoss: "yield", limit: SHOWN_MAX, signal })) {
    if (!(item instanceof Tombstone)) found.push(item);
    if (found.length === SHOWN_MAX) break;
  }
  const unfolded = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.seq));
  show(
    list,
    found.length === 0 && h("li", { class: "soft" }, "The queue is empty."),
    found.map((item) => {
      const details = h("details", { "data-seq": item.seq, open: unfolded.has(String(item.seq)) }, h("summary", {}, h("span", { class: "seq" }, count(item.seq)), h("time", {}, time(item.ts)), item.tag !== null && h("span", { class: "tag" }, item.tag), h("code", { class: "line" }, line(item.data))), tree(item.data, 2));
      return h("li", {}, details);
    }),
  );
}

function tile(label, value, below, bad = false) {
  return h("div", { class: bad ? "tile bad" : "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, count(value)), h("div", { class: "below" }, below));
}
