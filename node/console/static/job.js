// One job: its payload, attempts and errors, progress, result and history; retried, moved, cancelled.

import { bodyView, plainLines, valueText } from "./bodies.js";
import { putAt } from "./channels.js";
import { ask, attempt } from "./dialogs.js";
import { badge, empty, facts, h, panel, show, write } from "./dom.js";
import { channelOf, envelope, queueName, record } from "./envelope.js";
import { ago, bytes, count, escaped, exactly, name, percent, plain, same, unescaped } from "./format.js";
import { explain, isDenied, isRefused, poll } from "./node.js";
import { Table } from "./table.js";

const [PUT, SHOW, RETRY, CANCEL, DEAD_RETRY, DEAD_PURGE, TAKE, RESULT] = [1, 3, 4, 5, 6, 7, 23, 35];
const READ = 3;
const EVERY_MS = 3000;
const HISTORY_PAGE = 1000;
const HISTORY_PAGES_MAX = 10;
/** Ids may run ahead of the clock that gives records their time. */
const AHEAD_MS = 10_000;
const KEY_REUSED = 0x21;
const KEYS = 2 ** 32;
const TEXT = new TextDecoder();
const WHATS = { done: "done", failed: "failed, to be retried", rejected: "rejected", returned: "given back", lost: "lost its lease", cancelled: "cancelled", expired: "expired" };

/** The key of a job that moves, the same however often it does: FNV-1a of the queue and the id. */
function moveKey(own, id) {
  let found = 0x811c9dc5;
  for (const byte of [...own, 0, ...new TextEncoder().encode(String(id))]) found = Math.imul(found ^ byte, 0x01000193) >>> 0;
  return found;
}

/** Move a job that waits, or is dead: put it into the other queue, then remove it here. */
export async function moveJob(node, own, id, target) {
  if (same(own, target)) throw new Error("That is the queue it is in.");
  let row = await node.jobs(own, SHOW, { id });
  if (row.state === "leased") throw new Error("A worker runs it: wait, or cancel it.");
  // A ready job is leased to this page meanwhile, so that no worker gets it.
  const isTaken = row.state === "ready";
  if (isTaken) row = await node.jobs(own, TAKE, { id });
  const data = row.data ?? (await (await node.channel(own)).get(BigInt(row.id)));
  const fields = { key: moveKey(own, row.id), data };
  if (row.state === "delayed") fields.due = row.due;
  if (row.expires && row.state !== "dead") fields.ttl = Math.max(1, Math.round((row.expires - Math.max(row.due ?? 0, Date.now())) / 1000));
  try {
    for (let isPut = false; !isPut; ) {
      try {
        await node.jobs(target, PUT, fields);
        isPut = true;
      } catch (error) {
        if (!isRefused(error, KEY_REUSED)) throw error;
        fields.key = (fields.key + 1) % KEYS;
      }
    }
  } catch (error) {
    if (isTaken) await node.jobs(own, RETRY, { id: row.id });
    throw error;
  }
  if (row.state === "dead") await node.jobs(own, DEAD_PURGE, { ids: [row.id] });
  else await node.jobs(own, CANCEL, { id: row.id });
}

export function askMove(node, own, title, work) {
  return ask({
    title,
    text: "It gets a new id and new attempts there, and keeps its data. A producer that waits gets no result.",
    fields: [{ name: "queue", label: "To the queue", isRequired: true }],
    action: "Move",
    work: ({ queue }) => work(channelOf(queue.trim())),
  });
}

