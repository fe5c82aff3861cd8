/** Types of topics.js, the client of a topics server. */

export type Match = string | ["tag", "Eq" | "Glob", string];
export type OnLoss = "throw" | "yield";

export interface ClientOptions {
  /** The key of a server that asks for one; sent as `Authorization: Bearer`. */
  token?: string | null;
  /** The longest that a request may take, with all its retries. 30000. */
  timeoutMs?: number;
  /** The node of what this client writes and claims. */
  node?: string | null;
  fetch?: typeof globalThis.fetch;
  /** Reads what the server sends; JSON.parse if not given. */
  parse?: (text: string) => any;
  onRetry?: (error: TopicsError, waitMs: number) => void;
}

export interface Signalled {
  signal?: AbortSignal;
}

export class TopicsError extends Error {
  /** The HTTP status, or 0 where there was no answer. */
  readonly status: number;
  /** The code of the API, such as "topic_not_found", or "unreachable", "timeout", "closed". */
  readonly code: string;
  readonly detail: unknown;
  readonly retryAfterMs: number | null;
}

export class RecordsLost extends TopicsError {
  readonly topic: string;
  readonly gapFrom: number;
  readonly gapTo: number;
  readonly reason: string;
}

export class Record<T = unknown> {
  readonly topic: string;
  readonly seq: number;
  readonly ts: number;
  readonly data: T;
  readonly tag: string | null;
  readonly node: string | null;
  readonly meta: { [key: string]: string };
}

export class Tombstone {
  readonly topic: string;
  readonly gapFrom: number;
  readonly gapTo: number;
  readonly reason: string;
  readonly headSeq: number;
}

export class Job<T = unknown> {
  readonly queue: string;
  readonly seq: number;
  readonly ts: number;
  readonly data: T;
  readonly tag: string | null;
  readonly meta: { [key: string]: string };
  readonly leaseId: string;
  readonly deadline: number;
  readonly deliveries: number;
}

export interface NewRecord {
  data: unknown;
  tag?: string;
  node?: string;
  meta?: { [key: string]: string };
  delay_ms?: number;
  deliver_at?: number;
}

export interface WriteOptions extends Signalled {
  idempotencyKey?: string;
  producer?: { id: string; seq: number };
  /** Append only if the head is this one; otherwise the write fails with "head_mismatch". */
  expectedHeadSeq?: number;
  config?: Config;
  create?: boolean;
  timeoutMs?: number;
}

export interface Written {
  firstSeq: number;
  lastSeq: number;
  count: number;
  created: boolean;
  deduped: boolean;
  unknownFields: string[];
}

/** The config of a topic, named as in the API. */
export interface Config {
  type?: "log" | "queue";
  ttl_ms?: number;
  cap_records?: number;
  cap_bytes?: number;
  discard?: "old" | "reject";
  durability?: "ephemeral" | "memory" | "disk" | "fsync";
  [field: string]: unknown;
}

export interface Start {
  fromSeq?: number;
  fromTs?: number;
  tail?: boolean;
  match?: Match;
}

export interface FollowOptions<L extends OnLoss = "throw"> extends Signalled {
  onLoss?: L;
  /** Leave out the records of this node, or of these. */
  node?: string | string[];
  includeData?: boolean;
  consistency?: "eventual" | "strong";
  heartbeatMs?: number;
  onCaughtUp?: (topic: string, headSeq: number) => void;
  onDeleted?: (topic: string) => void;
}

export interface ReadOptions<L extends OnLoss = "throw"> extends Signalled {
  fromSeq?: number;
  fromTs?: number;
  match?: Match;
  node?: string | string[];
  limit?: number;
  onLoss?: L;
}

export type Item<T, L extends OnLoss> = L extends "yield" ? Record<T> | Tombstone : Record<T>;

