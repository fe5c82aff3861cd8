/** Routers as a graph: topics as boxes from left to right, each router an arrow with its rate and how far it is behind. */

import { h, place, problem, refresh, show, svg, table } from "./dom.js";
import { compact, count, rate } from "./format.js";

const [BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, LABEL_WIDTH] = [190, 44, 170, 20, 84];
const SHOWN_MAX = 200;
const APART_MS = 1_000;

export function routers({ client, pulse }) {
  const graph = h("div", {}, h("p", { class: "soft" }, "Reading …"));
  const list = h("div");
  const card = h("section", { hidden: true }, list);
  const before = new Map();
  const ended = new AbortController();
  let drawn = "";
  const load = async () => {
    const { routers: found, next_cursor: more } = await client.request("GET", `/v0/routers?page_size=${SHOWN_MAX}`, undefined, { retry: false, signal: ended.signal });
    const now = performance.now();
    for (const router of found) {
      const last = before.get(router.router);
      router.rate = last?.rate ?? null;
      // Between two beats that follow each other closely nothing is known.
      if (last && now - last.at < APART_MS) continue;
      if (last) router.rate = (Math.max(0, router.forwarded_total - last.total) * 1000) / (now - last.at);
      before.set(router.router, { total: router.forwarded_total, at: now, rate: router.rate });
    }
    card.hidden = !found.length;
    if (!found.length) {
      drawn = "";
      return show(graph, h("section", {}, h("p", { class: "soft" }, "No router. ", h("code", {}, "PUT /v0/routers/:router"), " copies what is appended to one topic to another.")));
    }
    // Boxes stay where they are while only numbers change.
    const shape = found.map((one) => `${one.router} ${one.source} ${one.dest}`).join("\n");
    const picture = draw(found, pulse);
    if (shape !== drawn) show(graph, h("div", { class: "scroll graph", tabindex: "0", role: "region", "aria-label": "graph of the routers" }, picture));
    else refresh(graph.firstElementChild, picture);
    drawn = shape;
    refresh(list, tableOf(found), more && h("p", { class: "soft" }, `The first ${SHOWN_MAX} are shown.`));
  };
  return {
    title: "Routers",
    question: "order=name&limit=500",
    element: h("div", {}, h("h1", {}, "Routers"), graph, card),
    beat: () => load().catch((error) => ended.signal.aborted || show(graph, problem(error))),
    close: () => ended.abort(),
  };
}

function tableOf(found) {
  const rows = found.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, one.router),
      h("td", {}, h("a", { href: place(one.source) }, one.source)),
      h("td", {}, h("a", { href: place(one.dest), "data-mark": `dest ${one.router}` }, one.dest)),
      h("td", {}, filterOf(one.filter)),
      h("td", {}, one.guarantee.replaceAll("_", " ")),
      h("td", { class: "num" }, count(one.forwarded_total)),
      h("td", { class: "num" }, rate(one.rate)),
      h("td", { class: one.lag ? "num late" : "num" }, count(one.lag)),
    ),
  );
  return table("Routers", ["router", "from", "to", "copies", "guarantee", "#copied", "#rate", "#lag"], rows);
}

/** Which records a router copies: those with a tag, or all. */
function filterOf(filter) {
  if (!filter) return h("span", { class: "soft" }, "everything");
  const tag = Array.isArray(filter) ? filter.at(-1) : filter;
  return h("span", { class: "badge tag" }, typeof tag === "string" ? tag : JSON.stringify(tag));
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
  const settle = (topic, path) => {
    if (column.has(topic)) return column.get(topic);
    if (path.has(topic)) return -1;
    path.add(topic);
    const at = Math.max(-1, ...sources.get(topic).map((source) => settle(source, path))) + 1;
    path.delete(topic);
    column.set(topic, at);
    return at;
  };
  for (const topic of sources.keys()) settle(topic, new Set());
  return column;
}

/** Where each topic stands: in its column, next to where its source is. */
function boxesOf(edges) {
  const column = columns(edges);
  const sourceOf = new Map(edges.map(({ source, dest }) => [dest, source]));
  const byColumn = [];
  for (const [topic, at] of column) (byColumn[at] ??= []).push(topic);
  const boxes = new Map();
  for (const [at, topics] of byColumn.entries()) {
    const height = (topic) => boxes.get(sourceOf.get(topic))?.y ?? 0;
    topics.sort((a, b) => height(a) - height(b) || a.localeCompare(b));
    let free = 12;
    for (const topic of topics) {
      const y = Math.max(free, height(topic));
      boxes.set(topic, { x: 12 + at * (BOX_WIDTH + GAP_X), y });
      free = y + BOX_HEIGHT + GAP_Y;
    }
  }
  return boxes;
}

function draw(edges, pulse) {
  const boxes = boxesOf(edges);
  const places = [...boxes.values()];
  const width = Math.max(...places.map(({ x }) => x)) + BOX_WIDTH + 12;
  const height = Math.max(...places.map(({ y }) => y)) + BOX_HEIGHT + 12;
  const arrows = edges.map((edge) => arrow(edge, boxes.get(edge.source), boxes.get(edge.dest)));
  const shapes = [...boxes].map(([topic, { x, y }]) => box(topic, x, y, pulse.topic(topic)));
  const tip = svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 L8 4 L0 8 z" }));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${edges.length} routers between ${boxes.size} topics; the table below has the same` }, svg("defs", {}, tip), arrows, shapes);
}

function arrow({ router, forwarded_total: total, rate: now, lag }, from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX_WIDTH, from.y + BOX_HEIGHT / 2, to.x - 4, to.y + BOX_HEIGHT / 2];
  // The end is straight: the label stands on it.
  const turn = x2 - LABEL_WIDTH;
  const bend = Math.max(40, (turn - x1) / 2);
  const label = [now > 0 ? rate(now) : `${compact(total)} copied`, lag > 0 && `lag ${compact(lag)}`].filter(Boolean).join(", ");
  const words = svg("text", { class: lag > 0 ? "on-arrow late" : "on-arrow", x: x2 - 8, y: y2 - 9, "text-anchor": "end" }, label);
  return [svg("path", { class: now > 0 ? "arrow busy" : "arrow", d: `M${x1} ${y1} C${x1 + bend} ${y1} ${turn - bend} ${y2} ${turn} ${y2} L${x2} ${y2}`, "marker-end": "url(#tip)" }, svg("title", {}, `${router}: ${label}`)), words];
}

function box(topic, x, y, row) {
  const name = topic.length > 22 ? `${topic.slice(0, 21)}…` : topic;
  const below = row ? `${compact(row.count)} records, ${rate(row.rate)}` : "";
  return svg(
    "a",
    { href: place(topic), "aria-label": `${topic} ${below}` },
    svg("rect", { x, y, width: BOX_WIDTH, height: BOX_HEIGHT, rx: 8 }),
    svg("text", { x: x + 12, y: y + (below ? 19 : 27) }, name),
    svg("text", { class: "below", x: x + 12, y: y + 35 }, below),
    svg("title", {}, topic),
  );
}
