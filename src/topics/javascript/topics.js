/**
 * topics.js: the client of a topics server for browsers and Node 20 or later. One module, no dependencies.
 *
 *     import { Client } from "./topics.js";
 *     const orders = new Client("http://127.0.0.1:4000").topic("orders");
 *     await orders.write({ total: 12 });
 *     for await (const record of orders.follow({ fromSeq: 0 })) console.log(record.seq, record.data);
 *
 * What it guarantees:
 * - Loss is never skipped. Where records were lost before they were read, an iterator throws RecordsLost; with
 *   `onLoss: "yield"` it yields a Tombstone instead.
 * - A write is retried only in a way that cannot write twice: every write has an idempotency key or a producer seq.
 * - `follow` continues after the last record that the caller took, through lost connections and restarts of the server.
 * - Everything that waits has a limit, and ends at once when its `signal` is aborted.
 */

const RETRIED = new Set([408, 429, 502, 503, 504]);
const BACKOFF_MS = 100;
const BACKOFF_MAX_MS = 5_000;
const HEARTBEAT_MS = 5_000;
const OPEN_MS = 10_000;
const START_OPTIONS = ["fromSeq", "fromTs", "tail", "match"];
const FOLLOW_OPTIONS = "onLoss node includeData consistency signal onCaughtUp onDeleted heartbeatMs".split(" ");
const WRITE_OPTIONS = ["idempotencyKey", "producer", "expectedHeadSeq", "config", "create", "signal", "timeoutMs"];
const RECORD_FIELDS = ["data", "tag", "node", "meta", "delay_ms", "deliver_at"];

