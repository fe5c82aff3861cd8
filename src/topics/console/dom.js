/** Elements from calls instead of from text: what comes from a server can never become markup. */

const SVG = "http://www.w3.org/2000/svg";

/** An element; `props` are attributes, `on...` are listeners, children are elements or text. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for the elements of a picture. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Put these children in place of all that an element has. */
export function show(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

/** As `show`, for what is drawn again and again: who stands in it with the keyboard, or has scrolled it, stays there. */
export function refresh(element, ...children) {
  const focused = element.contains(document.activeElement) ? markOf(document.activeElement) : null;
  const scrolled = [...element.querySelectorAll(".scroll")].filter((region) => region.scrollLeft).map((region) => [markOf(region), region.scrollLeft]);
  show(element, ...children);
  for (const [mark, left] of scrolled) find(element, mark)?.scrollTo({ left });
  if (focused !== null) find(element, focused)?.focus({ preventScroll: true });
  return element;
}

function markOf(element) {
  return ["id", "data-mark", "href", "aria-label"].map((name) => [name, element.getAttribute(name)]).find(([, value]) => value) ?? null;
}

function find(element, mark) {
  return mark === null ? null : element.querySelector(`[${mark[0]}="${CSS.escape(mark[1])}"]`);
}

function kept(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...kept(children).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** A labelled input; `hint` explains it below. */
export function field(label, input, hint = null) {
  input.id ||= `f${++made}`;
  const described = hint ? h("small", { id: `${input.id}-hint` }, hint) : null;
  if (described) input.setAttribute("aria-describedby", described.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, described);
}

let made = 0;

/** A table in a frame that scrolls by itself on narrow screens; a head that begins with # is one of numbers. */
export function table(caption, heads, rows) {
  const head = heads.map((text) => h("th", { scope: "col", class: text.startsWith("#") ? "num" : null }, text.replace("#", "")));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "sr" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
  );
}

/** One figure with its name above and what it means below. */
export function tile(label, value, below, kind = "") {
  return h("div", { class: `tile ${kind}` }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "below" }, below));
}

/** Names and values, one below the other. */
export function facts(entries) {
  return h("dl", { class: "pairs" }, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** What went wrong, with the code and the details that the server gave. */
export function problem(error) {
  const detail = error.detail ? Object.entries(error.detail).filter(([, value]) => typeof value !== "object") : [];
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, error.message)),
    (error.status > 0 || detail.length > 0) &&
      h("p", { class: "soft" }, error.status > 0 && h("code", {}, `${error.status} ${error.code}`), detail.map(([name, value]) => [" ", h("code", {}, `${name}: ${value}`)])),
  );
}

/** The address of a topic's page, or of a part of it. */
export function place(name, ...parts) {
  return `#/${["topics", name, ...parts].map(encodeURIComponent).join("/")}`;
}
