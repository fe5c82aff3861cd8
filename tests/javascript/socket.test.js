/** Publishing and subscribing over a WebSocket. */

import assert from "node:assert/strict";
import test from "node:test";

import { client, name, take } from "./server.js";

test("what is published is acknowledged and read", async () => {
  const socket = client().socket();
  const topic = client().topic(name("published"));
  const acked = await socket.publish(topic.name, [{ data: 1 }, { data: 2, tag: "t" }]);
  assert.deepEqual([acked.firstSeq, acked.lastSeq], [1, 2]);
  const records = await take(topic.read(), 2);
  assert.deepEqual(records.map((record) => [record.data, record.tag]), [[1, null], [2, "t"]]);
  socket.close();
});

test("a subscription gives the history and then what is new", async () => {
  const socket = client().socket();
  const topic = client().topic(name("subscribed"));
  await topic.write("old");
  const records = socket.subscribe(topic.name);
  assert.equal((await records.next()).value.data, "old");
  const next = records.next();
  await socket.publish(topic.name, [{ data: "new" }]);
  assert.equal((await next).value.data, "new");
  await records.return();
  socket.close();
});

test("large messages cross in both directions", async () => {
  const socket = client().socket();
  const topic = client().topic(name("large"));
  const text = "ä".repeat(200_000);
  await socket.publish(topic.name, [{ data: text }]);
  const [record] = await take(socket.subscribe(topic.name), 1);
  assert.equal(record.data, text);
  socket.close();
});

test("many publishes are on their way at once", async () => {
  const socket = client().socket();
  const topic = name("many");
  const acked = await Promise.all(Array.from({ length: 500 }, (_, i) => socket.publish(topic, [{ data: i }])));
  assert.deepEqual(acked.map((ack) => ack.lastSeq), Array.from({ length: 500 }, (_, i) => i + 1));
  socket.close();
});

test("what is refused is thrown with its code", async () => {
  const socket = client().socket();
  const topic = name("refused");
  await assert.rejects(socket.publish(topic, [{ data: 1 }], { create: false }), { code: "topic_not_found" });
  await assert.rejects(take(socket.subscribe(topic), 1), { code: "topic_not_found" });
  socket.close();
});

test("a closed socket fails what waits for it", async () => {
  const socket = client().socket();
  const topic = client().topic(name("closed"));
  await topic.write(1);
  const records = socket.subscribe(topic.name);
  await records.next();
  const ended = assert.rejects(records.next(), { code: "closed" });
  socket.close();
  await ended;
  await assert.rejects(socket.publish(topic.name, [{ data: 1 }]), { code: "closed" });
});