/** A request that the server refused, or that could not be made. `code` is the API's, such as "topic_not_found". */
export class TopicsError extends Error {
  constructor(message, { status = 0, code = "unreachable", detail = null, retryAfterMs = null, cause } = {}) {
    super(message, { cause });
    this.name = "TopicsError";
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Records were lost before they were read: `gapFrom` to `gapTo`, both included. Read on with `fromSeq: nextFromSeq`. */
export class RecordsLost extends TopicsError {
  constructor(tombstone) {
    const { topic, gapFrom, gapTo, reason, nextFromSeq } = tombstone;
    super(`${topic}: records ${gapFrom} to ${gapTo} were lost (${reason})`, { code: "records_lost", detail: tombstone });
    this.name = "RecordsLost";
    this.topic = topic;
    this.gapFrom = gapFrom;
    this.gapTo = gapTo;
    this.reason = reason;
    this.nextFromSeq = nextFromSeq;
  }
}

/** One record of a topic. */
export class Record {
  constructor(topic, wire) {
    this.topic = topic;
    this.seq = wire.$seq;
    this.ts = wire.$ts;
    this.data = wire.data;
    this.tag = wire.$tag ?? null;
    this.node = wire.$node ?? null;
    this.meta = wire.meta ?? {};
  }
}

/** A range of seqs that was lost before it was read. */
export class Tombstone {
  constructor(topic, wire) {
    this.topic = topic;
    this.gapFrom = wire.gap_from;
    this.gapTo = wire.gap_to;
    this.reason = wire.reason;
    this.headSeq = wire.head_seq;
    // A topic that was deleted and created anew counts from 1 again: the gap is one of the old topic.
    this.nextFromSeq = wire.reason === "recreated" ? wire.earliest_seq - 1 : wire.gap_to;
  }
}

/** A job that a worker holds until `deadline`. */
export class Job {
  constructor(queue, wire) {
    this.queue = queue;
    this.seq = wire.$seq;
    this.ts = wire.$ts;
    this.data = wire.data;
    this.tag = wire.$tag ?? null;
    this.meta = wire.meta ?? {};
    this.leaseId = wire.lease_id;
    this.deadline = wire.deadline;
    this.deliveries = wire.deliveries;
  }
}

/** A connection to one server. It holds no socket of its own while nothing is asked. */
export class Client {
  /** `options`: `token`, `timeoutMs` (for a request with all its retries), `node`, `fetch`, `parse` (of JSON), `onRetry(error, waitMs)`. */
  constructor(url = defaultUrl(), options = {}) {
    check("new Client()", options, ["token", "timeoutMs", "node", "fetch", "parse", "onRetry"]);
    this.url = address(url);
    this.token = options.token ?? null;
    this.timeoutMs = options.timeoutMs ?? 30_000;
    this.node = options.node ?? null;
    this.onRetry = options.onRetry ?? (() => {});
    this._parse = options.parse ?? JSON.parse;
    this._fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** The topic of this name; nothing is sent. */
  topic(name) {
    return new Topic(this, name);
  }

  /** The queue of this name; nothing is sent. */
  queue(name) {
    return new Queue(this, name);
  }

  /** Every topic, by name: what `GET /v0/topics` lists. */
  async *topics({ prefix = "", signal } = {}) {
    yield* this._pages("/v0/topics", "topics", { prefix }, signal);
  }

  /** Every router, by name. */
  async *routers({ prefix = "", source, dest, signal } = {}) {
    yield* this._pages("/v0/routers", "routers", { prefix, source, dest }, signal);
  }

  /** Copy what is appended to `source` to `dest` from now on; the other fields are those of the API. */
  putRouter(name, { source, dest, ...fields }, { signal } = {}) {
    return this.request("PUT", `/v0/routers/${encodeURIComponent(name)}`, { source, dest, ...fields }, { signal });
  }

  deleteRouter(name, { signal } = {}) {
    return this.request("DELETE", `/v0/routers/${encodeURIComponent(name)}`, undefined, { signal });
  }

  /** The records of several topics as they come: `{ orders: { fromSeq: 0 }, audit: { tail: true } }`. */
  follow(topics, options = {}) {
    check("follow()", options, FOLLOW_OPTIONS);
    for (const start of Object.values(topics)) check("a topic of follow()", start, START_OPTIONS);
    return follow(this, topics, options);
  }

  /** A WebSocket to publish and subscribe; it connects by itself, and again where the connection is lost. */
  socket(options = {}) {
    return new Socket(this, options);
  }

  /** A worker that runs `handler(job, { signal })` for the jobs of a queue. */
  worker(queue, handler, options = {}) {
    return new Worker(this, queue, handler, options);
  }

  /** The metrics as an object. */
  metrics({ signal } = {}) {
    return this.request("GET", "/v0/metrics", undefined, { signal });
  }

  /** Whether the server is there and ready. */
  async ready({ signal } = {}) {
    try {
      await this.request("GET", "/v0/ready", undefined, { signal, retry: false, timeoutMs: 2_000 });
      return true;
    } catch (error) {
      if (signal?.aborted) throw error;
      return false;
    }
  }

  /** One request, repeated while the server is away or busy and the time allows; returns the body of the answer. */
  async request(method, path, body, { signal, timeoutMs = this.timeoutMs, retry = true, headers = {} } = {}) {
    const ends = now() + timeoutMs;
    for (let attempt = 0; ; attempt++) {
      let failure;
      try {
        const response = await this.open(method, path, body, { signal, timeoutMs: ends - now(), headers });
        return this._parse(await response.text());
      } catch (error) {
        failure = asError(error, signal);
      }
      const waitMs = Math.max(backoff(attempt), failure.retryAfterMs ?? 0);
      if (!retry || !temporary(failure) || now() + waitMs >= ends) throw failure;
      this.onRetry(failure, waitMs);
      await sleep(waitMs, signal);
    }
  }

  /** Send one request and return the Response where it succeeded; `timeoutMs` covers the body too, 0 means none. */
  async open(method, path, body, { signal, timeoutMs = 0, headers = {} } = {}) {
    const sent = { Accept: "application/json", ...headers };
    if (body !== undefined) sent["Content-Type"] = "application/json";
    if (this.token !== null) sent.Authorization = `Bearer ${this.token}`;
    const limits = [signal, timeoutMs > 0 ? AbortSignal.timeout(Math.ceil(timeoutMs)) : null].filter(Boolean);
    const response = await this._fetch(this.url + path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      signal: limits.length ? AbortSignal.any(limits) : undefined,
      cache: "no-store",
      credentials: "omit",
    });
    if (!response.ok) throw await refusal(response);
    return response;
  }

  async *_pages(path, field, query, signal) {
    const parameters = new URLSearchParams({ page_size: "1000" });
    for (const [name, value] of Object.entries(query)) if (value) parameters.set(name, value);
    for (;;) {
      const page = await this.request("GET", `${path}?${parameters}`, undefined, { signal });
      yield* page[field];
      if (!page.next_cursor) return;
      parameters.set("cursor", page.next_cursor);
    }
  }
}

/** One topic of a server. */
export class Topic {
  constructor(client, name) {
    this.client = client;
    this.name = name;
    this.path = `/v0/topics/${encodeURIComponent(name)}`;
  }

  /** Append one record; returns its seq. `options`: `tag`, `node`, `meta`, and those of `writeMany`. */
  async write(data, { tag, node, meta, delayMs, deliverAt, ...options } = {}) {
    check("write()", options, WRITE_OPTIONS, ["tag", "node", "meta", "delayMs", "deliverAt"]);
    const record = { data, tag, node, meta, delay_ms: delayMs, deliver_at: deliverAt };
    return (await this.writeMany([record], options)).lastSeq;
  }

  /**
   * Append records (objects with `data` and perhaps `tag`, `node`, `meta`) in one atomic write.
   *
   * Without `idempotencyKey` and `producer`, a key is made up, so that a retry writes nothing twice.
   */
  async writeMany(records, options = {}) {
    check("writeMany()", options, WRITE_OPTIONS);
    for (const record of records) check("a record of writeMany()", record, RECORD_FIELDS);
    const { idempotencyKey, producer, expectedHeadSeq, config, create, signal, timeoutMs } = options;
    const body = {
      records,
      node: this.client.node ?? undefined,
      expected_head_seq: expectedHeadSeq,
      config,
      create,
      producer_id: producer?.id,
      producer_seq: producer?.seq,
      idempotency_key: idempotencyKey ?? (producer ? undefined : unique()),
    };
    const answer = await this.client.request("POST", `${this.path}?return_seqs=false`, body, { signal, timeoutMs });
    return {
      firstSeq: answer.first_seq,
      lastSeq: answer.last_seq,
      count: answer.count,
      created: answer.created,
      deduped: answer.deduped,
      unknownFields: answer.unknown_fields ?? [],
    };
  }

  /** The records from `fromSeq` (exclusive) or `fromTs` to the head as it is when the iterator gets there. */
  read(options = {}) {
    check("read()", options, ["fromSeq", "fromTs", "match", "node", "limit", "onLoss", "signal"]);
    checkLoss(options.onLoss);
    return this._read(options);
  }

  async *_read({ fromSeq = 0, fromTs, match, node, limit = 1_000, onLoss = "throw", signal }) {
    const body = { from_seq: fromSeq, from_ts: fromTs, limit, match, node, include_tags: true };
    for (;;) {
      const page = await this.client.request("POST", `${this.path}/diff`, body, { signal });
      if (page.tombstone) yield lost(new Tombstone(this.name, page.tombstone), onLoss);
      for (const wire of page.records) yield new Record(this.name, wire);
      if (page.caught_up) return;
      body.from_seq = page.next_from_seq;
      body.from_ts = undefined;
    }
  }

  /** The records after `fromSeq`, then every new one as it comes; `tail: true` begins with the next new one. */
  follow({ fromSeq, fromTs, tail, match, ...options } = {}) {
    check("follow()", options, FOLLOW_OPTIONS, START_OPTIONS);
    return follow(this.client, { [this.name]: { fromSeq, fromTs, tail, match } }, options);
  }

  /**
   * Delete records for good: those below `beforeSeq`, those that `match`, or those that are both; returns how many.
   * With `dryRun` those that match are counted, and nothing is deleted.
   */
  async delete({ beforeSeq, match, dryRun, signal } = {}) {
    const body = { before_seq: beforeSeq, match, dry_run: dryRun };
    return (await this.client.request("POST", `${this.path}/delete`, body, { signal })).deleted;
  }

  /** Head, counts and config, as the API names them; null where there is no such topic. */
  async state({ signal } = {}) {
    try {
      return await this.client.request("GET", `${this.path}?touch=false`, undefined, { signal });
    } catch (error) {
      if (error.code === "topic_not_found") return null;
      throw error;
    }
  }

  /** Create the topic, or change the fields of its config that are named, as in `{ ttl_ms: 86400000 }`. */
  configure(config = {}, { signal } = {}) {
    return this.client.request("PUT", this.path, config, { signal });
  }

  /** Delete the topic with everything in it. */
  drop({ ifEmpty = false, signal } = {}) {
    return this.client.request("DELETE", this.path + (ifEmpty ? "?if_empty=true" : ""), undefined, { signal });
  }
}

/** A topic whose records are jobs. */
export class Queue extends Topic {
  /** Create the queue, or change its config. */
  configure(config = {}, options = {}) {
    return super.configure({ type: "queue", ...config }, options);
  }

  /** Lease up to `max` jobs; waits up to `waitMs` for the first. */
  async claim(options = {}) {
    check("claim()", options, ["node", "max", "leaseMs", "waitMs", "signal"]);
    const { node = this.client.node ?? "js", max = 1, leaseMs, waitMs = 0, signal } = options;
    const body = { node, max, lease_ms: leaseMs, wait_ms: waitMs };
    const timeoutMs = this.client.timeoutMs + waitMs;
    const answer = await this.client.request("POST", `${this.path}/claim`, body, { signal, timeoutMs });
    return answer.claimed.map((wire) => new Job(this.name, wire));
  }

  /** Complete jobs; returns the answer with `acked` and `skipped`. */
  ack(jobs, options = {}) {
    return this._leased("ack", jobs, options);
  }

  /** Return jobs, to be delivered again after `delayMs`; `reason` is kept with them. */
  nack(jobs, { delayMs, reason, ...options } = {}) {
    return this._leased("nack", jobs, { ...options, fields: { delay_ms: delayMs, reason } });
  }

  /** Keep jobs for another `leaseMs`. */
  extend(jobs, { leaseMs, ...options } = {}) {
    return this._leased("extend", jobs, { ...options, fields: { lease_ms: leaseMs } });
  }

  /** Turn dead letters into jobs again: all, or those of `seqs` or `match`, at most `limit`. */
  redrive({ seqs, match, limit, dryRun, signal } = {}) {
    return this.client.request("POST", `${this.path}/redrive`, { seqs, match, limit, dry_run: dryRun }, { signal });
  }

  _leased(action, jobs, { node = this.client.node ?? "js", fields = {}, signal } = {}) {
    const all = Array.isArray(jobs) ? jobs : [jobs];
    const body = { node, seqs: all.map((job) => job.seq), lease_ids: all.map((job) => job.leaseId), ...fields };
    return this.client.request("POST", `${this.path}/${action}`, body, { signal });
  }
}

/** The one way in which records are followed: a watch session, read as server-sent events over fetch. */
function follow(client, topics, options) {
  checkLoss(options.onLoss);
  return followed(client, topics, options);
}

async function* followed(client, topics, options) {
  const { onLoss = "throw", node, includeData, consistency, signal, onCaughtUp, onDeleted } = options;
  const heartbeatMs = options.heartbeatMs ?? HEARTBEAT_MS;
  const starts = {};
  for (const [name, { fromSeq, fromTs, tail, match }] of Object.entries(topics)) {
    starts[name] = { from_seq: tail ? undefined : fromTs === undefined ? (fromSeq ?? 0) : undefined, from_ts: fromTs, tail, match };
  }
  let cursor = null;
  let session = null;
  for (let attempt = 0; ; attempt++) {
    try {
      if (session === null) {
        const fixed = { node, include_data: includeData, consistency, heartbeat_ms: heartbeatMs, include_tags: true };
        const body = { topics: starts, cursor: cursor ?? undefined, ...fixed };
        const created = await client.request("POST", "/v0/watch", body, { signal, retry: false });
        session = created.stream_url;
        // Where it began is fixed now: a connection that is lost before the first event must not move it.
        for (const [name, at] of Object.entries(created.topics)) {
          if (starts[name]) starts[name] = { from_seq: at.from_seq, match: starts[name].match };
        }
      }
      for await (const event of events(client, session, cursor, heartbeatMs, signal)) {
        attempt = 0;
        const body = event.data === "" ? {} : client._parse(event.data);
        if (event.type === "record") {
          for (const wire of body.records) yield new Record(body.topic, wire);
        } else if (event.type === "tombstone") {
          yield lost(new Tombstone(body.topic, body), onLoss);
        } else if (event.type === "caught-up") {
          onCaughtUp?.(body.topic, body.head_seq);
        } else if (event.type === "topic-deleted") {
          onDeleted?.(body.topic);
          delete starts[body.topic];
          if (Object.keys(starts).length === 0) {
            throw new TopicsError(`topic "${body.topic}" was deleted`, { status: 404, code: "topic_not_found" });
          }
        } else if (event.type === "error" && body.code !== 429) {
          const failure = new TopicsError(body.message ?? "the stream ended", { status: body.code, code: "stream_ended" });
          if (body.code === 401 || body.code === 403) throw failure;
          break;
        }
        if (event.id) cursor = event.id;
      }
    } catch (error) {
      const failure = asError(error, signal);
      if (failure.status === 404 && failure.code === "not_found" && session !== null) session = null;
      else if (!temporary(failure)) throw failure;
      client.onRetry(failure, backoff(attempt));
    }
    await sleep(backoff(attempt), signal);
  }
}

/** The events of one stream until it ends; silence of three heartbeats counts as a lost connection. */
async function* events(client, path, cursor, heartbeatMs, signal) {
  const silence = new AbortController();
  const limits = signal ? AbortSignal.any([signal, silence.signal]) : silence.signal;
  const lostAfterMs = 3 * heartbeatMs;
  // A server begins to answer at once. A connection that was kept open may be dead by now, and so may the next.
  let watchdog = setTimeout(() => silence.abort(), Math.min(lostAfterMs, OPEN_MS));
  try {
    const headers = { Accept: "text/event-stream", ...(cursor ? { "Last-Event-ID": cursor } : {}) };
    const response = await client.open("GET", path, undefined, { signal: limits, headers });
    const parser = new EventParser();
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        yield* parser.feed(decoder.decode(value, { stream: true }));
        watchdog = setTimeout(() => silence.abort(), lostAfterMs);
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  } catch (error) {
    if (silence.signal.aborted && !signal?.aborted) {
      throw new TopicsError("nothing has come for too long", { code: "unreachable", cause: error });
    }
    throw error;
  } finally {
    clearTimeout(watchdog);
    silence.abort();
  }
}

/** Parses server-sent events from text that arrives in pieces. */
export class EventParser {
  constructor() {
    this._rest = "";
    this._clear();
  }

  /** The events that are complete with this piece. */
  feed(text) {
    const found = [];
    const lines = (this._rest + text).split(/\r\n|\n|\r(?!$)/);
    this._rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this._seen) found.push({ type: this._type, id: this._id, data: this._data.join("\n") });
        this._clear();
      } else if (!line.startsWith(":")) {
        const colon = line.indexOf(":");
        const name = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
        if (name === "event") this._type = value;
        else if (name === "id") this._id = value;
        else if (name === "data") this._data.push(value);
        if (name === "event" || name === "data") this._seen = true;
      }
    }
    return found;
  }

  _clear() {
    this._type = "message";
    this._id = "";
    this._data = [];
    this._seen = false;
  }
}

