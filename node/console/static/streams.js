// Streams and topics: the lists, and one stream: browsed, followed, filtered, appended to, trimmed, as a state.

import { bodyView, plainLines, preview, pretty } from "./bodies.js";
import { ask } from "./dialogs.js";
import { announce, badge, empty, facts, h, panel, show, write } from "./dom.js";
import { ago, bytes, count, duration, escaped, exactly, moment, name, plural, rate, raw, unescaped } from "./format.js";
import { explain, isDenied, poll } from "./node.js";
import { Pages } from "./pages.js";
import { Table } from "./table.js";
import { Tabs } from "./tabs.js";

const [CREATE, APPEND, READ, DESCRIBE, TRIM, DELETE, LIST, TOPICS, STATE, STATE_SHOW] = [1, 2, 3, 4, 5, 6, 10, 13, 15, 17];
const PAGE = 50;
const NAMES = 1000;
const EVERY_MS = 3000;
const FOLLOWED_MAX = 500;
const WAIT_MS = 20_000;
const TEXT = new TextDecoder();

const retention = ({ age_s: age, bytes_max: size }) => [age ? duration(age) : "", size ? bytes(size) : ""].filter((each) => each !== "").join(", ") || "as the node's";
const records = ({ tail, trim_point }) => tail - trim_point;

/** The groups of a description, [name, offset]; names are bytes. */
function groupsOf({ groups }) {
  const pairs = groups instanceof Map ? [...groups] : Object.entries(groups ?? {});
  return pairs.map(([group, offset]) => ({ group, offset }));
}

function lagOf(row) {
  return Math.max(0, ...groupsOf(row).map(({ offset }) => row.tail - Math.max(offset, row.trim_point)));
}

/** Records a second, between two looks at the tails. */
class Tails {
  constructor() {
    this.before = new Map();
  }

  of(key, tail) {
    const before = this.before.get(key);
    const now = performance.now();
    this.before.set(key, { at: now, tail });
    return before === undefined || tail < before.tail ? null : ((tail - before.tail) * 1000) / (now - before.at);
  }
}

