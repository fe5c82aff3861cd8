/** The console: which page is shown, by which key, and whether the server is there. */

import { Client } from "/topics.js";

import { h, show } from "./dom.js";
import { overview } from "./overview.js";
import { Pulse } from "./pulse.js";
import { queue } from "./queue.js";
import { routers } from "./routers.js";
import { start } from "./start.js";
import { topic } from "./topic.js";

const client = new Client(location.origin, { timeoutMs: 10_000, node: "console" });
const pulse = new Pulse(client);
const view = document.getElementById("view");
const status = document.getElementById("status");
const dialog = document.getElementById("key");
let may = { write: false, delete: false, admin: false };
let mine = null;
let page = null;

function route() {
  // What a page offers depends on the key.
  if (mine === null) return show(view, h("p", { class: "soft" }, "Connecting …"));
  const [, kind, name, part] = location.hash.split("/");
  const context = { client, pulse, may, name: decodeURIComponent(name ?? ""), part };
  page?.close?.();
  if (kind === "topics" && name) page = topic(context);
  else if (kind === "queues" && name) page = queue(context);
  else if (kind === "routers") page = routers(context);
  else if (kind === "start") page = start(context);
  else page = overview(context);
  document.title = `${page.title} – topics`;
  show(view, page.element);
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.hash === (location.hash || "#/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page.beat?.();
}

/** What the key of now may do: the server says it, and refuses the rest anyway. */
async function learn() {
  mine = await client.request("GET", "/v0/whoami", undefined, { retry: false, timeoutMs: 5_000 });
  may = Object.fromEntries(["read", "write", "delete", "admin"].map((scope) => [scope, mine.scopes.includes(scope)]));
  const limited = mine.prefixes.length ? ` on ${mine.prefixes.join(", ")}` : "";
  const who = document.getElementById("who");
  show(who, mine.key === null ? "no key needed" : `key ${mine.key}: ${mine.scopes.join(", ")}${limited}`);
}

function beat() {
  const { error } = pulse;
  status.className = error ? "down" : "up";
  show(status, error ? (error.status ? error.message : "The server does not answer; trying again.") : "live");
  if (error?.status === 401 || error?.status === 403) askForKey(error);
  else if (!error && mine === null) learn().then(route, () => {});
  else if (!error) page?.beat?.();
}

function askForKey(error) {
  if (dialog.open) return;
  show(document.getElementById("key-note"), client.token === null ? "This server asks for a key. It is kept in the memory of this page only." : error.message);
  dialog.showModal();
}

dialog.querySelector("form").addEventListener("submit", () => {
  const input = document.getElementById("key-input");
  client.token = input.value || null;
  input.value = "";
  mine = null;
  pulse.beat();
});
document.getElementById("key-button").addEventListener("click", () => dialog.showModal());

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    view.querySelector("input[type=search]")?.focus();
  } else if (event.key === "g") location.hash = "#/";
  else if (event.key === "r") location.hash = "#/routers";
});

addEventListener("hashchange", () => {
  route();
  view.focus();
});
pulse.addEventListener("beat", beat);
route();
pulse.beat();
