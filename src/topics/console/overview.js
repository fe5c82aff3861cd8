/** Overview: the whole server at a glance, and the topics with their rates. */

import { facts, h, place, refresh, show, table, tile } from "./dom.js";
import { ago, bytes, compact, count, duration, plural, rate } from "./format.js";
import { histogram, quantile, sparkline } from "./picture.js";
import { reasonOf } from "./records.js";

const LEVELS = ["calm", "pushes gather for a moment", "commits are shared", "low priority waits", "writes wait or are refused"];
const ORDERS = { rate: "busiest first", name: "by name", records: "most records first", bytes: "largest first" };

export function overview({ pulse }) {
  const tiles = h("div", { class: "tiles" });
  const [list, losses, fsync, storage] = [h("div"), h("div"), h("div"), h("div")];
  const filter = h("input", { type: "search", placeholder: "filter by name", "aria-label": "filter topics by name" });
  const order = h("select", { "aria-label": "order of the topics" }, Object.entries(ORDERS).map(([key, label]) => h("option", { value: key }, label)));
  const render = () => {
    if (!pulse.now) return;
    const { now } = pulse;
    show(tiles, tilesOf(now, pulse));
    refresh(list, topicsOf(now, pulse, filter.value));
    refresh(losses, lossesOf(now));
    show(fsync, syncOf(now.sync));
    show(storage, storageOf(now));
  };
  const ask = () => pulse.ask(new URLSearchParams({ limit: "100", order: order.value, filter: filter.value }).toString());
  filter.addEventListener("input", ask);
  order.addEventListener("change", ask);
  return {
    title: "Overview",
    question: "limit=100&order=rate&filter=",
    element: h(
      "div",
      {},
      h("h1", {}, "Overview"),
      tiles,
      h("section", {}, h("div", { class: "bar-line" }, h("h2", {}, "Topics"), filter, order), list),
      h("section", {}, h("h2", {}, "Recent losses"), losses),
      h("div", { class: "columns" }, h("section", {}, h("h2", {}, "How long a sync to disk takes"), fsync), h("section", {}, h("h2", {}, "Storage"), storage)),
    ),
    beat: render,
  };
}

function tilesOf({ server, uptime_ms }, pulse) {
  const { pressure, corruption_total: damage } = server;
  const queues = pulse.now.topics.filter((row) => row.type === "queue");
  const failing = queues.filter((row) => lettersIn(row) > 0);
  // Several queues may share one topic of dead letters.
  const dead = [...new Map(failing.map((row) => [row.dead_letter ?? row.topic, lettersIn(row)])).values()].reduce((sum, number) => sum + number, 0);
  return [
    tile("Appended", rate(server.rate), sparkline(pulse.total, `records appended per second, now ${rate(server.rate)}`, { width: 220 }), "wide"),
    tile("Records", compact(server.records), bytes(server.bytes)),
    tile("Topics", count(server.topics), `${plural(server.routers, "router")}${queues.length ? `, ${plural(queues.length, "queue")}` : ""}`),
    tile("Connections", count(server.connections), `${plural(server.streams, "stream")}, ${plural(server.watch_sessions, "watch session")}`),
    tile("Pressure", pressureOf(pressure), LEVELS[pressure], pressure >= 3 ? "bad" : pressure ? "warn" : ""),
    server.read_only
      ? tile("Disk", "read-only", "a write has failed; restart the server", "bad")
      : server.disk_full
        ? tile("Disk", "full", "writes are refused until there is room", "bad")
        : tile("Damage found", count(damage), damage ? "see the log, then topics verify" : "every checksum was right", damage ? "bad" : ""),
    dead ? tile("Dead letters", count(dead), `of ${failing.length === 1 ? failing[0].topic : plural(failing.length, "queue")}`, "bad") : tile("Up", duration(uptime_ms), "since the last start"),
  ];
}

/** How many dead letters of a queue wait; where this key may not see them, how many there have been. */
function lettersIn(row) {
  return row.dead_letters ?? row.dead_lettered;
}

/** The level, and the ladder that it stands on. */
function pressureOf(level) {
  const rungs = [1, 2, 3, 4].map((rung) => h("span", { class: rung <= level ? "rung on" : "rung" }));
  return [`${level}`, h("span", { class: "ladder", "aria-hidden": "true" }, rungs)];
}

