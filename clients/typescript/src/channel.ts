/**
 * A channel of a node, which stays open over any number of connections.
 *
 * Requests that a lost connection leaves unanswered are sent again on the next one: puts first, in
 * order and with their keys, so that the node stores each once. Pushed messages that nobody took
 * are dropped with their connection: the node pushes them again.
 */

import { ClientClosed, ConnectionLost, HandshakeRefused, RequestError, TimeoutError } from "./errors.ts";
import { Proof } from "./identity.ts";
import { type Job, Jobs, readJob } from "./jobs.ts";
import { decode, encode, type Value } from "./msgpack.ts";
import * as p from "./packets.ts";
import { Streams } from "./streams.ts";

const SUBPROTOCOL = "p2pbuf.v1.hello";
const OPEN = 1;
const HANDSHAKE_MS = 10_000;
const SILENCE_MS = 20_000;
const PONG_MS = 10_000;
const STABLE_MS = 10_000;
const BACKOFF_MS = { base: 100, max: 30_000 };
const DRAIN_MS = 5_000;
const SETTLED_MAX = 4096;
const U32_MAX = 2 ** 32 - 1;
const TLS_REQUIRED = 0xf8;
const CALLS_MAX = 64;
const MORE = 0x80;
const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

/** The connection changed. */
export type Event =
  | { kind: "connected"; connection: number }
  | { kind: "disconnected"; reason: string }
  | { kind: "retrying"; delayMs: number };

export interface ConnectOptions {
  role?: p.Role;
  /** Required mode; the channel is created in it if it does not exist. */
  mode?: p.Mode;
  /** How many messages may be pushed and not yet acknowledged; 32, a worker's 1. */
  window?: number;
  token?: string;
  /** The key pair that the client proves to have (Ed25519 of WebCrypto: `newIdentity`). */
  identity?: CryptoKeyPair;
  /** The public key that the node has to prove to have. Needs `identity`. */
  peer?: Uint8Array;
  /** Tokens and proofs also to another machine without TLS, where others can read and change all. */
  allowPlain?: boolean;
  /** Reconnect after a loss (default), with growing random delays. */
  reconnect?: boolean;
  /** Puts without an answer; further ones wait. */
  inFlightMax?: number;
  onEvent?: (event: Event) => void;
  /** The WebSocket of the program, where there is no global one (Node before 22: that of `ws`). */
  WebSocket?: new (url: string, protocols: string[]) => WebSocket;
}

export interface PutOptions {
  /** Seconds; 0 is the channel's default. */
  ttl?: number;
  /** The idempotency key of a retry by the caller, 0 to 2^32 - 1. */
  key?: number;
}

export interface Receipt {
  id: bigint;
  /** Seconds, as granted; 2^32 - 1 is unlimited. */
  ttl: number;
  key: number;
  durability: p.Durability;
}

interface Waiting<T> {
  packet: Uint8Array;
  resolve: (value: T) => void;
  reject: (error: Error) => void;
}

/** A request about jobs or streams. `parts`: of an answer that has not come whole. */
interface Call extends Waiting<{ readonly [name: string]: Value | undefined }> {
  type: number;
  isRepeatable: boolean;
  isSent: boolean;
  parts: Uint8Array[];
}

interface Receiver {
  resolve: (message: Message) => void;
  reject: (error: Error) => void;
}

/** Join a channel of the node at `urls`: one, or several that are tried in turn on a loss. */
export function connect(
  urls: string | readonly string[],
  channel: string | Uint8Array,
  options: ConnectOptions = {},
): Promise<Channel> {
  const given = typeof urls === "string" ? urls.split(",") : urls;
  const isSecret = options.token !== undefined || options.identity !== undefined;
  if (isSecret && !options.allowPlain && given.some(crossesPlainly)) {
    return Promise.reject(new HandshakeRefused(TLS_REQUIRED));
  }
  if (options.peer && !options.identity) throw new TypeError("`peer` needs an `identity`");
  return new Channel(given, channel, options).opened();
}

/** A pushed message. Acknowledge it, or give it back. */
export class Message {
  constructor(
    readonly id: bigint,
    readonly data: Uint8Array,
    /** Counts from 1; undefined where the node does not tell. */
    readonly attempt: number | undefined,
    private readonly channel: Channel,
    private readonly session: Session,
    private readonly type: number,
  ) {}