/**
 * Runs a handler for the jobs of a queue, some at a time.
 *
 * A lease is extended while its handler runs. A handler that throws returns its job, which comes again after a pause
 * that doubles with each delivery. Delivery is at least once: make handlers idempotent.
 */
export class Worker {
  /** `options`: `concurrency`, `leaseMs`, `node`, `backoffMs`, `backoffMaxMs`, `waitMs`, `onError(error, job)`. */
  constructor(client, queue, handler, options = {}) {
    const times = ["leaseMs", "backoffMs", "backoffMaxMs", "waitMs"];
    check("worker()", options, ["concurrency", "node", "onError"], times);
    if (typeof handler !== "function") throw new TypeError("a worker needs a handler, a function of a job");
    this.queue = client.queue(queue);
    this.handler = handler;
    this.concurrency = options.concurrency ?? 1;
    this.leaseMs = options.leaseMs ?? 30_000;
    this.node = options.node ?? client.node ?? `js-${unique()}`;
    this.backoffMs = options.backoffMs ?? 1_000;
    this.backoffMaxMs = options.backoffMaxMs ?? 300_000;
    this.waitMs = options.waitMs ?? 2_000;
    this.onError = options.onError ?? (() => {});
    this.done = 0;
    this.failed = 0;
    this._held = new Map();
    this._stopping = false;
    this._stopped = null;
  }

