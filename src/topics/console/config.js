/** The config of a topic as a form; each change says what it does before it is made. */

import { field, h, problem, show } from "./dom.js";
import { bytes, count, duration, plural } from "./format.js";

const FIELDS = {
  ttl_ms: ["number", "Records expire after this many ms; 0 means never."],
  cap_records: ["number", "Most records kept; 0 means no cap."],
  cap_bytes: ["number", "Most bytes kept; 0 means no cap."],
  discard: [["old", "reject"], "At the cap: evict the oldest records, or refuse the write."],
  durability: [["ephemeral", "memory", "disk", "fsync"], "What a write has survived when it is acknowledged."],
  priority: ["number", "-1000 to 1000, higher is delivered first under pressure; empty means automatic."],
  auto_priority: ["flag", "Whether the priority rises by itself while records wait."],
  idempotency_window_ms: ["number", "How long an idempotency key is remembered."],
  dedupe_node: ["flag", "Whether a reader that names its node is spared its own records."],
  lease_ms: ["number", "How long a job is leased.", "queue"],
  claim_jitter_ms: ["number", "Gather claims for this long and divide the jobs evenly.", "queue"],
  max_deliveries: ["number", "Deliveries before a job becomes a dead letter; 0 means never.", "queue"],
  dead_letter: ["text", "The topic for dead letters.", "queue"],
  backoff_ms: ["number", "How long a job waits after its first nack; twice as long after each further one.", "queue"],
  backoff_max_ms: ["number", "The longest such wait.", "queue"],
  leases_durable: ["flag", "Whether a claim waits until its lease is on disk.", "queue"],
};

/** What a change does that cannot be seen from the value; one that loses records says `lost`. */
const EFFECTS = {
  ttl_ms: (to, from, state) =>
    to > 0 && (!from || to < from)
      ? { lost: true, text: `Records older than ${duration(to)} are gone at once, for good. Readers that had not seen them get a tombstone. The topic holds ${plural(state.count, "record")}.` }
      : { text: to > 0 ? `Records live for ${duration(to)}. What has expired does not come back.` : "Records no longer expire. What has expired does not come back." },
  cap_records: (to, _, state) => (to > 0 && state.count > to ? { lost: true, text: `${count(state.count - to)} of ${plural(state.count, "record")} are evicted at once, for good.` } : { text: to ? atCap(state) : "The number of records is no longer limited." }),
  cap_bytes: (to, _, state) => (to > 0 && state.bytes > to ? { lost: true, text: `The topic holds ${bytes(state.bytes)}: the oldest records above ${bytes(to)} are evicted at once, for good.` } : { text: to ? atCap(state) : "The size is no longer limited." }),
  discard: (to) => ({ text: to === "reject" ? "At the cap, writers get 422 topic_full until there is room." : "At the cap, the oldest records are evicted for the newest, and readers that had not seen them get a tombstone." }),
  durability: (to) => ({
    text: {
      ephemeral: "Records are no longer written to disk: a restart loses them, and readers are told.",
      memory: "A write is acknowledged before it reaches the disk: a crash may take the last moments, and readers are told.",
      disk: "Survives a crash of the process; a power loss may take the last moments, and readers are told.",
      fsync: "Every write waits for the disk. Nothing acknowledged is lost, and writes take as long as a sync.",
    }[to],
  }),
  priority: (to) => ({ text: to === null ? "The server chooses." : "Under pressure, topics with a higher priority are delivered first; those below 0 wait." }),
  auto_priority: (to) => ({ text: to ? "Records that wait are lifted by and by." : "The priority stays what it is, however long records wait." }),
  idempotency_window_ms: (to) => ({ text: `A retry within ${duration(to)} writes nothing twice; a later one does.` }),
  dedupe_node: (to) => ({ text: to ? "A reader that names its node does not get its own records back." : "Readers get all records, their own included." }),
  lease_ms: (to) => ({ text: `From the next claim on: a worker that says nothing for ${duration(to)} loses its job, and another gets it.` }),
  claim_jitter_ms: (to) => ({ text: to ? `A claim waits ${duration(to)} for others to share with.` : "A claim is answered at once." }),
  max_deliveries: (to, _, state) => ({ text: to > 0 ? `A job that was delivered ${count(to)} times and not completed becomes a dead letter${state.config.dead_letter ? "" : ", once dead_letter names a topic for it"}.` : "A job is tried for ever." }),
  dead_letter: (to) => ({ text: to ? `Jobs that used up their deliveries move to ${to}.` : "Jobs that used up their deliveries are delivered again and again." }),
  backoff_ms: (to) => ({ text: to ? `After a nack a job waits ${duration(to)}, then twice as long, and so on.` : "After a nack a job is ready at once." }),
  backoff_max_ms: (to) => ({ text: `No job waits longer than ${duration(to)} after a nack.` }),
  leases_durable: (to) => ({ text: to ? "No job is delivered twice because of a crash within its lease; a claim takes as long as a sync." : "After a power loss a job may be delivered again although its lease runs." }),
};