  /** The data as text in UTF-8. */
  get text(): string {
    return new TextDecoder().decode(this.data);
  }

  /** The task and the payload, of a message that is a job. */
  get job(): Job {
    return readJob(this.data);
  }

  /** End a job with a result, which is kept for as long as the job says, or `keepS` seconds. */
  finish(value: Value = null, keepS?: number): Promise<void> {
    return this.channel.finish(this.id, value, keepS ?? (this.job.keepS || undefined));
  }

  /** The node forgets the message. Also sent on a later connection. */
  ack(): void {
    this.channel.ack(this.id);
  }

  /** Give it back: for another attempt, in `delayMs`, or as a dead letter (`reject`). */
  nack({ delayMs, reject = false }: { delayMs?: number; reject?: boolean } = {}): void {
    const code = reject ? p.REJECT : p.LATER;
    this.session.send(p.giveBack(this.type, this.id, code, reject ? undefined : delayMs));
  }
}

export class Channel implements AsyncIterable<Message> {
  private readonly name: Uint8Array;
  private readonly puts = new Map<number, Waiting<Receipt>>();
  private readonly gets = new Map<bigint, Waiting<Uint8Array>[]>();
  private lists: Waiting<bigint[]>[] = [];
  private readonly calls = new Map<number, Call>();
  private callRoom: (() => void)[] = [];
  private lastCall = 0;
  /** The jobs of this channel, which is a queue. */
  readonly jobs = new Jobs(this);
  /** The streams of the node. */
  readonly streams = new Streams(this);
  private inbox: Message[] = [];
  private receivers: Receiver[] = [];
  private readonly settled = new Set<bigint>();
  private unsentAcks: bigint[] = [];
  private room: (() => void)[] = [];
  private session: Session | undefined;
  private error: Error | undefined;
  private first: { resolve: () => void; reject: (error: Error) => void } | undefined;
  private readonly opening: Promise<void>;
  private isFirstOver = false;
  private url = 0;
  private misses = 0;
  private failures = 0;
  private connections = 0;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private isClosing = false;

  /** Use `connect`. */
  constructor(
    private readonly urls: readonly string[],
    channel: string | Uint8Array,
    private readonly options: ConnectOptions,
  ) {
    this.name = typeof channel === "string" ? new TextEncoder().encode(channel) : channel;
    if (!this.urls.length || !this.name.length) throw new TypeError("an address and a channel");
    this.opening = new Promise((resolve, reject) => (this.first = { resolve, reject }));
    this.dial();
  }

  /** Resolves once the first connection is live. */
  async opened(): Promise<this> {
    await this.opening;
    return this;
  }

  get connected(): boolean {
    return this.session?.ready !== undefined;
  }

  get mode(): p.Mode | undefined {
    return this.session?.ready?.mode;
  }

  /** Have the node keep `data`; the receipt, once the message is stored. */
  async put(data: Uint8Array, { ttl = 0, key }: PutOptions = {}): Promise<Receipt> {
    if (!(data instanceof Uint8Array)) {
      throw new TypeError("the data must be bytes: new TextEncoder().encode(text)");
    }
    for (const [name, value] of Object.entries({ ttl, key: key ?? 0 })) {
      if (!Number.isInteger(value) || value < 0 || value > U32_MAX) {
        throw new RangeError(`${name} must be within 0..2^32-1`);
      }
    }
    this.check();
    if (!data.length) throw new RequestError(0x23);
    while (this.puts.size >= (this.options.inFlightMax ?? 1024)) {
      await new Promise<void>((resolve) => this.room.push(resolve));
      this.check();
    }
    const chosen = key ?? this.newKey();
    if (this.puts.has(chosen)) throw new RequestError(0x22);
    if (9 + data.length > (this.session?.ready?.packetMax ?? Infinity)) throw new RequestError(0x24);
    return this.request((waiting) => this.puts.set(chosen, waiting), p.put(chosen, ttl, data));
  }

  /** The data of a message that is kept. */
  get(id: bigint): Promise<Uint8Array> {
    const add = (waiting: Waiting<Uint8Array>) => {
      this.gets.set(id, [...(this.gets.get(id) ?? []), waiting]);
    };
    return this.request(add, p.get(id));
  }

