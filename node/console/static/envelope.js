// The bytes of jobs and of their records (docs/reference/wire-protocol.md, "The bytes of a job").

import { valueText } from "./bodies.js";
import { name, plain, raw } from "./format.js";
import { decode, encode } from "./msgpack.js";

const PREFIX = "jobs/";

/** The channel of a queue by what somebody types. */
export function channelOf(text) {
  return raw(text.startsWith(PREFIX) ? text : PREFIX + text);
}

export function queueName(own) {
  return name(own).replace(/^jobs\//, "");
}

/** A job's parts, of the beginning of its data or the whole of it; null: it is no envelope. */
export function envelope(data) {
  try {
    const found = decode(data);
    return found !== null && typeof found === "object" && found.v === 1 ? found : null;
  } catch {
    return null;
  }
}

/** The data of a new job. `priority` null: none. */
export function jobBytes(payload, task, priority = null) {
  const fields = { v: 1, ...(priority === null ? {} : { r: priority }), p: payload, ...(task === "" ? {} : { n: task }), e: Date.now() };
  return encode(fields);
}

/** A payload as somebody types it: JSON, or text. */
export function payloadOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A job on one line: its task and the beginning of its payload. */
export function summary(data) {
  if (!data) return "";
  const found = envelope(data);
  if (found !== null) return plain(`${found.n ?? ""} ${valueText(found.p ?? null).replace(/\s+/g, " ")}`.trim().slice(0, 160));
  // Lists have the first bytes alone: of an envelope that is cut, the text that can be read.
  return plain(new TextDecoder().decode(data).replaceAll("\ufffd", "·")).slice(0, 120);
}

/** A record of progress or a result; null: there is none that this page reads. */
export function record(data) {
  try {
    const found = data && data.length > 0 ? decode(data) : null;
    return found !== null && typeof found === "object" ? found : null;
  } catch {
    return null;
  }
}
