// The published TypeScript client against a node: `node checks.mjs URL`. Each check prints one line
// of JSON, {"name", "ok", "error"?}; the last line is {"done": N}.

import assert from "node:assert/strict";
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";

const base = `${process.argv[2]}/v1/stream/`;
let done = 0;

async function check(name, run) {
  const line = { name, ok: true };
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("no answer within 15 s")), 15_000);
  });
  try {
    await Promise.race([run(base + name), late]);
  } catch (error) {
    line.ok = false;
    line.error = String(error?.stack ?? error);
  }
  clearTimeout(timer);
  done += 1;
  console.log(JSON.stringify(line));
}

const json = (url) => DurableStream.create({ url, contentType: "application/json" });

async function take(response, count) {
  const items = [];
  for await (const item of response.jsonStream()) {
    items.push(item);
    if (items.length === count) break;
  }
  return items;
}

await check("json", async (url) => {
  const handle = await json(url);
  await handle.append(JSON.stringify({ n: 1 }));
  await handle.append(JSON.stringify({ n: 2 }));
  const found = await stream({ url, live: false });
  assert.deepEqual(await found.json(), [{ n: 1 }, { n: 2 }]);
});

await check("bytes", async (url) => {
  const handle = await DurableStream.create({ url, contentType: "application/octet-stream" });
  await handle.append(new Uint8Array([0, 255, 10]));
  const found = await stream({ url, live: false });
  assert.deepEqual([...(await found.body())], [0, 255, 10]);
});

for (const live of ["sse", "long-poll"]) {
  await check(`live-${live}`, async (url) => {
    const handle = await json(url);
    const response = await stream({ url, live, offset: "-1" });
    const taken = take(response, 3);
    for (const n of [1, 2, 3]) await handle.append(JSON.stringify({ n }));
    assert.deepEqual(await taken, [{ n: 1 }, { n: 2 }, { n: 3 }]);
    response.cancel();
  });
}

await check("producer", async (url) => {
  const errors = [];
  const handle = await json(url);
  const producer = new IdempotentProducer(handle, "p-1", { onError: (each) => errors.push(each) });
  for (let n = 0; n < 500; n += 1) producer.append(JSON.stringify({ n }));
  await producer.flush();
  await producer.close();
  assert.deepEqual(errors, []);
  const items = await (await stream({ url, live: false })).json();
  assert.deepEqual(items.map((each) => each.n), [...Array(500).keys()]);
});

await check("producer-claims", async (url) => {
  const handle = await json(url);
  const first = new IdempotentProducer(handle, "p", { epoch: 0 });
  first.append(JSON.stringify("old"));
  await first.flush();
  const second = new IdempotentProducer(handle, "p", { epoch: 1 });
  second.append(JSON.stringify("new"));
  await second.flush();
  const items = await (await stream({ url, live: false })).json();
  assert.deepEqual(items, ["old", "new"]);
});

await check("close", async (url) => {
  const handle = await json(url);
  const response = await stream({ url, live: "sse", offset: "-1" });
  const all = [];
  const reading = (async () => {
    for await (const item of response.jsonStream()) all.push(item);
  })();
  await handle.append(JSON.stringify(1));
  await handle.close({ body: JSON.stringify(2) });
  await reading;
  assert.deepEqual(all, [1, 2]);
  await assert.rejects(handle.append(JSON.stringify(3)));
});

await check("resume", async (url) => {
  const handle = await json(url);
  await handle.append("1");
  const first = await stream({ url, live: false });
  assert.deepEqual(await first.json(), [1]);
  await handle.append("2");
  const rest = await stream({ url, live: false, offset: first.offset });
  assert.deepEqual(await rest.json(), [2]);
});

await check("delete", async (url) => {
  const handle = await json(url);
  await handle.delete();
  assert.equal((await DurableStream.head({ url })).exists, false);
});

console.log(JSON.stringify({ done }));
process.exit(0);
