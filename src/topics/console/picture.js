/** Small pictures: the rate of a topic, a histogram. Each has its figures as text for those that do not see it. */

import { h, svg } from "./dom.js";

/** A line over the last values, oldest first. */
export function sparkline(values, label) {
  const [width, height] = [96, 22];
  const top = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, i) => `${(i * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  const area = `0,${height} ${points.join(" ")} ${((values.length - 1) * step).toFixed(1)},${height}`;
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    values.length > 1 && svg("polygon", { points: area }),
    values.length > 1 && svg("polyline", { points: points.join(" ") }),
  );
}

/** Bars of how often a value fell below each bound; `buckets` are cumulative, as Prometheus has them. */
export function histogram(buckets, unit) {
  const bounds = Object.keys(buckets);
  const counts = bounds.map((bound, i) => buckets[bound] - (i ? buckets[bounds[i - 1]] : 0));
  const top = Math.max(...counts, 1);
  const bars = bounds.map((bound, i) => {
    const bar = h("span", { class: "bar" });
    bar.style.height = `${(counts[i] / top) * 100}%`;
    const label = `${counts[i]} within ${unit(bound)}`;
    return h("li", { title: label }, h("span", { class: "column" }, bar), h("span", { class: "bound" }, unit(bound)), h("span", { class: "sr" }, label));
  });
  return h("ol", { class: "histogram" }, bars);
}
