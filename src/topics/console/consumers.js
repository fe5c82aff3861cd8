/**
 * Consumers and pipelines: how far each is from the head of what it reads.
 *
 * Consumers of the Python library commit their cursors to a topic, and pipelines report to another; the last record of
 * each name counts. Only what is new since the last beat is read.
 */

import { Tombstone } from "/topics.js";

import { h, place, problem, refresh, table } from "./dom.js";
import { ago, compact, count, duration, rate } from "./format.js";

const CONSUMERS = "topics.consumers";
const PIPELINES = "topics.pipelines";
const ENDED = ["stopped", "done", "failed"];
const FAILING = ["waiting", "failed"];
const OLD_MS = 30_000;
const LATE_S = 10;
const FIRST_MAX = 5_000;
const NAMES_MAX = 500;
const HEADS_MAX = 50;

export function consumers({ client, pulse }) {
  const holder = h("section", {}, h("p", { class: "soft" }, "Reading …"));
  const pipelines = h("section", {}, h("p", { class: "soft" }, "Reading …"));
  const ended = new AbortController();
  const committed = new Last(client.topic(CONSUMERS), (record) => record.data?.consumer ?? record.tag, ended.signal);
  const reported = new Last(client.topic(PIPELINES), (record) => record.data?.name ?? record.tag, ended.signal);
  const heads = new Heads(client, pulse, ended.signal);
  const beat = async () => {
    await Promise.all([committed.read(), reported.read()]);
    await heads.learn([...placesOf(committed), ...[...reported.by.values()].map(({ data }) => data)].map((each) => each.topic));
    refresh(holder, h("h2", {}, "Consumers"), consumersOf(committed, heads));
    refresh(pipelines, h("h2", {}, "Spark pipelines"), pipelinesOf(reported, heads));
  };
  return {
    title: "Consumers",
    question: "order=name&limit=500",
    element: h("div", {}, h("h1", {}, "Consumers and pipelines"), holder, pipelines),
    beat: () => beat().catch((error) => ended.signal.aborted || refresh(holder, problem(error))),
    close: () => ended.abort(),
  };
}

/** The last record of each name in a topic, and the one before it, for rates. */
class Last {
  constructor(handle, nameOf, signal) {
    this.handle = handle;
    this.nameOf = nameOf;
    this.signal = signal;
    this.by = new Map();
    this.exists = false;
    this._cursor = null;
  }

  async read() {
    const head = (await this.handle.state({ signal: this.signal }))?.head_seq ?? null;
    this.exists = head !== null;
    if (head === null) return;
    this._cursor ??= Math.max(0, head - FIRST_MAX);
    if (head <= this._cursor) return;
    for await (const record of this.handle.read({ fromSeq: this._cursor, onLoss: "yield", signal: this.signal })) {
      this._cursor = record instanceof Tombstone ? record.gapTo : record.seq;
      const name = record instanceof Tombstone ? null : this.nameOf(record);
      if (!name || typeof record.data !== "object" || record.data === null) continue;
      const before = this.by.get(name);
      if (before || this.by.size < NAMES_MAX) this.by.set(name, { data: record.data, ts: record.ts, before });
      if (before) before.before = undefined;
    }
  }
}

/** The heads of topics: those that the pulse has, and of others a bounded number. */
class Heads {
  constructor(client, pulse, signal) {
    this.client = client;
    this.pulse = pulse;
    this.signal = signal;
    this._asked = new Map();
  }

  async learn(names) {
    const missing = [...new Set(names)].filter((name) => typeof name === "string" && name && !this.pulse.topic(name)).slice(0, HEADS_MAX);
    await Promise.all(missing.map(async (name) => this._asked.set(name, (await this.client.topic(name).state({ signal: this.signal }).catch(() => null))?.head_seq ?? null)));
  }

  of(name) {
    return this.pulse.topic(name)?.head_seq ?? this._asked.get(name) ?? null;
  }
}

function* placesOf(committed) {
  for (const [name, { data, ts, before }] of committed.by) {
    for (const [topic, at] of Object.entries(data.cursors ?? {})) yield { name, topic, seq: at.seq, ts, before: before && { seq: before.data.cursors?.[topic]?.seq, ts: before.ts } };
  }
}

function consumersOf(committed, heads) {
  const rows = [...placesOf(committed)].map(({ name, topic, seq, ts, before }) => {
    const head = heads.of(topic);
    const speed = before && ts > before.ts ? Math.max(0, ((seq - before.seq) * 1_000) / (ts - before.ts)) : null;
    const lag = lagOf(head === null ? null : Math.max(0, head - seq), (speed ?? 0) * LATE_S);
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("a", { href: place(topic) }, topic)), h("td", { class: "num" }, count(seq)), lag, h("td", { class: "num" }, rate(speed)), h("td", { class: "soft" }, ago(heads.pulse.time() - ts)));
  });
  if (!rows.length) return h("p", { class: "soft" }, committed.exists ? "None has committed yet." : ["No consumer keeps its cursors on this server. Those of the Python library do so in ", h("code", {}, CONSUMERS), " when they commit."]);
  return table("Consumers", ["consumer", "topic", "#committed", "#lag", "#rate", "last commit"], rows);
}

/** A flow reports every few seconds until it ends: one that is silent is gone, or cannot reach the server. */
function isOld(data, age) {
  return Boolean(data.state) && !ENDED.includes(data.state) && age > OLD_MS;
}

function pipelinesOf(reported, heads) {
  const rows = [...reported.by].map(([name, { data, ts }]) => {
    const head = heads.of(data.topic);
    const lag = data.lag ?? (head === null || typeof data.seq !== "number" ? null : Math.max(0, head - data.seq));
    const age = heads.pulse.time() - ts;
    const old = isOld(data, age);
    const failing = FAILING.includes(data.state);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, name, data.kind ? h("small", {}, ` ${data.kind}`) : null),
      h("td", {}, heads.of(data.topic) !== null ? h("a", { href: place(String(data.topic)) }, String(data.topic)) : String(data.topic ?? "–")),
      h("td", { class: failing || old ? "wrong" : "soft" }, old ? `${data.state} (old)` : String(data.state ?? "–")),
      h("td", { class: "num" }, count(typeof data.seq === "number" ? data.seq : null)),
      lagOf(lag),
      h("td", { class: lag > 0 ? "num late" : "num" }, typeof data.lag_s === "number" ? duration(data.lag_s * 1_000) : "–"),
      h("td", { class: "num" }, typeof data.rate === "number" ? rate(data.rate) : "–"),
      h("td", { class: "num" }, count(typeof data.restarts === "number" ? data.restarts : 0)),
      h("td", { class: data.error ? "wrong free" : "soft" }, data.error ? String(data.error) : "no error"),
      h("td", { class: "soft" }, ago(age)),
    );
  });
  if (!rows.length) return h("p", { class: "soft" }, "No pipeline has reported to ", h("code", {}, PIPELINES), " on this server.");
  return table("Spark pipelines", ["pipeline", "topic", "state", "#seq", "#lag", "#late", "#rate", "#restarts", "error", "last report"], rows);
}

/** How far somebody is from the head; one that reads all the time is always a little way off, which is not late. */
function lagOf(lag, usual = 0) {
  return h("td", { class: lag > usual ? "num late" : "num" }, lag === null ? "–" : compact(lag));
}
