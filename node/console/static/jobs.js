// Job queues: the list, one queue with its jobs by state and its schedules, and one job.

import { bodyView, plainLines, valueText } from "./bodies.js";
import { Rates, patternOf, purgeDead, putAt, retryAll } from "./channels.js";
import { ask, attempt } from "./dialogs.js";
import { announce, badge, empty, facts, h, panel, show, write } from "./dom.js";
import { ago, bytes, count, escaped, exactly, moment, name, plain, plural, rate, raw, unescaped } from "./format.js";
import { explain, isDenied, isRefused, poll } from "./node.js";
import { decode } from "./msgpack.js";
import { Pages } from "./pages.js";
import { Table } from "./table.js";

const [CHANNELS, MEMBERS] = [6, 18];
const [LIST, SHOW, RETRY, CANCEL, DEAD_RETRY, DEAD_PURGE, COUNTS] = [2, 3, 4, 5, 6, 7, 8];
const [DROP_SCHEDULE, PAUSE_SCHEDULE, RUN_SCHEDULE, SCHEDULES, SET_QUEUE] = [11, 12, 13, 14, 21];
const STATES = [["ready", "Ready"], ["leased", "Running"], ["delayed", "Delayed"], ["dead", "Dead"]];
const PAGE = 50;
const EVERY_MS = 3000;
const PREFIX = raw("jobs/");
const DEAD = "!dead";
const RESULTS = /\/r\/[0-9a-f]{32}$/;

