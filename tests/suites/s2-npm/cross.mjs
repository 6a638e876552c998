// The published TypeScript client as a writer and a reader of streams that others share:
// `node cross.mjs URL write|read`. Its work comes on stdin, as JSON; bytes are Base64.
//   write: {"stream", "records": [{"body", "headers", "timestamp"}]}, a record per append
//   read: {"streams": [...]}; prints for each {"body", "headers", "timestamp", "position"} of all

import { AppendInput, AppendRecord, S2, S2Endpoints } from "@s2-dev/streamstore";

const [url, work] = process.argv.slice(2);
const endpoints = new S2Endpoints({ account: url, basin: url });
const s2 = new S2({ accessToken: "ignored", endpoints, retry: { maxAttempts: 1 } });
const basin = s2.basin("millpond");
const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const base64 = (raw) => Buffer.from(raw).toString("base64");

const pieces = [];
for await (const piece of process.stdin) pieces.push(piece);
const task = JSON.parse(Buffer.concat(pieces).toString());

if (work === "write") {
  const stream = basin.stream(task.stream);
  for (const { body, headers, timestamp } of task.records) {
    const pairs = headers.map(([name, value]) => [bytes(name), bytes(value)]);
    const at = new Date(timestamp);
    const record = AppendRecord.bytes({ body: bytes(body), headers: pairs, timestamp: at });
    await stream.append(AppendInput.create([record]));
  }
} else {
  const found = [];
  for (const name of task.streams) {
    const options = { start: { from: { seqNum: 0 } }, stop: { waitSecs: 0 } };
    const rows = [];
    for await (const each of await basin.stream(name).readSession(options, { as: "bytes" })) {
      rows.push({
        body: base64(each.body),
        headers: each.headers.map(([key, value]) => [base64(key), base64(value)]),
        timestamp: each.timestamp.getTime(),
        position: each.seqNum,
      });
    }
    found.push(rows);
  }
  // An exit does not wait for what a pipe has not taken.
  await new Promise((done) => process.stdout.write(JSON.stringify(found), done));
}
process.exit(0);
