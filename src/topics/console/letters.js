/** The dead letters of a queue, as they stand in their topic. */

import { Tombstone } from "/topics.js";

/** Those of the queue `name`, the oldest first, at most `max`; none where the topic does not exist yet. */
export async function lettersOf(handle, name, max, signal) {
  const found = [];
  try {
    for await (const item of handle.read({ onLoss: "yield", signal })) {
      if (!(item instanceof Tombstone) && item.meta.$dead_letter_from === name) found.push(item);
      if (found.length === max) break;
    }
  } catch (error) {
    if (error.code !== "topic_not_found") throw error;
  }
  return found;
}
