/** Streams of a node (docs/reference/wire-protocol.md, "Streams"). They need the right `admin`. */

import type { Channel } from "./channel.ts";
import { RequestError } from "./errors.ts";
import type { Value } from "./msgpack.ts";
import { STREAM } from "./packets.ts";

const CREATE = 1;
const APPEND = 2;
const READ = 3;
const DELETE = 6;
const LIST = 10;
const WAIT_MS = 30_000;

type Fields = { readonly [name: string]: Value | undefined };
type Headers = readonly (readonly [Uint8Array, Uint8Array])[];

export interface StreamSettings {
  ageS?: number;
  bytesMax?: number;
  contentType?: string;
}

export interface Appended {
  /** Sequence of the first record. */
  first: bigint;
  count: number;
  /** Of the last record, ms since 1970. */
  timestamp: number;
}

export interface StreamRecord {
  sequence: bigint;
  data: Uint8Array;
  timestamp: number;
  headers: Headers;
}

export interface ReadRecords {
  records: StreamRecord[];
  /** The sequence to go on from. */
  next: bigint;
  tail: bigint;
}

export class Streams {
  /** Use `channel.streams`. */
  constructor(private readonly channel: Channel) {}

  /** Make a stream. RequestError STREAM_EXISTS, unless `existOk`. */
  async create(name: string, settings: StreamSettings & { existOk?: boolean } = {}): Promise<void> {
    const { ageS, bytesMax, contentType, existOk } = settings;
    const request = {
      stream: bytes(name),
      age_s: ageS,
      bytes_max: bytesMax,
      content_type: contentType === undefined ? undefined : bytes(contentType),
    };
    try {
      await this.ask(CREATE, request, false);
    } catch (error) {
      if (!existOk || !(error instanceof RequestError) || error.code !== "STREAM_EXISTS") throw error;
    }
  }

  /**
   * Append records, all or none. `match`: only where the tail is there. An append is not repeated:
   * RequestError OUTCOME_UNKNOWN where the connection is lost before its answer.
   */
  async append(
    name: string,
    records: readonly Uint8Array[],
    { match, headers }: { match?: bigint; headers?: readonly Headers[] } = {},
  ): Promise<Appended> {
    const request = { stream: bytes(name), bodies: records, match, headers };
    const { first, count, timestamp } = await this.ask(APPEND, request, false);
    return { first: big(first), count: Number(count), timestamp: Number(timestamp) };
  }

  /** Records from a sequence on; `waitMs`: wait so long where there is none. */
  async read(
    name: string,
    { sequence = 0n, count = 100, waitMs = 0 }: { sequence?: bigint; count?: number; waitMs?: number } = {},
  ): Promise<ReadRecords> {
    const request = { stream: bytes(name), sequence, count, wait_ms: waitMs };
    const { spans, next, tail } = await this.ask(READ, request, true);
    return { records: [...records((spans ?? []) as readonly Fields[])], next: big(next), tail: big(tail) };
  }

  /** All records from a sequence on, and new ones as they come, until the channel is closed. */
  async *follow(name: string, sequence = 0n): AsyncGenerator<StreamRecord> {
    for (let next = sequence; ; ) {
      const found = await this.read(name, { sequence: next, waitMs: WAIT_MS });
      yield* found.records;
      next = found.next;
    }
  }

  async delete(name: string): Promise<void> {
    await this.ask(DELETE, { stream: bytes(name) }, false);
  }

  /** The names of streams that begin so, in their order. */
  async *list(prefix = ""): AsyncGenerator<string> {
    for (let after: Uint8Array | undefined; ; ) {
      const { names, more } = await this.ask(LIST, { prefix: bytes(prefix), after }, true);
      const found = (names ?? []) as readonly Uint8Array[];
      for (const each of found) yield new TextDecoder().decode(each);
      if (!more || !found.length) return;
      after = found[found.length - 1];
    }
  }

  private ask(operation: number, request: Fields, isRepeatable: boolean): Promise<Fields> {
    return this.channel.call(STREAM, operation, request, isRepeatable);
  }
}

function* records(spans: readonly Fields[]): Generator<StreamRecord> {
  for (const span of spans) {
    const first = big(span.first);
    const timestamps = span.timestamps as readonly number[] | null | undefined;
    const headers = span.headers as readonly Headers[] | null | undefined;
    for (const [at, data] of (span.bodies as readonly Uint8Array[]).entries()) {
      const timestamp = Number(timestamps ? timestamps[at] : span.timestamp);
      yield { sequence: first + BigInt(at), data, timestamp, headers: headers?.[at] ?? [] };
    }
  }
}

function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

function big(value: Value | undefined): bigint {
  return BigInt((value ?? 0) as number | bigint);
}