  /** Ids from `from` to `to`, both included; `to` 0 is no end, `limit` 0 the node's page. */
  list(from = 0n, to = 0n, limit = 0): Promise<bigint[]> {
    return this.request((waiting) => this.lists.push(waiting), p.list(limit, from, to));
  }

  /** A request about jobs or streams; use `jobs` and `streams`. */
  async call(
    type: number,
    operation: number,
    body: { readonly [name: string]: Value | undefined },
    isRepeatable: boolean,
  ): Promise<{ readonly [name: string]: Value | undefined }> {
    this.check();
    while (this.calls.size >= CALLS_MAX) {
      await new Promise<void>((resolve) => this.callRoom.push(resolve));
      this.check();
    }
    const number = (this.lastCall = (this.lastCall + 1) % 2 ** 32);
    const packet = p.request(type, number, operation, encode(body));
    if (packet.length > (this.session?.ready?.packetMax ?? Infinity)) throw new RequestError(0x24);
    return new Promise((resolve, reject) => {
      const call = { packet, resolve, reject, type, isRepeatable, isSent: false, parts: [] };
      this.calls.set(number, call);
      if (this.session?.ready) this.sendCall(this.session, number, call);
    });
  }

  /** End a job with a result; it is settled here as by an ack. */
  async finish(id: bigint, value: Value, keepS?: number): Promise<void> {
    await this.jobs.finish(id, value, keepS);
    this.settle(id);
  }

  /** Let the node forget a message, pushed or not. */
  ack(id: bigint): void {
    this.check();
    this.settle(id);
    if (!this.session?.send(p.ack(id))) this.unsentAcks.push(id);
  }

  /** The next message; TimeoutError after `timeoutMs` without any. */
  receive({ timeoutMs }: { timeoutMs?: number } = {}): Promise<Message> {
    const waiting = this.inbox.shift();
    if (waiting) return Promise.resolve(waiting);
    if (this.error) return Promise.reject(this.error);
    return new Promise((resolve, reject) => {
      const receiver: Receiver = { resolve, reject };
      this.receivers.push(receiver);
      if (timeoutMs === undefined) return;
      const timer = setTimeout(() => {
        this.receivers = this.receivers.filter((each) => each !== receiver);
        reject(new TimeoutError(`no message within ${timeoutMs} ms`));
      }, timeoutMs);
      receiver.resolve = (message) => (clearTimeout(timer), resolve(message));
      receiver.reject = (error) => (clearTimeout(timer), reject(error));
    });
  }

  /** Pushed messages, until the channel is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Message> {
    try {
      while (true) yield await this.receive();
    } catch (error) {
      if (!(error instanceof ClientClosed)) throw error;
    }
  }

  /** Wait shortly for puts without an answer, say goodbye and close. */
  async close(): Promise<void> {
    if (this.error || this.isClosing) return;
    this.isClosing = true;
    const answered = [...this.puts.values()].map(
      (put) =>
        new Promise<void>((done) => {
          const { resolve, reject } = put;
          put.resolve = (receipt) => (resolve(receipt), done());
          put.reject = (error) => (reject(error), done());
        }),
    );
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<void>((done) => (timer = setTimeout(done, DRAIN_MS)));
    await Promise.race([Promise.all(answered), late]);
    clearTimeout(timer);
    clearTimeout(this.retry);
    this.fail(new ClientClosed("the client is closed"));
    this.session?.leave();
  }

  // Calls of the session.

  /** The connection is live: first send what earlier ones left undone, in order. */
  live(session: Session): void {
    this.misses = 0;
    this.isFirstOver = true;
    this.connections++;
    for (const id of this.unsentAcks.splice(0)) session.send(p.ack(id));
    for (const { packet } of this.puts.values()) session.send(packet);
    for (const waiting of this.gets.values()) for (const { packet } of waiting) session.send(packet);
    for (const { packet } of this.lists) session.send(packet);
    for (const [number, call] of [...this.calls]) this.sendCall(session, number, call);
    this.tell({ kind: "connected", connection: this.connections });
    this.first?.resolve();
  }

