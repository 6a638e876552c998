/** A program that uses the client, in two steps; between them the node is started again. */

import {
  Channel,
  ClientClosed,
  connect,
  HandshakeRefused,
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

export async function first(url: string, options: ConnectOptions): Promise<unknown> {
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
  return {
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
    kinds: [...new Set(events.map((event) => event.kind))],
    iterated: await iterated,
    closed: await errorOf(() => alice.put(bytes("late"))),
    isClosed: (await errorOf(() => bob.receive())) === ClientClosed.name,
  };
}
