/** The packets of the P2P buffer protocol (docs/reference/wire-protocol.md): bytes, no sockets. */

export const PING = 0x00;
export const PONG = 0x01;
export const MSG = 0x02;
export const MSG_ACK = 0x03;
export const GET = 0x04;
export const GET_ACK = 0x05;
export const PUT = 0x06;
export const PUT_ACK = 0x07;
export const LIST = 0x08;
export const LIST_ACK = 0x09;
export const HELLO = 0x80;
export const CHALLENGE = 0x81;
export const AUTH = 0x82;
export const READY = 0x83;
export const TOUCH = 0x86;
export const TOUCH_ACK = 0x87;
export const MSGX = 0x88;
export const STREAM = 0x92;
export const STREAM_REPLY = 0x93;
export const JOBS = 0x96;
export const JOBS_REPLY = 0x97;
export const NACK = 0xff;

export const MODES = ["pair", "fanout", "queue"] as const;
export type Mode = (typeof MODES)[number];
export const ROLES = { producer: 1, consumer: 2, both: 3, worker: 4 } as const;
export type Role = keyof typeof ROLES;
export const DURABILITIES = ["memory", "os", "disk", "replicated"] as const;
export type Durability = (typeof DURABILITIES)[number];

const TAG = {
  channel: 1,
  publicKey: 2,
  nonce: 3,
  role: 4,
  extensions: 5,
  window: 7,
  packetMax: 8,
  signature: 0x0a,
  mode: 0x0e,
} as const;
const DURABILITY = 0x81;
const VERSION = 1;

/** A packet under construction. */
class Writer {
  private readonly parts: Uint8Array[] = [];

  u(size: 1 | 2 | 4, value: number): this {
    const part = new Uint8Array(size);
    for (let at = size - 1, rest = value; at >= 0; at--, rest = Math.floor(rest / 256)) {
      part[at] = rest % 256;
    }
    this.parts.push(part);
    return this;
  }

  id(value: bigint): this {
    const part = new Uint8Array(8);
    new DataView(part.buffer).setBigUint64(0, value);
    this.parts.push(part);
    return this;
  }

  bytes(value: Uint8Array): this {
    this.parts.push(value);
    return this;
  }

  done(): Uint8Array {
    return concat(...this.parts);
  }
}

