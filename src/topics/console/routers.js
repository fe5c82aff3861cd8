/** Routers as a graph: topics as boxes from left to right, each router an arrow with what it has forwarded. */

import { h, show, svg, table } from "./dom.js";
import { compact, count, rate } from "./format.js";

const [BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y] = [170, 34, 110, 18];
const EVERY_MS = 2_000;
const DRAWN_MAX = 200;

export function routers({ client }) {
  const holder = h("div", {}, h("p", { class: "soft" }, "Reading …"));
  const before = new Map();
  let at = 0;
  const refresh = async () => {
    if (performance.now() - at < EVERY_MS - 100) return;
    const found = [];
    for await (const router of client.routers()) found.push(router);
    const now = performance.now();
    for (const router of found) {
      const last = before.get(router.router);
      router.rate = last ? (Math.max(0, router.forwarded_total - last.total) * 1000) / (now - last.at) : 0;
      before.set(router.router, { total: router.forwarded_total, at: now });
    }
    at = now;
    if (!found.length) return show(holder, h("p", { class: "soft" }, "No router. ", h("code", {}, "PUT /v0/routers/:router"), " copies what is appended to one topic to another."));
    const heads = ["router", "from", "to", "guarantee", "#forwarded", "#rate"];
    const rows = found.map((one) => h("tr", {}, h("th", { scope: "row" }, one.router), h("td", {}, link(one.source)), h("td", {}, link(one.dest)), h("td", {}, one.guarantee), h("td", { class: "num" }, count(one.forwarded_total)), h("td", { class: "num" }, rate(one.rate))));
    show(holder, h("div", { class: "scroll graph", tabindex: "0", role: "region", "aria-label": "graph of the routers" }, draw(found.slice(0, DRAWN_MAX))), table("Routers", heads, rows));
  };
  return {
    title: "Routers",
    element: h("div", {}, h("h1", {}, "Routers"), holder),
    beat: () => refresh().catch((error) => show(holder, h("p", { class: "wrong" }, error.message))),
  };
}

function link(topic) {
  return h("a", { href: `#/topics/${encodeURIComponent(topic)}` }, topic);
}

/** Each topic stands one column after the last of its sources; a cycle is cut where it closes. */
function columns(edges) {
  const sources = new Map();
  for (const { source, dest } of edges) {
    if (!sources.has(source)) sources.set(source, []);
    if (!sources.has(dest)) sources.set(dest, []);
    sources.get(dest).push(source);
  }
  const column = new Map();
  const place = (topic, path) => {
    if (column.has(topic)) return column.get(topic);
    if (path.has(topic)) return -1;
    path.add(topic);
    const at = Math.max(-1, ...sources.get(topic).map((source) => place(source, path))) + 1;
    path.delete(topic);
    column.set(topic, at);
    return at;
  };
  for (const topic of sources.keys()) place(topic, new Set());
  return column;
}

function draw(edges) {
  const column = columns(edges);
  const taken = [];
  const boxes = new Map();
  for (const [topic, at] of [...column].sort((a, b) => a[1] - b[1])) {
    const row = (taken[at] = (taken[at] ?? -1) + 1);
    boxes.set(topic, { x: 10 + at * (BOX_WIDTH + GAP_X), y: 10 + row * (BOX_HEIGHT + GAP_Y) });
  }
  const width = 20 + taken.length * (BOX_WIDTH + GAP_X) - GAP_X;
  const height = 20 + Math.max(...taken.map((row) => row + 1)) * (BOX_HEIGHT + GAP_Y) - GAP_Y;
  const arrows = edges.map(({ router, source, dest, forwarded_total: total, rate: now }) => {
    const [from, to] = [boxes.get(source), boxes.get(dest)];
    const [x1, y1, x2, y2] = [from.x + BOX_WIDTH, from.y + BOX_HEIGHT / 2, to.x - 6, to.y + BOX_HEIGHT / 2];
    const bend = Math.max(40, (x2 - x1) / 2);
    return [
      svg("path", { class: now > 0 ? "arrow busy" : "arrow", d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#tip)" }, svg("title", {}, `${router}: ${count(total)} forwarded`)),
      svg("text", { class: "on-arrow", x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 5, "text-anchor": "middle" }, now > 0 ? rate(now) : compact(total)),
    ];
  });
  const shapes = [...boxes].map(([topic, { x, y }]) =>
    svg("a", { href: `#/topics/${encodeURIComponent(topic)}` }, svg("rect", { x, y, width: BOX_WIDTH, height: BOX_HEIGHT, rx: 6 }), svg("text", { x: x + 10, y: y + 22 }, topic.length > 22 ? `${topic.slice(0, 21)}…` : topic), svg("title", {}, topic)),
  );
  const tip = svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 L8 4 L0 8 z" }));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${edges.length} routers between ${boxes.size} topics; the table below has the same` }, svg("defs", {}, tip), arrows, shapes);
}
