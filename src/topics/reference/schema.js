/** Schemas as tables of fields; what is inside a field unfolds below it. */

import { h } from "/console/dom.js";

/** What a reference stands for. */
export function resolve(document_, schema) {
  if (!schema?.$ref) return schema ?? {};
  const target = schema.$ref.slice(2).split("/").reduce((part, name) => part[name], document_);
  return resolve(document_, target);
}

/** Text whose `quoted` words are code. */
export function prose(text) {
  return (text ?? "").split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** A value as JSON. */
export function example(value) {
  return h("pre", {}, h("code", {}, JSON.stringify(value, null, 2)));
}

/** The fields of an object; `sure` is said of those that are always there. */
export function fields(document_, schema, sure, depth = 0) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const inner = depth < 4 ? inside(document_, field) : null;
    return h(
      "div",
      { class: "field" },
      h("div", { class: "head" }, h("code", { class: "name" }, name), h("span", { class: "type" }, type(document_, field)), field["x-place"] === "header" ? h("span", { class: "scope" }, "header") : null, required.has(name) ? h("span", { class: "required" }, sure) : null),
      h("div", { class: "text" }, prose(field.description), limits(field)),
      inner ? h("details", { class: "inner" }, h("summary", {}, inner.title ?? "fields"), fields(document_, inner, sure, depth + 1)) : null,
    );
  });
  return h("div", { class: "fields" }, rows);
}

/** The object that is in a field, in its list, or in its map. */
function inside(document_, field) {
  const schema = resolve(document_, field);
  if (schema.properties) return schema;
  for (const part of [schema.items, schema.additionalProperties, ...(schema.anyOf ?? [])]) {
    if (part && typeof part === "object") {
      const found = inside(document_, part);
      if (found) return found;
    }
  }
  return null;
}

function type(document_, field) {
  const name = field.$ref?.split("/").pop();
  const schema = resolve(document_, field);
  if (name && schema.properties) return name;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.anyOf) return [...new Set(schema.anyOf.map((each) => type(document_, each)))].join(" | ");
  if (schema.prefixItems) return `[${schema.prefixItems.map((each) => type(document_, each)).join(", ")}]`;
  if (schema.type === "array") return `list of ${type(document_, schema.items ?? {})}`;
  if (schema.additionalProperties) return `map of ${type(document_, schema.additionalProperties)}`;
  return schema.type ?? "any";
}

const SAID = { minimum: "at least", maximum: "at most", minLength: "length at least", maxLength: "length at most", minItems: "items at least", maxItems: "items at most", maxProperties: "entries at most", pattern: "matches", default: "default" };

function limits(field) {
  const bounds = { ...field };
  for (const part of field.anyOf ?? []) Object.assign(bounds, { ...part, ...bounds });
  // That a number fits a machine's word is not worth a reader's time.
  const told = (name) => bounds[name] !== undefined && !(name === "minimum" && bounds[name] <= 0) && !(name === "maximum" && bounds[name] >= 2 ** 31 - 1);
  const texts = Object.entries(SAID).filter(([name]) => told(name));
  if (!texts.length) return null;
  return h("span", { class: "limits" }, texts.map(([name, text]) => [`${text} `, h("code", {}, typeof bounds[name] === "string" ? bounds[name] : JSON.stringify(bounds[name]))]).flatMap((each, i) => (i ? [", ", ...each] : each)));
}
