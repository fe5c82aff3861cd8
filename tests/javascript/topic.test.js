/** Writing, reading and following a topic. */

import assert from "node:assert/strict";
import test from "node:test";

import { EventParser, Record, RecordsLost, Tombstone, TopicsError } from "../../src/topics/javascript/topics.js";
import { all, client, name, take } from "./server.js";

test("a record is read back with everything that was written", async () => {
  const topic = client({ node: "n1" }).topic(name("read"));
  const seq = await topic.write({ total: 12 }, { tag: "paid", meta: { who: "me" } });
  const [record] = await all(topic.read());
  assert.equal(seq, 1);
  assert.ok(record instanceof Record);
  assert.deepEqual(
    [record.topic, record.seq, record.data, record.tag, record.node, record.meta],
    [topic.name, 1, { total: 12 }, "paid", "n1", { who: "me" }],
  );
});

test("what the server sends is read by the parser that the client was given", async () => {
  const asText = (text) => JSON.parse(text.replace(/"data":([0-9]+)/g, '"data":"$1"'));
  const topic = client({ parse: asText }).topic(name("parse"));
  await topic.write(12);
  assert.deepEqual((await all(topic.read())).map((record) => record.data), ["12"]);
  assert.deepEqual((await take(topic.follow({ fromSeq: 0 }), 1)).map((record) => record.data), ["12"]);
});

test("a read goes on to the head, page by page", async () => {
  const topic = client().topic(name("pages"));
  await topic.writeMany(Array.from({ length: 2_500 }, (_, i) => ({ data: i })));
  const records = await all(topic.read({ limit: 700 }));
  assert.deepEqual(records.map((record) => record.data), Array.from({ length: 2_500 }, (_, i) => i));
});

test("a read filters by tag", async () => {
  const topic = client().topic(name("match"));
  await topic.writeMany([{ data: 1, tag: "a.x" }, { data: 2, tag: "b" }, { data: 3, tag: "a.y" }]);
  const records = await all(topic.read({ match: ["tag", "Glob", "a.*"] }));
  assert.deepEqual(records.map((record) => record.data), [1, 3]);
});

test("lost records are thrown, with their range and reason", async () => {
  const topic = client().topic(name("lost"));
  await topic.configure({ cap_records: 2 });
  for (let i = 1; i <= 5; i++) await topic.write(i);
  await assert.rejects(all(topic.read()), (error) => {
    assert.ok(error instanceof RecordsLost);
    assert.deepEqual([error.gapFrom, error.gapTo, error.reason], [1, 3, "cap"]);
    return true;
  });
  const rest = await all(topic.read({ fromSeq: 3 }));
  assert.deepEqual(rest.map((record) => record.data), [4, 5]);
});

test("lost records are yielded where that is asked for", async () => {
  const topic = client().topic(name("yielded"));
  await topic.configure({ cap_records: 1 });
  for (let i = 1; i <= 3; i++) await topic.write(i);
  const [tombstone, record] = await all(topic.read({ onLoss: "yield" }));
  assert.ok(tombstone instanceof Tombstone);
  assert.equal(tombstone.gapTo, 2);
  assert.equal(record.data, 3);
});

test("the same key writes once", async () => {
  const topic = client().topic(name("once"));
  const first = await topic.writeMany([{ data: 1 }], { idempotencyKey: "k" });
  const second = await topic.writeMany([{ data: 1 }], { idempotencyKey: "k" });
  assert.deepEqual([first.deduped, second.deduped, second.lastSeq], [false, true, 1]);
});

test("a conditional append is refused with the code of the API", async () => {
  const topic = client().topic(name("conditional"));
  await topic.write(1);
  await assert.rejects(topic.write(2, { expectedHeadSeq: 0 }), { code: "head_mismatch", status: 409 });
  assert.equal(await topic.write(2, { expectedHeadSeq: 1 }), 2);
});

test("a topic that does not exist has no state, and a read says so", async () => {
  const topic = client().topic(name("missing"));
  assert.equal(await topic.state(), null);
  await assert.rejects(all(topic.read()), { code: "topic_not_found" });
});

