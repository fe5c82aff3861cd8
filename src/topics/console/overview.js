/** Overview: the whole server at a glance, and every topic with its rate. */

import { h, show, table } from "./dom.js";
import { bytes, compact, count, duration, plural, rate } from "./format.js";
import { histogram, sparkline } from "./picture.js";

const SHOWN_MAX = 200;

export function overview({ pulse }) {
  const tiles = h("div", { class: "tiles" });
  const fsync = h("div");
  const list = h("div");
  const filter = h("input", { type: "search", placeholder: "filter by name", "aria-label": "filter topics by name" });
  const order = h(
    "select",
    { "aria-label": "order of the topics" },
    ["rate", "name", "records", "bytes"].map((key) => h("option", { value: key }, `by ${key}`)),
  );
  const render = () => {
    const metrics = pulse.metrics;
    if (!metrics) return;
    show(tiles, tilesOf(metrics, pulse));
    show(fsync, histogram(metrics.topics_wal_fsync_latency_us_bucket, (bound) => (bound === "+Inf" ? "more" : microseconds(Number(bound)))));
    show(list, topicsOf(metrics, pulse, filter.value, order.value));
  };
  filter.addEventListener("input", render);
  order.addEventListener("change", render);
  return {
    title: "Overview",
    element: h(
      "div",
      {},
      h("h1", {}, "Overview"),
      tiles,
      h("section", {}, h("div", { class: "bar-line" }, h("h2", {}, "Topics"), filter, order), list),
      h("section", {}, h("h2", {}, "How long a sync to disk takes"), fsync),
    ),
    beat: render,
  };
}

function tilesOf(metrics, pulse) {
  const now = pulse.total.at(-1) ?? 0;
  const broken = metrics.topics_corruption_total > 0;
  return [
    tile("Appended", rate(now), sparkline(pulse.total, `records appended per second, now ${rate(now)}`)),
    tile("Records", compact(metrics.topics_records_live), bytes(metrics.topics_bytes_live)),
    tile("Topics", count(metrics.topics_topics), `${plural(metrics.topics_queue_topics, "queue")}, ${plural(metrics.topics_routers, "router")}`),
    tile("Streams", count(metrics.topics_sse_connections), plural(metrics.topics_watch_sessions, "watch session")),
    tile("Jobs leased", count(metrics.topics_queue_leases_in_flight), "over all queues"),
    tile("Pressure", String(metrics.topics_pressure_level), metrics.topics_wal_read_only ? "the log is read-only" : `${plural(metrics.topics_wal_queue_depth, "frame")} waiting for the disk`, metrics.topics_wal_read_only),
    tile("Damage found", count(metrics.topics_corruption_total), broken ? "see the server's log, then topics verify" : "none", broken),
    tile("Up", duration(metrics.topics_uptime_ms), "since the last start"),
  ];
}

function tile(label, value, below, bad = false) {
  return h("div", { class: bad ? "tile bad" : "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "below" }, below));
}

function topicsOf(metrics, pulse, text, order) {
  const heads = metrics.topics_topic_head_seq ?? {};
  const ready = metrics.topics_topic_queue_ready ?? {};
  const now = (name) => pulse.of(name).at(-1) ?? 0;
  const orders = {
    rate: (a, b) => now(b) - now(a) || heads[b] - heads[a] || a.localeCompare(b),
    name: (a, b) => a.localeCompare(b),
    records: (a, b) => metrics.topics_topic_records_live[b] - metrics.topics_topic_records_live[a],
    bytes: (a, b) => metrics.topics_topic_bytes_live[b] - metrics.topics_topic_bytes_live[a],
  };
  const names = Object.keys(heads).filter((name) => name.toLowerCase().includes(text.toLowerCase())).sort(orders[order]);
  if (names.length === 0) {
    return h("p", { class: "soft" }, text ? "No topic has that in its name." : "No topic yet: write to one, and it is there.");
  }
  const rows = names.slice(0, SHOWN_MAX).map((name) => {
    const kind = name in ready ? "queues" : "topics";
    const values = pulse.of(name);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, name), kind === "queues" && h("span", { class: "badge" }, "queue")),
      h("td", { class: "num" }, count(metrics.topics_topic_records_live[name])),
      h("td", { class: "num" }, bytes(metrics.topics_topic_bytes_live[name])),
      h("td", { class: "num" }, count(heads[name])),
      h("td", { class: "num" }, rate(now(name))),
      h("td", {}, sparkline(values, `${name}: ${rate(now(name))}`)),
    );
  });
  const truncated = metrics.topics_topic_metrics_truncated;
  return [
    table("Topics", ["topic", "#records", "#bytes", "#last seq", "#rate", "last two minutes"], rows),
    (names.length > SHOWN_MAX || truncated) &&
      h("p", { class: "soft" }, `${count(Math.min(names.length, SHOWN_MAX))} shown of ${count(metrics.topics_topics)}; filter to see others.`),
  ];
}

function microseconds(bound) {
  return bound < 1_000 ? `${bound} µs` : `${bound / 1_000} ms`;
}