function atCap({ config }) {
  return config.discard === "reject" ? "At the cap, writers get 422 topic_full." : "At the cap, each write evicts the oldest records.";
}

export function configForm({ handle, may, signal }) {
  const holder = h("section", {}, h("h2", {}, "Config"), h("p", { class: "soft" }, "Reading …"));
  load(handle, may.admin, holder, signal).catch((error) => signal.aborted || show(holder, h("h2", {}, "Config"), problem(error)));
  return { element: holder };
}

async function load(handle, allowed, holder, signal, said = null) {
  const state = await handle.state({ signal });
  if (state === null) throw new Error("There is no such topic yet.");
  const shown = Object.entries(FIELDS).filter(([, [, , only]]) => only === undefined || only === state.type);
  const inputs = Object.fromEntries(shown.map(([key, [kind]]) => [key, inputOf(kind, state.config[key], allowed)]));
  const note = h("div", { role: "status", tabindex: "-1" }, said);
  const save = h("button", { class: "main", disabled: true }, "Save");
  const explain = () => {
    const changed = Object.entries(changesOf(inputs, state.config));
    const effects = changed.map(([key, value]) => [key, value, EFFECTS[key]?.(value, state.config[key], state) ?? {}]);
    const loses = effects.some(([, , effect]) => effect.lost);
    save.disabled = !changed.length;
    save.className = loses ? "danger" : "main";
    save.textContent = loses ? "Save, and lose records for good" : "Save";
    const items = effects.map(([key, value, { text, lost }]) => h("li", {}, h("code", {}, `${key}: ${state.config[key]} → ${value}`), " ", h("span", { class: lost ? "wrong" : null }, text)));
    show(note, items.length > 0 && [h("p", {}, "This will change:"), h("ul", { class: "effects" }, items)]);
  };
  const send = async (event) => {
    event.preventDefault();
    try {
      await handle.configure({ type: state.type, ...changesOf(inputs, state.config) }, { signal });
      await load(handle, allowed, holder, signal, h("p", { class: "good" }, "Saved."));
    } catch (error) {
      if (!signal.aborted) show(note, problem(error));
    }
  };
  const fields = shown.map(([key, [, hint]]) => field(key, inputs[key], hint));
  show(
    holder,
    h("h2", {}, "Config"),
    h("form", { oninput: explain, onsubmit: send }, h("div", { class: "grid top" }, fields), note, allowed ? save : h("p", { class: "soft" }, "This key may not change the config: that takes the scope admin.")),
  );
  // The button that was pressed is gone.
  if (said !== null) note.focus({ preventScroll: true });
}

function inputOf(kind, value, allowed) {
  const options = kind === "flag" ? ["true", "false"] : kind;
  if (!Array.isArray(options)) return h("input", { type: kind, value: value ?? "", disabled: !allowed });
  return h("select", { disabled: !allowed }, options.map((option) => h("option", { value: option, selected: option === String(value) }, option)));
}

function changesOf(inputs, config) {
  const changed = {};
  for (const [key, input] of Object.entries(inputs)) {
    const text = input.value;
    const value = text === "" ? null : input.type === "number" ? Number(text) : FIELDS[key][0] === "flag" ? text === "true" : text;
    if (value !== config[key]) changed[key] = value;
  }
  return changed;
}