  received(session: Session, packet: Uint8Array): void {
    const bytes = p.view(packet);
    const type = packet[0];
    if (type === p.PUT_ACK && packet.length === 17) {
      const [key, ttl, id] = [bytes.getUint32(1), bytes.getUint32(5), bytes.getBigUint64(9)];
      const durability = session.ready?.durability ?? "memory";
      this.takePut(key)?.resolve({ id, ttl, key, durability });
    } else if ((type === p.MSG && packet.length >= 9) || (type === p.MSGX && packet.length >= 11)) {
      this.push(session, packet, type === p.MSGX ? bytes.getUint16(9) : undefined);
    } else if (type === p.GET_ACK && packet.length >= 9) {
      this.takeGet(bytes.getBigUint64(1))?.resolve(packet.slice(9));
    } else if (type === p.LIST_ACK) {
      const count = Math.floor((packet.length - 1) / 8);
      const ids = Array.from({ length: count }, (_, at) => bytes.getBigUint64(1 + 8 * at));
      this.lists.shift()?.resolve(ids);
    } else if ((type === p.JOBS_REPLY || type === p.STREAM_REPLY) && packet.length >= 6) {
      this.replied(bytes.getUint32(1), packet[5]!, packet.subarray(6));
    } else if (type === p.PING) {
      session.send(p.pong(packet));
    } else if (type === p.NACK && packet.length >= 3) {
      this.refused(packet);
    }
  }

  lost(session: Session, failure: Error): void {
    if (session !== this.session) return;
    this.session = undefined;
    this.inbox = [];
    if (this.error) return;
    for (const [number, call] of [...this.calls]) {
      call.parts = [];
      if (call.isSent && !call.isRepeatable) this.takeCall(number)?.reject(new RequestError(0xfe));
    }
    this.tell({ kind: "disconnected", reason: failure.message });
    const wasLive = session.ready !== undefined;
    if (!wasLive) this.misses++;
    const hasTriedAll = this.misses % this.urls.length === 0;
    const isRefused = failure instanceof HandshakeRefused && !failure.isTemporary;
    const isFinal = this.isFirstOver ? this.options.reconnect === false : hasTriedAll;
    if (isFinal || (isRefused && this.misses >= this.urls.length) || this.isClosing) {
      this.fail(failure);
      return;
    }
    this.url = (this.url + 1) % this.urls.length;
    const delayMs = wasLive || hasTriedAll ? this.delayMs(session.livedMs) : 0;
    this.tell({ kind: "retrying", delayMs });
    this.retry = setTimeout(() => this.dial(), delayMs);
  }

  /** Full jitter: uniform between 0 and a bound that doubles, from anew after a stable connection. */
  private delayMs(livedMs: number): number {
    if (livedMs > STABLE_MS) this.failures = 0;
    const bound = Math.min(BACKOFF_MS.max, BACKOFF_MS.base * 2 ** Math.min(this.failures++, 32));
    return Math.random() * bound;
  }

  private dial(): void {
    const { role = "both", mode, window } = this.options;
    const hello = { channel: this.name, role, ...(window !== undefined && { window }), ...(mode && { mode }) };
    const kind = this.options.WebSocket ?? globalThis.WebSocket;
    if (!kind) throw new TypeError("there is no WebSocket here: give one in the options");
    this.session = new Session(kind, address(this.urls[this.url]!, this.name), hello, this.options, this);
  }

  private request<T>(add: (waiting: Waiting<T>) => void, packet: Uint8Array): Promise<T> {
    return new Promise((resolve, reject) => {
      this.check();
      add({ packet, resolve, reject });
      this.session?.send(packet);
    });
  }

  private push(session: Session, packet: Uint8Array, attempt: number | undefined): void {
    const id = p.view(packet).getBigUint64(1);
    const data = packet.slice(attempt === undefined ? 9 : 11);
    if (!data.length || this.settled.has(id)) {
      session.send(p.ack(id));
      return;
    }
    if (this.inbox.some((message) => message.id === id)) return;
    const message = new Message(id, data, attempt, this, session, packet[0]!);
    const receiver = this.receivers.shift();
    if (receiver) receiver.resolve(message);
    else this.inbox.push(message);
  }

  private settle(id: bigint): void {
    this.settled.delete(id);
    this.settled.add(id);
    for (const oldest of this.settled) {
      if (this.settled.size <= SETTLED_MAX) break;
      this.settled.delete(oldest);
    }
    this.inbox = this.inbox.filter((message) => message.id !== id);
  }

