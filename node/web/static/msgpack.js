// MessagePack, the part that packets of a node use: bodies are maps of the types below.
//
// Integers beyond 2^53 come out as bigint; bin and str as Uint8Array and string; a map as a Map
// only if a key is no string (names of groups are bytes), else as a plain object.

const TEXT = new TextEncoder();
const UTF8 = new TextDecoder("utf-8");
const DEPTH_MAX = 32;

/** The bytes of a value: nil, booleans, numbers, bigints, strings, Uint8Array, arrays and plain objects. */
export function encode(value) {
  const parts = [];
  write(value, parts);
  return join(parts);
}

/** The value of these bytes. Throws RangeError if they are cut, of another kind, or have more. */
export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.place !== bytes.length) {
    throw new RangeError("more than one value");
  }
  return value;
}

/** Several arrays of bytes as one. */
export function join(parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

function write(value, parts) {
  if (value === null || value === undefined) {
    parts.push(Uint8Array.of(0xc0));
  } else if (typeof value === "boolean") {
    parts.push(Uint8Array.of(value ? 0xc3 : 0xc2));
  } else if (typeof value === "number") {
    parts.push(number(value));
  } else if (typeof value === "bigint") {
    parts.push(large(value));
  } else if (typeof value === "string") {
    const text = TEXT.encode(value);
    parts.push(sized(text.length, 0xa0, 31, [0xd9, 0xda, 0xdb]), text);
  } else if (value instanceof Uint8Array) {
    parts.push(sized(value.length, 0, -1, [0xc4, 0xc5, 0xc6]), value);
  } else if (Array.isArray(value)) {
    parts.push(sized(value.length, 0x90, 15, [null, 0xdc, 0xdd]));
    value.forEach((each) => write(each, parts));
  } else {
    const fields = Object.entries(value);
    parts.push(sized(fields.length, 0x80, 15, [null, 0xde, 0xdf]));
    for (const [name, each] of fields) {
      write(name, parts);
      write(each, parts);
    }
  }
}

/** A head with a size: short, or behind one of the types for 8, 16 and 32 bits. */
function sized(size, short, shortMax, types) {
  if (size <= shortMax) {
    return Uint8Array.of(short | size);
  }
  const width = size < 2 ** 8 && types[0] !== null ? 0 : size < 2 ** 16 ? 1 : 2;
  const head = new DataView(new ArrayBuffer(1 + 2 ** width));
  head.setUint8(0, types[width]);
  if (width === 0) head.setUint8(1, size);
  if (width === 1) head.setUint16(1, size);
  if (width === 2) head.setUint32(1, size);
  return new Uint8Array(head.buffer);
}

function number(value) {
  if (!Number.isSafeInteger(value)) {
    const head = new DataView(new ArrayBuffer(9));
    head.setUint8(0, 0xcb);
    head.setFloat64(1, value);
    return new Uint8Array(head.buffer);
  }
  if (value >= 0) {
    if (value < 2 ** 32) {
      return sized(value, 0, 127, [0xcc, 0xcd, 0xce]);
    }
  } else if (value >= -32) {
    return Uint8Array.of(value & 0xff);
  }
  const head = new DataView(new ArrayBuffer(9));
  head.setUint8(0, value < 0 ? 0xd3 : 0xcf);
  head.setBigInt64(1, BigInt(value));
  return new Uint8Array(head.buffer);
}

/** A bigint of up to 64 bits. */
function large(value) {
  const head = new DataView(new ArrayBuffer(9));
  head.setUint8(0, value < 0n ? 0xd3 : 0xcf);
  head.setBigInt64(1, BigInt.asIntN(64, value));
  return new Uint8Array(head.buffer);
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.place = 0;
  }

  value(depth) {
    if (depth > DEPTH_MAX) {
      throw new RangeError("too deep");
    }
    const type = this.uint(1);
    if (type < 0x80) return type;
    if (type < 0x90) return this.map(type & 0x0f, depth);
    if (type < 0xa0) return this.list(type & 0x0f, depth);
    if (type < 0xc0) return this.text(type & 0x1f);
    if (type >= 0xe0) return type - 256;
    switch (type) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.take(this.uint(1 << (type - 0xc4))).slice();
      case 0xca: return this.float(4);
      case 0xcb: return this.float(8);
      case 0xcc: case 0xcd: case 0xce: return this.uint(1 << (type - 0xcc));
      case 0xcf: return safe(this.at(8, (place) => this.view.getBigUint64(place)));
      case 0xd0: return this.at(1, (place) => this.view.getInt8(place));
      case 0xd1: return this.at(2, (place) => this.view.getInt16(place));
      case 0xd2: return this.at(4, (place) => this.view.getInt32(place));
      case 0xd3: return safe(this.at(8, (place) => this.view.getBigInt64(place)));
      case 0xd9: case 0xda: case 0xdb: return this.text(this.uint(1 << (type - 0xd9)));
      case 0xdc: case 0xdd: return this.list(this.uint(type === 0xdc ? 2 : 4), depth);
      case 0xde: case 0xdf: return this.map(this.uint(type === 0xde ? 2 : 4), depth);
      default: throw new RangeError(`no such type: ${type}`);
    }
  }

  at(size, read) {
    const place = this.place;
    if (place + size > this.bytes.length) {
      throw new RangeError("cut");
    }
    this.place += size;
    return read(place);
  }

  take(size) {
    return this.at(size, (place) => this.bytes.subarray(place, place + size));
  }

  uint(size) {
    return this.at(size, (place) => {
      if (size === 1) return this.view.getUint8(place);
      return size === 2 ? this.view.getUint16(place) : this.view.getUint32(place);
    });
  }

  float(size) {
    return this.at(size, (place) =>
      size === 4 ? this.view.getFloat32(place) : this.view.getFloat64(place),
    );
  }

  text(size) {
    return UTF8.decode(this.take(size));
  }

  list(size, depth) {
    const values = [];
    for (let i = 0; i < size; i += 1) {
      values.push(this.value(depth + 1));
    }
    return values;
  }

  map(size, depth) {
    const fields = [];
    for (let i = 0; i < size; i += 1) {
      const name = this.value(depth + 1);
      fields.push([name, this.value(depth + 1)]);
    }
    const isPlain = fields.every(([name]) => typeof name === "string");
    return isPlain ? Object.fromEntries(fields) : new Map(fields);
  }
}

function safe(big) {
  const value = Number(big);
  return Number.isSafeInteger(value) ? value : big;
}
