/** A program that uses the client, in two steps; between them the node is started again. */

import {
  Channel,
  ClientClosed,
  connect,
  HandshakeRefused,
  identityOf,
  newIdentity,
  publicKeyOf,
  RequestError,
  TimeoutError,
  type ConnectOptions,
  type Event,
} from "../../../clients/typescript/src/index.ts";

const bytes = (text: string) => new TextEncoder().encode(text);
const events: Event[] = [];
let alice: Channel;
let bob: Channel;
let kept: bigint;

/** The name of the error, and its code where it has one. */
async function errorOf(call: () => Promise<unknown>): Promise<string> {
  try {
    await call();
    return "none";
  } catch (error) {
    const { name, code } = error as { name: string; code?: string };
    return code ? `${name} ${code}` : name;
  }
}

const fromHex = (text: string) => Uint8Array.from(text.match(/../g) ?? [], (each) => parseInt(each, 16));

/** A wire to a node that calls itself ready at once, without a proof. */
class Hasty {
  readonly readyState = 1;
  onopen?: () => void;
  onmessage?: (event: { data: ArrayBuffer }) => void;

  constructor() {
    setTimeout(() => {
      this.onopen?.();
      this.onmessage?.({ data: Uint8Array.of(0x83, 1).buffer });
    });
  }

  send(): void {}

  close(): void {}
}

/** Both ends prove their keys; a client with another expectation does not go on. */
async function identities(url: string, options: ConnectOptions, nodeKey: Uint8Array): Promise<object> {
  const identity = await newIdentity();
  const known = await connect(url, "known", { ...options, identity, peer: nodeKey });
  const receipt = await known.put(bytes("proved"));
  const proved = new TextDecoder().decode(await known.get(receipt.id));
  await known.close();
  const seed = new Uint8Array(32).fill(7);
  const key = await publicKeyOf(await identityOf(seed));
  const open = await connect(url, "known", { ...options, identity: await identityOf(seed) });
  await open.close();
  return {
    proved,
    seedKey: Array.from(key.subarray(0, 4)),
    wrongNode: await errorOf(() => connect(url, "known", { ...options, identity, peer: key })),
    unproved: await errorOf(() => {
      const WebSocket = Hasty as unknown as NonNullable<ConnectOptions["WebSocket"]>;
      return connect(url, "known", { ...options, identity, peer: nodeKey, WebSocket });
    }),
    plain: await errorOf(() => connect("ws://192.0.2.1:1", "known", { ...options, identity })),
  };
}

async function jobsOf(url: string, options: ConnectOptions): Promise<object> {
  const queue = { ...options, mode: "queue" as const };
  const producer = await connect(url, "jobs/mail", { ...queue, role: "producer" });
  const worker = await connect(url, "jobs/mail", { ...queue, role: "worker" });
  const payload = { to: "älice", sizes: [1, -5, 70_000, 2.5, 2 ** 40], raw: bytes("x"), none: null };
  const put = await producer.jobs.put("send", payload, { keepS: 60, unique: "one", key: 11 });
  const again = await producer.jobs.put("send", payload, { keepS: 60, unique: "one", key: 12 });
  const { id, job } = await worker.receive().then((message) => ({ id: message.id, job: message.job, message }));
  const early = await producer.jobs.result(put.id);
  await worker.finish(id, { sent: true }, 60);
  const done = await producer.jobs.result(put.id);
  await producer.jobs.put("later", null, { due: new Date(Date.now() + 3_600_000) });
  const { delayed, ready } = await producer.jobs.counts();
  const told = {
    job: { ...job, payload: { ...(job.payload as object), raw: "bytes" } },
    unique: [put.existing, again.existing, again.id === put.id],
    early: [early.state, early.final],
    done: [done.state, done.final, done.kind, done.value],
    counts: [delayed, ready],
    noJob: await errorOf(() => producer.jobs.cancel(1n)),
    notQueue: await errorOf(() => alice.jobs.put("send")),
  };
  await producer.close();
  await worker.close();
  return told;
}

