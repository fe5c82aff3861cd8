/** The server that the tests talk to: its address comes from the test that starts them. */

import net from "node:net";

import { Client } from "../../src/topics/javascript/topics.js";

export const url = process.env.TOPICS_TEST_URL;

let made = 0;

export function client(options = {}) {
  return new Client(url, { timeoutMs: 10_000, ...options });
}

/** A name that no other test uses. */
export function name(prefix) {
  return `${prefix}-${process.pid}-${made++}`;
}

/** The first `count` items of an iterator; it is ended afterwards. */
export async function take(iterator, count) {
  const items = [];
  if (count === 0) return items;
  for await (const item of iterator) {
    items.push(item);
    if (items.length === count) break;
  }
  return items;
}

/** All items of an iterator that ends. */
export async function all(iterator) {
  const items = [];
  for await (const item of iterator) items.push(item);
  return items;
}

/** A way to the server that can be cut, refused, or go silent: what has been connected then hears nothing any more. */
export async function relay(t) {
  const server = new URL(url);
  const open = new Set();
  const path = {
    refuse: false,
    cut: () => open.forEach((near) => near.destroy()),
    silence: () => open.forEach((near) => (near.deaf = true)),
  };
  const listener = net.createServer((near) => {
    if (path.refuse) return near.destroy();
    const far = net.connect(Number(server.port), server.hostname);
    open.add(near);
    near.on("data", (bytes) => far.write(bytes));
    far.on("data", (bytes) => near.deaf || near.write(bytes));
    const end = () => (open.delete(near), near.destroy(), far.destroy());
    for (const side of [near, far]) side.on("error", () => {}).on("close", end);
  });
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  path.url = `http://127.0.0.1:${listener.address().port}`;
  t.after(() => (path.cut(), listener.close()));
  return path;
}
