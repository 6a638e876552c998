// The published Yjs server and provider of Durable Streams with a node below: `node checks.mjs URL`.
// Each check prints one line of JSON, {"name", "ok", "error"?}; the last line is {"done": N}.
//
// A document that is loaded behind its snapshot is read from an offset that the server computes: it
// adds 1 to the second half of the snapshot's.

import assert from "node:assert/strict";
import { YjsProvider } from "@durable-streams/y-durable-streams";
import { YjsServer } from "@durable-streams/y-durable-streams/server";
import { Awareness } from "y-protocols/awareness";
import * as Y from "yjs";

console.log = () => {}; // the server tells of each snapshot
const node = process.argv[2];
const LIMIT_MS = 20_000;
const THRESHOLD = 1500;
const providers = [];
let done = 0;
let server = await started();

async function started() {
  const made = new YjsServer({ port: 0, dsServerUrl: node, compactionThreshold: THRESHOLD });
  await made.start();
  return made;
}

async function check(name, run) {
  const line = { name, ok: true };
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("not done in time")), LIMIT_MS);
  });
  try {
    await Promise.race([run(name), late]);
  } catch (error) {
    line.ok = false;
    line.error = String(error?.stack ?? error);
  }
  clearTimeout(timer);
  for (const each of providers.splice(0)) each.destroy();
  done += 1;
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const docs = () => `${server.url}/v1/yjs/test/docs/`;

async function until(condition, what) {
  for (const end = Date.now() + LIMIT_MS; Date.now() < end; ) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`never: ${what}`);
}

async function open(docId, awareness) {
  const doc = awareness?.doc ?? new Y.Doc();
  const provider = new YjsProvider({ doc, baseUrl: `${server.url}/v1/yjs/test`, docId, awareness });
  providers.push(provider);
  await until(() => provider.synced, "synced");
  return { doc, provider, text: doc.getText("content") };
}

async function write(peer, chunks) {
  for (const chunk of chunks) {
    peer.text.insert(peer.text.length, chunk);
    await peer.provider.flush();
  }
}

const shows = (peer, expected) => until(() => peer.text.toString() === expected, expected.slice(-9));

async function snapshot(docId) {
  const response = await fetch(`${docs()}${docId}?offset=snapshot`, { redirect: "manual" });
  assert.equal(response.status, 307);
  return response.headers.get("location").match(/offset=([^&]+)/)[1];
}

async function compacted(docId, before) {
  let found;
  await until(async () => {
    found = await snapshot(docId);
    return found.endsWith("_snapshot") && found !== before;
  }, "a snapshot");
  return found;
}

const chunks = (letter) => Array.from({ length: 12 }, (_, n) => `${letter}${n}`.padEnd(200, "."));

await check("two-providers", async (docId) => {
  const one = await open(docId);
  await write(one, ["hello"]);
  const two = await open(docId);
  await shows(two, "hello");
  await write(two, [" there"]);
  await shows(one, "hello there");
});

await check("a/path/of/several", async (docId) => {
  const one = await open(docId);
  await write(one, ["nested"]);
  await shows(await open(docId), "nested");
});

await check("at-once", async (docId) => {
  const [one, two] = [await open(docId), await open(docId)];
  one.text.insert(0, "AAA");
  two.text.insert(0, "BBB");
  await until(
    () => one.text.toString() === two.text.toString() && one.text.length === 6,
    "both converge",
  );
});

await check("many-small-ones", async (docId) => {
  const one = await open(docId);
  const text = "The quick brown fox jumps over the lazy dog. ".repeat(5);
  for (const letter of text) one.text.insert(one.text.length, letter);
  await one.provider.flush();
  await shows(await open(docId), text);
});

await check("no-snapshot", async (docId) => {
  const made = await fetch(docs() + docId, { method: "PUT" });
  assert.equal(made.status, 201);
  assert.equal(await snapshot(docId), "-1");
  const missing = "9999999999999999_9999999999999999_snapshot";
  const response = await fetch(`${docs()}${docId}?offset=${missing}`);
  assert.equal(response.status, 404);
  assert.equal((await open(docId)).text.toString(), "");
});

await check("behind-a-snapshot", async (docId) => {
  const one = await open(docId);
  await write(one, chunks("a"));
  const offset = await compacted(docId);
  const loaded = await fetch(`${docs()}${docId}?offset=${offset}`);
  const next = loaded.headers.get("stream-next-offset");
  assert.match(next, /^\d{16}_0{15}1$/);
  const rest = await fetch(`${docs()}${docId}?offset=${next}`);
  assert.equal(rest.status, 200);
  assert.match(rest.headers.get("stream-next-offset"), /^\d{16}_0{16}$/);
  const behind = ["b", "c", "d"];
  await write(one, behind);
  const expected = chunks("a").join("") + behind.join("");
  const two = await open(docId);
  await shows(two, expected);
  await write(two, ["e"]);
  await shows(one, `${expected}e`);
});

await check("snapshot-after-snapshot", async (docId) => {
  const one = await open(docId);
  let before;
  let expected = "";
  for (const letter of ["a", "b", "c"]) {
    await write(one, chunks(letter));
    expected += chunks(letter).join("");
    before = await compacted(docId, before);
    await write(one, [letter]);
    expected += letter;
    await shows(await open(docId), expected);
  }
});

await check("a-server-that-starts-again", async (docId) => {
  const one = await open(docId);
  await write(one, chunks("a"));
  await compacted(docId);
  await write(one, ["b"]);
  for (const each of providers.splice(0)) each.destroy();
  await server.stop();
  server = await started();
  const two = await open(docId);
  await shows(two, `${chunks("a").join("")}b`);
  await write(two, ["c"]);
  await shows(await open(docId), `${chunks("a").join("")}bc`);
});

await check("awareness", async (docId) => {
  const [one, two] = [new Y.Doc(), new Y.Doc()].map((doc) => new Awareness(doc));
  await open(docId, one);
  await open(docId, two);
  await until(() => {
    one.setLocalStateField("name", "Ann");
    return two.getStates().get(one.clientID)?.name === "Ann";
  }, "presence");
});

await check("deleted", async (docId) => {
  const one = await open(docId);
  await write(one, chunks("a"));
  await compacted(docId);
  providers.splice(0)[0].destroy();
  const response = await fetch(`${docs()}${docId}`, { method: "DELETE" });
  assert.equal(response.status, 204);
  const again = await open(docId);
  assert.equal(again.text.toString(), "");
});

process.stdout.write(`${JSON.stringify({ done })}\n`, () => process.exit(0));
