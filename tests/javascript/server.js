/** The server that the tests talk to: its address comes from the test that starts them. */

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
