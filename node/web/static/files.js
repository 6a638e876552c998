// Files of a conversation: handing one to the node, saving one that has come, and showing images.
//
// The node has checked all chunks of a file before it gives any. Only raster images are shown, and
// the first bytes of a file decide whether it is one, never the name or the type that the sender
// gives: the browser decodes a blob of that one type. Other files are saved, as bytes of no type.

import { Refused, code } from "./p2p.js";

const CHUNK_BYTES = 64 * 1024;
const CHUNKS_AT_ONCE = 4;
const BEGUN_MAX = 5;
const SHOWN_BYTES_MAX = 25 * 2 ** 20;
const PIXELS_MAX = 40_000_000;
const IMAGES_MAX = 20;
// A photo has its size behind its other data: a preview of its own, a colour profile.
const HEAD_CHUNKS = 8;
const REVOKED_AFTER_MS = 60_000;

export class NotTaken extends Error {}

/** Hand a file to the node, and send it; `told` hears how much is there, from 0 to 1. */
export async function sendFile(home, peer, uuid, file, told) {
  for (let turn = 0; turn < BEGUN_MAX; turn += 1) {
    try {
      return await hand(home, peer, uuid, file, told);
    } catch (error) {
      // The node has started again, and forgotten what was not finished.
      if (!(error instanceof Refused) || error.code !== code.NOT_FOUND) throw error;
    }
  }
  throw new NotTaken("The node starts again and again.");
}

async function hand(home, peer, uuid, file, told) {
  const { name, size, type } = file;
  const begun = await home.beginFile(peer, uuid, size, name, type);
  if (begun.error) throw new NotTaken(begun.error);
  const count = Math.max(1, Math.ceil(size / CHUNK_BYTES));
  for (let at = begun.next; !begun.is_sent && at < count; told(at / count)) {
    at = await home.addChunks(peer, uuid, at, await chunksOf(file, at));
  }
  return home.finishFile(peer, uuid);
}

async function chunksOf(file, first) {
  const from = first * CHUNK_BYTES;
  const to = Math.min(file.size, from + CHUNKS_AT_ONCE * CHUNK_BYTES);
  let data;
  try {
    data = new Uint8Array(await file.slice(from, to).arrayBuffer());
  } catch {
    throw new NotTaken("The file cannot be read any more.");
  }
  if (data.length < to - from) throw new NotTaken("The file has become smaller meanwhile.");
  const chunks = [];
  for (let at = 0; at < data.length; at += CHUNK_BYTES) chunks.push(data.slice(at, at + CHUNK_BYTES));
  return chunks.length ? chunks : [data];
}

/** The chunks of a file that is complete. */
export async function fetchFile(home, peer, item, told) {
  const count = Math.max(1, Math.ceil(item.file.size / CHUNK_BYTES));
  const parts = [];
  while (parts.length < count) {
    const chunks = await home.readFile(peer, item.sequence, parts.length, CHUNKS_AT_ONCE);
    if (!chunks.length) throw new NotTaken("The file is not complete.");
    parts.push(...chunks);
    told(parts.length / count);
  }
  return parts;
}

/** Have the browser save a file under its name. */
export function save(parts, name) {
  const url = URL.createObjectURL(new Blob(parts, { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), REVOKED_AFTER_MS);
}

/** Whether a file may be an image that can be shown: its first bytes decide in the end. */
export function mayBeShown({ size, type = "" }) {
  return size <= SHOWN_BYTES_MAX && /^image\/(png|jpeg|gif|webp)$/.test(type);
}

/** Images that are shown, as URLs of blobs; the oldest go. */
export class Images {
  constructor() {
    this.urls = new Map();
  }

  /** The URL of an image, once the browser has decoded it. */
  async add(key, parts) {
    const type = imageType(parts);
    if (!type) throw new NotTaken("This is no image that can be shown. Save it instead.");
    const blob = new Blob(parts, { type });
    try {
      (await createImageBitmap(blob)).close();
    } catch {
      throw new NotTaken("This image is damaged. Save it instead.");
    }
    this.drop(key);
    const url = URL.createObjectURL(blob);
    this.urls.set(key, url);
    if (this.urls.size > IMAGES_MAX) this.drop(this.urls.keys().next().value);
    return url;
  }

  get(key) {
    return this.urls.get(key);
  }

  drop(key) {
    if (this.urls.has(key)) URL.revokeObjectURL(this.urls.get(key));
    this.urls.delete(key);
  }

  clear() {
    for (const key of [...this.urls.keys()]) this.drop(key);
  }
}

/** The type of a raster image by its first bytes, if it is not too large to be decoded. */
export function imageType(parts) {
  const head = joined(parts.slice(0, HEAD_CHUNKS));
  const view = new DataView(head.buffer);
  const found = FORMATS.find(({ magic }) =>
    magic.every(([at, text]) => [...text].every((each, place) => head[at + place] === each.charCodeAt(0))),
  );
  if (!found) return null;
  const [width, height] = found.measure(view) ?? [0, 0];
  return width > 0 && height > 0 && width * height <= PIXELS_MAX ? found.type : null;
}

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const FORMATS = [
  {
    type: "image/png",
    magic: [[0, "\x89PNG\r\n\x1a\n"], [12, "IHDR"]],
    measure: (view) => (view.byteLength < 24 ? null : [view.getUint32(16), view.getUint32(20)]),
  },
  {
    type: "image/gif",
    magic: [[0, "GIF8"]],
    measure: (view) =>
      view.byteLength < 10 ? null : [view.getUint16(6, true), view.getUint16(8, true)],
  },
  { type: "image/jpeg", magic: [[0, "\xff\xd8\xff"]], measure: measureJpeg },
  { type: "image/webp", magic: [[0, "RIFF"], [8, "WEBP"]], measure: measureWebp },
];

/** Width and height are in the first frame header, behind other segments. */
function measureJpeg(view) {
  for (let at = 2; at + 9 <= view.byteLength; ) {
    if (view.getUint8(at) !== 0xff) return null;
    const marker = view.getUint8(at + 1);
    const isFrame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
    if (isFrame) return [view.getUint16(at + 7), view.getUint16(at + 5)];
    if (marker === 0xff) at += 1;
    else at += 2 + view.getUint16(at + 2);
  }
  return null;
}

function measureWebp(view) {
  if (view.byteLength < 30) return null;
  const kind = String.fromCharCode(...[12, 13, 14, 15].map((at) => view.getUint8(at)));
  if (kind === "VP8X") return [24, 27].map((at) => 1 + view.getUint16(at, true) + (view.getUint8(at + 2) << 16));
  if (kind === "VP8 ") return [26, 28].map((at) => view.getUint16(at, true) & 0x3fff);
  if (kind !== "VP8L") return null;
  const bits = view.getUint32(21, true);
  return [1 + (bits & 0x3fff), 1 + ((bits >> 14) & 0x3fff)];
}