async function streamsOf(options: ConnectOptions, url: string): Promise<object> {
  const channel = await connect(url, "any", options);
  const { streams } = channel;
  await streams.create("orders/1", { ageS: 3600 });
  await streams.create("orders/1", { existOk: true });
  const records = ["a", "b", "c"].map(bytes);
  const appended = await streams.append("orders/1", records, { match: 0n });
  const read = await streams.read("orders/1", { sequence: 1n });
  const large = new Uint8Array(600_000).fill(1);
  await streams.append("orders/1", [large]);
  const waited = streams.read("orders/1", { sequence: 4n, waitMs: 5000 });
  await streams.append("orders/1", [bytes("late")]);
  const followed: string[] = [];
  for await (const record of streams.follow("orders/1")) {
    followed.push(record.data.length > 9 ? String(record.data.length) : new TextDecoder().decode(record.data));
    if (followed.length === 5) break;
  }
  const names: string[] = [];
  for await (const name of streams.list("orders/")) names.push(name);
  const told = {
    appended: [String(appended.first), appended.count],
    read: read.records.map((each) => [String(each.sequence), new TextDecoder().decode(each.data)]),
    late: (await waited).records.map((each) => new TextDecoder().decode(each.data)),
    followed,
    names,
    mismatch: await errorOf(() => streams.append("orders/1", records, { match: 1n })),
    noStream: await errorOf(() => streams.read("none")),
    exists: await errorOf(() => streams.create("orders/1")),
  };
  await channel.close();
  return told;
}

export async function first(url: string, options: ConnectOptions, nodeKey: string): Promise<unknown> {
  alice = await connect(url, "chat/ä 1", { ...options, onEvent: (event) => events.push(event) });
  bob = await connect(`ws://127.0.0.1:1,${url}`, "chat/ä 1", options);
  const receipts = await Promise.all(["a", "b", "c"].map((text) => alice.put(bytes(text), { ttl: 60 })));
  const seen: string[] = [];
  for await (const message of bob) {
    seen.push(message.text);
    message.ack();
    if (seen.length === 3) break;
  }
  const again = await alice.put(bytes("kept"), { key: 7 });
  const same = await alice.put(bytes("kept"), { key: 7 });
  kept = again.id;
  await bob.receive();
  const jobs = { ...options, mode: "queue" as const };
  const producer = await connect(url, "jobs", { ...jobs, role: "producer" });
  const worker = await connect(url, "jobs", { ...jobs, role: "worker" });
  await producer.put(bytes("job"));
  (await worker.receive()).nack({ delayMs: 10 });
  const { attempt } = await worker.receive();
  await producer.close();
  await worker.close();
  const identified = await identities(url, options, fromHex(nodeKey));
  const workedOn = await jobsOf(url, options);
  const streamed = await streamsOf(options, url);
  return {
    ...identified,
    ...workedOn,
    ...streamed,
    ttls: receipts.map((receipt) => receipt.ttl),
    durability: again.durability,
    seen,
    isSame: again.id === same.id,
    attempt,
    mode: worker.mode ?? alice.mode,
    data: new TextDecoder().decode(await bob.get(kept)),
    ids: (await bob.list()).length,
    reused: await errorOf(() => alice.put(bytes("other"), { key: 7 })),
    missing: await errorOf(() => alice.get(1n)),
    empty: await errorOf(() => alice.put(new Uint8Array())),
    large: await errorOf(() => alice.put(new Uint8Array(2 ** 21))),
    text: await errorOf(() => alice.put("text" as unknown as Uint8Array)),
    silent: await errorOf(() => alice.receive({ timeoutMs: 20 })),
    wrongMode: await errorOf(() => connect(url, "chat/ä 1", { ...options, mode: "queue" })),
    wrongToken: await errorOf(() => connect(url, "chat", { ...options, token: "unknown" })),
    nobody: await errorOf(() => connect("ws://127.0.0.1:1", "chat", options)),
    kinds: [RequestError, TimeoutError, HandshakeRefused].map((kind) => kind.name.length > 0),
  };
}

/** Called while the node is away: the put waits for it. */
export async function second(): Promise<unknown> {
  const late = alice.streams.append("orders/1", [bytes("while it was away")]);
  const receipt = await alice.put(bytes("while it was away"));
  const messages = [await bob.receive(), await bob.receive()];
  const iterated = (async () => {
    for await (const _ of alice) continue;
    return "ended";
  })();
  await alice.close();
  await bob.close();
  return {
    texts: messages.map((message) => message.text),
    isLater: receipt.id > kept,
    appended: String((await late).first),
    kinds: [...new Set(events.map((event) => event.kind))],
    iterated: await iterated,
    closed: await errorOf(() => alice.put(bytes("late"))),
    isClosed: (await errorOf(() => bob.receive())) === ClientClosed.name,
  };
}
