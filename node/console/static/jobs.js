// Job queues: the list, and one queue with its jobs by state, workers, flows, schedules and limits.

import { Rates, patternOf, purgeDead, putAt, retryAll } from "./channels.js";
import { Charts } from "./charts.js";
import { ask, attempt } from "./dialogs.js";
import { announce, badge, empty, h, panel, show, tile, write } from "./dom.js";
import { jobBytes, payloadOf, queueName, summary } from "./envelope.js";
import { flowsView } from "./flows.js";
import { ago, count, duration, escaped, moment, name, plain, plural, rate, raw, unescaped } from "./format.js";
import { askMove, moveJob } from "./job.js";
import { limitsView } from "./limits.js";
import { explain, isDenied, isRefused, poll } from "./node.js";
import { Pages } from "./pages.js";
import { JOB_CHARTS, QueueSampler } from "./samples.js";
import { schedulesView } from "./schedules.js";
import { Table } from "./table.js";
import { Tabs } from "./tabs.js";
import { workersView } from "./workers.js";

const CHANNELS = 6;
const [PUT, LIST, COUNTS, SET_QUEUE] = [1, 2, 8, 21];
const STATES = [["ready", "Ready"], ["leased", "Running"], ["delayed", "Delayed"], ["dead", "Dead"]];
const PAGE = 50;
const MOVED_PAGE = 200;
const EVERY_MS = 3000;
const PREFIX = raw("jobs/");
const DEAD = "!dead";
const RESULTS = /\/r\/[0-9a-f]{32}$/;

const suffixed = (own, suffix) => Uint8Array.from([...own, ...raw(suffix)]);

export function queues({ node, sampler, signal }) {
  let names = [];
  const [rates, status] = [new Rates(), h("p", { class: "hint", role: "status" })];
  const search = h("input", { type: "search", placeholder: "Find a queue, press /", "aria-label": "Find a queue", autocomplete: "off", spellcheck: "false" });
  const number = (title, of) => ({ title, of, num: true });
  const table = new Table(
    "Queues",
    [
      { title: "Name", of: (row) => queueName(row.name) },
      { title: "State", of: (row) => (row.paused ? "paused" : row.receivers === 0 && row.messages > 0 ? "no worker" : "running") },
      number("Waiting", (row) => count(row.messages - row.leased)),
      number("Running", (row) => count(row.leased)),
      number("Dead", (row) => count(row.dead)),
      number("Workers", (row) => count(row.receivers)),
      number("Oldest", (row) => (row.oldest === 0 ? "" : ago(putAt(row.oldest)))),
      number("In", (row) => rate(row.inRate)),
      number("Done", (row) => rate(row.outRate)),
    ],
    {
      key: (row) => name(row.name),
      link: (row) => `#/queue/${escaped(row.name)}`,
      mark: (row) => (row.dead > 0 ? "has-dead" : ""),
      none: empty("No queue matches.", "millpond jobs put mail '{\"to\": \"alice\"}' makes one"),
    },
  );
  const draw = async () => {
    const asked = names.flatMap((each) => [each, suffixed(each, DEAD)]);
    const { page } = await node.admin(CHANNELS, { names: asked, limit: 2 * PAGE });
    const dead = new Map(page.map((row) => [name(row.name), row.messages]));
    const rows = page.filter((row) => names.some((each) => name(each) === name(row.name)));
    table.draw(rates.of(rows).map((row) => ({ ...row, dead: dead.get(name(row.name) + DEAD) ?? 0 })));
  };
  const pages = new Pages("Pages of queues", async (after) => {
    const found = [];
    let [from, more] = [after ?? new Uint8Array(), true];
    while (more && found.length < PAGE) {
      const pattern = patternOf(search.value);
      const page = await node.admin(CHANNELS, { patterns: [Uint8Array.from([...PREFIX, ...pattern])], after: from, limit: 200 });
      for (const row of page.page) {
        const text = name(row.name);
        if (row.mode === "queue" && !text.endsWith(DEAD) && !RESULTS.test(text) && found.length < PAGE) found.push(row.name);
      }
      from = found.length === PAGE ? found.at(-1) : page.page.at(-1)?.name;
      more = page.more || found.length === PAGE;
      if (found.length === PAGE) break;
    }
    names = found;
    await draw();
    return { last: names.at(-1) ?? null, more };
  });
  const charts = new Charts(JOB_CHARTS, "All queues in the last five minutes");
  const drawCharts = () => {
    const points = sampler.points.filter(({ jobs }) => jobs !== null).map(({ at, jobs }) => ({ at, ...jobs }));
    charts.element.hidden = Boolean(sampler.error) || points.length === 0;
    charts.draw(points);
  };
  sampler.addEventListener("sample", drawCharts, { signal });
  drawCharts();
  const told = (error) => write(status, error === null ? "" : explain(error));
  const look = () => pages.first().then(() => told(null), told);
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(look, 200);
  });
  look();
  poll(signal, EVERY_MS, () => (names.length === 0 ? pages.first() : draw()), told);
  const element = h("div", { class: "view" }, h("header", { class: "head" }, h("h1", {}, "Job queues"), search), status, charts.element,
    panel("Queues", { class: "panel bare" }, table.element), pages.element,
    h("p", { class: "hint" }, "Queues are the channels jobs/NAME of mode queue. Others open from the list of channels."));
  return { title: "Jobs", element };
}

