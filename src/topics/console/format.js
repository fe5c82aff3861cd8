/** Numbers, sizes and times as people read them. */

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === undefined || value === null ? "–" : whole.format(value));
export const compact = (value) => (value < 10_000 ? whole.format(Math.round(value)) : short.format(value));
export const rate = (value) => (value === null || value === undefined ? "–" : value === 0 ? "0/s" : value < 10 ? `${value.toFixed(1)}/s` : `${compact(value)}/s`);

export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** What the server says, as a sentence begins. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(ms) {
  const parts = [
    [86_400_000, "d"],
    [3_600_000, "h"],
    [60_000, "min"],
    [1_000, "s"],
  ];
  const found = [];
  for (const [size, unit] of parts) {
    if (ms >= size && found.length < 2) {
      found.push(`${Math.floor(ms / size)} ${unit}`);
      ms %= size;
    }
  }
  return found.join(" ") || `${Math.round(ms)} ms`;
}

/** How long something is ago, in its largest unit. */
export function ago(ms) {
  return ms < 1_500 ? "now" : `${duration(ms).replace(/^(\d+ (?:d|h|min)) .*/, "$1")} ago`;
}

/** A time of the server in the zone of the reader, to the millisecond. */
export function time(ms) {
  const at = new Date(ms);
  const pad = (value, size = 2) => String(value).padStart(size, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}