export function streams({ node, signal, query }) {
  const [tails, status] = [new Tails(), h("p", { class: "hint", role: "status" })];
  let names = [];
  const search = h("input", { type: "search", placeholder: "Find a stream, press /", "aria-label": "Find a stream", autocomplete: "off", spellcheck: "false", value: query.get("q") ?? "" });
  const number = (title, of) => ({ title, of, num: true });
  const table = new Table(
    "Streams",
    [
      { title: "Name", of: (row) => name(row.name) },
      number("Records", (row) => count(records(row))),
      number("Size", (row) => bytes(row.bytes_kept)),
      number("In", (row) => rate(row.rate)),
      number("Last record", (row) => (row.tail === row.trim_point ? "" : ago(row.last_timestamp))),
      number("Kept for", retention),
      number("Groups", (row) => count(groupsOf(row).length)),
      number("Lag", (row) => count(lagOf(row))),
    ],
    { key: (row) => name(row.name), link: (row) => `#/stream/${escaped(row.name)}`, none: empty("No stream matches.", "millpond stream append s 'a record' makes one") },
  );
  const draw = async () => {
    const found = await Promise.all(
      names.map(async (each) => {
        try {
          const row = await node.streams(DESCRIBE, { stream: each });
          return { ...row, name: each, rate: tails.of(name(each), row.tail) };
        } catch {
          return null; // it was deleted meanwhile
        }
      }),
    );
    table.draw(found.filter((row) => row !== null));
  };
  const pages = new Pages("Pages of streams", async (after) => {
    // The node lists names by prefix; what is typed may be any part.
    const wanted = search.value.toLowerCase();
    const found = [];
    let [from, more] = [after ?? new Uint8Array(), true];
    while (more && found.length <= PAGE) {
      const page = await node.streams(LIST, { prefix: new Uint8Array(), after: from, limit: wanted === "" ? PAGE + 1 : NAMES });
      found.push(...page.names.filter((each) => name(each).toLowerCase().includes(wanted)));
      from = page.names.at(-1);
      more = page.more;
    }
    names = found.slice(0, PAGE);
    await draw();
    return { last: names.at(-1) ?? null, more: found.length > PAGE };
  });
  const topics = new Table(
    "Topics",
    [{ title: "Name", of: ([topic]) => name(topic) }, number("Partitions", ([, partitions]) => count(partitions))],
    { key: ([topic]) => name(topic), link: ([topic]) => `#/streams?q=${encodeURIComponent(name(topic))}` },
  );
  const topicsPanel = panel("Topics", { hidden: true }, topics.element);
  const told = (error) => write(status, error === null ? "" : isDenied(error) ? "Your token may not list streams here." : explain(error));
  const look = () => pages.first().then(() => told(null), told);
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(look, 250);
  });
  look();
  poll(signal, EVERY_MS, () => (names.length === 0 ? pages.first() : draw()), told);
  node.streams(TOPICS, { limit: 200 }).then((found) => {
    // A topic of one partition is a stream, and in the list above.
    const several = found.topics.filter(([, partitions]) => partitions > 1);
    topicsPanel.hidden = several.length === 0;
    topics.draw(several);
  }, () => {});
  const make = node.rights().gate(h("button", {
    type: "button",
    onclick: () => ask({
      title: "New stream",
      fields: [{ name: "stream", label: "Name", isRequired: true }, { name: "type", label: "Content type", hint: "application/json for a state, or nothing" }],
      action: "Create",
      work: ({ stream: wanted, type }) => node.streams(CREATE, { stream: raw(wanted), content_type: type === "" ? null : raw(type) }),
    }).then((done) => done && look()),
  }, "New stream"), "admin");
  const element = h("div", { class: "view" }, h("header", { class: "head" }, h("h1", {}, "Streams"), search, make), status,
    panel("Streams", { class: "panel bare" }, table.element), pages.element, topicsPanel);
  return { title: "Streams", element };
}