  /** Work until `stop` is called; throws where the queue cannot be used at all. */
  async run() {
    this._stopped = this._loop();
    return this._stopped;
  }

  /** Claim no more, and wait for what runs; what still runs after `graceMs` is returned to the queue. */
  async stop({ graceMs = 30_000 } = {}) {
    this._stopping = true;
    const grace = setTimeout(() => {
      for (const held of this._held.values()) held.abort.abort();
    }, graceMs);
    try {
      await this._stopped;
    } finally {
      clearTimeout(grace);
    }
  }

  async _loop() {
    for (let attempt = 0; !this._stopping; ) {
      const room = this.concurrency - this._held.size;
      if (room === 0) {
        await Promise.race([...this._held.values()].map((held) => held.ended));
        continue;
      }
      let jobs;
      try {
        // Not aborted by `stop`: an answer that is on its way would leave its jobs leased to nobody.
        const waitMs = this._held.size ? Math.min(this.waitMs, 250) : this.waitMs;
        jobs = await this.queue.claim({ node: this.node, max: room, leaseMs: this.leaseMs, waitMs });
        attempt = 0;
      } catch (error) {
        if (!temporary(error)) {
          this._stopping = true;
          await this._ended();
          throw error;
        }
        this.onError(error, null);
        await sleep(backoff(attempt++));
        continue;
      }
      if (this._stopping && jobs.length) await this.queue.nack(jobs, { node: this.node }).catch(() => {});
      else for (const job of jobs) this._begin(job);
    }
    await this._ended();
  }

