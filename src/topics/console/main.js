/** The console: which page is shown, by which key, and whether the server is there. */

import { Client } from "/topics.js";

import { consumers } from "./consumers.js";
import { h, show } from "./dom.js";
import { parse } from "./exact.js";
import { sentence } from "./format.js";
import { keys } from "./keys.js";
import { overview } from "./overview.js";
import { Pulse } from "./pulse.js";
import { routers } from "./routers.js";
import { start } from "./start.js";
import { topic } from "./topic.js";

const client = new Client(location.origin, { timeoutMs: 10_000, node: "console", parse });
const pulse = new Pulse(client);
const view = document.getElementById("view");
const status = document.getElementById("status");
const banner = document.getElementById("banner");
const dialog = document.getElementById("key");
const PAGES = { topics: topic, queues: topic, routers, consumers, keys, start };
const SHORTCUTS = { g: "#/", r: "#/routers", c: "#/consumers" };
let mine = null;
let page = null;
// A key that was refused is asked for once, not with every beat.
let refused = false;

function route() {
  page?.close?.();
  page = null;
  // What a page offers depends on the key.
  if (mine === null) return show(view, pulse.error && refusal(pulse.error) ? locked() : h("p", { class: "soft" }, "Connecting …"));
  const [, kind, name, part, item] = location.hash.split("/").map(decoded);
  const may = Object.fromEntries(["read", "write", "delete", "admin"].map((scope) => [scope, mine.scopes.includes(scope)]));
  const make = (name || !["topics", "queues"].includes(kind)) && PAGES[kind] ? PAGES[kind] : overview;
  page = make({ client, pulse, may, mine, kind, name, part, item });
  document.title = `${page.title} – topics`;
  show(view, page.element);
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.hash === (location.hash || "#/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  pulse.ask(page.question ?? "limit=0");
  page.beat?.();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What the key of now may do: the server says it, and refuses the rest anyway. */
async function learn() {
  mine = await client.request("GET", "/v0/whoami", undefined, { retry: false, timeoutMs: 5_000 });
  const limited = mine.prefixes.length ? ` on ${mine.prefixes.join(", ")}` : "";
  const who = document.getElementById("who");
  show(who, mine.key === null ? "no key needed" : `key ${mine.key}: ${mine.scopes.join(", ")}${limited}`);
}

/** Nothing is known of the key any more. */
function forget() {
  mine = null;
  show(document.getElementById("who"));
}

function refusal(error) {
  return error.status === 401 || error.status === 403;
}

function beat() {
  const { error } = pulse;
  status.className = error ? "down" : "up";
  show(status, error ? (error.status ? sentence(error.message) : "The server does not answer; trying again.") : "live");
  show(banner, error ? null : warnings(pulse.now));
  if (error && refusal(error)) {
    forget();
    if (!refused) askForKey(error);
    if (page !== null || !view.querySelector(".locked")) route();
  } else if (!error && mine === null) learn().then(route, () => {});
  else if (!error) page?.beat?.();
}

/** What nobody should overlook, on whichever page. */
function warnings({ server }) {
  if (server.read_only) return h("p", {}, "A write to the disk has failed. The server is read-only until it is restarted; nothing that was acknowledged is lost.");
  if (server.pressure >= 4) return h("p", {}, "The server is overloaded: writes wait, and are refused where that does not help.");
  return null;
}

function locked() {
  return h("section", { class: "locked" }, h("h1", {}, "This server asks for a key"), h("p", {}, "Everything that is shown here comes from the API, with your key and as far as that may see it."), h("button", { type: "button", class: "main", onclick: () => openDialog() }, "Enter a key"));
}

function askForKey(error) {
  refused = true;
  openDialog(client.token === null ? "This server asks for a key. It is kept in the memory of this page only." : h("span", { class: "wrong" }, sentence(error.message), "."));
}

function openDialog(note = "The key is kept in the memory of this page only.") {
  if (dialog.open) return;
  show(document.getElementById("key-note"), note);
  document.getElementById("key-forget").hidden = client.token === null;
  dialog.showModal();
}

dialog.querySelector("form").addEventListener("submit", (event) => {
  const input = document.getElementById("key-input");
  const typed = input.value.trim();
  input.value = "";
  const wanted = event.submitter?.value;
  if (wanted === "close" || (wanted === "use" && typed === "")) return;
  client.token = wanted === "forget" ? null : typed;
  forget();
  refused = false;
  route();
  pulse.beat();
});
document.getElementById("key-button").addEventListener("click", () => openDialog());
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    view.querySelector("input[type=search]")?.focus();
  } else if (event.key === "k") openDialog();
  else if (SHORTCUTS[event.key]) location.hash = SHORTCUTS[event.key];
});

addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
  view.focus({ preventScroll: true });
});
pulse.addEventListener("beat", beat);
route();
pulse.beat();
