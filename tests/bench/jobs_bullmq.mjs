// The same measurement as `millpond bench jobs`, of BullMQ (tests/bench/jobs_peers.py says what).
//
//     NODE_PATH=... node tests/bench/jobs_bullmq.mjs --server PID --port PORT --jobs N --concurrency N
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

const { values } = parseArgs({
  options: Object.fromEntries(
    ["server", "port", "jobs", "concurrency", "modules"].map((name) => [name, { type: "string" }]),
  ),
});
const { Queue, Worker } = createRequire(`${values.modules}/`)("bullmq");
const [jobs, concurrency] = [Number(values.jobs), Number(values.concurrency)];
const connection = { host: "127.0.0.1", port: Number(values.port), maxRetriesPerRequest: null };
const payload = { to: "alice@example.org", subject: "hello", number: 1234567, flags: [1, 2, 3] };
const [PRODUCERS, WARM, BULK, IDLE_JOBS] = [16, 64, 1000, 100];
const options = { removeOnComplete: true };

function cpu() {
  const fields = readFileSync(`/proc/${values.server}/stat`, "utf8").split(") ")[1].split(" ");
  const own = process.cpuUsage();
  return own.user + own.system + (Number(fields[11]) + Number(fields[12])) * 1e4;
}

const now = () => performance.now() / 1000;
const queue = new Queue("bench", { connection });
const put = () => queue.add("nothing", payload, options);
let ran = 0;
let started = () => {};
const handler = async () => {
  ran += 1;
  started();
};

const produce = async (count) => {
  let left = count;
  const one = async () => {
    while (left-- > 0) await put();
  };
  await Promise.all(Array.from({ length: PRODUCERS }, one));
};

await produce(WARM);
const firstCpu = cpu();
let at = now();
await produce(jobs);
const putRate = jobs / (now() - at);
at = now();
const worker = new Worker("bench", handler, { connection, concurrency });
await new Promise((resolve) => {
  let done = 0;
  worker.on("completed", () => ++done === jobs + WARM && resolve());
});
const runRate = (jobs + WARM) / (now() - at);
const cpuUs = (cpu() - firstCpu) / jobs;
const missing = jobs + WARM - ran;
const waits = [];
for (let number = 0; number < IDLE_JOBS; number++) {
  const begins = now();
  const start = new Promise((resolve) => (started = () => resolve(now())));
  await put();
  waits.push((await start) - begins);
}
await worker.close();
at = now();
for (let done = 0; done < jobs; done += BULK) {
  const some = Array.from({ length: BULK }, () => ({ name: "nothing", data: payload, opts: options }));
  await queue.addBulk(some);
}
const bulkRate = (Math.ceil(jobs / BULK) * BULK) / (now() - at);
waits.sort((a, b) => a - b);
const told = { put_rate: putRate, bulk_rate: bulkRate, run_rate: runRate, cpu_us: cpuUs, missing };
const [p10, p50] = [waits[IDLE_JOBS / 10], waits[IDLE_JOBS / 2]];
console.log(JSON.stringify({ ...told, p10_ms: p10 * 1000, p50_ms: p50 * 1000 }));
process.exit(0);