test("follow gives the history and then what is new", async () => {
  const topic = client().topic(name("follow"));
  await topic.write("old");
  const following = topic.follow();
  assert.equal((await following.next()).value.data, "old");
  const next = following.next();
  await topic.write("new");
  assert.equal((await next).value.data, "new");
  await following.return();
});

test("follow from the tail leaves the history out", async () => {
  const topic = client().topic(name("tail"));
  await topic.write("old");
  let caughtUp;
  const live = new Promise((resolve) => (caughtUp = resolve));
  const first = take(topic.follow({ tail: true, onCaughtUp: caughtUp }), 1);
  await live;
  await topic.write("new");
  assert.deepEqual((await first).map((record) => record.data), ["new"]);
});

test("follow throws what was lost before it began", async () => {
  const topic = client().topic(name("followlost"));
  await topic.configure({ cap_records: 1 });
  await topic.write(1);
  await topic.write(2);
  await assert.rejects(take(topic.follow(), 1), RecordsLost);
  const [tombstone, record] = await take(topic.follow({ onLoss: "yield" }), 2);
  assert.deepEqual([tombstone.gapFrom, tombstone.gapTo, record.data], [1, 1, 2]);
});

test("several topics are followed by one iterator", async () => {
  const [a, b] = [client().topic(name("a")), client().topic(name("b"))];
  await a.write("a");
  await b.write("b");
  const records = await take(client().follow({ [a.name]: {}, [b.name]: {} }), 2);
  assert.deepEqual(records.map((record) => record.data).sort(), ["a", "b"]);
});

test("follow ends where its topic is deleted", async () => {
  const topic = client().topic(name("deleted"));
  await topic.write(1);
  const following = topic.follow();
  await following.next();
  const refused = assert.rejects(following.next(), { code: "topic_not_found" });
  await topic.drop();
  await refused;
});

test("an aborted follow ends with the reason", async () => {
  const topic = client().topic(name("abort"));
  await topic.write(1);
  const abort = new AbortController();
  const following = topic.follow({ signal: abort.signal });
  await following.next();
  const ended = assert.rejects(following.next(), { message: "enough" });
  abort.abort(new Error("enough"));
  await ended;
});

test("records are deleted by tag, and a topic is dropped", async () => {
  const topic = client().topic(name("delete"));
  await topic.writeMany([{ data: 1, tag: "x" }, { data: 2 }]);
  assert.equal(await topic.delete({ match: "x" }), 1);
  await topic.drop();
  assert.equal(await topic.state(), null);
});

test("topics and routers are listed", async () => {
  const prefix = name("list");
  const one = client();
  await one.topic(`${prefix}.a`).configure();
  await one.putRouter(`${prefix}>r`, { source: `${prefix}.a`, dest: `${prefix}.b` });
  const topics = await all(one.topics({ prefix }));
  const routers = await all(one.routers({ source: `${prefix}.a` }));
  assert.deepEqual(topics.map((topic) => topic.topic), [`${prefix}.a`, `${prefix}.b`]);
  assert.deepEqual(routers.map((router) => router.dest), [`${prefix}.b`]);
  await one.deleteRouter(`${prefix}>r`);
});

test("a server that is not there is said so, within the time given", async () => {
  const { Client } = await import("../../src/topics/javascript/topics.js");
  const nobody = new Client("http://127.0.0.1:9", { timeoutMs: 500 });
  const began = Date.now();
  await assert.rejects(nobody.topic("t").write(1), (error) => {
    assert.ok(error instanceof TopicsError);
    assert.equal(error.code, "unreachable");
    return true;
  });
  assert.ok(Date.now() - began < 3_000);
});

test("events are parsed however their text is split", () => {
  const text = ": hb\r\nretry: 5\n\nid: 7\nevent: record\ndata: {\"a\":\ndata: 1}\n\nevent: x\r\n\r\ndata\n\n";
  const whole = new EventParser().feed(text);
  assert.deepEqual(whole, [
    { type: "record", id: "7", data: '{"a":\n1}' },
    { type: "x", id: "", data: "" },
    { type: "message", id: "", data: "" },
  ]);
  for (let i = 0; i <= text.length; i++) {
    const parser = new EventParser();
    assert.deepEqual([...parser.feed(text.slice(0, i)), ...parser.feed(text.slice(i))], whole, `split at ${i}`);
  }
});