function topicsOf(now, pulse, text) {
  if (now.topics.length === 0) return h("p", { class: "soft" }, text ? "No topic has that in its name." : ["No topic yet: write to one, and it is there. ", h("a", { href: "#/start" }, "First steps"), " has commands for this server."]);
  const rows = now.topics.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: place(row.topic) }, row.topic), row.type === "queue" && h("span", { class: "badge" }, "queue")),
      h("td", { class: "num" }, count(row.count)),
      h("td", { class: "num" }, bytes(row.bytes)),
      h("td", { class: "num" }, count(row.head_seq)),
      h("td", {}, row.type === "queue" ? jobsOf(row) : h("span", { class: "soft" }, row.last_write_ts ? ago(now.now - row.last_write_ts) : "never written")),
      h("td", { class: "num" }, rate(row.rate)),
      h("td", {}, sparkline(pulse.of(row.topic), `${row.topic}: ${rate(row.rate)}`)),
    ),
  );
  const more = now.server.topics > now.topics.length && !text;
  return [
    table("Topics", ["topic", "#records", "#size", "#last seq", "last write, or jobs", "#rate", "last two minutes"], rows),
    (more || !now.topics_complete) && h("p", { class: "soft" }, `${count(now.topics.length)} shown${text ? "" : ` of ${count(now.server.topics)}`}; filter by name to see others.`),
  ];
}

function jobsOf(row) {
  const parts = [`${count(row.ready)} ready`, `${count(row.in_flight)} leased`, row.delayed && `${count(row.delayed)} delayed`];
  return [parts.filter(Boolean).join(", "), lettersIn(row) > 0 && [", ", h("span", { class: "wrong" }, `${count(lettersIn(row))} dead`)]];
}

function lossesOf({ losses, now }) {
  if (!losses.length) return h("p", { class: "soft" }, "None. Whatever is evicted, expires or is damaged appears here, with its range and the reason.");
  const rows = losses.map((loss) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: place(loss.topic, "browse", String(loss.first_seq)) }, loss.topic)),
      h("td", {}, h("code", { class: "reason" }, loss.reason), " ", reasonOf(loss.reason)),
      h("td", { class: "num" }, `${count(loss.first_seq)} – ${count(loss.last_seq)}`),
      h("td", { class: "soft" }, loss.noticed_ts === null ? "before the server started" : ago(now - loss.noticed_ts)),
    ),
  );
  return table("Recent losses", ["topic", "why", "#seqs", "noticed"], rows);
}

function syncOf({ bounds_us: bounds, counts, sum_us: sum }) {
  const all = counts.reduce((total, number) => total + number, 0);
  if (!all) return h("p", { class: "soft" }, "Nothing was synced yet.");
  const [half, slow] = [quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)];
  return [
    h("p", { class: "soft" }, `${plural(all, "sync")}: ${microseconds(sum / all)} on average, half within ${microseconds(half)}, 99 % within ${microseconds(slow)}.`),
    histogram(bounds, counts, (bound) => microseconds(bound).replace(" ", "")),
  ];
}

function storageOf({ server, storage }) {
  const looked = (storage.cache_hits ?? 0) + (storage.cache_misses ?? 0);
  return facts(
    [
      ["Free on the disk", storage.free_bytes === undefined ? "no data directory" : bytes(storage.free_bytes)],
      ["Live records", bytes(server.bytes)],
      ["Log that a restart replays", storage.wal_bytes === undefined ? null : bytes(storage.wal_bytes)],
      ["In memory, to be sealed", bytes(storage.unsealed_bytes)],
      ["In memory only (ephemeral)", bytes(storage.resident_bytes)],
      ["Cache of sealed records", storage.cache_bytes === undefined ? null : `${bytes(storage.cache_bytes)}${looked ? `, ${Math.round((100 * storage.cache_hits) / looked)} % hits` : ""}`],
      ["Held for slow clients", bytes(server.buffered_bytes)],
      ["Frames that wait for the disk", count(server.waiting_frames)],
    ].filter(([, value]) => value !== null),
  );
}

function microseconds(value) {
  if (value === Infinity) return "more than 0.5 s";
  return value < 1_000 ? `${Math.round(value)} µs` : `${+(value / 1_000).toPrecision(3)} ms`;
}
