/** The page at /v0/docs: everything that /v0/openapi.json says, and a search over it. */

import { h, show } from "/console/dom.js";
import { operation } from "./operation.js";
import { prose } from "./schema.js";

const main = document.getElementById("reference");
const contents = document.getElementById("contents");
const search = document.getElementById("search");
const found = document.getElementById("found");

const response = await fetch("/v0/openapi.json");
if (response.ok) build(await response.json());
else show(main, h("p", { class: "wrong" }, `The document cannot be loaded: ${response.status}`));

/** Fill the page. */
function build(document_) {
  const entries = [];
  const groups = document_.tags.map((tag) => ({ tag, operations: [] }));
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, described] of Object.entries(methods)) {
      const entry = operation(document_, method.toUpperCase(), path, described);
      groups.find(({ tag }) => tag.name === described.tags[0]).operations.push(entry);
      entries.push(entry);
    }
  }
  const sections = groups.map(({ tag, operations }) =>
    h("section", { class: "group", "aria-label": tag.name }, h("h2", {}, tag.name), h("p", { class: "soft" }, prose(tag.description)), operations.map((entry) => entry.element)),
  );
  show(
    main,
    h("h1", {}, `The API of ${document_.info.title} `, h("small", {}, document_.info.version)),
    document_.info.description.split("\n\n").map((text) => h("p", {}, prose(text))),
    keys(document_),
    sections,
    errors(document_),
  );
  show(
    contents,
    groups.map(({ tag, operations }) => h("div", {}, h("h3", {}, tag.name), h("ul", {}, operations.map((entry) => h("li", {}, entry.link))))),
    h("div", {}, h("a", { href: "#errors" }, "Error codes")),
  );
  search.addEventListener("input", () => filter(entries, search.value));
  document.addEventListener("keydown", shortcut);
  addEventListener("hashchange", arrive);
  arrive();
}

/** How a key is sent. */
function keys(document_) {
  const schemes = Object.entries(document_.components.securitySchemes);
  return h(
    "section",
    { class: "group", "aria-label": "Keys" },
    h("h2", {}, "Keys"),
    h("dl", {}, schemes.map(([name, scheme]) => [h("dt", {}, h("code", {}, name)), h("dd", {}, prose(scheme.description))])),
  );
}

/** Every code there is. */
function errors(document_) {
  const rows = Object.entries(document_["x-errors"]).map(([code, said]) =>
    h("tr", {}, h("td", { class: "num" }, said.status), h("td", {}, h("code", {}, code)), h("td", {}, prose(said.message))),
  );
  const heads = ["Status", "Code", "Meaning"].map((text) => h("th", { scope: "col" }, text));
  return h(
    "section",
    { class: "group", id: "errors", "aria-label": "Error codes" },
    h("h2", {}, "Error codes"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Error codes" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))),
  );
}

/** Show only what has every word of the query. */
function filter(entries, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const entry of entries) {
    const shown = words.every((word) => entry.text.includes(word));
    entry.element.hidden = !shown;
    entry.link.parentElement.hidden = !shown;
    count += shown;
  }
  for (const section of document.querySelectorAll(".group")) {
    const articles = [...section.querySelectorAll("article")];
    section.hidden = words.length > 0 && articles.every((article) => article.hidden);
  }
  for (const group of contents.querySelectorAll("div")) {
    const items = [...group.querySelectorAll("li")];
    group.hidden = items.length > 0 && items.every((item) => item.hidden);
  }
  found.textContent = words.length === 0 ? "" : `${count} of ${entries.length}`;
}

function shortcut(event) {
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "Escape" && document.activeElement === search) {
    search.value = "";
    search.dispatchEvent(new Event("input"));
  }
}

/** Open the operation that the address names. */
function arrive() {
  const element = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (element === null) return;
  if (element.hidden) {
    search.value = "";
    search.dispatchEvent(new Event("input"));
  }
  const folded = element.querySelector(":scope > details");
  if (folded !== null) folded.open = true;
  element.scrollIntoView();
}
