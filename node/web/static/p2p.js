// The P2P buffer protocol over a WebSocket, as docs/reference/wire-protocol.md has it: HELLO, then questions to the
// node in packets 90 (administration), 92 (streams), 94 (peers) and 96 (jobs), GETs of messages, and whatever keeps
// the connection alive.

import { decode, encode, join } from "./msgpack.js";

const PING = 0x00;
const PONG = 0x01;
const GET = 0x04;
const GOT = 0x05;
const HELLO = 0x80;
const READY = 0x83;
const NACK = 0xff;
export const ADMIN = 0x90;
export const STREAM = 0x92;
export const PEERS = 0x94;
export const JOBS = 0x96;
const REPLIES = new Set([ADMIN + 1, STREAM + 1, PEERS + 1, JOBS + 1]);
const ID_BYTES = 8;
const MORE = 0x80;
const CANCEL = 14;

const SUBPROTOCOL = "p2pbuf.v1.hello";
const CONSUMER = 2;
const HANDSHAKE_MS = 10_000;
const SILENCE_MS = 25_000;
const TEXT = new TextEncoder();

/** A refused request. `code` is that of the NACK; docs/reference/wire-protocol.md lists them. */
export class Refused extends Error {
  constructor(code, delayMs = 0) {
    super(`refused: ${code.toString(16).padStart(2, "0")}`);
    this.code = code;
    this.delayMs = delayMs;
  }
}

/** The connection is gone, or never came about. `code` is that of a refused HELLO, else 0. */
export class Lost extends Error {
  constructor(why, code = 0) {
    super(why);
    this.code = code;
  }
}

export const code = {
  NOT_FOUND: 0x02,
  TOO_LARGE: 0x24,
  FULL: 0x26,
  UNKNOWN_STREAM: 0x41,
  TRIMMED: 0x43,
  UNKNOWN_PEER: 0x48,
  AUTHENTICATION: 0xf5,
  NOT_ALLOWED: 0xf6,
};

/** The packet that says who asks. `channel` is a string or bytes; `token` is a string, or null for none. */
export function hello(channel, token, agent) {
  const tags = [
    [0x01, bytesOf(channel)],
    [0x04, Uint8Array.of(CONSUMER)],
    [0x05, Uint8Array.of(...[...REPLIES].flatMap((reply) => [reply - 1, reply]))],
    ...(token === null ? [] : [[0x06, TEXT.encode(token)]]),
    [0x80, TEXT.encode(agent)],
  ];
  const values = tags.flatMap(([tag, value]) => [
    Uint8Array.of(tag, value.length >> 8, value.length & 0xff),
    value,
  ]);
  return join([Uint8Array.of(HELLO, 0x50, 0x32, 0x50, 0x42, 1, 1, 0), ...values]);
}

/** The bytes of a name. */
function bytesOf(name) {
  return typeof name === "string" ? TEXT.encode(name) : name;
}

/** A name as a part of a path; any bytes can be one. */
function segment(name) {
  const hex = (byte) => `%${byte.toString(16).padStart(2, "0")}`;
  return Array.from(bytesOf(name), hex).join("");
}

/** Connects and says HELLO. Gives a Connection, or throws Lost. */
export function connect(channel, token, agent = "millpond page") {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const path = `/v1/channels/${segment(channel)}`;
  const socket = new WebSocket(`${scheme}//${location.host}${path}`, [SUBPROTOCOL]);
  socket.binaryType = "arraybuffer";
  return new Promise((resolve, reject) => {
    const fail = (why, refusal) => {
      clearTimeout(alarm);
      socket.onclose = socket.onmessage = null;
      socket.close();
      reject(new Lost(why, refusal));
    };
    const alarm = setTimeout(() => fail("no answer"), HANDSHAKE_MS);
    socket.onopen = () => socket.send(hello(channel, token, agent));
    socket.onclose = () => fail("not reachable");
    socket.onmessage = ({ data }) => {
      const packet = new Uint8Array(data);
      if (packet[0] === READY) {
        clearTimeout(alarm);
        resolve(new Connection(socket));
      } else if (packet[0] === NACK) {
        fail("refused", packet[1] === HELLO ? packet[2] : 0);
      }
    };
  });
}

/** One, after READY. `lost` is a promise of a Lost. */
export class Connection {
  constructor(socket) {
    this.socket = socket;
    this.asked = new Map();
    this.nextNumber = 1;
    this.heardAt = Date.now();
    this.lost = new Promise((resolve) => {
      this.tellLost = resolve;
    });
    socket.onmessage = ({ data }) => this.hear(new Uint8Array(data));
    socket.onclose = () => this.end("the connection was lost");
    this.watch = setInterval(() => this.look(), SILENCE_MS / 5);
  }

