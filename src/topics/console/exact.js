/**
 * JSON as it was written: a number that JavaScript cannot hold stays what it is, in what is shown and in what is sent.
 *
 * Most texts have no such number and are read the short way. A browser that cannot tell how a number was written reads
 * all of them so.
 */

const LONG = /\d[\d.]{15}|\de[+-]?\d/i;
const able = typeof JSON.rawJSON === "function";

/** As JSON.parse; what `isExact` is true of stands for a number and is written by JSON.stringify as it came. */
export function parse(text) {
  return able && LONG.test(text) ? JSON.parse(text, keep) : JSON.parse(text);
}

/** Whether a value is a number that is kept as text. */
export function isExact(value) {
  return able && JSON.isRawJSON(value);
}

function keep(_, value, context) {
  const loses = typeof value === "number" && context !== undefined && context.source !== String(value) && digits(context.source) !== digits(String(value));
  return loses ? JSON.rawJSON(context.source) : value;
}

/** What of a number has to be the same in another way to write it: its digits, and how large it is. */
function digits(text) {
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i.exec(text) ?? ["", "", text];
  const found = (whole + part).replace(/^0+/, "");
  return `${sign}${found.replace(/0+$/, "")}e${found === "" ? 0 : Number(power) + found.length - part.length}`;
}
