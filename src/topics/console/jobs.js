/**
 * Jobs of a queue: how they stand, who holds what and until when, which had trouble and why, and the way back for dead
 * letters. Reading a queue leases nothing, so looking changes nothing.
 *
 * The leases are asked for with every beat; the rest when the numbers of the queue have changed, and now and then.
 */

import { h, place, problem, refresh, show, table, tile } from "./dom.js";
import { ago, count, duration, plural, time } from "./format.js";
import { STATES, said } from "./job.js";
import { lettersOf } from "./letters.js";
import { row as recordRow } from "./records.js";

const SHOWN_MAX = 50;
const TROUBLED_MAX = 20;
const BEATS = 5;

export function jobs({ client, handle, name, may, pulse, signal }) {
  const [tiles, held, troubled, letters, waiting] = [h("div", { class: "tiles" }), h("div"), h("div"), h("div"), h("div")];
  const [note, redriven] = [h("div", { role: "status" }), h("div", { role: "status", tabindex: "-1" })];
  let config = null;
  let seen = "";
  let beats = 0;

  const refreshAll = async (row) => {
    const numbers = [row.head_seq, row.count, row.ready, row.in_flight, row.delayed, row.dead_lettered].join();
    const due = numbers !== seen || beats++ % BEATS === 0;
    seen = numbers;
    const parts = [showHeld(handle, held, pulse.time(), signal)];
    if (due) {
      config = (await handle.state({ signal }))?.config ?? null;
      parts.push(showTroubled(handle, name, troubled, pulse.time(), signal), showWaiting(handle, name, waiting, signal), showLetters());
    }
    show(tiles, tilesOf(row, config?.dead_letter));
    await Promise.all(parts);
  };
  const redrive = async (seqs) => {
    try {
      const answer = await handle.redrive(seqs ? { seqs } : {});
      seen = "";
      pulse.beat();
      show(redriven, h("p", { class: "good" }, `${plural(answer.redriven, "dead letter")} turned into ${answer.redriven === 1 ? "a job" : "jobs"} again.`));
    } catch (error) {
      show(redriven, problem(error));
    }
  };
  const showLetters = async () => {
    const target = config?.dead_letter;
    if (!target) return show(letters, h("p", { class: "soft" }, "A job that always fails is tried for ever: set max_deliveries and dead_letter in the ", h("a", { href: place(name, "config") }, "config"), "."));
    const found = await lettersOf(client.topic(target), name, SHOWN_MAX, signal);
    if (same(letters, found)) return;
    // The button that was pressed goes with its letter: whoever pressed it by the keyboard stays where they are.
    if (letters.contains(document.activeElement)) redriven.focus({ preventScroll: true });
    if (!found.length) return show(letters, h("p", { class: "soft" }, `None in ${target}.`));
    const all = may.write && h("button", { type: "button", class: "main", onclick: () => redrive(null) }, found.length < SHOWN_MAX ? `Redrive all ${count(found.length)}` : "Redrive all");
    const rows = found.map((item) => letterRow(item, name, may.write && (() => redrive([item.seq]))));
    show(letters, h("div", { class: "bar-line" }, h("p", { class: "soft grow" }, "In ", h("a", { href: place(target) }, target), ", the oldest first. A redrive puts a job back with a new seq and no deliveries."), all), h("ol", { class: "records" }, rows));
  };
  return {
    element: h(
      "div",
      {},
      tiles,
      note,
      h("section", {}, h("h2", {}, "Who holds what"), held),
      h("section", {}, h("h2", {}, "Jobs that had trouble"), troubled),
      h("section", {}, h("h2", {}, "Dead letters"), redriven, letters),
      h("section", {}, h("h2", {}, "Peek at the first jobs"), h("p", { class: "soft" }, "Nothing is leased by looking."), waiting),
    ),
    beat: (row) => refreshAll(row).catch((error) => signal.aborted || show(note, problem(error))),
  };
}

function tilesOf(row, deadLetter) {
  return [
    tile("Ready", count(row.ready), "wait for a worker"),
    tile("In flight", count(row.in_flight), "a worker has them"),
    tile("Delayed", count(row.delayed), "not due yet"),
    deadTile(row, deadLetter),
  ];
}

