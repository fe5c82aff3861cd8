/** One operation: what it takes, what it answers, how it fails. */

import { h } from "/console/dom.js";
import { example, fields, prose, resolve } from "./schema.js";

/** The element of an operation, the link to it, and the text that a search looks into. */
export function operation(document_, method, path, described) {
  const id = described.operationId;
  const body = h("div", { class: "body" });
  const details = h(
    "details",
    {},
    h("summary", {}, badge(method), h("code", { class: "path" }, path), h("span", { class: "what" }, prose(described.summary)), scopes(described)),
    body,
  );
  // What nobody looks at is not built: there is much of it.
  details.addEventListener("toggle", () => {
    if (details.open && !body.childElementCount) body.append(...parts(document_, method, path, described));
  });
  return {
    element: h("article", { id }, details),
    link: h("a", { href: `#${id}` }, badge(method), prose(described.summary)),
    text: words(document_, method, path, described),
  };
}

function badge(method) {
  return h("span", { class: `method ${method.toLowerCase()}` }, method);
}

function scopes(described) {
  const needed = described.security.find((way) => "key" in way);
  if (needed === undefined) return h("span", { class: "scope" }, "no key");
  return (needed.key.length ? needed.key : ["any key"]).map((scope) => h("span", { class: "scope" }, scope));
}

function parts(document_, method, path, described) {
  const built = [];
  if (described.description) built.push(h("p", {}, prose(described.description)));
  if (described.parameters.length) {
    const properties = Object.fromEntries(described.parameters.map((each) => [each.name, { ...each.schema, description: each.description, "x-place": each.in }]));
    const required = described.parameters.filter((each) => each.required).map((each) => each.name);
    built.push(h("h4", {}, "Parameters"), fields(document_, { properties, required }, "required"));
  }
  const sent = described.requestBody?.content["application/json"];
  if (sent) built.push(h("h4", {}, described.requestBody.required ? "Body" : "Body (optional)"), fields(document_, resolve(document_, sent.schema), "required"), curl(method, path, sent.example));
  else built.push(curl(method, path));
  for (const [status, response] of Object.entries(described.responses)) if (status < "400") built.push(...answer(document_, status, response));
  built.push(...shapes(document_, "Header", "always", described["x-header"] ? [["header", described["x-header"]]] : []));
  built.push(...shapes(document_, "Events", "always", Object.entries(described["x-events"] ?? {})));
  const messages = described["x-messages"];
  if (messages) {
    built.push(...shapes(document_, "Messages to send", "required", messages.sends.map((each) => [op(document_, each), each])));
    built.push(...shapes(document_, "Messages to receive", "always", messages.receives.map((each) => [op(document_, each), each])));
  }
  built.push(h("h4", {}, "Errors"), failures(document_, described));
  return built;
}

function op(document_, schema) {
  return resolve(document_, schema).properties.op.const;
}

function answer(document_, status, response) {
  const built = [h("h4", {}, status, " ", h("span", { class: "soft" }, prose(response.description)))];
  for (const [type, media] of Object.entries(response.content ?? {})) {
    const schema = resolve(document_, media.schema);
    if (type !== "application/json") built.push(h("p", { class: "soft" }, h("code", {}, type)));
    if (schema.properties) built.push(fields(document_, schema, "always"));
    if (media.example) built.push(example(media.example));
  }
  return built;
}

function shapes(document_, title, sure, named) {
  if (!named.length) return [];
  const each = named.map(([name, reference]) => {
    const schema = resolve(document_, reference);
    return h("details", { class: "shape" }, h("summary", {}, h("code", {}, name), " ", h("span", { class: "soft" }, prose(schema.description))), fields(document_, schema, sure));
  });
  return [h("h4", {}, title), ...each];
}

function failures(document_, described) {
  const rows = codes(document_, described).map((code) => {
    const said = document_["x-errors"][code];
    return h("li", {}, h("span", { class: "num" }, said.status), " ", h("code", {}, code), " ", h("span", { class: "soft" }, prose(said.message)));
  });
  return h("ul", { class: "failures" }, rows);
}

function codes(document_, described) {
  return Object.values(described.responses).flatMap((response) => resolve(document_, response)["x-codes"] ?? []);
}

/** The request as a command line. */
function curl(method, path, body) {
  const data = body === undefined ? "" : ` \\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body)}'`;
  const way = method === "GET" || (method === "POST" && body !== undefined) ? "" : `-X ${method} `;
  return h("pre", {}, h("code", {}, `curl ${way}'${location.origin}${path}'${data}`));
}

function words(document_, method, path, described) {
  const seen = new Set();
  const texts = [method, path, described.operationId, described.summary, described.description, described.tags[0]];
  const walk = (part) => {
    if (part === null || typeof part !== "object") return;
    if (part.$ref?.startsWith("#/components/schemas/")) {
      if (seen.has(part.$ref)) return;
      seen.add(part.$ref);
      walk(resolve(document_, part));
      return;
    }
    if (part.name && part.in) texts.push(part.name);
    if (part.properties) texts.push(...Object.keys(part.properties));
    Object.values(part).forEach(walk);
  };
  walk([described.parameters, described.requestBody, described["x-events"], described["x-messages"], described["x-header"]]);
  walk(Object.entries(described.responses).map(([status, response]) => (status < "400" ? response : null)));
  return [...texts, ...codes(document_, described)].join(" ").toLowerCase();
}