  async _ended() {
    while (this._held.size) await Promise.race([...this._held.values()].map((held) => held.ended));
  }

  _begin(job) {
    const abort = new AbortController();
    const held = { abort, ended: null };
    this._held.set(job.leaseId, held);
    held.ended = this._handle(job, abort).finally(() => this._held.delete(job.leaseId));
  }

  async _handle(job, abort) {
    const beat = setInterval(() => this._extend(job, abort), this.leaseMs / 3);
    const aborted = new Promise((_, reject) => {
      abort.signal.addEventListener("abort", () => reject(new Error("the worker stopped or lost its lease")));
    });
    try {
      await Promise.race([Promise.resolve().then(() => this.handler(job, { signal: abort.signal })), aborted]);
      await this._ack(job);
    } catch (error) {
      this.failed++;
      this.onError(error, job);
      await this._return(job, error, abort.signal.aborted);
    } finally {
      clearInterval(beat);
      aborted.catch(() => {});
    }
  }

  async _ack(job) {
    try {
      await this.queue.ack(job, { node: this.node });
      this.done++;
    } catch (failure) {
      // The job is done, and has not failed: it comes again when its lease runs out.
      this.onError(failure, job);
    }
  }

  async _return(job, error, stopped) {
    const doubled = Math.min(this.backoffMaxMs, this.backoffMs * 2 ** (job.deliveries - 1));
    const delayMs = stopped ? 0 : Math.round(doubled * (0.5 + Math.random() / 2));
    const reason = String(error?.message ?? error).slice(0, 1_000);
    try {
      await this.queue.nack(job, { node: this.node, delayMs, reason });
    } catch (failure) {
      // The lease runs out by itself.
      this.onError(failure, job);
    }
  }

  async _extend(job, abort) {
    try {
      const answer = await this.queue.extend(job, { node: this.node, leaseMs: this.leaseMs });
      if (answer.skipped?.length) abort.abort();
    } catch (error) {
      this.onError(error, job);
    }
  }
}

/**
 * A WebSocket that publishes and subscribes.
 *
 * Where the connection is lost it connects again, subscribes to what is followed after the last record that was
 * received, and sends again what was not acknowledged; publishes have keys, so nothing is written twice.
 */
export class Socket {
  constructor(client, { connectTimeoutMs = 10_000 } = {}) {
    this.client = client;
    this._connectTimeoutMs = connectTimeoutMs;
    this._waiting = new Map();
    this._feeds = new Map();
    this._link = null;
    this._connecting = null;
    this._closed = false;
    this._next = 1;
  }