  private refused(packet: Uint8Array): void {
    const [, type, code] = packet as unknown as [number, number, number];
    const bytes = p.view(packet);
    const isCall = type === p.JOBS || type === p.STREAM;
    const size = type === p.PUT || isCall ? 4 : type === p.GET ? 8 : 0;
    const rest = packet.length - 3 - size;
    const error = new RequestError(code, rest === 4 ? bytes.getUint32(3 + size) : undefined);
    if (type === p.PUT && packet.length >= 7) this.takePut(bytes.getUint32(3))?.reject(error);
    if (type === p.GET && packet.length >= 11) this.takeGet(bytes.getBigUint64(3))?.reject(error);
    if (type === p.LIST) this.lists.shift()?.reject(error);
    if (isCall && packet.length >= 7) this.takeCall(bytes.getUint32(3))?.reject(error);
  }

  private takePut(key: number): Waiting<Receipt> | undefined {
    const found = this.puts.get(key);
    this.puts.delete(key);
    this.room.shift()?.();
    return found;
  }

  private takeGet(id: bigint): Waiting<Uint8Array> | undefined {
    const [found, ...rest] = this.gets.get(id) ?? [];
    if (rest.length) this.gets.set(id, rest);
    else this.gets.delete(id);
    return found;
  }

  private sendCall(session: Session, number: number, call: Call): void {
    if (session.ready?.extensions.has(call.type)) call.isSent = session.send(call.packet) || call.isSent;
    else this.takeCall(number)?.reject(new RequestError(0xf2));
  }

  private replied(number: number, operation: number, body: Uint8Array): void {
    const call = this.calls.get(number);
    call?.parts.push(body.slice());
    if (!call || operation & MORE) return;
    this.takeCall(number);
    try {
      call.resolve(decode(p.concat(...call.parts)) as { readonly [name: string]: Value });
    } catch (error) {
      call.reject(error as Error);
    }
  }

  private takeCall(number: number): Call | undefined {
    const found = this.calls.get(number);
    this.calls.delete(number);
    this.callRoom.shift()?.();
    return found;
  }

  private newKey(): number {
    const drawn = new Uint32Array(1);
    do crypto.getRandomValues(drawn);
    while (this.puts.has(drawn[0]!));
    return drawn[0]!;
  }

  private check(): void {
    if (this.error) throw this.error;
    if (this.isClosing) throw new ClientClosed("the client is closed");
  }

  private fail(error: Error): void {
    this.error = error;
    const gets = [...this.gets.values()].flat();
    const waiting = [...this.puts.values(), ...gets, ...this.lists, ...this.calls.values()];
    this.calls.clear();
    this.puts.clear();
    this.gets.clear();
    this.lists = [];
    for (const each of [...waiting, ...this.receivers.splice(0)]) each.reject(error);
    for (const wake of [...this.room.splice(0), ...this.callRoom.splice(0)]) wake();
    this.first?.reject(error);
  }

  private tell(event: Event): void {
    this.options.onEvent?.(event);
  }
}

/** One connection: handshake, packets, and the end. */
class Session {
  ready: p.Ready | undefined;
  private readonly socket: WebSocket;
  private failure: Error | undefined;
  private liveAt = 0;
  private heardAt = Date.now();
  private pings = 0;
  private timer: ReturnType<typeof setTimeout>;
  private proof: Proof | undefined;
  private isProving = false;
  private isProved = false;

