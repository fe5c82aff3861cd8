/** The config of a topic as a form; each change says what it does before it is made. */

import { field, h, show } from "./dom.js";
import { count, duration } from "./format.js";

const FIELDS = {
  ttl_ms: ["number", "Records expire after this many ms; 0 means never."],
  cap_records: ["number", "Most records kept; 0 means no cap."],
  cap_bytes: ["number", "Most bytes kept; 0 means no cap."],
  discard: [["old", "reject"], "At the cap: evict the oldest records, or refuse the write."],
  durability: [["ephemeral", "memory", "disk", "fsync"], "What a write has survived when it is acknowledged."],
  priority: ["number", "-1000 to 1000, higher is delivered first under pressure; empty means automatic."],
  idempotency_window_ms: ["number", "How long an idempotency key is remembered."],
  lease_ms: ["number", "How long a job is leased.", "queue"],
  claim_jitter_ms: ["number", "Collect claims for this long and divide the jobs evenly.", "queue"],
  max_deliveries: ["number", "Deliveries before a job becomes a dead letter; 0 means never.", "queue"],
  dead_letter: ["text", "The topic for dead letters.", "queue"],
};

/** What a change does that cannot be seen from the value. */
const EFFECTS = {
  ttl_ms: (to, from, state) => to > 0 && (from === 0 || to < from) && `Records older than ${duration(to)} are gone at once, for good. Readers that had not seen them get a tombstone. The topic holds ${count(state.count)}.`,
  cap_records: (to, from, state) => to > 0 && state.count > to && `${count(state.count - to)} of ${count(state.count)} records are evicted at once, for good.`,
  cap_bytes: (to, from, state) => to > 0 && state.bytes > to && "The oldest records above the cap are evicted at once, for good.",
  discard: (to) => (to === "reject" ? "At the cap, writers get 422 topic_full until there is room." : "At the cap, the oldest records are evicted for the newest."),
  durability: (to) =>
    ({
      ephemeral: "Records are no longer written to disk: a restart loses them, and readers are told.",
      memory: "Survives a crash of the process; a power loss may take the last moments.",
      disk: "Survives a crash of the process; a power loss may take the last moments.",
      fsync: "Every write waits for the disk. Nothing acknowledged is lost.",
    })[to],
  max_deliveries: (to) => to > 0 && `A job that was delivered ${count(to)} times and not completed becomes a dead letter.`,
};

export function configForm(client, handle, allowed) {
  const holder = h("section", {}, h("h2", {}, "Config"), h("p", { class: "soft" }, "Reading …"));
  load(client, handle, allowed, holder).catch((error) => show(holder, h("h2", {}, "Config"), h("p", { class: "wrong" }, error.message)));
  return holder;
}

async function load(client, handle, allowed, holder) {
  const state = await handle.state();
  if (state === null) throw new Error("There is no such topic yet.");
  const inputs = {};
  const fields = Object.entries(FIELDS)
    .filter(([, [, , only]]) => only === undefined || only === state.type)
    .map(([key, [kind, hint]]) => {
      const value = state.config[key];
      inputs[key] = Array.isArray(kind)
        ? h("select", { disabled: !allowed }, kind.map((option) => h("option", { value: option, selected: option === value }, option)))
        : h("input", { type: kind, value: value ?? "", disabled: !allowed });
      return field(key, inputs[key], hint);
    });
  const note = h("div", { role: "status" });
  const changes = () => {
    const changed = {};
    for (const [key, input] of Object.entries(inputs)) {
      const value = input.value === "" ? null : input.type === "number" ? Number(input.value) : input.value;
      if (value !== state.config[key]) changed[key] = value;
    }
    return changed;
  };
  const explain = () => {
    const effects = Object.entries(changes()).map(([key, value]) => {
      const effect = EFFECTS[key]?.(value, state.config[key], state);
      return h("li", {}, h("code", {}, `${key}: ${state.config[key]} → ${value}`), effect ? ` ${effect}` : "");
    });
    show(note, effects.length > 0 && [h("p", {}, "This will change:"), h("ul", {}, effects)]);
  };
  const save = async (event) => {
    event.preventDefault();
    try {
      await handle.configure(changes());
      await load(client, handle, allowed, holder);
    } catch (error) {
      show(note, h("p", { class: "wrong" }, error.message));
    }
  };
  show(
    holder,
    h("h2", {}, "Config"),
    h("form", { oninput: explain, onsubmit: save }, h("div", { class: "grid top" }, fields), note, allowed ? h("button", { class: "main" }, "Save") : h("p", { class: "soft" }, "This key may not change the config.")),
  );
}
