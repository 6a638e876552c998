// The published TypeScript client as a writer and a reader of streams that others share:
// `node cross.mjs URL write|read json|bytes`. Its work comes on stdin, as JSON; bytes are Base64.
//   write: {"stream", "records": [{"body"}]}, an append per record
//   read: {"streams": [...]}; prints for each the bodies, of which bytes are one piece

import { DurableStream, stream } from "@durable-streams/client";

const [url, work, form] = process.argv.slice(2);
const contentType = form === "json" ? "application/json" : "application/octet-stream";
const at = (name) => `${url}/v1/stream/${name}`;
const base64 = (raw) => Buffer.from(raw).toString("base64");

const pieces = [];
for await (const piece of process.stdin) pieces.push(piece);
const task = JSON.parse(Buffer.concat(pieces).toString());

if (work === "write") {
  const handle = new DurableStream({ url: at(task.stream), contentType });
  for (const { body } of task.records) {
    const raw = Buffer.from(body, "base64");
    await handle.append(form === "json" ? raw.toString() : Uint8Array.from(raw));
  }
} else {
  const found = [];
  for (const name of task.streams) {
    const response = await stream({ url: at(name), live: false });
    if (form === "json") {
      found.push((await response.json()).map((each) => base64(JSON.stringify(each))));
    } else {
      found.push([base64(await response.body())]);
    }
  }
  // An exit does not wait for what a pipe has not taken.
  await new Promise((done) => process.stdout.write(JSON.stringify(found), done));
}
process.exit(0);