  constructor(
    kind: new (url: string, protocols: string[]) => WebSocket,
    url: string,
    private readonly hello: p.Hello,
    private readonly options: ConnectOptions,
    private readonly channel: Channel,
  ) {
    const { token } = options;
    this.socket = new kind(url, token === undefined ? [SUBPROTOCOL] : [SUBPROTOCOL, bearer(token)]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => void this.greet();
    this.socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer && data.byteLength) this.received(new Uint8Array(data));
    };
    this.socket.onerror = () => this.end(new ConnectionLost(`no connection to ${url}`));
    this.socket.onclose = () => this.end(new ConnectionLost("the connection ended"));
    const silent = new ConnectionLost("the other end does not answer the handshake");
    this.timer = setTimeout(() => this.end(silent), HANDSHAKE_MS);
  }

  get livedMs(): number {
    return this.ready ? Date.now() - this.liveAt : 0;
  }

  /** False without a live connection: requests in flight are sent on the next one anyway. */
  send(packet: Uint8Array): boolean {
    if (!this.ready || this.socket.readyState !== OPEN) return false;
    this.socket.send(packet as Uint8Array<ArrayBuffer>);
    return true;
  }

  leave(): void {
    this.send(p.GOODBYE);
    this.end(new ClientClosed("the client is closed"));
  }

  private async greet(): Promise<void> {
    const { identity, peer } = this.options;
    try {
      if (identity) this.proof = await Proof.begin(identity, peer, this.hello);
      this.write(this.proof?.hello ?? p.hello(this.hello));
    } catch (error) {
      this.end(error as Error);
    }
  }

  /** The node has proved its key, or has not: then nothing more is said. */
  private async prove(challenge: Uint8Array): Promise<void> {
    this.isProving = true;
    try {
      if (!this.proof) throw new HandshakeRefused("PEER_MISMATCH");
      const auth = await this.proof.answer(challenge);
      this.isProved = true;
      this.write(auth);
    } catch (error) {
      this.write(p.ABORT);
      this.end(error as Error);
    }
  }

  private write(packet: Uint8Array): void {
    if (this.socket.readyState === OPEN) this.socket.send(packet as Uint8Array<ArrayBuffer>);
  }

  private received(packet: Uint8Array): void {
    this.heardAt = Date.now();
    this.pings = 0;
    const [type, of, code] = packet;
    if (type === p.NACK && of === p.NACK) {
      this.end(new ConnectionLost(code ? "the node aborted the connection" : "the node said goodbye"));
    } else if (type === p.NACK && of === p.HELLO && !this.ready) {
      this.failure ??= new HandshakeRefused(code ?? 0);
    } else if (type === p.CHALLENGE && !this.ready && !this.isProving) {
      void this.prove(packet);
    } else if (type === p.READY && !this.ready && this.options.identity && !this.isProved) {
      this.end(new HandshakeRefused("PEER_MISMATCH"));
    } else if (type === p.READY && !this.ready) {
      this.begin(packet);
    } else if (this.ready) {
      this.channel.received(this, packet);
    }
  }

  private begin(packet: Uint8Array): void {
    const ready = p.readReady(packet);
    if (!ready) {
      this.end(new ConnectionLost("the node's READY breaks off"));
    } else if (this.hello.mode && ready.mode && ready.mode !== this.hello.mode) {
      this.ready = ready;
      this.send(p.GOODBYE);
      this.ready = undefined;
      this.end(new HandshakeRefused("MODE_MISMATCH"));
    } else {
      this.ready = ready;
      this.liveAt = Date.now();
      clearTimeout(this.timer);
      this.watch();
      this.channel.live(this);
    }
  }

  /** Ping after silence; two pings without an answer end the connection. */
  private watch(): void {
    const waitMs = this.pings ? PONG_MS : this.heardAt + SILENCE_MS - Date.now();
    this.timer = setTimeout(() => {
      if (Date.now() - this.heardAt >= SILENCE_MS) {
        if (this.pings === 2) return this.end(new ConnectionLost("the node does not answer"));
        this.pings++;
        this.send(p.ping());
      }
      this.watch();
    }, Math.max(0, waitMs));
  }

  private end(failure: Error): void {
    clearTimeout(this.timer);
    this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
    this.socket.onerror = () => {};
    if (this.socket.readyState <= OPEN) this.socket.close();
    this.channel.lost(this, this.failure ?? failure);
  }
}

/** True for an address of another machine without TLS. */
function crossesPlainly(url: string): boolean {
  const { protocol, hostname } = new URL(url.trim());
  return protocol !== "wss:" && !LOOPBACK.test(hostname);
}

function address(url: string, channel: Uint8Array): string {
  const path = Array.from(channel, (byte) => "%" + byte.toString(16).padStart(2, "0")).join("");
  return `${url.trim().replace(/\/$/, "")}/v1/channels/${path}`;
}

function bearer(token: string): string {
  const bytes = new TextEncoder().encode(token);
  const text = btoa(String.fromCharCode(...bytes));
  return `bearer.${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}
