/** Small pictures: the rate of a topic, a histogram. Each has its figures as text for those that do not see it. */

import { h, svg } from "./dom.js";

/** A line over the last values, oldest first; the newest is always at the right end. */
export function sparkline(values, label, { width = 120, height = 24, slots = 60 } = {}) {
  const top = Math.max(...values, 1e-9);
  const step = width / (slots - 1);
  const left = width - (values.length - 1) * step;
  const points = values.map((value, i) => `${(left + i * step).toFixed(1)},${(height - 1.5 - (value / top) * (height - 4)).toFixed(1)}`);
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("line", { x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
    values.length > 1 && svg("polygon", { points: `${left.toFixed(1)},${height} ${points.join(" ")} ${width},${height}` }),
    values.length > 1 && svg("polyline", { points: points.join(" ") }),
  );
}

/** Bars of how many values fell into each bucket; `bounds` are the upper ends of all but the last. */
export function histogram(bounds, counts, unit) {
  const top = Math.max(...counts, 1);
  const bars = counts.map((number, i) => {
    const bound = i < bounds.length ? `up to ${unit(bounds[i])}` : `more than ${unit(bounds.at(-1))}`;
    const label = `${number} took ${bound}`;
    const bar = svg("svg", { class: "bar", viewBox: "0 0 10 100", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { x: 0, width: 10, y: 100 - (number / top) * 100, height: (number / top) * 100 }));
    return h("li", { title: label }, bar, h("span", { class: "bound", "aria-hidden": "true" }, i < bounds.length ? unit(bounds[i]) : "more"), h("span", { class: "sr" }, label));
  });
  return h("ol", { class: "histogram" }, bars);
}

/** The value below which a share of all values fell, from buckets; null where there are none. */
export function quantile(bounds, counts, share) {
  const all = counts.reduce((sum, number) => sum + number, 0);
  let seen = 0;
  for (let i = 0; i < bounds.length; i++) {
    seen += counts[i];
    if (all > 0 && seen >= all * share) return bounds[i];
  }
  return all > 0 ? Infinity : null;
}