const shortName = (own) => name(own).replace(/^jobs\//, "");
const suffixed = (own, suffix) => Uint8Array.from([...own, ...raw(suffix)]);

/** A job's parts, of the beginning of its data or the whole of it; null: it is no envelope. */
function envelope(data) {
  try {
    const found = decode(data);
    return found !== null && typeof found === "object" && found.v === 1 ? found : null;
  } catch {
    return null;
  }
}

function summary(row) {
  const found = row.data ? envelope(row.data) : null;
  if (found === null) return !row.data ? "" : plain(new TextDecoder().decode(row.data)).slice(0, 120);
  return `${found.n ?? ""} ${valueText(found.p ?? null).replace(/\s+/g, " ")}`.trim().slice(0, 160);
}

export function queues({ node, signal }) {
  let names = [];
  const [rates, status] = [new Rates(), h("p", { class: "hint", role: "status" })];
  const search = h("input", { type: "search", placeholder: "Find a queue, press /", "aria-label": "Find a queue", autocomplete: "off", spellcheck: "false" });
  const number = (title, of) => ({ title, of, num: true });
  const table = new Table(
    "Queues",
    [
      { title: "Name", of: (row) => shortName(row.name) },
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
  const told = (error) => write(status, error === null ? "" : explain(error));
  const look = () => pages.first().then(() => told(null), told);
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(look, 200);
  });
  look();
  poll(signal, EVERY_MS, () => (names.length === 0 ? pages.first() : draw()), told);
  const element = h("div", { class: "view" }, h("header", { class: "head" }, h("h1", {}, "Job queues"), search), status,
    panel("Queues", { class: "panel bare" }, table.element), pages.element,
    h("p", { class: "hint" }, "Queues are the channels jobs/NAME of mode queue. Others open from the list of channels."));
  return { title: "Jobs", element };
}

export function queue({ node, signal }, [part]) {
  const own = unescaped(part ?? "");
  let [chosen, paused] = ["ready", false];
  const [status, tiles, badges] = [h("p", { class: "hint", role: "status" }), h("div", { class: "tiles" }), h("span", { class: "row" })];
  const pause = h("button", { type: "button", onclick: () => attempt(() => node.jobs(own, SET_QUEUE, { paused: !paused }), paused ? "The queue goes on." : "The queue is paused: running jobs end, others wait.").then(counts) }, "Pause");
  const table = new Table(
    "Jobs",
    [
      { title: "Id", of: (row) => String(row.id) },
      { title: "Put", of: (row) => moment(putAt(row.id)) },
      { title: "Attempt", of: (row) => count(row.attempt ?? 0), num: true },
      { title: "When", of: whenOf },
      { title: "Why", of: (row) => plain((row.reason ?? "").split("\n")[0].slice(0, 160)), wide: true },
      { title: "Job", of: summary, wide: true },
    ],
    { key: (row) => String(row.id), link: (row) => `#/job/${escaped(own)}/${row.id}`, none: empty("No jobs in this state.") },
  );
  const pages = new Pages("Pages of jobs", async (after) => {
    const page = await node.jobs(own, LIST, { state: chosen, limit: PAGE, ...(after === null ? {} : { after }) });
    table.draw(page.jobs);
    return { last: page.jobs.at(-1)?.id ?? null, more: page.more };
  });
  const told = (error) => write(status, error === null ? "" : isRefused(error, 0x29) ? "This channel is no queue." : explain(error));
  const tabs = STATES.map(([state, title]) => h("button", { type: "button", role: "tab", "data-state": state, "aria-selected": String(state === chosen), onclick: () => choose(state) }, title));
  const choose = (state) => {
    chosen = state;
    for (const tab of tabs) tab.setAttribute("aria-selected", String(tab.dataset.state === state));
    pages.first().then(() => told(null), told);
  };
  async function counts() {
    const found = await node.jobs(own, COUNTS);
    paused = found.paused === true;
    write(pause, paused ? "Resume" : "Pause");
    show(badges, paused ? badge("paused", "warn") : null);
    for (const tab of tabs) {
      const title = STATES.find(([state]) => state === tab.dataset.state)[1];
      write(tab, `${title} ${count(found[tab.dataset.state])}`);
    }
    show(tiles, ...[
      ["Ready", count(found.ready), found.oldest ? `oldest ${ago(found.oldest)}` : ""],
      ["Running", count(found.leased), plural(found.workers, "worker")],
      ["Delayed", count(found.delayed), found.limited ? `${count(found.limited)} wait for a limit` : ""],
      ["Dead", count(found.dead), ""],
    ].map(([title, value, more]) => h("div", { class: "tile" }, h("span", { class: "hint" }, title), h("b", {}, value), h("span", { class: "hint" }, more))));
  }
  const workers = new Table(
    "Workers",
    [
      { title: "Connection", of: (row) => `#${row.connection} ${row.peer}` },
      { title: "Takes", of: (row) => (row.receives ? count(row.window) : "–"), num: true },
      { title: "Runs", of: (row) => count(row.leased), num: true },
    ],
    { key: (row) => row.connection, none: empty("No worker is connected.", "millpond work module:function --queue NAME") },
  );
  const schedules = schedulesView(node, own);
  poll(signal, EVERY_MS, async () => {
    await counts();
    await pages.again();
    workers.draw((await node.admin(MEMBERS, { channel: own })).consumers.filter((row) => row.receives));
    await schedules.draw();
  }, told);
  const after = (text) => (outcome) => {
    if (outcome !== null) {
      announce(text);
      pages.first();
    }
  };
  const element = h(
    "div",
    { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Job queues"), " / ", h("a", { href: `#/channel/${escaped(own)}` }, "as a channel"), " / ", h("a", { href: `#/stream/${escaped(own)}` }, "history")),
    h("header", { class: "head" }, h("h1", {}, shortName(own)), badges, pause,
      h("button", { type: "button", onclick: () => retryAll(node, own).then(after("The dead jobs are put back.")) }, "Retry dead"),
      h("button", { type: "button", class: "danger", onclick: () => purgeDead(node, own).then(after("The dead jobs are purged.")) }, "Purge dead")),
    status,
    tiles,
    h("section", { class: "panel bare", "aria-label": "Jobs" }, h("div", { class: "row inside", role: "tablist", "aria-label": "State" }, ...tabs), table.element, h("div", { class: "inside" }, pages.element)),
    h("div", { class: "columns" }, panel("Workers", {}, workers.element), schedules.element),
  );
  return { title: shortName(own), element };
}

function whenOf(row) {
  if (row.state === "delayed") return `due ${ago(row.due)}`;
  if (row.state === "leased") return `leased, ends ${ago(row.leased_until)}`;
  return row.expires ? `expires ${ago(row.expires)}` : "";
}

function schedulesView(node, own) {
  const act = (title, operation, fields, done) => h("button", { type: "button", class: "quiet", onclick: () => attempt(() => node.jobs(own, operation, fields()), done) }, title);
  const table = new Table(
    "Schedules",
    [
      { title: "Name", of: (row) => name(row.name) },
      { title: "When", of: (row) => (row.cron ? `${name(row.cron)} ${name(row.zone ?? "")}` : `every ${row.every / 1000} s`) },
      { title: "Next", of: (row) => (row.paused ? "paused" : row.next ? moment(row.next) : "never") },
      { title: "Jobs", of: (row) => count(row.jobs), num: true },
      {
        title: "",
        keep: true,
        of: (row) => h("span", { class: "row" },
          act("Run now", RUN_SCHEDULE, () => ({ name: row.name, key: crypto.getRandomValues(new Uint32Array(1))[0], at: Date.now() }), "A job is put."),
          act("Pause", PAUSE_SCHEDULE, () => ({ name: row.name, paused: true }), "The schedule is paused."),
          act("Resume", PAUSE_SCHEDULE, () => ({ name: row.name, paused: false }), "The schedule goes on."),
          h("button", { type: "button", class: "quiet danger", onclick: () => ask({
            title: `Delete the schedule ${name(row.name)}?`, text: "No more jobs are put. Those that are there stay.", action: "Delete", isDanger: true,
            work: () => node.jobs(own, DROP_SCHEDULE, { name: row.name }),
          }) }, "Delete")),
      },
    ],
    { key: (row) => name(row.name), none: empty("No schedules.") },
  );
  return {
    element: panel("Schedules", {}, table.element),
    draw: async () => table.draw((await node.jobs(own, SCHEDULES, { limit: 100 })).schedules),
  };
}

export function job({ node, signal }, [part, number]) {
  const own = unescaped(part ?? "");
  const id = BigInt(/^[0-9]+$/.test(number ?? "") ? number : 0);
  const [body, status] = [h("div", { class: "view" }), h("p", { class: "hint", role: "status" })];
  let seen = "";
  poll(signal, EVERY_MS, async () => {
    const row = await node.jobs(own, SHOW, { id });
    const now = `${row.state} ${row.attempt} ${row.due} ${row.leased_until}`;
    if (now !== seen) {
      seen = now;
      show(body, ...jobOf(node, own, row));
    }
    write(status, "");
  }, (error) => {
    if (error === null) return;
    write(status, isRefused(error, 0x02) ? "The job is not here any more: it is done, cancelled or expired." : isDenied(error) ? "To see a job takes the right get in the queue." : explain(error));
  });
  const element = h("div", { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Job queues"), " / ", h("a", { href: `#/queue/${escaped(own)}` }, shortName(own))),
    h("h1", {}, `Job ${id}`), status, body);
  return { title: `Job ${id}`, element };
}

function jobOf(node, own, row) {
  const data = row.data ?? null;
  const found = data === null ? null : envelope(data);
  const isDead = row.state === "dead";
  const kind = { dead: "bad", delayed: "warn", leased: "good" }[row.state] ?? "info";
  const back = () => (location.hash = `#/queue/${escaped(own)}`);
  const retry = () => attempt(() => (isDead ? node.jobs(own, DEAD_RETRY, { ids: [row.id] }) : node.jobs(own, RETRY, { id: row.id })), isDead ? "The job is put back." : "The job is ready.").then((done) => done && isDead && back());
  const cancel = () => ask({
    title: isDead ? "Purge this job?" : "Cancel this job?",
    text: row.state === "leased" ? "A worker runs it: it loses its lease, and what it has done stays done." : "The job is deleted. This cannot be undone.",
    action: isDead ? "Purge" : "Cancel the job",
    isDanger: true,
    work: () => (isDead ? node.jobs(own, DEAD_PURGE, { ids: [row.id] }) : node.jobs(own, CANCEL, { id: row.id })),
  }).then((done) => done && back());
  return [
    h("div", { class: "row" }, badge(row.state === "leased" ? "running" : row.state, kind),
      row.state === "ready" ? null : h("button", { type: "button", onclick: retry }, "Retry"),
      h("button", { type: "button", class: "danger", onclick: cancel }, isDead ? "Purge" : "Cancel")),
    panel("About", {}, facts([
      found?.n ? ["Task", plain(found.n)] : null,
      ["Put", `${exactly(putAt(row.id))} (${ago(putAt(row.id))})`],
      ["Attempts", `${count(row.attempt ?? 0)}${found?.a ? ` of ${found.a}` : ""}`],
      row.due ? ["Due", exactly(row.due)] : null,
      row.leased_until ? ["Leased until", exactly(row.leased_until)] : null,
      row.expires ? ["Expires", exactly(row.expires)] : null,
      row.origin ? ["Was job", String(row.origin)] : null,
      found?.r === undefined ? null : ["Priority", String(found.r)],
      found?.h ? ["Headers", plain(Object.entries(found.h).map(([field, value]) => `${field}: ${value}`).join(", "))] : null,
      ["Size", bytes(row.size ?? 0)],
    ])),
    row.reason ? panel("Why it failed", {}, h("pre", { class: "body", tabindex: 0 }, plainLines(row.reason))) : null,
    panel("Payload", {}, found === null
      ? data === null ? empty("The data is too large for this page.") : bodyView(data)
      : h("div", { class: "body-view" }, h("pre", { class: "body", tabindex: 0 }, plainLines(valueText(found.p ?? null))))),
    data === null || found === null ? null : panel("Bytes", {}, h("details", {}, h("summary", {}, "The message as it is stored"), bodyView(data))),
  ];
}