export function job({ node, signal }, [part, number]) {
  const own = unescaped(part ?? "");
  const id = BigInt(/^[0-9]+$/.test(number ?? "") ? number : 0);
  const [body, outcome, status] = [h("div", { class: "view" }), h("div", { class: "view" }), h("p", { class: "hint", role: "status" })];
  const rights = node.rights(own);
  const history = historyView(node, own);
  let seen = "";
  const look = async () => {
    let [row, told] = [null, null];
    try {
      told = await node.jobs(own, RESULT, { id });
    } catch (error) {
      if (!isRefused(error, 0x02)) throw error;
    }
    // The record of a dead job is its row; of one that is done there is no row any more.
    const isGone = told !== null && "final" in told && told.state === null;
    if (!isGone) {
      try {
        row = await node.jobs(own, SHOW, { id });
      } catch (error) {
        if (!isRefused(error, 0x02)) throw error;
      }
    }
    const found = told !== null && "final" in told ? record(told.data) : null;
    const isCancelled = told !== null && told.final === true && told.data !== null && told.data.length === 0;
    show(outcome, ...outcomeOf(found, told?.final === true));
    const now = row === null ? `gone ${isCancelled}` : `${row.state} ${row.attempt} ${row.due} ${row.leased_until}`;
    if (now !== seen) {
      seen = now;
      show(body, ...(row === null ? goneOf(found, isCancelled) : jobOf(node, own, row, rights)));
      history.draw(row?.origin ? BigInt(row.origin) : id).catch(() => {});
    }
    write(status, row === null && found === null && !isCancelled ? "The job is not here any more: it is done, cancelled or expired, and its result was not kept." : "");
  };
  poll(signal, EVERY_MS, look, (error) => {
    if (error === null) return;
    write(status, isDenied(error) ? "To see a job takes the right get in the queue." : explain(error));
  });
  const element = h("div", { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Job queues"), " / ", h("a", { href: `#/queue/${escaped(own)}` }, queueName(own))),
    h("h1", {}, `Job ${id}`), rights.note(), status, body, outcome, history.element);
  return { title: `Job ${id}`, element };
}

function goneOf(found, isCancelled) {
  if (isCancelled) return [h("div", { class: "row" }, badge("cancelled", "warn"))];
  if (found === null || found.k === "progress") return [];
  return [h("div", { class: "row" }, found.k === "failed" ? badge("failed", "bad") : badge("done", "good"))];
}

/** The result, or the progress up to now. */
function outcomeOf(found, isFinal) {
  if (found === null) return [];
  const views = [];
  if (isFinal && found.k !== "progress") {
    const isFailure = found.k === "failed";
    const value = isFailure && found.v !== null && typeof found.v === "object" ? `${found.v.reason ?? ""}\n${found.v.error ?? ""}`.trim() : valueText(found.v ?? null);
    views.push(panel(isFailure ? "Failure" : "Result", {}, h("pre", { class: "body", tabindex: 0 }, plainLines(value))));
  }
  if (found.p !== null && found.p !== undefined || found.t || found.l?.length > 0) {
    const isPart = typeof found.p === "number" && found.p >= 0 && found.p <= 1;
    views.push(panel("Progress", {},
      isPart ? h("progress", { max: 1000, value: Math.round(1000 * found.p), "aria-label": `Progress: ${percent(found.p)}` }) : null,
      facts([
        found.p === null || found.p === undefined ? null : ["Value", isPart ? percent(found.p) : plain(valueText(found.p))],
        found.t ? ["Text", plain(found.t)] : null,
        found.a ? ["Attempt", count(found.a)] : null,
        found.e ? ["Told", ago(found.e)] : null,
      ]),
      found.l?.length > 0 ? h("pre", { class: "body", tabindex: 0, "aria-label": "Log of the handler" }, plainLines(found.l.join("\n"))) : null));
  }
  return views;
}

function jobOf(node, own, row, rights) {
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
  const move = () => askMove(node, own, `Move job ${row.id}`, (target) => moveJob(node, own, row.id, target)).then((done) => done && back());
  return [
    h("div", { class: "row" }, badge(row.state === "leased" ? "running" : row.state, kind),
      row.state === "delayed" || isDead ? rights.gate(h("button", { type: "button", onclick: retry }, "Retry"), "ack") : null,
      row.state === "leased" ? null : rights.gate(h("button", { type: "button", onclick: move }, "Move"), "push", "ack", "get"),
      rights.gate(h("button", { type: "button", class: "danger", onclick: cancel }, isDead ? "Purge" : "Cancel"), "ack")),
    panel("About", {}, facts([
      found?.n ? ["Task", plain(found.n)] : null,
      ["Put", `${exactly(putAt(row.id))} (${ago(putAt(row.id))})`],
      ["Attempts", `${count(row.attempt ?? 0)}${found?.a ? ` of ${found.a}` : ""}`],
      row.due ? ["Due", exactly(row.due)] : null,
      row.leased_until ? ["Leased until", exactly(row.leased_until)] : null,
      row.expires ? ["Expires", exactly(row.expires)] : null,
      row.origin ? ["Was job", String(row.origin)] : null,
      row.flow ? ["Step of", h("a", { href: `#/flow/${escaped(own)}/${row.flow}` }, `flow ${row.flow}, step ${(row.step ?? 0) + 1}`)] : null,
      found?.r === undefined ? null : ["Priority", String(found.r)],
      found?.l === undefined ? null : ["Limit key", name(found.l)],
      found?.k ? ["Result kept for", `${count(found.k)} s`] : null,
      found?.h ? ["Headers", plain(Object.entries(found.h).map(([field, value]) => `${field}: ${value}`).join(", "))] : null,
      ["Size", bytes(row.size ?? 0)],
    ])),
    found?.f?.length > 0 ? panel("Results that it waited for", {}, h("pre", { class: "body", tabindex: 0 }, plainLines(valueText(found.f)))) : null,
    row.reason ? panel("Why it failed", {}, h("pre", { class: "body", tabindex: 0 }, plainLines(row.reason))) : null,
    panel("Payload", {}, found === null
      ? data === null ? empty("The data is too large for this page.") : bodyView(data)
      : h("div", { class: "body-view" }, h("pre", { class: "body", tabindex: 0 }, plainLines(valueText(found.p ?? null))))),
    data === null || found === null ? null : panel("Bytes", {}, h("details", {}, h("summary", {}, "The message as it is stored"), bodyView(data))),
  ].filter((each) => each !== null);
}

/** The attempts of a job, as workers wrote them into the stream of the queue. */
function historyView(node, own) {
  const told = h("p", { class: "hint", role: "status" });
  const errors = h("div");
  let shownTraces = [];
  const table = new Table(
    "History",
    [
      { title: "Attempt", of: (row) => count(row.attempt) },
      { title: "Ended", of: (row) => exactly(row.at), time: true },
      { title: "How", of: (row) => WHATS[row.what] ?? plain(String(row.what)) },
      { title: "Worker", of: (row) => plain(String(row.worker ?? "")) },
      { title: "Error", of: (row) => plain(String(row.error ?? "").trim().split("\n")[0].slice(0, 200)), wide: true },
    ],
    { key: (row) => `${row.sequence}`, none: empty("No attempt is in the history.") },
  );
  const draw = async (id) => {
    const found = [];
    let [where, isWhole] = [{ timestamp: Math.max(0, Math.floor(putAt(id) - AHEAD_MS)) }, false];
    try {
      for (let page = 0; page < HISTORY_PAGES_MAX && !isWhole; page += 1) {
        const read = await node.streams(READ, { stream: own, count: HISTORY_PAGE, ...where });
        for (const span of read.spans) {
          span.bodies.forEach((body, at) => {
            const entry = entryOf(body);
            if (entry?.job === String(id)) found.push({ ...entry, sequence: span.first + at });
          });
        }
        where = { sequence: read.next };
        isWhole = read.next >= read.tail;
      }
      write(told, isWhole ? "" : "Later attempts are not shown: the history is long. millpond jobs history shows them.");
    } catch (error) {
      write(told, isDenied(error) ? "The history takes the right admin." : isRefused(error, 0x41) ? "" : explain(error));
    }
    table.draw(found);
    const traces = found.filter((each) => traceOf(each) !== "");
    const isSame = traces.length === shownTraces.length && traces.every((each, at) => each.sequence === shownTraces[at].sequence);
    if (isSame) return;
    shownTraces = traces;
    show(errors, ...traces.map((each) => h("details", {}, h("summary", {}, `Traceback of attempt ${each.attempt}`), h("pre", { class: "body", tabindex: 0 }, plainLines(traceOf(each))))));
  };
  return { element: panel("History", {}, told, table.element, errors), draw };
}

/** The traceback of an attempt; workers of earlier versions give none, but may have an error of several lines. */
function traceOf({ traceback, error }) {
  if (typeof traceback === "string" && traceback !== "") return traceback;
  return typeof error === "string" && error.includes("\n") ? error : "";
}

function entryOf(body) {
  try {
    const found = JSON.parse(TEXT.decode(body));
    return found !== null && typeof found === "object" ? found : null;
  } catch {
    return null;
  }
}