  /** Append records to a topic; returns what the server acknowledged, as `Topic.writeMany` does. */
  async publish(topic, records, options = {}) {
    check("publish()", options, ["expectedHeadSeq", "config", "create", "idempotencyKey", "timeoutMs"]);
    for (const record of records) check("a record of publish()", record, RECORD_FIELDS);
    const { expectedHeadSeq, config, create, idempotencyKey = unique(), timeoutMs } = options;
    const fields = { expected_head_seq: expectedHeadSeq, config, create, idempotency_key: idempotencyKey };
    const node = this.client.node ?? undefined;
    const message = { op: "publish", topic, records, node, return_seqs: false, ...fields };
    const answer = await this._ask(message, { timeoutMs, again: true });
    return { firstSeq: answer.first_seq, lastSeq: answer.last_seq, count: answer.count, deduped: answer.deduped };
  }

  /** The records of a topic as they come, like `Topic.follow`; a topic can be subscribed to once. */
  subscribe(topic, options = {}) {
    check("subscribe()", options, START_OPTIONS, ["onLoss", "signal"]);
    checkLoss(options.onLoss);
    return this._subscribed(topic, options);
  }

  async *_subscribed(topic, { fromSeq, fromTs, tail, match, onLoss = "throw", signal }) {
    if (this._feeds.has(topic)) throw new TopicsError(`"${topic}" is subscribed to already`, { code: "conflict" });
    const start = { from_seq: tail || fromTs !== undefined ? undefined : (fromSeq ?? 0), from_ts: fromTs, tail, match };
    const feed = new Feed(topic, start);
    this._feeds.set(topic, feed);
    const abort = () => feed.end(signal.reason);
    signal?.addEventListener("abort", abort);
    try {
      signal?.throwIfAborted();
      // A new connection subscribes to everything that is followed, this one included.
      if (this._link) this._begin(feed);
      else await this._connect();
      for (;;) {
        const item = await feed.take();
        yield item instanceof Tombstone ? lost(item, onLoss) : item;
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      this._feeds.delete(topic);
      if (this._link && !this._closed) this._ask({ op: "unsubscribe", topic }).catch(() => {});
    }
  }

  /** End the connection; what waits for an answer fails. */
  close() {
    this._closed = true;
    this._link?.close();
    this._link = null;
    this._fail(new TopicsError("the socket was closed", { code: "closed" }));
  }

  /** Send a message and wait for its answer; `again` sends it once more where the connection is lost. */
  async _ask(message, { timeoutMs = this.client.timeoutMs, again = false } = {}) {
    const request_id = String(this._next++);
    const text = JSON.stringify({ ...message, request_id });
    let timer;
    const answer = new Promise((resolve, reject) => {
      this._waiting.set(request_id, { text, again, resolve, reject });
      const late = () => reject(new TopicsError(`no answer within ${timeoutMs} ms`, { code: "timeout" }));
      timer = setTimeout(late, timeoutMs);
    });
    try {
      // A new connection sends everything that waits, this one included.
      if (this._link) this._link.send(text);
      else await Promise.race([this._connect(), answer]);
      return await answer;
    } finally {
      clearTimeout(timer);
      this._waiting.delete(request_id);
    }
  }

  _connect() {
    if (this._closed) throw new TopicsError("the socket was closed", { code: "closed" });
    if (this._link) return Promise.resolve();
    this._connecting ??= this._dial().finally(() => (this._connecting = null));
    return this._connecting;
  }

  async _dial() {
    for (let attempt = 0; !this._closed; attempt++) {
      try {
        const link = await openLink(this.client, this._connectTimeoutMs, (text) => this._receive(text), () => this._lost());
        if (this._closed) return link.close();
        this._link = link;
        for (const { text } of this._waiting.values()) link.send(text);
        for (const feed of this._feeds.values()) this._begin(feed);
        return;
      } catch (error) {
        const failure = asError(error);
        if (!temporary(failure)) {
          this._fail(failure);
          throw failure;
        }
        this.client.onRetry(failure, backoff(attempt));
        await sleep(backoff(attempt));
      }
    }
  }

  _lost() {
    this._link = null;
    if (this._closed) return;
    const gone = new TopicsError("the connection was lost", { code: "unreachable" });
    for (const { again, reject } of this._waiting.values()) if (!again) reject(gone);
    if (this._waiting.size || this._feeds.size) this._connect().catch(() => {});
  }

  /** Subscribe on the connection of now; the next one does it again by itself. */
  _begin(feed) {
    this._ask({ op: "subscribe", topic: feed.topic, include_tags: true, ...feed.start }).then(
      (answer) => feed.begun(answer.topics?.[feed.topic]?.from_seq),
      (error) => temporary(error) || feed.end(error),
    );
  }

  _receive(text) {
    const message = this.client._parse(text);
    const waiting = this._waiting.get(message.request_id);
    if (waiting && message.op === "error") waiting.reject(refused(message.code, message));
    else if (waiting) waiting.resolve(message);
    else if (this._feeds.has(message.topic)) this._feeds.get(message.topic).add(message);
  }

  _fail(error) {
    for (const { reject } of this._waiting.values()) reject(error);
    for (const feed of this._feeds.values()) feed.end(error);
  }
}

/** What a subscription has received and its iterator has not taken yet. */
class Feed {
  constructor(topic, start) {
    this.topic = topic;
    this.start = start;
    this._items = [];
    this._taken = 0;
    this._error = null;
    this._wake = () => {};
  }

