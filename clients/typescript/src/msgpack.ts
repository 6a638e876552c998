/** MessagePack, as far as requests about jobs and streams need it: no extension types. */

export type Value =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | readonly Value[]
  | { readonly [name: string]: Value | undefined };

const DEPTH_MAX = 64;

/** The bytes of a value. Fields that are undefined are left out; a bigint is an integer. */
export function encode(value: Value): Uint8Array {
  const parts: Uint8Array[] = [];
  write(value, parts, 0);
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** The value of bytes; integers above 2^53 are bigint. RangeError where they break off. */
export function decode(bytes: Uint8Array): Value {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.at !== bytes.length) throw new RangeError("more than one value");
  return value;
}

function write(value: Value, parts: Uint8Array[], depth: number): void {
  if (depth > DEPTH_MAX) throw new RangeError("the value is nested too deeply");
  if (value === null) parts.push(Uint8Array.of(0xc0));
  else if (typeof value === "boolean") parts.push(Uint8Array.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "bigint") parts.push(integer(value));
  else if (typeof value === "number") {
    parts.push(Number.isSafeInteger(value) ? integer(BigInt(value)) : head(0xcb, 8, (v) => v.setFloat64(1, value)));
  } else if (typeof value === "string") {
    const text = new TextEncoder().encode(value);
    parts.push(sized(text.length, 31, 0xa0, [0xd9, 0xda, 0xdb]), text);
  } else if (value instanceof Uint8Array) {
    parts.push(sized(value.length, -1, 0, [0xc4, 0xc5, 0xc6]), value);
  } else if (isList(value)) {
    parts.push(sized(value.length, 15, 0x90, [undefined, 0xdc, 0xdd]));
    for (const each of value) write(each, parts, depth + 1);
  } else if (typeof value === "object") {
    const fields = Object.entries(value).filter(([, each]) => each !== undefined);
    parts.push(sized(fields.length, 15, 0x80, [undefined, 0xde, 0xdf]));
    for (const [name, each] of fields) {
      write(name, parts, depth + 1);
      write(each as Value, parts, depth + 1);
    }
  } else {
    throw new TypeError(`a value of type ${typeof value} cannot be sent`);
  }
}

function isList(value: object): value is readonly Value[] {
  return Array.isArray(value);
}

function head(type: number, size: number, set: (view: DataView) => void): Uint8Array {
  const part = new Uint8Array(1 + size);
  part[0] = type;
  set(new DataView(part.buffer));
  return part;
}

function integer(value: bigint): Uint8Array {
  if (value >= -32n && value < 128n) return Uint8Array.of(Number(value) & 0xff);
  if (value >= 2n ** 64n || value < -(2n ** 63n)) throw new RangeError("an integer has 64 bits");
  if (value < 0n) return head(0xd3, 8, (view) => view.setBigInt64(1, value));
  if (value < 2n ** 32n) return head(0xce, 4, (view) => view.setUint32(1, Number(value)));
  return head(0xcf, 8, (view) => view.setBigUint64(1, value));
}

/** The type byte of something with a size: in the byte itself up to `small`, else in 1, 2 or 4. */
function sized(
  size: number,
  small: number,
  base: number,
  types: readonly [number | undefined, number, number],
): Uint8Array {
  if (size <= small) return Uint8Array.of(base | size);
  if (types[0] !== undefined && size < 2 ** 8) return Uint8Array.of(types[0], size);
  if (size < 2 ** 16) return head(types[1], 2, (view) => view.setUint16(1, size));
  return head(types[2], 4, (view) => view.setUint32(1, size));
}

class Reader {
  at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  value(depth: number): Value {
    if (depth > DEPTH_MAX) throw new RangeError("the value is nested too deeply");
    const type = this.u(1);
    if (type < 0x80) return type;
    if (type < 0x90) return this.map(type & 0x0f, depth);
    if (type < 0xa0) return this.list(type & 0x0f, depth);
    if (type < 0xc0) return this.text(type & 0x1f);
    if (type >= 0xe0) return type - 256;
    switch (type) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return type === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.take(this.u(1 << (type - 0xc4))).slice();
      case 0xca:
        return this.view.getFloat32(this.skip(4));
      case 0xcb:
        return this.view.getFloat64(this.skip(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.u(1 << (type - 0xcc));
      case 0xcf:
        return small(this.view.getBigUint64(this.skip(8)));
      case 0xd0:
        return this.view.getInt8(this.skip(1));
      case 0xd1:
        return this.view.getInt16(this.skip(2));
      case 0xd2:
        return this.view.getInt32(this.skip(4));
      case 0xd3:
        return small(this.view.getBigInt64(this.skip(8)));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.u(1 << (type - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.list(this.u(2 << (type - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.u(2 << (type - 0xde)), depth);
      default:
        throw new RangeError(`type ${type.toString(16)} is not known`);
    }
  }

  private skip(size: number): number {
    const at = this.at;
    if (at + size > this.bytes.length) throw new RangeError("the value breaks off");
    this.at += size;
    return at;
  }

  private u(size: number): number {
    const at = this.skip(size);
    if (size === 1) return this.view.getUint8(at);
    return size === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  private take(size: number): Uint8Array {
    const at = this.skip(size);
    return this.bytes.subarray(at, at + size);
  }

  private text(size: number): string {
    return new TextDecoder().decode(this.take(size));
  }

  private list(size: number, depth: number): Value[] {
    const found: Value[] = [];
    for (let left = size; left; left--) found.push(this.value(depth + 1));
    return found;
  }

  private map(size: number, depth: number): Value {
    const found: Record<string, Value> = Object.create(null) as Record<string, Value>;
    for (let left = size; left; left--) {
      const name = this.value(depth + 1);
      const key = name instanceof Uint8Array ? new TextDecoder().decode(name) : String(name);
      found[key] = this.value(depth + 1);
    }
    return found;
  }
}

function small(value: bigint): number | bigint {
  const found = Number(value);
  return Number.isSafeInteger(found) ? found : value;
}
