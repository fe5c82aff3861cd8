/**
 * A writer, a follower, a subscriber and a worker that go on while the server is killed and started again.
 *
 * They run until standard input ends; then everything is read to its end, and what each of them saw is printed as JSON.
 */

import { setTimeout as sleep } from "node:timers/promises";

import { client } from "./server.js";

const one = client({ timeoutMs: 60_000, node: "steadfast" });
const topic = one.topic("steadfast");
const jobs = one.queue("steadfast-jobs");
await topic.configure({ durability: "fsync" });
await jobs.configure({ durability: "fsync", lease_ms: 2_000 });

let ending = false;
const written = [];
const published = [];
const followed = [];
const subscribed = [];
const done = [];

async function write() {
  for (let i = 0; !ending; i++) {
    await topic.write(`w${i}`);
    written.push(`w${i}`);
    await jobs.write(i);
    await sleep(2);
  }
}

const socket = one.socket();
async function publish() {
  for (let i = 0; !ending; i++) {
    await socket.publish(topic.name, [{ data: `p${i}` }]);
    published.push(`p${i}`);
    await sleep(2);
  }
}

async function collect(records, into) {
  for await (const record of records) {
    if (record.data === "end") return;
    into.push(record.data);
  }
}

const worker = one.worker(jobs.name, (job) => done.push(job.data), { concurrency: 4, leaseMs: 2_000, waitMs: 500 });
const following = collect(topic.follow(), followed);
const subscribing = collect(socket.subscribe(topic.name), subscribed);
const running = worker.run();
const writing = Promise.all([write(), publish()]);

process.stdin.resume();
await new Promise((resolve) => process.stdin.on("end", resolve));
ending = true;
await writing;
await topic.write("end");
await Promise.all([following, subscribing]);
while ((await jobs.state()).count > 0) await sleep(20);
await worker.stop();
await running;
socket.close();
console.log(JSON.stringify({ written, published, followed, subscribed, done }));