  /** Ask for an operation of packet `type`; gives its answer, or throws Refused or Lost.
   *  An AbortSignal gives up the waiting of a read. */
  ask(type, operation, fields, signal) {
    return new Promise((resolve, reject) => {
      if (this.socket.readyState !== WebSocket.OPEN) {
        reject(new Lost("not connected"));
        return;
      }
      const number = this.nextNumber;
      this.nextNumber = (number + 1) % 2 ** 32;
      const key = `${type}/${number}`;
      this.asked.set(key, { resolve, reject, parts: [] });
      signal?.addEventListener("abort", () => this.giveUp(key, number), { once: true });
      this.send(type, number, operation, encode(fields));
    });
  }

  /** The data of a message of this connection's channel; `id` is a bigint. */
  get(id) {
    return new Promise((resolve, reject) => {
      if (this.socket.readyState !== WebSocket.OPEN) {
        reject(new Lost("not connected"));
        return;
      }
      const packet = new DataView(new ArrayBuffer(1 + ID_BYTES));
      packet.setUint8(0, GET);
      packet.setBigUint64(1, id);
      this.asked.set(`${GET}/${id}`, { resolve, reject, parts: [] });
      this.socket.send(packet);
    });
  }

  close() {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(Uint8Array.of(0xff, 0xff, 0x00));
    }
    this.socket.close();
    this.end("closed");
  }

  /** Somebody came back to the page, or to the network: is the node still there? */
  look() {
    const silentMs = Date.now() - this.heardAt;
    if (silentMs > 2 * SILENCE_MS) {
      this.socket.close();
      this.end("the node is silent");
    } else if (silentMs > SILENCE_MS && this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(Uint8Array.of(PING));
    }
  }

  send(type, number, operation, body) {
    const head = new DataView(new ArrayBuffer(6));
    head.setUint8(0, type);
    head.setUint32(1, number);
    head.setUint8(5, operation);
    this.socket.send(join([new Uint8Array(head.buffer), body]));
  }

  giveUp(key, number) {
    const waiting = this.asked.get(key);
    if (waiting) {
      this.asked.delete(key);
      waiting.reject(new Lost("given up"));
      if (this.socket.readyState === WebSocket.OPEN) {
        this.send(STREAM, number, CANCEL, encode({}));
      }
    }
  }

  hear(packet) {
    this.heardAt = Date.now();
    const type = packet[0];
    const view = new DataView(packet.buffer);
    if (type === PING) {
      this.socket.send(packet.length === 9 ? this.pong(packet) : Uint8Array.of(PONG));
    } else if (type === GOT) {
      this.settle(`${GET}/${view.getBigUint64(1)}`, packet.slice(1 + ID_BYTES));
    } else if (REPLIES.has(type) && packet.length >= 6) {
      this.answer(`${type - 1}/${view.getUint32(1)}`, packet[5], packet.subarray(6));
    } else if (type === NACK && packet[1] === NACK) {
      this.socket.close();
      this.end("the node said goodbye");
    } else if (type === NACK && packet[1] === GET) {
      this.settle(`${GET}/${view.getBigUint64(3)}`, new Refused(packet[2]));
    } else if (type === NACK && packet.length >= 7) {
      const delayMs = packet.length >= 11 ? view.getUint32(7) : 0;
      this.settle(`${packet[1]}/${view.getUint32(3)}`, new Refused(packet[2], delayMs));
    }
  }

  pong(ping) {
    const times = new DataView(new ArrayBuffer(16));
    times.setBigUint64(0, BigInt(Date.now()));
    times.setBigUint64(8, BigInt(Date.now()));
    return join([Uint8Array.of(PONG), ping.subarray(1), new Uint8Array(times.buffer)]);
  }

  answer(key, operation, body) {
    const waiting = this.asked.get(key);
    if (!waiting) {
      return;
    }
    waiting.parts.push(body);
    if (!(operation & MORE)) {
      this.settle(key, read(join(waiting.parts)));
    }
  }

  settle(key, outcome) {
    const waiting = this.asked.get(key);
    this.asked.delete(key);
    if (outcome instanceof Error) {
      waiting?.reject(outcome);
    } else {
      waiting?.resolve(outcome);
    }
  }

  end(why) {
    clearInterval(this.watch);
    this.socket.onclose = this.socket.onmessage = null;
    const lost = new Lost(why);
    for (const key of [...this.asked.keys()]) {
      this.settle(key, lost);
    }
    this.tellLost(lost);
  }
}

/** The value, or why it is none. */
function read(body) {
  try {
    return decode(body);
  } catch (error) {
    return error;
  }
}
