/** A topic or a queue: its numbers, and the parts of its page. */

import { browse } from "./browse.js";
import { configForm } from "./config.js";
import { h, place, show } from "./dom.js";
import { erase } from "./erase.js";
import { bytes, count, plural, rate, time } from "./format.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { live } from "./live.js";
import { sparkline } from "./picture.js";
import { publish } from "./publish.js";

const PARTS = {
  jobs: ["Jobs", jobs, (_, row) => row.type === "queue"],
  live: ["Live", live, () => true],
  browse: ["Browse", browse, () => true],
  publish: ["Publish", publish, (may) => may.write],
  config: ["Config", configForm, () => true],
  delete: ["Delete", erase, (may) => may.delete],
};

export function topic({ client, pulse, name, part, item, may, mine }) {
  const facts = h("p", { class: "facts" });
  const chart = h("span");
  const body = h("div");
  const tabs = h("nav", { class: "tabs", "aria-label": "parts of this topic" });
  const ended = new AbortController();
  const question = new URLSearchParams({ topic: name }).toString();
  let shown = null;

  /** Which part is shown is known once the server has said what kind of topic this is. */
  const open = (row) => {
    const allowed = Object.entries(PARTS).filter(([, [, , fits]]) => fits(may, row));
    const first = allowed[0][0];
    const chosen = part === "job" && row.type === "queue" ? "job" : allowed.some(([key]) => key === part) ? part : first;
    const make = chosen === "job" ? job : PARTS[chosen][1];
    const current = chosen === "job" ? "jobs" : chosen;
    show(tabs, allowed.map(([key, [label]]) => h("a", { href: place(name, key), "aria-current": key === current ? "page" : null }, label)));
    shown = make({ client, handle: client.queue(name), name, item, row, may, signal: ended.signal, pulse });
    show(body, shown.element);
  };
  const beat = () => {
    const { now } = pulse;
    // An answer from before this page was opened is about other topics.
    if (now === null || pulse.question !== question || pulse.error) return;
    const row = pulse.topic(name);
    if (row === null) {
      if (shown === null && now.topics.length === 0) missing();
      return;
    }
    if (shown === null || shown === "missing") open(row);
    describe(row);
    shown.beat?.(row);
  };
  const missing = () => {
    const row = { topic: name, type: "log", rate: 0 };
    if (mine.prefixes.length && !mine.prefixes.some((prefix) => name.startsWith(prefix))) {
      shown = "missing";
      return show(facts, "This key may not see it: it is for names that begin with ", mine.prefixes.map((prefix, i) => [i > 0 && ", ", h("code", {}, prefix)]), ".");
    }
    if (part === "publish" && may.write) open(row);
    else shown = "missing";
    show(facts, "There is no such topic", may.write ? [": it is created by the first write. ", h("a", { href: place(name, "publish") }, "Publish a record")] : ", or this key may not see it.");
  };
  const describe = (row) => {
    show(
      facts,
      h("span", { class: "badge" }, row.type),
      h("span", { class: "badge" }, row.durability),
      ` ${plural(row.count, "record")}, ${bytes(row.bytes)}; seq ${count(row.earliest_seq)} to ${count(row.head_seq)}`,
      row.last_write_ts ? `; last write ${time(row.last_write_ts)}` : "",
    );
    show(chart, sparkline(pulse.of(name), `rate of ${name}: ${rate(row.rate)}`), h("span", { class: "soft" }, rate(row.rate)));
  };
  return {
    title: name,
    question,
    element: h("div", {}, h("h1", {}, h("span", { class: "name" }, name), " ", h("span", { class: "chart" }, chart)), facts, tabs, body),
    beat,
    close: () => ended.abort(),
  };
}

