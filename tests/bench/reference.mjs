// The reference server of Durable Streams on a port, for rows_http.toml; DURABLE_STREAMS names the folder that
// its package was installed to. No data folder: it keeps everything in memory.
//   node tests/bench/reference.mjs PORT [DATA]      node tests/bench/reference.mjs --version

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = process.env.DURABLE_STREAMS;
if (!folder) {
  console.error("DURABLE_STREAMS names no folder with @durable-streams/server in it");
  process.exit(2);
}
const home = join(folder, "node_modules", "@durable-streams", "server");
const [port, dataDir] = process.argv.slice(2);
if (port === "--version") {
  const { name, version } = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));
  console.log(`${name} ${version}, node ${process.version}`);
} else {
  const { DurableStreamTestServer } = await import(pathToFileURL(join(home, "dist", "index.js")));
  await new DurableStreamTestServer({ host: "127.0.0.1", port: Number(port), dataDir }).start();
}