export function queue({ node, signal, query }, [part]) {
  const own = unescaped(part ?? "");
  let [chosen, paused] = ["ready", false];
  const [status, tiles, badges] = [h("p", { class: "hint", role: "status" }), h("div", { class: "tiles" }), h("span", { class: "row" })];
  const rights = node.rights(own);
  const pause = h("button", { type: "button", onclick: () => attempt(() => node.jobs(own, SET_QUEUE, { paused: !paused }), paused ? "The queue goes on." : "The queue is paused: running jobs end, others wait.").then(counts) }, "Pause");
  const table = new Table(
    "Jobs",
    [
      { title: "Id", of: (row) => String(row.id) },
      { title: "Put", of: (row) => moment(putAt(row.id)), time: true },
      { title: "Attempt", of: (row) => count(row.attempt ?? 0), num: true },
      { title: "When", of: whenOf },
      { title: "Why", of: (row) => plain((row.reason ?? "").split("\n")[0].slice(0, 160)), wide: true },
      { title: "Job", of: (row) => summary(row.data), wide: true },
    ],
    { key: (row) => String(row.id), link: (row) => `#/job/${escaped(own)}/${row.id}`, none: empty("No jobs in this state.") },
  );
  const pages = new Pages("Pages of jobs", async (after) => {
    const page = await node.jobs(own, LIST, { state: chosen, limit: PAGE, ...(after === null ? {} : { after }) });
    table.draw(page.jobs);
    return { last: page.jobs.at(-1)?.id ?? null, more: page.more };
  });
  const told = (error) => write(status, error === null ? "" : isRefused(error, 0x29) ? "This channel is no queue." : isDenied(error) ? "Your token may not see this queue: it takes the right list." : explain(error));
  const states = STATES.map(([state, title]) => h("button", { type: "button", "aria-pressed": String(state === chosen), "data-state": state, onclick: () => choose(state) }, title));
  const choose = (state) => {
    chosen = state;
    for (const each of states) each.setAttribute("aria-pressed", String(each.dataset.state === state));
    pages.first().then(() => told(null), told);
  };
  async function counts() {
    const found = await node.jobs(own, COUNTS, { stats: true });
    sampled.take(found.stats ?? null);
    charts.element.hidden = sampled.points.length === 0;
    charts.draw(sampled.points);
    const { page: [row] } = await node.admin(CHANNELS, { names: [own] });
    const [{ outRate = null, inRate = null } = {}] = row === undefined ? [] : rates.of([row]);
    paused = found.paused === true;
    write(pause, paused ? "Resume" : "Pause");
    show(badges, paused ? badge("paused", "warn") : null, found.workers === 0 && found.ready > 0 ? badge("no worker", "warn") : null);
    for (const each of states) {
      const title = STATES.find(([state]) => state === each.dataset.state)[1];
      write(each, `${title} ${count(found[each.dataset.state])}`);
    }
    show(tiles,
      tile("Ready", count(found.ready), found.oldest ? `oldest ${ago(found.oldest)}` : ""),
      tile("Running", count(found.leased), plural(found.workers, "worker")),
      tile("Delayed", count(found.delayed), found.limited ? `${count(found.limited)} wait for a limit` : ""),
      tile("Dead", count(found.dead), ""),
      tile("Done", outRate === null ? "–" : rate(outRate), waitText(found, inRate, outRate)));
  }
  const rates = new Rates();
  const [sampled, charts] = [new QueueSampler(), new Charts(JOB_CHARTS, "This queue in the last minutes")];
  charts.element.hidden = true;
  const [workers, flows] = [workersView(node, own), flowsView(node, own)];
  const [schedules, limits] = [schedulesView(node, own, rights), limitsView(node, own, rights)];
  const again = { workers, flows, schedules, limits };
  const jobs = h("section", { class: "panel bare", "aria-label": "Jobs" },
    h("div", { class: "row inside", role: "group", "aria-label": "State" }, ...states), table.element, h("div", { class: "inside" }, pages.element));
  const tabs = new Tabs("Parts of the queue", [
    { key: "jobs", title: "Jobs", element: jobs },
    { key: "workers", title: "Workers", element: workers.element },
    { key: "flows", title: "Flows", element: flows.element },
    { key: "schedules", title: "Schedules", element: schedules.element },
    { key: "limits", title: "Limits", element: limits.element },
  ], query, (key) => drawPart(key).then(() => told(null), told));
  const drawPart = (key) => (key === "jobs" ? pages.again() : again[key].draw());
  poll(signal, EVERY_MS, async () => {
    await counts();
    await drawPart(tabs.chosen);
  }, told);
  const after = (text) => (outcome) => {
    if (outcome !== null) {
      announce(text);
      pages.first();
    }
  };
  const move = () => askMove(node, own, `Move all jobs of ${queueName(own)} that wait`, (target) => moveAll(node, own, target)).then((done) => {
    if (done !== null) after(`${plural(done, "job")} moved.`)(done);
  });
  const element = h(
    "div",
    { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Job queues"), " / ", h("a", { href: `#/channel/${escaped(own)}` }, "as a channel"), " / ", h("a", { href: `#/stream/${escaped(own)}` }, "history")),
    h("header", { class: "head" }, h("h1", {}, queueName(own)), badges,
      rights.gate(h("button", { type: "button", onclick: () => put(node, own).then(after("The job is put.")) }, "Put a job"), "put"),
      rights.gate(pause, "ack"),
      rights.gate(h("button", { type: "button", onclick: move }, "Move"), "list", "push", "ack", "get"),
      rights.gate(h("button", { type: "button", onclick: () => retryAll(node, own).then(after("The dead jobs are put back.")) }, "Retry dead"), "ack"),
      rights.gate(h("button", { type: "button", class: "danger", onclick: () => purgeDead(node, own).then(after("The dead jobs are purged.")) }, "Purge dead"), "ack")),
    rights.note(),
    status,
    tiles,
    charts.element,
    tabs.element,
  );
  return { title: queueName(own), element };
}

/** How fast jobs come, and by when the ready ones are done at this rate. */
function waitText({ ready }, inRate, outRate) {
  if (inRate === null) return "";
  const left = outRate > inRate && ready > 0 ? `, empty in ${duration(ready / (outRate - inRate))}` : "";
  return `${rate(inRate)} come in${left}`;
}

function whenOf(row) {
  if (row.state === "delayed") return `due ${ago(row.due)}`;
  if (row.state === "leased") return `leased, ends ${ago(row.leased_until)}`;
  return row.expires ? `expires ${ago(row.expires)}` : "";
}

function put(node, own) {
  return ask({
    title: `Put a job into ${queueName(own)}`,
    fields: [
      { name: "payload", label: "Payload, as JSON", kind: "area", value: "null", isRequired: true },
      { name: "task", label: "Task", hint: "the name of the function, if the queue has several" },
      { name: "priority", label: "Priority, 0 to 9", kind: "number", value: "4" },
      { name: "delay", label: "Seconds until it is due", kind: "number", value: "0" },
    ],
    action: "Put",
    work: ({ payload, task, priority, delay }) => {
      const [key] = crypto.getRandomValues(new Uint32Array(1));
      const due = Number(delay) > 0 ? Math.round(Date.now() + Number(delay) * 1000) : 0;
      return node.jobs(own, PUT, { key, due, data: jobBytes(payloadOf(payload), task.trim(), priority === "4" ? null : Math.min(9, Number(priority))) });
    },
  });
}

/** Move all jobs that wait: pages of them, until none is left above the last one. */
async function moveAll(node, own, target) {
  let moved = 0;
  for (const state of ["ready", "delayed"]) {
    let [after, more] = [0, true];
    while (more) {
      const page = await node.jobs(own, LIST, { state, limit: MOVED_PAGE, after });
      for (const row of page.jobs) {
        try {
          await moveJob(node, own, row.id, target);
          moved += 1;
        } catch (error) {
          if (!isRefused(error, 0x02) && !isRefused(error, 0x28)) throw error; // a worker was faster
        }
      }
      after = page.jobs.at(-1)?.id ?? after;
      more = page.more;
    }
  }
  return moved;
}