export function concat(...parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export const u32 = (value: number): Uint8Array => new Writer().u(4, value).done();

export interface Hello {
  channel: Uint8Array;
  role: Role;
  window?: number;
  mode?: Mode;
  publicKey?: Uint8Array;
  nonce?: Uint8Array;
}

export function hello(wanted: Hello): Uint8Array {
  const packet = new Writer()
    .u(1, HELLO)
    .bytes(new TextEncoder().encode("P2PB"))
    .u(1, VERSION)
    .u(1, VERSION)
    .u(1, wanted.role === "producer" ? 0 : 1);
  const tag = (number: number, value: Uint8Array) =>
    packet.u(1, number).u(2, value.length).bytes(value);
  tag(TAG.channel, wanted.channel);
  tag(TAG.role, Uint8Array.of(ROLES[wanted.role]));
  if (wanted.publicKey) tag(TAG.publicKey, wanted.publicKey);
  if (wanted.nonce) tag(TAG.nonce, wanted.nonce);
  const replies = [STREAM, STREAM_REPLY, JOBS, JOBS_REPLY];
  tag(TAG.extensions, Uint8Array.of(TOUCH, TOUCH_ACK, MSGX, ...replies));
  if (wanted.window !== undefined) tag(TAG.window, new Writer().u(2, wanted.window).done());
  if (wanted.mode !== undefined) tag(TAG.mode, Uint8Array.of(MODES.indexOf(wanted.mode)));
  return packet.done();
}

/** The fields of a CHALLENGE, and its bytes without the signature, which both ends sign. */
export interface Challenge {
  publicKey: Uint8Array | undefined;
  signature: Uint8Array | undefined;
  unsigned: Uint8Array;
}

export function readChallenge(packet: Uint8Array): Challenge {
  let [publicKey, signature, unsigned]: (Uint8Array | undefined)[] = [];
  for (let at = 2; at + 3 <= packet.length; ) {
    const end = at + 3 + view(packet).getUint16(at + 1);
    if (packet[at] === TAG.publicKey) publicKey = packet.slice(at + 3, end);
    if (packet[at] === TAG.signature) {
      signature = packet.slice(at + 3, end);
      unsigned = concat(packet.subarray(0, at), packet.subarray(end));
    }
    at = end;
  }
  return { publicKey, signature, unsigned: unsigned ?? packet };
}

export const auth = (signature: Uint8Array): Uint8Array => concat(Uint8Array.of(AUTH), signature);

export const ABORT = Uint8Array.of(NACK, NACK, NACK);

/** A request about jobs or streams: its number, the operation, and a MessagePack map. */
export const request = (type: number, number: number, operation: number, body: Uint8Array): Uint8Array =>
  new Writer().u(1, type).u(4, number).u(1, operation).bytes(body).done();

export interface Ready {
  mode: Mode | undefined;
  durability: Durability;
  packetMax: number;
  extensions: ReadonlySet<number>;
}

/** Read a READY; undefined where it breaks off. */
export function readReady(packet: Uint8Array): Ready | undefined {
  const ready: { -readonly [name in keyof Ready]: Ready[name] } = {
    mode: undefined,
    durability: "memory",
    packetMax: 2 ** 20,
    extensions: new Set(),
  };
  for (let at = 2; at < packet.length; ) {
    if (at + 3 > packet.length) return undefined;
    const size = view(packet).getUint16(at + 1);
    const value = packet.subarray(at + 3, at + 3 + size);
    if (value.length < size) return undefined;
    switch (packet[at]) {
      case TAG.mode:
        ready.mode = MODES[value[0] ?? 0];
        break;
      case TAG.extensions:
        ready.extensions = new Set(value);
        break;
      case TAG.packetMax:
        if (size === 4) ready.packetMax = view(value).getUint32(0);
        break;
      case DURABILITY:
        ready.durability = DURABILITIES[value[0] ?? 0] ?? "memory";
        break;
    }
    at += 3 + size;
  }
  return ready;
}

export const put = (key: number, ttl: number, data: Uint8Array): Uint8Array =>
  new Writer().u(1, PUT).u(4, key).u(4, ttl).bytes(data).done();

export const get = (id: bigint): Uint8Array => new Writer().u(1, GET).id(id).done();

export const list = (limit: number, from: bigint, to: bigint): Uint8Array =>
  new Writer().u(1, LIST).u(2, limit).id(from).id(to).done();

export const ack = (id: bigint): Uint8Array => new Writer().u(1, MSG_ACK).id(id).done();

export const touch = (id: bigint, ms: number): Uint8Array =>
  new Writer().u(1, TOUCH).id(id).u(4, ms).done();

export const LATER = 0x30;
export const REJECT = 0x31;

/** Give a message back. A node takes the NACK of the packet type that it pushed. */
export function giveBack(pushed: number, id: bigint, code: number, delayMs?: number): Uint8Array {
  const packet = new Writer().u(1, NACK).u(1, pushed).u(1, code).id(id);
  return (delayMs === undefined ? packet : packet.u(4, delayMs)).done();
}

export const ping = (): Uint8Array => Uint8Array.of(PING);

/** The answer to a PING, with its time where it has one. */
export function pong(packet: Uint8Array): Uint8Array {
  if (packet.length !== 9) return Uint8Array.of(PONG);
  return new Writer().u(1, PONG).bytes(packet.subarray(1)).id(0n).id(0n).done();
}

export const GOODBYE = Uint8Array.of(NACK, NACK, 0);

export function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
