// The published TypeScript client against a node: `node checks.mjs URL TOKEN`. Each check prints one
// line of JSON, {"name", "ok", "error"?}; the last line is {"done": N}. Nothing is tried twice.

import assert from "node:assert/strict";
import {
  AppendInput,
  AppendRecord,
  FencingTokenMismatchError,
  RangeNotSatisfiableError,
  S2,
  S2Endpoints,
  S2Error,
  SeqNumMismatchError,
} from "@s2-dev/streamstore";

const [url, token] = process.argv.slice(2);
const endpoints = new S2Endpoints({ account: url, basin: url });
const client = (options = {}) =>
  new S2({ accessToken: token, endpoints, retry: { maxAttempts: 1 }, ...options });
const s2 = client();
const BASIN = "npm-basin";
const basin = s2.basin(BASIN);
const text = (body, rest = {}) => AppendRecord.string({ body, ...rest });
const input = (...bodies) => AppendInput.create(bodies.map((each) => text(each)));
const fails = (code) => (error) => error instanceof S2Error && error.code === code;

let done = 0;
async function check(name, run) {
  const line = { name, ok: true };
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("no answer within 20 s")), 20_000);
  });
  try {
    await Promise.race([run(), late]);
  } catch (error) {
    line.ok = false;
    line.error = String(error?.stack ?? error);
  }
  clearTimeout(timer);
  done += 1;
  console.log(JSON.stringify(line));
}

async function all(stream, options) {
  const found = [];
  for await (const record of await stream.readSession(options)) found.push(record);
  return found;
}

await check("basins", async () => {
  await s2.basins.create({ basin: BASIN });
  await assert.rejects(s2.basins.create({ basin: BASIN }), fails("resource_already_exists"));
  const { basins } = await s2.basins.list({ prefix: "npm-" });
  assert.deepEqual(basins.map((each) => each.name), [BASIN]);
  assert.equal((await s2.basins.ensure({ basin: BASIN })).result, "noop");
  await s2.basins.reconfigure({ basin: BASIN, createStreamOnAppend: true });
  assert.equal((await s2.basins.getConfig({ basin: BASIN })).createStreamOnAppend, true);
  await assert.rejects(s2.basins.getConfig({ basin: "not-there-x" }), fails("basin_not_found"));
});

await check("streams", async () => {
  for (const stream of ["a/b c", "a/ü", "b"]) await basin.streams.create({ stream });
  const { streams, hasMore } = await basin.streams.list({ prefix: "a/", limit: 1 });
  assert.deepEqual([streams.map((each) => each.name), hasMore], [["a/b c"], true]);
  assert.equal((await basin.streams.ensure({ stream: "b" })).result, "noop");
  const retentionPolicy = { ageSecs: 60 };
  await basin.streams.reconfigure({ stream: "b", retentionPolicy });
  const config = await basin.streams.getConfig({ stream: "b" });
  assert.equal(config.retentionPolicy.ageSecs, 60);
  await basin.streams.delete({ stream: "b" });
  await assert.rejects(basin.streams.getConfig({ stream: "b" }), fails("stream_not_found"));
});

await check("unary appends and reads", async () => {
  const stream = basin.stream("a/b c");
  const bytes = Uint8Array.from([0, 255, 10]);
  const records = [
    text("héllo", { headers: [["k", "v"]] }),
    AppendRecord.bytes({ body: bytes, headers: [[bytes, bytes]] }),
    text(""),
  ];
  const ack = await stream.append(AppendInput.create(records));
  assert.deepEqual([ack.start.seqNum, ack.end.seqNum, ack.tail.seqNum], [0, 3, 3]);
  const start = { from: { seqNum: 0 } };
  const batch = await stream.read({ start, stop: { limits: { count: 10 } } }, { as: "bytes" });
  assert.deepEqual(batch.records.map((each) => each.seqNum), [0, 1, 2]);
  assert.deepEqual([...batch.records[1].body], [...bytes]);
  assert.equal(new TextDecoder().decode(batch.records[0].body), "héllo");
  assert.equal((await stream.checkTail()).tail.seqNum, 3);
});