function deadTile({ dead_lettered: ever, dead_letters: now }, deadLetter) {
  if (!deadLetter) return tile("Dead", count(ever), "no dead_letter is set");
  if (now === undefined) return tile("Dead", count(ever), `moved to ${deadLetter} so far`, ever > 0 ? "bad" : "");
  return tile("Dead", count(now), `${now === 1 ? "waits" : "wait"} in ${deadLetter}; ${count(ever)} so far`, now > 0 ? "bad" : "");
}

async function showHeld(handle, held, now, signal) {
  const { leases } = await handle.client.request("GET", `${handle.path}/leases?limit=${SHOWN_MAX}`, undefined, { retry: false, signal });
  if (!leases.length) return show(held, h("p", { class: "soft" }, "No job is leased or delayed."));
  const rows = leases.map((lease) => {
    const left = lease.deadline - now;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: place(handle.name, "job", String(lease.seq)) }, `job ${count(lease.seq)}`)),
      h("td", {}, lease.state === "delayed" ? "–" : lease.node),
      h("td", { class: lease.state === "lapsed" ? "wrong" : null }, STATES[lease.state] ?? lease.state),
      h("td", { class: "num" }, count(lease.deliveries)),
      h("td", {}, time(lease.deadline)),
      h("td", { class: "num" }, left > 0 ? `in ${duration(left)}` : ago(-left)),
    );
  });
  return refresh(held, table("Leases", ["job", "worker", "state", "#deliveries", "until", "#left"], rows), leases.length === SHOWN_MAX && h("p", { class: "soft" }, `The first ${SHOWN_MAX} are shown.`));
}

async function showTroubled(handle, name, element, now, signal) {
  const { jobs: found } = await handle.client.request("GET", `${handle.path}/history?limit=${TROUBLED_MAX}`, undefined, { retry: false, signal });
  if (!found.length) return show(element, h("p", { class: "soft" }, "None: every job that is known was done at its first delivery, or is on its way."));
  const rows = found.map((job) => {
    const last = job.steps.at(-1);
    const reason = job.reason || job.steps.findLast((step) => step.reason)?.reason;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: place(name, "job", String(job.seq)) }, `job ${count(job.seq)}`)),
      h("td", {}, STATES[job.state] ?? job.state),
      h("td", { class: "num" }, count(job.deliveries)),
      h("td", { class: "free" }, said(last), reason && reason !== last.reason && h("span", { class: "soft" }, ` (before that: ${reason})`)),
      h("td", { class: "soft" }, ago(now - last.ts)),
    );
  });
  return refresh(element, table("Jobs that had trouble", ["job", "now", "#deliveries", "what happened last", "when"], rows));
}

async function showWaiting(handle, name, element, signal) {
  const found = [];
  for await (const item of handle.read({ onLoss: "yield", limit: SHOWN_MAX, signal })) {
    found.push(item);
    if (found.length === SHOWN_MAX) break;
  }
  if (same(element, found)) return;
  const history = (item) => h("a", { href: place(name, "job", String(item.seq)) }, "What happened to it");
  show(element, found.length ? h("ol", { class: "records" }, found.map((item) => recordRow(item, history))) : h("p", { class: "soft" }, "The queue is empty."));
}

function letterRow(item, name, redrive) {
  const { $dead_letter_deliveries: deliveries = "?", $dead_letter_reason: reason, $dead_letter_src_seq: source } = item.meta;
  const history = () => source && h("a", { href: place(name, "job", source) }, "What happened to it");
  const line = recordRow(item, history);
  line.classList.add("letter");
  line.querySelector("summary .line").before(h("span", { class: "badge" }, plural(Number(deliveries), "delivery").replace("deliverys", "deliveries")), reason ? h("span", { class: "wrong" }, reason) : "");
  if (redrive) line.append(h("button", { type: "button", onclick: redrive, "aria-label": `Redrive dead letter ${item.seq}` }, "Redrive"));
  return line;
}

/** Whether an element shows these records already; what is unfolded there stays so then. */
function same(element, items) {
  const seqs = items.map((item) => item.seq ?? `gap${item.gapFrom}`).join();
  if (element.dataset.seqs === seqs && element.childElementCount) return true;
  element.dataset.seqs = seqs;
  return false;
}
