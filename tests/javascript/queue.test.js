/** Queues and workers. */

import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { client, name } from "./server.js";

async function queue(config = {}) {
  const made = client().queue(name("jobs"));
  await made.configure(config);
  return made;
}

async function until(condition) {
  const ends = Date.now() + 10_000;
  while (!(await condition())) {
    assert.ok(Date.now() < ends, "not in time");
    await sleep(10);
  }
}

test("a job is claimed, extended, returned, claimed again and completed", async () => {
  const jobs = await queue();
  await jobs.write({ n: 1 });
  const [job] = await jobs.claim();
  assert.deepEqual([job.data, job.deliveries], [{ n: 1 }, 1]);
  assert.equal((await jobs.extend(job, { leaseMs: 60_000 })).extended, 1);
  await jobs.nack(job);
  const [again] = await jobs.claim({ waitMs: 1_000 });
  assert.equal(again.deliveries, 2);
  assert.equal((await jobs.ack(again)).acked, 1);
  assert.deepEqual(await jobs.claim(), []);
});

test("a worker does every job once, some at a time", async () => {
  const jobs = await queue();
  await jobs.writeMany(Array.from({ length: 100 }, (_, i) => ({ data: i })));
  const seen = [];
  let running = 0;
  let most = 0;
  const handler = async (job) => {
    most = Math.max(most, ++running);
    await sleep(1);
    running--;
    seen.push(job.data);
  };
  const worker = client().worker(jobs.name, handler, { concurrency: 8, waitMs: 200 });
  const run = worker.run();
  await until(() => worker.done === 100);
  await worker.stop();
  await run;
  assert.deepEqual(seen.sort((a, b) => a - b), Array.from({ length: 100 }, (_, i) => i));
  assert.ok(most > 1 && most <= 8, `${most} at a time`);
  assert.equal((await jobs.state()).count, 0);
});

test("a job whose handler throws comes again after a pause", async () => {
  const jobs = await queue();
  await jobs.write("x");
  const deliveries = [];
  const errors = [];
  const handler = (job) => {
    deliveries.push(job.deliveries);
    if (job.deliveries < 3) throw new Error("not yet");
  };
  const worker = client().worker(jobs.name, handler, { backoffMs: 10, waitMs: 200, onError: (e) => errors.push(e.message) });
  const run = worker.run();
  await until(() => worker.done === 1);
  await worker.stop();
  await run;
  assert.deepEqual(deliveries, [1, 2, 3]);
  assert.deepEqual(errors, ["not yet", "not yet"]);
});

test("a lease is extended for as long as its handler runs", async () => {
  const jobs = await queue();
  await jobs.write("slow");
  const worker = client().worker(jobs.name, () => sleep(1_200), { leaseMs: 300, waitMs: 200 });
  const run = worker.run();
  await until(() => worker.done === 1);
  await worker.stop();
  await run;
  assert.equal(worker.failed, 0);
});

test("a worker that stops returns what it cannot finish", async () => {
  const jobs = await queue();
  await jobs.write("endless");
  let aborted = false;
  const handler = (_, { signal }) =>
    new Promise(() => signal.addEventListener("abort", () => (aborted = true)));
  const worker = client().worker(jobs.name, handler, { waitMs: 200 });
  const run = worker.run();
  await until(async () => (await jobs.state()).queue.in_flight === 1);
  await worker.stop({ graceMs: 50 });
  await run;
  assert.ok(aborted);
  assert.equal((await jobs.claim()).length, 1);
});

test("a worker of a topic that is no queue says so", async () => {
  const log = client().topic(name("log"));
  await log.configure();
  await assert.rejects(client().worker(log.name, () => {}).run(), { code: "not_a_queue" });
});
