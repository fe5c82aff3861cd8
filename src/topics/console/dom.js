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
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  const kept = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...kept.map((child) => (child instanceof Node ? child : String(child))));
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

/** A table in a frame that scrolls by itself on narrow screens. */
export function table(caption, heads, rows) {
  const head = heads.map((text) => h("th", { scope: "col", class: text.startsWith("#") ? "num" : null }, text.replace("#", "")));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "sr" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
  );
}
