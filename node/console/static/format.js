// Texts: numbers, sizes, times, and names of any bytes.

const UTF8 = new TextDecoder("utf-8", { fatal: true });
const TEXT = new TextEncoder();
const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const SECOND = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
// Controls, marks that turn the direction of text or have no width: they would hide what a name is.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** 12,345 */
export function count(value) {
  return NUMBER.format(value);
}

/** 12.3K */
export function short(value) {
  return Math.abs(value) < 10_000 ? NUMBER.format(Math.round(value * 10) / 10) : SHORT.format(value);
}

/** 1 record, 2 records */
export function plural(value, noun, nouns = `${noun}s`) {
  return `${count(value)} ${value === 1 || value === 1n ? noun : nouns}`;
}

/** 1.5 MiB */
export function bytes(value) {
  let [size, unit] = [Number(value), 0];
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

/** 12.3/s */
export function rate(value) {
  return value === null || value === undefined ? "" : `${short(value)}/s`;
}

/** 12 %; of a part between 0 and 1 */
export function percent(part) {
  const value = part * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
}

/** 3 d 4 h, 5 min, 12 s, 3.4 ms, 250 us */
export function duration(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${seconds < 0.01 ? (seconds * 1000).toFixed(1) : Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const units = [[86_400, "d"], [3600, "h"], [60, "min"]];
  const at = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[at];
  const rest = units[at + 1] ? Math.floor((seconds % size) / units[at + 1][0]) : 0;
  const more = rest > 0 && size >= 3600 ? ` ${rest} ${units[at + 1][1]}` : "";
  return `${Math.floor(seconds / size)} ${name}${more}`;
}

/** How long ago; `ms` since 1970. */
export function ago(ms) {
  const seconds = (Date.now() - Number(ms)) / 1000;
  if (seconds < -1) return `in ${duration(-seconds)}`;
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

/** The day and the second; of today the second alone. `ms` since 1970. */
export function moment(ms) {
  const date = new Date(Number(ms));
  const isToday = date.toDateString() === new Date().toDateString();
  return (isToday ? TIME : SECOND).format(date).replaceAll(" ", "\u00a0");
}

/** The whole of it, for titles. */
export function exactly(ms) {
  return new Date(Number(ms)).toISOString();
}

/** Text in which nothing hides: controls are shown by their numbers. */
export function plain(text) {
  return text.replace(HIDDEN, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
}

/** A name as text, whatever its bytes are. */
export function name(raw) {
  if (typeof raw === "string") return plain(raw);
  try {
    return plain(UTF8.decode(raw));
  } catch {
    return Array.from(raw, (byte) =>
      byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`,
    ).join("");
  }
}

/** The bytes of text. */
export function raw(text) {
  return TEXT.encode(text);
}

/** A name of any bytes as a part of an address. */
export function escaped(bytesOfName) {
  const all = typeof bytesOfName === "string" ? raw(bytesOfName) : bytesOfName;
  return Array.from(all, (byte) => {
    const letter = String.fromCharCode(byte);
    return /[A-Za-z0-9_.~-]/.test(letter) ? letter : `%${byte.toString(16).padStart(2, "0")}`;
  }).join("");
}

/** The bytes of such a part. */
export function unescaped(part) {
  const found = [];
  for (let at = 0; at < part.length; at += 1) {
    if (part[at] === "%") {
      found.push(Number.parseInt(part.slice(at + 1, at + 3), 16));
      at += 2;
    } else {
      found.push(...raw(part[at]));
    }
  }
  return Uint8Array.from(found);
}

/** True if two names are the same bytes. */
export function same(one, other) {
  return one.length === other.length && one.every((byte, at) => byte === other[at]);
}