await check("conditions and commands", async () => {
  const stream = basin.stream("conditions");
  await stream.append(AppendInput.create([AppendRecord.fence("mine")], { matchSeqNum: 0 }));
  await assert.rejects(
    stream.append(AppendInput.create([text("x")], { matchSeqNum: 0 })),
    (error) => error instanceof SeqNumMismatchError && error.expectedSeqNum === 1,
  );
  await assert.rejects(
    stream.append(AppendInput.create([text("x")], { fencingToken: "yours" })),
    (error) => error instanceof FencingTokenMismatchError && error.expectedFencingToken === "mine",
  );
  await stream.append(AppendInput.create([text("x"), AppendRecord.trim(1)]));
  // A trim takes effect when its grace is over.
  const fromStart = { start: { from: { seqNum: 0 } } };
  let batch = await stream.read(fromStart);
  assert.deepEqual(batch.records.map((each) => each.seqNum), [0, 1, 2]);
  while (batch.records.length === 3) batch = await stream.read(fromStart);
  assert.deepEqual(batch.records.map((each) => each.seqNum), [1, 2]);
  await assert.rejects(
    stream.read({ start: { from: { seqNum: 99 } } }),
    (error) => error instanceof RangeNotSatisfiableError,
  );
});

for (const forceTransport of ["s2s", "fetch"]) {
  const stream = basin.stream(`sessions-${forceTransport}`, { forceTransport });

  await check(`append session over ${forceTransport}`, async () => {
    const session = await stream.appendSession();
    const tickets = [];
    for (let n = 0; n < 200; n += 1) {
      tickets.push(await session.submit(AppendInput.create([text(`${n}`)], { matchSeqNum: n })));
    }
    const acks = [];
    for (const each of tickets) acks.push((await each.ack()).start.seqNum);
    assert.deepEqual(acks, [...Array(200).keys()]);
    await session.close();
  });

  await check(`bounded read session over ${forceTransport}`, async () => {
    const start = { from: { seqNum: 0 } };
    const found = await all(stream, { start, stop: { limits: { count: 150 } } });
    assert.deepEqual(found.map((each) => each.body), [...Array(150).keys()].map(String));
    const tailed = await all(stream, { start: { from: { tailOffset: 5 } }, stop: { waitSecs: 0, limits: { count: 99 } } });
    assert.deepEqual(tailed.map((each) => each.seqNum), [195, 196, 197, 198, 199]);
  });

  await check(`following read session over ${forceTransport}`, async () => {
    const session = await stream.readSession({ start: { from: { seqNum: 190 } } });
    const found = [];
    setTimeout(() => stream.append(input("late")), 100);
    for await (const record of session) {
      found.push(record.seqNum);
      if (record.body === "late") break;
    }
    assert.deepEqual(found, [190, 191, 192, 193, 194, 195, 196, 197, 198, 199, 200]);
    await session.cancel?.();
  });

  await check(`a snapshot over ${forceTransport}`, async () => {
    const stop = { waitSecs: 0 };
    const found = await all(stream, { start: { from: { seqNum: 0 }, clamp: true }, stop });
    assert.deepEqual(found.map((each) => each.seqNum), [...Array(201).keys()]);
    for (const from of [{ seqNum: 201 }, { seqNum: 9999 }, { tailOffset: 0 }]) {
      assert.deepEqual(await all(stream, { start: { from, clamp: true }, stop }), []);
    }
  });

  await check(`a generation that ends under its readers over ${forceTransport}`, async () => {
    const shared = basin.stream(`shared-${forceTransport}`, { forceTransport });
    const bodies = ["d0", "d1", "d2"];
    async function read(start) {
      const found = [];
      for await (const record of await shared.readSession({ start })) {
        found.push(record);
        if (record.body === "end") return found;
      }
      throw new Error("the session ended before the generation");
    }
    await shared.append(AppendInput.create([AppendRecord.fence("begun"), text("before")]));
    const waiting = [read({ from: { seqNum: 0 } }), read({ from: { tailOffset: 0 } })];
    await new Promise((resolve) => setTimeout(resolve, 300));
    const last = [AppendRecord.trim(2 ** 53 - 1), AppendRecord.fence("end")];
    const records = [...bodies.map((body) => text(body)), ...last];
    await shared.append(AppendInput.create(records, { fencingToken: "begun", matchSeqNum: 2 }));
    const late = read({ from: { seqNum: 0 } });
    const seen = await Promise.all([...waiting, late]);
    const sequences = seen.map((found) => found.map((each) => each.seqNum));
    assert.deepEqual(sequences, [[0, 1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]]);
    assert.deepEqual(seen[1].slice(0, 3).map((each) => each.body), bodies);
    await shared.close();
  });

  await check(`a refused session over ${forceTransport}`, async () => {
    const start = { from: { seqNum: 5 } };
    const missing = s2.basin("npm-nothing").stream("x", { forceTransport });
    await assert.rejects(all(missing, { start }), fails("basin_not_found"));
    await assert.rejects(all(stream, { start: { from: { seqNum: 9999 } } }), S2Error);
  });

  await check(`a mismatch in mid-session over ${forceTransport}`, async () => {
    const session = await stream.appendSession();
    const good = await session.submit(input("good"));
    await good.ack();
    const bad = await session.submit(AppendInput.create([text("x")], { matchSeqNum: 3 }));
    await assert.rejects(bad.ack(), SeqNumMismatchError);
    await session.close().catch(() => {});
  });
  await stream.close();
}