export class Client {
  constructor(url?: string | URL, options?: ClientOptions);
  readonly url: string;
  topic(name: string): Topic;
  queue(name: string): Queue;
  topics(options?: { prefix?: string } & Signalled): AsyncGenerator<{ topic: string; [field: string]: unknown }>;
  routers(
    options?: { prefix?: string; source?: string; dest?: string } & Signalled,
  ): AsyncGenerator<{ router: string; source: string; dest: string; [field: string]: unknown }>;
  putRouter(
    name: string,
    fields: { source: string; dest: string; [field: string]: unknown },
    options?: Signalled,
  ): Promise<unknown>;
  deleteRouter(name: string, options?: Signalled): Promise<unknown>;
  follow<T = unknown, L extends OnLoss = "throw">(
    topics: { [topic: string]: Start },
    options?: FollowOptions<L>,
  ): AsyncGenerator<Item<T, L>, void>;
  socket(options?: { connectTimeoutMs?: number }): Socket;
  worker<T = unknown>(queue: string, handler: Handler<T>, options?: WorkerOptions): Worker;
  metrics(options?: Signalled): Promise<{ [name: string]: unknown }>;
  ready(options?: Signalled): Promise<boolean>;
  request(
    method: string,
    path: string,
    body?: unknown,
    options?: { timeoutMs?: number; retry?: boolean; headers?: { [name: string]: string } } & Signalled,
  ): Promise<any>;
}

export class Topic {
  readonly name: string;
  write(
    data: unknown,
    options?: Omit<NewRecord, "data" | "delay_ms" | "deliver_at"> & { delayMs?: number; deliverAt?: number } & WriteOptions,
  ): Promise<number>;
  writeMany(records: NewRecord[], options?: WriteOptions): Promise<Written>;
  read<T = unknown, L extends OnLoss = "throw">(options?: ReadOptions<L>): AsyncGenerator<Item<T, L>, void>;
  follow<T = unknown, L extends OnLoss = "throw">(
    options?: Start & FollowOptions<L>,
  ): AsyncGenerator<Item<T, L>, void>;
  delete(options: { beforeSeq?: number; match?: Match; dryRun?: boolean } & Signalled): Promise<number>;
  state(options?: Signalled): Promise<{ head_seq: number; count: number; config: Config; [field: string]: unknown } | null>;
  configure(config?: Config, options?: Signalled): Promise<unknown>;
  drop(options?: { ifEmpty?: boolean } & Signalled): Promise<unknown>;
}

export interface Leased extends Signalled {
  node?: string;
}

export class Queue extends Topic {
  claim<T = unknown>(
    options?: { node?: string; max?: number; leaseMs?: number; waitMs?: number } & Signalled,
  ): Promise<Job<T>[]>;
  ack(jobs: Job | Job[], options?: Leased): Promise<{ acked: number; skipped: number[] }>;
  nack(
    jobs: Job | Job[],
    options?: { delayMs?: number; reason?: string } & Leased,
  ): Promise<{ nacked: number; skipped: number[] }>;
  extend(jobs: Job | Job[], options?: { leaseMs?: number } & Leased): Promise<{ extended: number; skipped: number[] }>;
  redrive(
    options?: { seqs?: number[]; match?: Match; limit?: number; dryRun?: boolean } & Signalled,
  ): Promise<{ redriven: number; seqs: number[] }>;
}

export type Handler<T> = (job: Job<T>, context: { signal: AbortSignal }) => unknown;

export interface WorkerOptions {
  concurrency?: number;
  leaseMs?: number;
  node?: string;
  backoffMs?: number;
  backoffMaxMs?: number;
  waitMs?: number;
  onError?: (error: unknown, job: Job | null) => void;
}

export class Worker {
  readonly done: number;
  readonly failed: number;
  run(): Promise<void>;
  stop(options?: { graceMs?: number }): Promise<void>;
}

export class Socket {
  publish(
    topic: string,
    records: NewRecord[],
    options?: Omit<WriteOptions, "producer" | "signal">,
  ): Promise<{ firstSeq: number; lastSeq: number; count: number; deduped: boolean }>;
  subscribe<T = unknown, L extends OnLoss = "throw">(
    topic: string,
    options?: Start & { onLoss?: L } & Signalled,
  ): AsyncGenerator<Item<T, L>, void>;
  close(): void;
}

export class EventParser {
  feed(text: string): { type: string; id: string; data: string }[];
}
