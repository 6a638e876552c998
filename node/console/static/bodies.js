// Bodies of messages, records and jobs: as text, JSON, MessagePack or hexadecimal, always as text.

import { h, show } from "./dom.js";
import { bytes, plain } from "./format.js";
import { decode } from "./msgpack.js";

const SHOWN_MAX = 256 * 1024;
const UTF8 = new TextDecoder("utf-8", { fatal: true });
const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** The body with buttons for its forms; the first form that fits is shown. */
export function bodyView(data) {
  const shown = h("pre", { class: "body", tabindex: 0 });
  const forms = formsOf(data.subarray(0, SHOWN_MAX), data.length > SHOWN_MAX);
  const buttons = forms.map(([title, text]) =>
    h("button", { type: "button", "aria-pressed": "false", onclick: (event) => choose(event.currentTarget, text) }, title),
  );
  const choose = (button, text) => {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
    show(shown, text());
  };
  choose(buttons[0], forms[0][1]);
  const size = data.length > SHOWN_MAX ? `${bytes(data.length)}, the first ${bytes(SHOWN_MAX)} are shown` : bytes(data.length);
  const copy = h("button", { type: "button", class: "quiet", onclick: () => navigator.clipboard?.writeText(shown.textContent) }, "Copy");
  return h("div", { class: "body-view" }, h("div", { class: "row" }, ...buttons, copy, h("span", { class: "hint" }, size)), shown);
}

/** The beginning of a body on one line. */
export function preview(data, size = data.length) {
  const text = textOf(data, true);
  if (text === null) {
    return Array.from(data.subarray(0, 24), hexOf).join(" ") + (size > 24 ? " …" : "");
  }
  const line = text.replace(/\s+/g, " ").trim();
  return plain(line) + (size > data.length ? " …" : "");
}

/** JSON with a line for each value. Numbers stay as they are written; null: it is no JSON. */
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let [found, depth] = ["", 0];
  const tokens = text.match(TOKENS) ?? [];
  tokens.forEach((token, at) => {
    if (token === "{" || token === "[") {
      const closes = tokens[at + 1] === "}" || tokens[at + 1] === "]";
      depth += 1;
      found += token + (closes ? "" : `\n${"  ".repeat(depth)}`);
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const opens = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      found += (opens ? "" : `\n${"  ".repeat(depth)}`) + token;
    } else if (token === ",") {
      found += `,\n${"  ".repeat(depth)}`;
    } else {
      found += token === ":" ? ": " : token;
    }
  });
  return found;
}

/** A value of MessagePack as text, near to JSON; bytes are in hexadecimal. */
export function valueText(value, depth = 0) {
  const [gap, end] = ["  ".repeat(depth + 1), "  ".repeat(depth)];
  const lines = (open, rows, close) => (rows.length === 0 ? open + close : `${open}\n${gap}${rows.join(`,\n${gap}`)}\n${end}${close}`);
  if (value instanceof Uint8Array) {
    const text = textOf(value, false);
    return text === null ? `bytes(${Array.from(value, hexOf).join("")})` : JSON.stringify(text);
  }
  if (Array.isArray(value)) return lines("[", value.map((each) => valueText(each, depth + 1)), "]");
  if (value !== null && typeof value === "object") {
    const rows = value instanceof Map ? [...value] : Object.entries(value);
    const key = (each) => (typeof each === "string" ? JSON.stringify(each) : valueText(each));
    return lines("{", rows.map(([each, of]) => `${key(each)}: ${valueText(of, depth + 1)}`), "}");
  }
  return typeof value === "bigint" ? String(value) : JSON.stringify(value);
}

function formsOf(data, isCut) {
  const text = textOf(data, isCut);
  const json = text === null || isCut ? null : pretty(text);
  const packed = isCut ? null : unpacked(data);
  const isPacked = packed !== null && typeof packed === "object" && !(packed instanceof Uint8Array);
  const forms = [];
  if (isPacked) forms.push(["MessagePack", () => plainLines(valueText(packed))]);
  if (json !== null) forms.push(["JSON", () => plainLines(json)]);
  if (text !== null) forms.push(["Text", () => plainLines(text)]);
  forms.push(["Hex", () => hexDump(data)]);
  return forms;
}

export function plainLines(text) {
  return text.split("\n").map((line) => plain(line.replaceAll("\t", "    "))).join("\n");
}

function unpacked(data) {
  try {
    return decode(data);
  } catch {
    return null;
  }
}

/** The text of UTF-8; null: it is none. `isCut`: the last character may be missing a part. */
function textOf(data, isCut) {
  for (let end = data.length; end >= Math.max(0, data.length - (isCut ? 3 : 0)); end -= 1) {
    try {
      const text = UTF8.decode(data.subarray(0, end));
      return /[\u0000-\u0008\u000e-\u001f]/.test(text) ? null : text;
    } catch {
      // Perhaps a character is cut.
    }
  }
  return null;
}

function hexOf(byte) {
  return byte.toString(16).padStart(2, "0");
}

function hexDump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = Array.from(data.subarray(at, at + 16));
    const text = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${row.map(hexOf).join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