  add(message) {
    if (message.op === "record") {
      for (const wire of message.records) this._items.push(new Record(this.topic, wire));
      this._goOnAfter(message.to_seq);
    } else if (message.op === "tombstone") {
      const tombstone = new Tombstone(this.topic, message);
      this._items.push(tombstone);
      this._goOnAfter(tombstone.nextFromSeq);
    } else if (message.op === "topic_deleted") {
      this._error = new TopicsError(`topic "${this.topic}" was deleted`, { status: 404, code: "topic_not_found" });
    }
    this._wake();
  }

  /** Where it began is fixed now: a connection that is lost before the first record must not move it. */
  begun(fromSeq) {
    if (fromSeq !== undefined && this.start.from_seq === undefined) this._goOnAfter(fromSeq);
  }

  end(error) {
    this._error ??= error;
    this._wake();
  }

  async take() {
    while (this._taken === this._items.length) {
      if (this._error) throw this._error;
      this._items = [];
      this._taken = 0;
      await new Promise((resolve) => (this._wake = resolve));
    }
    return this._items[this._taken++];
  }

  _goOnAfter(seq) {
    this.start = { from_seq: seq, match: this.start.match };
  }
}

/** An open WebSocket: the browser's or Node's own where there is one, else a small one over Node's http. */
async function openLink(client, timeoutMs, onText, onLost) {
  const url = `${client.url.replace(/^http/, "ws")}/v0/ws`;
  if (typeof process === "object" && process.versions?.node) {
    return openNodeLink(client.url + "/v0/ws", client.token, timeoutMs, onText, onLost);
  }
  const protocols = client.token === null ? [] : ["topics", `topics.bearer.${base64url(client.token)}`];
  const socket = new WebSocket(url, protocols);
  await new Promise((resolve, reject) => {
    const fail = (why) => reject(new TopicsError(`${url}: ${why}`, { code: "unreachable" }));
    const timer = setTimeout(() => fail(`no connection within ${timeoutMs} ms`), timeoutMs);
    socket.onopen = () => (clearTimeout(timer), resolve());
    socket.onerror = socket.onclose = () => (clearTimeout(timer), fail("the WebSocket could not be opened"));
  });
  socket.onmessage = (event) => onText(event.data);
  socket.onclose = onLost;
  return { send: (text) => socket.send(text), close: () => socket.close() };
}

/** A WebSocket client over Node's http module: text messages, pings, close; what `/v0/ws` needs and nothing more. */
async function openNodeLink(url, token, timeoutMs, onText, onLost) {
  const { randomBytes } = await import("node:crypto");
  const { request } = await import(url.startsWith("https:") ? "node:https" : "node:http");
  const headers = {
    Connection: "Upgrade",
    Upgrade: "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": randomBytes(16).toString("base64"),
    ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
  };
  const [stream, first] = await new Promise((resolve, reject) => {
    const handshake = request(url, { headers, timeout: timeoutMs });
    handshake.on("upgrade", (_, stream, first) => resolve([stream, first]));
    handshake.on("timeout", () => handshake.destroy(new Error(`no connection within ${timeoutMs} ms`)));
    handshake.on("error", reject);
    handshake.on("response", (response) => {
      const pieces = [];
      response.on("data", (piece) => pieces.push(piece));
      response.on("end", () => reject(refused(response.statusCode, parsed(Buffer.concat(pieces).toString()).error)));
    });
    handshake.end();
  });
  stream.setTimeout(0);
  stream.setNoDelay(true);
  const send = (opcode, payload) => {
    if (!stream.destroyed) stream.write(maskedFrame(opcode, payload, randomBytes(4)));
  };
  const frames = new FrameParser((opcode, payload) => {
    if (opcode === 1) onText(payload.toString());
    else if (opcode === 8) stream.end();
    else if (opcode === 9) send(10, payload);
  });
  stream.on("data", (piece) => frames.feed(piece));
  stream.on("error", () => {});
  stream.on("close", onLost);
  frames.feed(first);
  return {
    send: (text) => send(1, Buffer.from(text)),
    close: () => {
      send(8, Buffer.alloc(0));
      stream.end();
    },
  };
}

function maskedFrame(opcode, payload, mask) {
  const size = payload.length;
  const head = size < 126 ? Buffer.alloc(2) : size < 65_536 ? Buffer.alloc(4) : Buffer.alloc(10);
  head[0] = 0x80 | opcode;
  head[1] = 0x80 | (size < 126 ? size : size < 65_536 ? 126 : 127);
  if (head.length === 4) head.writeUInt16BE(size, 2);
  else if (head.length === 10) head.writeBigUInt64BE(BigInt(size), 2);
  const masked = Buffer.alloc(size);
  for (let i = 0; i < size; i++) masked[i] = payload[i] ^ mask[i & 3];
  return Buffer.concat([head, mask, masked]);
}

/** Takes frames of a server apart; a message in several frames is put together. */
class FrameParser {
  constructor(onMessage) {
    this._onMessage = onMessage;
    this._rest = Buffer.alloc(0);
    this._opcode = 0;
    this._parts = [];
  }

