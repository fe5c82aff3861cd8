/**
 * Live: what is appended to a topic, as it comes, the newest first.
 *
 * However fast that is, the page stays at hand: rows are drawn once per frame, a bounded number is kept, and nothing is
 * followed while the page is hidden; it goes on where it was.
 */

import { Tombstone } from "/topics.js";

import { h, place, show } from "./dom.js";
import { count, plural } from "./format.js";
import { matchOf, row, wanted } from "./records.js";

const KEPT = 300;
const BEFORE = 20;
const AGAIN_MS = 2_000;

export function live({ handle, name, signal }) {
  const list = h("ol", { class: "records", "aria-live": "off", "aria-label": "records, the newest first" });
  const note = h("p", { class: "soft", role: "status" }, "Connecting …");
  const tag = h("input", { type: "text", placeholder: "tag, or prefix*", "aria-label": "show only records with this tag" });
  const node = h("input", { type: "text", placeholder: "node", "aria-label": "show only records of this node" });
  const text = h("input", { type: "search", placeholder: "text", "aria-label": "show only records with this text" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const state = { items: [], fresh: [], paused: false, missed: 0, last: null, connection: null };
  let keep = wanted({});

  const draw = () => {
    state.frame = null;
    if (state.paused) return;
    const fresh = state.fresh.filter(keep);
    state.items = [...state.fresh.reverse(), ...state.items].slice(0, KEPT);
    state.fresh = [];
    list.prepend(...fresh.reverse().slice(0, KEPT).map((item) => row(item)));
    while (list.childElementCount > KEPT) list.lastElementChild.remove();
  };
  const redraw = () => {
    keep = wanted({ tag: tag.value, node: node.value, text: text.value });
    show(list, state.items.filter(keep).map((item) => row(item)));
  };
  const take = (item) => {
    state.last = item instanceof Tombstone ? item.gapTo : item.seq;
    state.fresh.push(item);
    if (state.fresh.length > KEPT) {
      state.fresh.shift();
      state.missed++;
    }
    state.frame ??= requestAnimationFrame(draw);
    if (state.paused) tell();
  };
  const tell = () => {
    const missed = state.missed ? ` ${plural(state.missed, "record")} came too fast to be shown: browse to see them.` : "";
    if (state.paused) show(note, `Paused: ${count(state.fresh.length)} more have come.${missed}`);
    else show(note, `New records appear here, the newest first.${missed}`);
  };
  const follow = async () => {
    const connection = new AbortController();
    state.connection = connection;
    const stop = AbortSignal.any([signal, connection.signal]);
    while (!stop.aborted) {
      try {
        const fromSeq = state.last ?? Math.max(0, ((await handle.state({ signal: stop }))?.head_seq ?? 0) - BEFORE);
        const options = { fromSeq, onLoss: "yield", match: matchOf(tag.value), onCaughtUp: tell, signal: stop };
        for await (const item of handle.follow(options)) take(item);
      } catch (error) {
        if (stop.aborted) return;
        show(note, error.message);
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
  };
  const restart = () => {
    state.connection?.abort();
    if (!document.hidden && !signal.aborted) follow();
  };
  pause.addEventListener("click", () => {
    state.paused = !state.paused;
    pause.setAttribute("aria-pressed", String(state.paused));
    pause.textContent = state.paused ? "Continue" : "Pause";
    if (!state.paused) draw();
    tell();
  });
  for (const input of [node, text, tag]) input.addEventListener("input", redraw);
  // The server looks tags up itself, and sends only those.
  tag.addEventListener("change", restart);
  document.addEventListener("visibilitychange", restart, { signal });
  follow();
  return {
    element: h(
      "section",
      {},
      h("div", { class: "bar-line" }, h("h2", {}, "Live"), tag, node, text, pause),
      note,
      list,
      h("p", { class: "soft" }, "Older records: ", h("a", { href: place(name, "browse") }, "browse"), "."),
    ),
  };
}
