/** The exercise in Node: a line of JSON for each step; the second begins with a line of input. */

import { createInterface } from "node:readline";
import WebSocket from "ws";
import { first, second } from "./exercise.ts";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
console.log(JSON.stringify(await first(process.argv[2]!, { WebSocket: WebSocket as never }, process.argv[3]!)));
await lines.next();
console.log(JSON.stringify(await second()));
process.exit(0);