  feed(piece) {
    this._rest = this._rest.length ? Buffer.concat([this._rest, piece]) : piece;
    for (;;) {
      if (this._rest.length < 2) return;
      const short = this._rest[1] & 0x7f;
      const start = short < 126 ? 2 : short === 126 ? 4 : 10;
      if (this._rest.length < start) return;
      const size = short < 126 ? short : short === 126 ? this._rest.readUInt16BE(2) : Number(this._rest.readBigUInt64BE(2));
      if (this._rest.length < start + size) return;
      this._take(this._rest[0], this._rest.subarray(start, start + size));
      this._rest = this._rest.subarray(start + size);
    }
  }

  _take(first, payload) {
    const opcode = first & 0x0f;
    if (opcode >= 8) return this._onMessage(opcode, payload);
    if (opcode) this._opcode = opcode;
    this._parts.push(payload);
    if (first & 0x80) {
      const message = Buffer.concat(this._parts);
      this._parts = [];
      this._onMessage(this._opcode, message);
    }
  }
}

/** Refuse an option that a call does not know: one that is misspelt would do nothing. */
function check(call, options, ...known) {
  for (const name of Object.keys(options)) {
    if (!known.some((names) => names.includes(name))) {
      throw new TypeError(`${call} has no "${name}"; there is ${known.flat().join(", ")}`);
    }
  }
}

function checkLoss(onLoss = "throw") {
  if (onLoss !== "throw" && onLoss !== "yield") throw new TypeError(`onLoss must be "throw" or "yield", not "${onLoss}"`);
}

/** The address of a server without a slash at its end; in a page it may be relative to that. */
function address(url) {
  let parsed = null;
  try {
    parsed = new URL(url, globalThis.location?.href);
  } catch {
    // Reported below.
  }
  if (!/^https?:$/.test(parsed?.protocol)) throw new TypeError(`"${url}" is no address like http://127.0.0.1:4000`);
  return parsed.href.replace(/\/+$/, "");
}

function defaultUrl() {
  return globalThis.location?.origin ?? globalThis.process?.env?.TOPICS_URL ?? "http://127.0.0.1:4000";
}

function now() {
  return performance.now();
}

/** A tombstone as the caller wants it: given on, or thrown. */
function lost(tombstone, onLoss) {
  if (onLoss === "yield") return tombstone;
  throw new RecordsLost(tombstone);
}

/** Whether the same request may succeed a little later. */
function temporary(error) {
  if (!(error instanceof TopicsError)) return false;
  if (error.status === 0) return error.code === "unreachable" || error.code === "timeout";
  return RETRIED.has(error.status) && error.code !== "storage_read_only";
}

/** What went wrong as a TopicsError; an abort by the caller is thrown as it is. */
function asError(error, signal) {
  if (signal?.aborted) throw signal.reason;
  if (error instanceof TopicsError) return error;
  if (error?.name === "TimeoutError") return new TopicsError("no answer in time", { code: "timeout", cause: error });
  if (error instanceof SyntaxError) return new TopicsError("the answer was cut off", { cause: error });
  if (error instanceof TypeError || /^E(?!RR_)/.test(error?.code)) {
    const { cause } = error;
    const reason = cause?.message || cause?.errors?.[0]?.message || cause?.code || error.message;
    return new TopicsError(`the server cannot be reached: ${reason}; is it running?`, { cause: error });
  }
  throw error;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  const seconds = Number(response.headers.get("Retry-After"));
  return refused(response.status, parsed(text).error, seconds > 0 ? seconds * 1000 : null);
}

function refused(status, error, retryAfterMs = null) {
  const detail = error?.detail ?? null;
  const numeric = typeof status === "number" ? status : 0;
  const code = typeof error?.code === "string" ? error.code : typeof status === "string" ? status : "unexpected";
  return new TopicsError(error?.message ?? `the server answered ${status}`, {
    status: numeric || (error?.status ?? 0),
    code,
    detail,
    retryAfterMs: detail?.retry_after_ms ?? retryAfterMs,
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

/** Doubling, with jitter so that clients that lost the same server do not come back together. */
function backoff(attempt) {
  return Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** attempt) * (0.5 + Math.random() / 2);
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, ms);
    function done() {
      signal?.removeEventListener("abort", ended);
      resolve();
    }
    function ended() {
      clearTimeout(timer);
      reject(signal.reason);
    }
    if (signal?.aborted) ended();
    else signal?.addEventListener("abort", ended, { once: true });
  });
}

function unique() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64url(text) {
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