await check("a record with the time since a start", async () => {
  const stream = basin.stream("stamped");
  for (const timestamp of [1, 2, 3]) {
    await stream.append(AppendInput.create([text("x", { timestamp: new Date(timestamp) })]));
  }
  const found = await all(stream, { start: { from: { seqNum: 0 } }, stop: { waitSecs: 0 } });
  assert.deepEqual(found.map((each) => each.timestamp.getTime()), [1, 2, 3]);
});

await check("compressed sessions", async () => {
  const stream = client({ compression: "gzip" }).basin(BASIN).stream("gzip");
  const body = "long ".repeat(2000);
  const session = await stream.appendSession();
  const tickets = [];
  for (let n = 0; n < 5; n += 1) tickets.push(await session.submit(input(body)));
  for (const each of tickets) await each.ack();
  await session.close();
  const found = await all(stream, { start: { from: { seqNum: 0 } }, stop: { limits: { count: 5 } } });
  assert.deepEqual(found.map((each) => each.body), Array(5).fill(body));
  await stream.close();
});

for (const streamCipher of ["aegis-256", "aes-256-gcm"]) {
  await check(`encryption with ${streamCipher}`, async () => {
    const name = `npm-${streamCipher}`;
    await s2.basins.create({ basin: name, config: { streamCipher } });
    assert.equal((await s2.basins.getConfig({ basin: name })).streamCipher, streamCipher);
    const own = s2.basin(name);
    assert.equal((await own.streams.create({ stream: "a" })).cipher, streamCipher);
    const bare = own.stream("a");
    const stream = bare.withEncryptionKey(Buffer.alloc(32, 7).toString("base64"));
    await stream.append(input("first", "x".repeat(80_000)));
    const session = await stream.appendSession();
    await (await session.submit(input("last"))).ack();
    await session.close();
    const found = await all(stream, {
      start: { from: { seqNum: 0 } },
      stop: { limits: { count: 3 } },
    });
    assert.deepEqual(found.map((each) => each.body), ["first", "x".repeat(80_000), "last"]);
    await assert.rejects(bare.append(input("y")), fails("bad_header"));
    const other = bare.withEncryptionKey(Buffer.alloc(32).toString("base64"));
    await assert.rejects(other.read({ start: { from: { seqNum: 0 } } }), fails("decryption_failed"));
    assert.equal((await bare.checkTail()).tail.seqNum, 3);
  });
}

await check("access tokens", async () => {
  const scope = { streams: { prefix: "" }, ops: ["read", "check-tail"] };
  const { accessToken } = await s2.accessTokens.issue({ id: "npm-1", scope });
  const narrow = client({ accessToken });
  await assert.rejects(
    narrow.basin(BASIN).stream("a/b c").checkTail(),
    fails("permission_denied"),
  );
  const { accessTokens } = await s2.accessTokens.list({ prefix: "npm-" });
  assert.deepEqual(accessTokens.map((each) => each.id), ["npm-1"]);
  const issuing = { accessTokens: { prefix: "" }, ops: ["list-basins", "issue-access-token"] };
  const issuer = await s2.accessTokens.issue({ id: "npm-2", scope: issuing });
  const theirs = client({ accessToken: issuer.accessToken }).accessTokens;
  await assert.rejects(
    theirs.issue({ id: "npm-3", scope: { ops: ["create-basin"] } }),
    fails("permission_denied"),
  );
  await theirs.issue({ id: "npm-3", scope: { ops: ["list-basins"] } });
  for (const id of ["npm-1", "npm-2", "npm-3"]) await s2.accessTokens.revoke({ id });
});

await check("metrics", async () => {
  const period = { start: Date.now() - 3_600_000, end: Date.now() };
  const { values } = await s2.metrics.account({ set: "account-ops", ...period });
  const [first] = values;
  assert.equal(first.accumulation.interval, "hour");
  assert.ok(first.accumulation.values.length > 0);
  const appends = await s2.metrics.basin({ basin: BASIN, set: "append-ops", ...period });
  assert.ok(appends.values[0].accumulation.values.length > 0);
  await assert.rejects(s2.metrics.account({ set: "account-ops" }), fails("invalid"));
});

await check("the end", async () => {
  await s2.basins.delete({ basin: BASIN });
  await assert.rejects(basin.stream("a/b c").checkTail(), S2Error);
});

console.log(JSON.stringify({ done }));
process.exit(0);
