/**
 * Jobs of a queue (docs/reference/wire-protocol.md, "Jobs"): a channel in queue mode, whose
 * messages have a task and a payload.
 */

import type { Channel } from "./channel.ts";
import { decode, encode, type Value } from "./msgpack.ts";
import { JOBS } from "./packets.ts";

const PUT = 1;
const CANCEL = 5;
const COUNTS = 8;
const FINISH = 33;
const RESULT = 35;
const KEEP_S = 86_400;

export interface JobOptions {
  /** 0 to 9; 4 if none is given. */
  priority?: number;
  /** Not before this time. */
  due?: Date;
  /** While a job with this name is in the queue, no other is put. */
  unique?: string;
  /** Seconds; 0 is the rule's, else unlimited. */
  ttl?: number;
  attempts?: number;
  headers?: Record<string, string>;
  /** Seconds for which the result is kept. */
  keepS?: number;
  /** The idempotency key of a retry by the caller, 0 to 2^32 - 1. */
  key?: number;
}

export interface PutJob {
  id: bigint;
  ttl: number;
  /** A job with the unique name was there: `id` is its id, and nothing was put. */
  existing: boolean;
}

/** A job as its message has it. */
export interface Job {
  task: string;
  payload: Value;
  priority: number;
  headers: Record<string, string>;
  /** Seconds for which the result is kept. */
  keepS: number;
}

/** `state` null: not in the queue any more. `final`: `value` or `error` is the end of the job. */
export interface JobResult {
  state: string | null;
  final: boolean;
  kind: "result" | "progress" | "failed" | "cancelled" | undefined;
  value: Value;
  error: string | undefined;
}

type Fields = { readonly [name: string]: Value | undefined };

export class Jobs {
  /** Use `channel.jobs`. */
  constructor(private readonly channel: Channel) {}

  /** Put a job; on a lost connection it is put again with its key, so that it is there once. */
  async put(task: string, payload: Value = null, options: JobOptions = {}): Promise<PutJob> {
    const { priority, due, unique, ttl, attempts, headers, keepS, key } = options;
    // The node reads the priority, which has to be the second field.
    const data = encode({ v: 1, r: priority, p: payload, n: task, a: attempts, h: headers, e: Date.now(), k: keepS });
    const request = {
      key: key ?? crypto.getRandomValues(new Uint32Array(1))[0]!,
      data,
      ttl,
      due: due?.getTime(),
      unique: unique === undefined ? undefined : new TextEncoder().encode(unique),
    };
    const { id, ttl: granted, existing } = await this.ask(PUT, request, true);
    return { id: BigInt(id as number | bigint), ttl: granted as number, existing: existing === true };
  }

  /** The result of a job, or its latest progress. RequestError NOT_FOUND where neither is kept. */
  async result(id: bigint): Promise<JobResult> {
    const found = await this.ask(RESULT, { id }, true);
    const state = (found.state ?? null) as string | null;
    const final = found.final === true || state === "dead";
    const data = found.data;
    if (!(data instanceof Uint8Array) || state === "dead") {
      return { state, final, kind: state === "dead" ? "failed" : undefined, value: null, error: undefined };
    }
    if (!data.length) return { state, final, kind: "cancelled", value: null, error: undefined };
    const record = decode(data) as Fields;
    const kind = record.k as JobResult["kind"];
    const value = (kind === "progress" ? record.p : record.v) ?? null;
    const { reason, error } = (kind === "failed" ? value : {}) as Fields;
    const text = [reason, error].filter(Boolean).join(": ");
    return { state, final, kind, value: kind === "failed" ? null : value, error: text || undefined };
  }

  /** Cancel a job, also a running one; the state that it was in. */
  async cancel(id: bigint): Promise<string> {
    return (await this.ask(CANCEL, { id }, false)).state as string;
  }

  /** How many jobs are ready, delayed, leased and dead, and the workers. */
  async counts(): Promise<{ ready: number; delayed: number; leased: number; dead: number; workers: number }> {
    const { ready, delayed, leased, dead, workers } = (await this.ask(COUNTS, {}, true)) as never;
    return { ready, delayed, leased, dead, workers };
  }

  /** End a job that this channel was given: its result is stored, then the job leaves the queue. */
  async finish(id: bigint, value: Value = null, keepS = KEEP_S): Promise<void> {
    const data = encode({ k: "result", v: value, e: Date.now() });
    await this.ask(FINISH, { id, data, keep: keepS }, false);
  }

  private ask(operation: number, request: Fields, isRepeatable: boolean): Promise<Fields> {
    return this.channel.call(JOBS, operation, request, isRepeatable);
  }
}

/** The job in the bytes of a message; any other message is the payload of one without a task. */
export function readJob(data: Uint8Array): Job {
  let found: Fields = {};
  try {
    const value = decode(data);
    const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
    found = isMap && (value as Fields).v === 1 ? (value as Fields) : { p: data };
  } catch {
    found = { p: data };
  }
  return {
    task: (found.n ?? "") as string,
    payload: found.p ?? null,
    priority: (found.r ?? 4) as number,
    headers: (found.h ?? {}) as Record<string, string>,
    keepS: (found.k ?? 0) as number,
  };
}