export function stream({ node, signal, query }, [part]) {
  const own = unescaped(part ?? "");
  const [tails, tiles, about] = [new Tails(), h("div", { class: "tiles" }), panel("About")];
  const status = h("p", { class: "hint", role: "status" });
  const groups = new Table(
    "Consumer groups",
    [
      { title: "Group", of: ({ group }) => name(group) },
      { title: "Committed", of: ({ offset }) => count(offset), num: true },
      { title: "Lag", of: ({ lag }) => count(lag), num: true },
    ],
    { key: ({ group }) => name(group), none: empty("No consumer group.") },
  );
  const [browser, rights] = [browse(node, own, signal), node.rights()];
  poll(signal, EVERY_MS, async () => {
    const row = await node.streams(DESCRIBE, { stream: own });
    const inRate = tails.of("", row.tail);
    show(tiles, ...tilesOf(row, inRate));
    show(about, h("h2", {}, "About"), aboutOf(row));
    groups.draw(groupsOf(row).map((each) => ({ ...each, lag: row.tail - Math.max(each.offset, row.trim_point) })));
  }, (error) => write(status, error === null ? "" : isDenied(error) ? "Your token has no right in this stream." : explain(error)));
  const done = (text) => (outcome) => {
    if (outcome !== null) {
      announce(text);
      browser.newest();
    }
  };
  const element = h(
    "div",
    { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/streams" }, "Streams")),
    h("header", { class: "head" }, h("h1", {}, name(own)),
      rights.gate(h("button", { type: "button", onclick: () => append(node, own).then(done("The record is appended.")) }, "Append"), "admin"),
      rights.gate(h("button", { type: "button", class: "danger", onclick: () => trim(node, own).then(done("The stream is trimmed.")) }, "Trim"), "admin"),
      rights.gate(h("button", { type: "button", class: "danger", onclick: () => remove(node, own).then((gone) => gone && (location.hash = "#/streams")) }, "Delete"), "admin")),
    status,
    tiles,
    new Tabs("Parts of the stream", [
      { key: "records", title: "Records", element: browser.element },
      { key: "state", title: "State", element: stateView(node, own, signal) },
      { key: "groups", title: "Consumer groups", element: panel("Consumer groups", {}, groups.element) },
      { key: "about", title: "About", element: about },
    ], query).element,
  );
  return { title: name(own), element };
}

function tilesOf(row, inRate) {
  const rows = [
    ["Records", count(records(row)), `${count(row.trim_point)} to ${count(Math.max(row.trim_point, row.tail - 1))}`],
    ["Size", bytes(row.bytes_kept), plural(row.segments, "segment")],
    ["In", rate(inRate) || "–", row.tail === row.trim_point ? "no record" : `last ${ago(row.last_timestamp)}`],
    ["Lag", count(lagOf(row)), plural(groupsOf(row).length, "consumer group")],
  ];
  return rows.map(([title, value, more]) => h("div", { class: "tile" }, h("span", { class: "hint" }, title), h("b", {}, value), h("span", { class: "hint" }, more)));
}

function aboutOf(row) {
  const type = row.content_type instanceof Uint8Array ? name(row.content_type) : row.content_type;
  return facts([
    ["Trimmed below", count(row.trim_point)],
    ["Next record", count(row.tail)],
    ["Kept for", retention(row)],
    row.created_ms ? ["Created", moment(row.created_ms)] : null,
    type ? ["Content type", type] : null,
    row.fence && row.fence.length > 0 ? ["Fenced by", name(row.fence)] : null,
    ["Readers that wait", count(row.waiting)],
  ]);
}

/** The records of a span by rows. */
function rowsOf(span) {
  return span.bodies.map((body, at) => ({
    sequence: span.first + at,
    timestamp: !span.timestamps ? span.timestamp : span.timestamps[at],
    body,
    headers: !span.headers ? [] : span.headers[at] ?? [],
  }));
}

const headersText = (headers) => headers.map(([field, value]) => `${name(field)}: ${preview(value)}`).join("  ");

/** Browsing a stream: from a sequence, from a time, or live. */
function browse(node, own, signal) {
  let [rows, from, following] = [[], 0, null];
  const status = h("p", { class: "hint", role: "status" });
  const opened = h("div", { class: "inside" });
  const field = (label, attributes) => h("input", { "aria-label": label, ...attributes });
  const sequence = field("From sequence", { type: "number", min: 0, placeholder: "sequence", class: "narrow" });
  const time = field("From time", { type: "datetime-local", step: 1 });
  const filter = field("Filter records", { type: "search", placeholder: "Filter, press /", autocomplete: "off", spellcheck: "false" });
  const table = new Table(
    "Records",
    [
      { title: "Sequence", of: (row) => h("button", { type: "button", class: "link mono", onclick: () => open(row) }, String(row.sequence)), keep: true },
      { title: "Time", of: (row) => moment(row.timestamp), time: true },
      { title: "Size", of: (row) => bytes(row.body.length), num: true },
      { title: "Headers", of: (row) => headersText(row.headers), wide: true },
      { title: "Data", of: (row) => preview(row.body.subarray(0, 160), row.body.length), wide: true },
    ],
    { key: (row) => String(row.sequence), none: empty("No record here.") },
  );
  const open = (row) => show(opened, h(
    "section", { class: "opened", "aria-label": `Record ${row.sequence}` },
    h("header", { class: "head" }, h("h3", {}, `Record ${row.sequence}`), h("button", { type: "button", class: "quiet", onclick: () => show(opened) }, "Close")),
    facts([["Time", `${exactly(row.timestamp)} (${ago(row.timestamp)})`], ...row.headers.map(([field_, value]) => [name(field_), preview(value)])]),
    bodyView(row.body),
  ));
  const draw = () => {
    const wanted = filter.value.toLowerCase();
    const matches = (row) => `${TEXT.decode(row.body)} ${headersText(row.headers)}`.toLowerCase().includes(wanted);
    const shown = wanted === "" ? rows : rows.filter(matches);
    table.draw(following === null ? shown : [...shown].reverse());
    older.disabled = following !== null || from === 0;
    newer.disabled = following !== null || rows.length === 0;
  };
  const read = async (where, wait = 0, stop = undefined) => {
    const page = await node.streams(READ, { stream: own, count: PAGE, wait_ms: wait, ...where }, stop);
    return { ...page, rows: page.spans.flatMap(rowsOf) };
  };
  const go = async (where) => {
    halt();
    try {
      const page = await read(where);
      rows = page.rows;
      from = rows[0]?.sequence ?? page.next;
      write(status, "");
      draw();
    } catch (error) {
      write(status, explain(error));
    }
  };
  const newest = async () => {
    const { tail } = await node.streams(DESCRIBE, { stream: own });
    return go({ sequence: Math.max(0, tail - PAGE) });
  };
  const halt = () => {
    following?.abort();
    following = null;
    follow.setAttribute("aria-pressed", "false");
  };
  const start = async () => {
    await newest();
    const stop = (following = new AbortController());
    follow.setAttribute("aria-pressed", "true");
    let next = rows.length === 0 ? from : rows.at(-1).sequence + 1;
    draw();
    while (!stop.signal.aborted && !signal.aborted) {
      try {
        const page = await read({ sequence: next }, WAIT_MS, stop.signal);
        next = page.next;
        rows = [...rows, ...page.rows].slice(-FOLLOWED_MAX);
        if (following === stop && page.rows.length > 0) draw();
      } catch (error) {
        if (!stop.signal.aborted) write(status, explain(error));
        return;
      }
    }
  };
  signal.addEventListener("abort", () => following?.abort(), { once: true });
  const older = h("button", { type: "button", onclick: () => go({ sequence: Math.max(0, from - PAGE) }) }, "Older");
  const newer = h("button", { type: "button", onclick: () => go({ sequence: rows.at(-1).sequence + 1 }) }, "Newer");
  const follow = h("button", { type: "button", "aria-pressed": "false", onclick: () => (following === null ? start() : (halt(), draw())) }, "Follow");
  sequence.addEventListener("change", () => sequence.value !== "" && go({ sequence: Number(sequence.value) }));
  time.addEventListener("change", () => time.value !== "" && go({ timestamp: new Date(time.value).getTime() }));
  filter.addEventListener("input", draw);
  newest().catch(() => {});
  const element = h(
    "section",
    { class: "panel bare", "aria-label": "Records" },
    h("div", { class: "row inside tools" },
      h("button", { type: "button", onclick: () => go({ sequence: 0 }) }, "Oldest"), older, newer,
      h("button", { type: "button", onclick: () => newest() }, "Newest"), follow, sequence, time, filter),
    status,
    opened,
    table.element,
  );
  return { element, newest };
}

/** The materialized state of a stream, on demand: the node has to read the whole of it for that. */
function stateView(node, own, signal) {
  const body = h("div");
  let rows = [];
  const table = new Table(
    "State",
    [
      { title: "Key", of: (row) => name(row.key) },
      { title: "Type", of: (row) => name(row.type) },
      { title: "Value", of: (row) => preview(row.value.subarray(0, 400), row.value.length), wide: true },
      { title: "", of: (row) => h("button", { type: "button", class: "quiet", onclick: () => open(row) }, "Open"), keep: true },
    ],
    { key: (row) => `${row.type}\0${row.key}`, none: empty("The state has no value.") },
  );
  const opened = h("div");
  const open = ({ type, key }) => {
    const found = rows.find((row) => row.type === type && row.key === key);
    const text = found === undefined ? "gone" : TEXT.decode(found.value);
    show(opened, h("section", { class: "opened" }, h("header", { class: "head" }, h("h3", {}, `${name(type)} / ${name(key)}`),
      h("button", { type: "button", class: "quiet", onclick: () => show(opened) }, "Close")), h("pre", { class: "body", tabindex: 0 }, plainLines(pretty(text) ?? text))));
  };
  const told = h("p", { class: "hint", role: "status" });
  const pages = new Pages("Pages of the state", async (after) => {
    const page = await node.streams(STATE_SHOW, { stream: own, count: PAGE, ...(after === null ? {} : { after }) });
    rows = page.rows.map(([type, key, value]) => ({ type, key, value }));
    table.draw(rows);
    return { last: rows.length === 0 ? null : [rows.at(-1).type, rows.at(-1).key], more: page.more };
  });
  const start = () => {
    show(body, told, opened, table.element, pages.element);
    poll(signal, EVERY_MS, async () => {
      const info = await node.streams(STATE, { stream: own });
      write(told, `${plural(info.changes, "change")} up to record ${count(info.position)}, ${plural(info.type_count, "type")}, ${bytes(info.bytes)}`);
      await pages.again();
    }, (error) => error !== null && write(told, explain(error)));
  };
  const begin = h("button", { type: "button", onclick: start }, "Show the state");
  show(body, h("div", { class: "row" }, begin, h("span", { class: "hint" }, "For streams of State Protocol events. The node reads the whole stream once.")));
  return panel("State", {}, body);
}

// Changes.

function append(node, own) {
  return ask({
    title: `Append to ${name(own)}`,
    fields: [
      { name: "body", label: "Record", kind: "area", isRequired: true },
      { name: "headers", label: "Headers", kind: "text", hint: "name: value; name: value" },
    ],
    action: "Append",
    work: ({ body, headers }) => {
      const pairs = headers.split(";").map((each) => each.trim()).filter((each) => each !== "")
        .map((each) => each.split(/:\s*(.*)/s).slice(0, 2).map((text) => raw(text ?? "")));
      return node.streams(APPEND, { stream: own, bodies: [raw(body)], headers: pairs.length === 0 ? null : [pairs] });
    },
  });
}

async function trim(node, own) {
  const before = await node.streams(DESCRIBE, { stream: own });
  const chosen = await ask({
    title: `Trim ${name(own)}`,
    text: `It has the records ${count(before.trim_point)} to ${count(Math.max(before.trim_point, before.tail - 1))}.`,
    fields: [{ name: "sequence", label: "Remove all records below the sequence", kind: "number", value: String(before.trim_point), isRequired: true }],
    action: "Show what goes",
    work: ({ sequence }) => Number(sequence),
  });
  if (chosen === null) return null;
  const below = Math.min(Number(chosen), before.tail);
  const gone = below - before.trim_point;
  if (gone <= 0) {
    announce("No record lies below that.");
    return null;
  }
  const at = async (sequence) => (await node.streams(READ, { stream: own, sequence, count: 1 })).spans.flatMap(rowsOf)[0];
  const [first, last] = [await at(before.trim_point), await at(below - 1)];
  const behind = groupsOf(before).filter(({ offset }) => offset < below).map(({ group, offset }) => `${name(group)} has not read ${count(below - Math.max(offset, before.trim_point))} of them`);
  return ask({
    title: `Trim ${name(own)} below ${count(below)}?`,
    text: h("div", {}, h("p", {}, `${plural(gone, "record")} go: ${count(before.trim_point)} to ${count(below - 1)}, from ${moment(first.timestamp)} to ${moment(last.timestamp)}. This cannot be undone.`),
      ...behind.map((text) => h("p", { class: "wrong" }, `${text}.`))),
    action: `Remove ${plural(gone, "record")}`,
    isDanger: true,
    work: () => node.streams(TRIM, { stream: own, sequence: below }),
  });
}

async function remove(node, own) {
  const row = await node.streams(DESCRIBE, { stream: own });
  return ask({
    title: `Delete ${name(own)}?`,
    text: `${plural(records(row), "record")} (${bytes(row.bytes_kept)}) and ${plural(groupsOf(row).length, "consumer group")} go. This cannot be undone.`,
    action: "Delete",
    isDanger: true,
    work: () => node.streams(DELETE, { stream: own }),
  });
}
