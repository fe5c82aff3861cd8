/** One job: its record, how it stands, and what has happened to it: claimed, released and why, run out, dead. */

import { Tombstone } from "/topics.js";

import { facts, h, place, problem, refresh, show } from "./dom.js";
import { count, time } from "./format.js";
import { tree } from "./json.js";
import { lettersOf } from "./letters.js";

const LETTERS_MAX = 1_000;

export const STATES = {
  ready: "ready",
  leased: "working",
  lapsed: "lease ran out",
  delayed: "delayed",
  acked: "done",
  dead: "dead letter",
  gone: "not in the queue",
};

export function job({ client, handle, name, item, may, signal }) {
  const seq = Number(item);
  const [state, steps, data] = [h("div"), h("div"), h("div")];
  let loaded = null;

  const load = async () => {
    const { jobs } = await handle.client.request("GET", `${handle.path}/history?seq=${encodeURIComponent(item)}`, undefined, { retry: false, signal });
    const found = jobs[0];
    show(state, stateOf(found));
    refresh(steps, timeline(found));
    if (loaded === found.state) return;
    loaded = found.state;
    const record = await recordOf(handle, seq, signal);
    const letter = record === null && found.state === "dead" ? await letterOf(client, handle, name, seq, signal) : null;
    show(data, contentOf(record ?? letter), letter !== null && may.write && redriveOf(handle, letter));
  };
  return {
    element: h(
      "div",
      {},
      h("section", {}, h("div", { class: "bar-line" }, h("h2", {}, `Job ${count(seq)}`), h("a", { href: place(name, "jobs") }, "All jobs")), state),
      h("section", {}, h("h2", {}, "What happened to it"), steps),
      h("section", {}, h("h2", {}, "Its record"), data),
    ),
    beat: () => load().catch((error) => signal.aborted || show(state, problem(error))),
  };
}

/** A step of a job in words. */
export function said({ step, node, reason, until }) {
  const later = until ? ` until ${time(until).slice(11, 19)}` : "";
  if (step === "claimed") return `claimed by ${node}${later}`;
  if (step === "released") return `released by ${node}${reason ? `: ${reason}` : ", no reason given"}${until ? `; waits${later}` : ""}`;
  if (step === "lapsed") return `the lease of ${node} ran out`;
  if (step === "acked") return `done by ${node}`;
  if (step === "dead") return "became a dead letter";
  return step;
}

function stateOf({ state, node, until, deliveries, reason }) {
  return facts(
    [
      ["Now", STATES[state] ?? state],
      ["Worker", node],
      [state === "delayed" ? "Waits until" : "Lease until", until && time(until)],
      ["Deliveries", count(deliveries)],
      ["Last reason", reason],
    ].filter(([, value]) => value),
  );
}

function timeline({ steps, deliveries }) {
  if (!steps.length) {
    return h("p", { class: "soft" }, deliveries ? "It was claimed for the first time; nothing has gone wrong." : "Nothing: no worker had it yet, or it is too long ago.");
  }
  return h("ol", { class: "timeline" }, steps.map((step) => h("li", { class: step.step }, h("time", { datetime: new Date(step.ts).toISOString() }, time(step.ts)), h("span", { class: "badge" }, `delivery ${count(step.delivery)}`), h("span", {}, said(step)))));
}

function contentOf(record) {
  if (record === null) return h("p", { class: "soft" }, "Its record has left the queue.");
  const tag = record.tag !== null && [" with the tag ", h("span", { class: "tag" }, record.tag)];
  const meta = Object.keys(record.meta).length > 0 && [h("h4", {}, "meta"), tree(record.meta, 1)];
  const from = `${record.meta.$dead_letter_from ? "A dead letter since" : "Added"} ${time(record.ts)}`;
  return [h("p", { class: "soft" }, from, tag), tree(record.data, 3), meta];
}

/** The button that turns a dead letter into a job again. */
function redriveOf(handle, letter) {
  const note = h("span", { role: "status" });
  const button = h("button", { type: "button", class: "main" }, "Redrive");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const { redriven } = await handle.redrive({ seqs: [letter.seq] });
      show(note, h("span", { class: "good" }, redriven ? "It is a job again, with a new seq." : "It was redriven already."));
    } catch (error) {
      show(note, problem(error));
    }
  });
  return h("p", { class: "bar-line" }, button, note);
}

async function letterOf(client, handle, name, seq, signal) {
  const target = (await handle.state({ signal }))?.config.dead_letter;
  const letters = target ? await lettersOf(client.topic(target), name, LETTERS_MAX, signal) : [];
  return letters.find((letter) => letter.meta.$dead_letter_src_seq === String(seq)) ?? null;
}

async function recordOf(handle, seq, signal) {
  for await (const found of handle.read({ fromSeq: seq - 1, onLoss: "yield", limit: 1, signal })) {
    return !(found instanceof Tombstone) && found.seq === seq ? found : null;
  }
  return null;
}
