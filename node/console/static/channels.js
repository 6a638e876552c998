// Channels: the list, and one channel with its messages, consumers, subscribers and dead letters.

import { bodyView, preview } from "./bodies.js";
import { ask, attempt } from "./dialogs.js";
import { announce, badge, empty, facts, h, panel, show, write } from "./dom.js";
import { ago, bytes, count, escaped, exactly, moment, name, plain, plural, rate, raw, same, unescaped } from "./format.js";
import { explain, isRefused, poll } from "./node.js";
import { ADMIN } from "./p2p.js";
import { Pages } from "./pages.js";
import { Table } from "./table.js";
import { Tabs } from "./tabs.js";

const [EXPORT, LIST, CREATE, DELETE, PURGE, PUT, MEMBERS] = [2, 6, 7, 8, 9, 10, 18];
const [DEAD_RETRY, DEAD_PURGE] = [6, 7];
const PAGE = 50;
const EVERY_MS = 3000;
const PREVIEW_BYTES = 120;
/** Shorter times say nothing of a rate. */
const RATE_S_MIN = 1;
const ID_EPOCH_MS = 1_288_834_974_657n;
const DEAD = raw("!dead");

/** When a message was put, in ms since 1970: its id tells. */
export function putAt(id) {
  return Number((BigInt(id) >> 22n) + ID_EPOCH_MS);
}

/** The pattern for what somebody types: any part of a name, or a pattern of their own. */
export function patternOf(text) {
  return raw(text === "" ? "*" : /[*?[]/.test(text) ? text : `*${text}*`);
}

/** Rates of channels between two looks. */
export class Rates {
  constructor() {
    this.before = new Map();
  }

  /** The rows with `inRate` and `outRate`; null of those that were not there before. */
  of(rows) {
    const now = performance.now();
    const seen = new Map();
    const rated = rows.map((row) => {
      const key = name(row.name);
      const before = this.before.get(key);
      seen.set(key, { at: now, kept: row.kept, acked: row.acked });
      const seconds = before === undefined ? 0 : (now - before.at) / 1000;
      // Looks that follow at once say nothing of a rate: the one before stays.
      if (before !== undefined && seconds < RATE_S_MIN) {
        seen.set(key, before);
        return { ...row, inRate: before.inRate, outRate: before.outRate };
      }
      const of = (field) => (seconds === 0 || row[field] < before[field] ? null : (row[field] - before[field]) / seconds);
      const found = { inRate: of("kept"), outRate: of("acked") };
      Object.assign(seen.get(key), found);
      return { ...row, ...found };
    });
    this.before = seen;
    return rated;
  }
}

export function channels({ node, signal, query }) {
  let rows = [];
  const rates = new Rates();
  const status = h("p", { class: "hint", role: "status" });
  const search = h("input", {
    type: "search", placeholder: "Find a channel, press /", "aria-label": "Find a channel", autocomplete: "off", spellcheck: "false", value: query.get("q") ?? "",
  });
  const number = (title, of) => ({ title, of, num: true });
  const table = new Table(
    "Channels",
    [
      { title: "Name", of: (row) => name(row.name) },
      { title: "Mode", of: (row) => row.mode + (row.paused ? ", paused" : "") },
      number("Waiting", (row) => count(row.messages - row.leased)),
      number("In flight", (row) => count(row.leased)),
      number("Oldest", (row) => (row.oldest === 0 ? "" : ago(putAt(row.oldest)))),
      number("Consumers", (row) => count(row.receivers)),
      number("In", (row) => rate(row.inRate)),
      number("Out", (row) => rate(row.outRate)),
      number("Size", (row) => bytes(row.bytes)),
    ],
    {
      key: (row) => name(row.name),
      link: (row) => `#/channel/${escaped(row.name)}`,
      none: empty("No channel matches.", "millpond put chat/1 hello makes one"),
    },
  );
  const draw = () => table.draw(rates.of(rows));
  const pages = new Pages("Pages of channels", async (after) => {
    const page = await node.admin(LIST, { patterns: [patternOf(search.value)], after: after ?? new Uint8Array(), limit: PAGE });
    rows = page.page;
    draw();
    return { last: rows.at(-1)?.name ?? null, more: page.more };
  });
  const told = (error) => write(status, error === null ? "" : explain(error));
  const look = () => pages.first().then(() => told(null), told);
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, "", search.value === "" ? "#/channels" : `#/channels?q=${encodeURIComponent(search.value)}`);
      look();
    }, 200);
  });
  look();
  // Only what is to be seen is asked for again, and a list that is empty as a whole.
  poll(signal, EVERY_MS, async () => {
    if (rows.length === 0) return pages.first();
    const fresh = await node.admin(LIST, { names: rows.map((row) => row.name), limit: PAGE });
    rows = fresh.page;
    return draw();
  }, told);
  const make = node.rights().gate(h("button", { type: "button", onclick: () => create(node).then((made) => made && look()) }, "New channel"), "admin");
  const element = h(
    "div",
    { class: "view" },
    h("header", { class: "head" }, h("h1", {}, "Channels"), search, make),
    status,
    panel("Channels", { class: "panel bare" }, table.element),
    pages.element,
  );
  return { title: "Channels", element };
}

function create(node) {
  return ask({
    title: "New channel",
    text: "Its mode stays, also while it is empty.",
    fields: [
      { name: "name", label: "Name", isRequired: true },
      { name: "mode", label: "Mode", kind: "choice", options: ["pair", "fanout", "queue"], value: "pair" },
    ],
    action: "Create",
    work: ({ name: wanted, mode }) => node.admin(CREATE, { channel: raw(wanted), mode }),
  });
}

export function channel({ node, signal, query }, [part]) {
  const own = unescaped(part ?? "");
  const isDead = own.length > DEAD.length && same(own.slice(-DEAD.length), DEAD);
  const owner = isDead ? own.slice(0, -DEAD.length) : own;
  const [rates, rights] = [new Rates(), node.rights(own)];
  const status = h("p", { class: "hint", role: "status" });
  const badges = h("span", { class: "row" });
  const tiles = h("div", { class: "tiles" });
  const dead = h("div");
  const members = membersView();
  const messages = messagesView(node, own, rights, isDead ? (id) => retry(node, owner, { ids: [id] }) : null);
  const told = (error) => {
    const isGone = error !== null && isRefused(error, 0x2b);
    write(status, error === null ? "" : isGone ? "There is no such channel any more." : explain(error));
  };
  const names = isDead ? [own] : [own, join(own, DEAD)];
  poll(signal, EVERY_MS, async () => {
    const { page } = await node.admin(LIST, { names });
    const found = page.find((row) => same(row.name, own));
    if (found === undefined) {
      write(status, "There is no such channel, or your token may not see it.");
      show(tiles);
      return;
    }
    write(status, "");
    const [row] = rates.of([found]);
    show(badges, badge(row.mode, "info"), row.created ? badge("created") : null, row.paused ? badge("paused", "warn") : null,
      row.mode === "queue" && !isDead ? h("a", { href: `#/queue/${escaped(own)}` }, "Open as a queue") : null);
    show(tiles, ...tilesOf(row));
    show(dead, ...deadOf(page.find((each) => !same(each.name, own))));
    members.draw(await node.admin(MEMBERS, { channel: own }));
  }, told);
  const tabs = new Tabs("Parts of the channel", [
    { key: "messages", title: "Messages", element: messages.element },
    { key: "consumers", title: "Consumers and lag", element: members.element },
  ], query);
  messages.first();
  const done = (text) => (outcome) => {
    if (outcome !== null) {
      announce(text);
      messages.first();
    }
  };
  const actions = isDead
    ? [
        rights.gate(h("button", { type: "button", onclick: () => retryAll(node, owner).then(done("The dead letters are put back.")) }, "Retry all"), "ack"),
        rights.gate(h("button", { type: "button", class: "danger", onclick: () => purgeDead(node, owner).then(done("The dead letters are purged.")) }, "Purge"), "ack"),
      ]
    : [
        rights.gate(h("button", { type: "button", onclick: () => put(node, own).then(done("The message is stored.")) }, "Put a message"), "put"),
        rights.gate(h("button", { type: "button", class: "danger", onclick: () => clear(node, own, PURGE).then(done("The channel is purged.")) }, "Purge"), "ack"),
        rights.gate(h("button", {
          type: "button", class: "danger",
          onclick: () => clear(node, own, DELETE).then((outcome) => outcome !== null && (location.hash = "#/channels")),
        }, "Delete"), "admin"),
      ];
  const element = h(
    "div",
    { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/channels" }, "Channels"),
      isDead ? [" / ", h("a", { href: `#/channel/${escaped(owner)}` }, name(owner))] : null),
    h("header", { class: "head" }, h("h1", {}, name(own)), badges, ...actions),
    rights.note(),
    status,
    tiles,
    dead,
    tabs.element,
  );
  return { title: name(own), element };
}

function tilesOf(row) {
  const rows = [
    ["Waiting", count(row.messages - row.leased), bytes(row.bytes)],
    ["In flight", count(row.leased), `${plural(row.receivers, "consumer")} of ${plural(row.connections, "connection")}`],
    ["Oldest", row.oldest === 0 ? "–" : ago(putAt(row.oldest)), row.oldest === 0 ? "" : moment(putAt(row.oldest))],
    ["In and out", rate(row.inRate) || "–", `${rate(row.outRate) || "–"} acknowledged`],
  ];
  return rows.map(([title, value, more]) => h("div", { class: "tile" }, h("span", { class: "hint" }, title), h("b", {}, value), h("span", { class: "hint" }, more)));
}

function deadOf(row) {
  if (row === undefined || row.messages === 0) return [];
  return [
    h("p", { class: "finding warn" }, badge("Dead letters", "warn"),
      h("a", { href: `#/channel/${escaped(row.name)}` }, `${plural(row.messages, "message")} whose attempts are used up`)),
  ];
}

/** The messages of a channel, oldest first; the chosen one with its body. */
function messagesView(node, own, rights, retryOne) {
  const status = h("p", { class: "hint", role: "status" });
  const opened = h("div");
  const open = async (row) => {
    show(opened, h("p", { class: "hint" }, "Loading"));
    try {
      const data = await (await node.channel(own)).get(BigInt(row.id));
      show(opened, messageOf(row, data, rights, retryOne, () => show(opened)));
    } catch (error) {
      show(opened, h("p", { class: "wrong", role: "alert" }, explain(error)));
    }
    opened.scrollIntoView({ block: "nearest" });
  };
  const table = new Table(
    "Messages",
    [
      { title: "Id", of: (row) => h("button", { type: "button", class: "link mono", onclick: () => open(row) }, String(row.id)), keep: true },
      { title: "Put", of: (row) => moment(putAt(row.id)), time: true },
      { title: "Size", of: (row) => bytes(row.size), num: true },
      { title: "Attempts", of: (row) => count(row.attempts), num: true },
      { title: "Reason", of: (row) => (row.origin === null ? "" : plain(row.origin.reason)) },
      { title: "Data", of: (row) => preview(row.data ?? new Uint8Array(), row.size), wide: true },
    ],
    { key: (row) => String(row.id), none: empty("No messages.") },
  );
  const pages = new Pages("Pages of messages", async (after) => {
    const connection = await node.channel(own);
    const page = await connection.ask(ADMIN, EXPORT, { channel: own, after: after ?? 0, limit: PAGE, preview: PREVIEW_BYTES });
    table.draw(page.messages);
    return { last: page.messages.at(-1)?.id ?? null, more: page.more };
  });
  const told = (error) => {
    const isDenied = error !== null && isRefused(error, 0xf6);
    write(status, error === null ? "" : isDenied ? "To see messages takes the rights admin and get in the channel." : explain(error));
  };
  const first = () => {
    show(opened);
    return pages.first().then(() => told(null), told);
  };
  const again = h("button", { type: "button", class: "quiet", onclick: first }, "Reload");
  const element = h(
    "section",
    { class: "panel bare", "aria-label": "Messages" },
    h("header", { class: "head inside" }, h("h2", {}, "Messages, oldest first"), again),
    status,
    h("div", { class: "inside" }, opened),
    table.element,
    h("div", { class: "inside" }, pages.element),
  );
  return { element, first };
}

function messageOf(row, data, rights, retryOne, close) {
  const never = 2n ** 32n - 1n;
  return h(
    "section",
    { class: "opened", "aria-label": `Message ${row.id}` },
    h("header", { class: "head" }, h("h3", {}, `Message ${row.id}`),
      retryOne === null ? null : rights.gate(h("button", { type: "button", onclick: () => retryOne(row.id).then((done) => done && close()) }, "Retry"), "ack"),
      h("button", { type: "button", class: "quiet", onclick: close }, "Close")),
    facts([
      ["Put", `${exactly(putAt(row.id))} (${ago(putAt(row.id))})`],
      ["Idempotency key", String(row.key)],
      ["Expires", BigInt(row.ttl) >= never || row.expires_at === 0 ? "never" : exactly(row.expires_at * 1000)],
      row.due > 0 ? ["Due", exactly(row.due * 1000)] : null,
      row.unique.length > 0 ? ["Unique key", name(row.unique)] : null,
      ["Attempts", count(row.attempts)],
      row.origin === null ? null : ["Was message", String(row.origin.id)],
      row.origin === null ? null : ["Given up", plain(row.origin.reason)],
    ]),
    bodyView(data),
  );
}

function membersView() {
  const who = (row) => (row.identity === null ? "" : Array.from(row.identity.slice(0, 6), (byte) => byte.toString(16).padStart(2, "0")).join(""));
  const consumers = new Table(
    "Consumers",
    [
      { title: "Connection", of: (row) => `#${row.connection} ${row.peer}` },
      { title: "Name", of: (row) => name(row.name ?? "") },
      { title: "Role", of: (row) => row.role + (row.receives ? "" : ", receives nothing") },
      { title: "Key", of: who },
      { title: "Window", of: (row) => (row.receives ? count(row.window) : "–"), num: true },
      { title: "Holds", of: (row) => count(row.leased), num: true },
      { title: "Lag", of: (row) => count(row.lag), num: true },
    ],
    { key: (row) => row.connection, none: empty("Nobody is connected.") },
  );
  const subscribers = new Table(
    "Subscribers",
    [
      { title: "Key", of: who },
      { title: "Connections", of: (row) => (row.connections === 0 ? "away" : count(row.connections)), num: true },
      { title: "Lag", of: (row) => count(row.lag), num: true },
    ],
    { key: who },
  );
  const kept = panel("Subscribers", { hidden: true }, subscribers.element);
  return {
    element: h("div", { class: "columns" }, panel("Connections", {}, consumers.element), kept),
    draw: (members) => {
      consumers.draw(members.consumers);
      subscribers.draw(members.subscribers);
      kept.hidden = members.subscribers.length === 0;
    },
  };
}

// Changes.

function put(node, own) {
  return ask({
    title: `Put a message into ${name(own)}`,
    fields: [
      { name: "data", label: "Text", kind: "area", isRequired: true },
      { name: "ttl", label: "Seconds until it expires", kind: "number", value: "0", hint: "0: what the channel gives" },
    ],
    action: "Put",
    work: ({ data, ttl }) => {
      const [key] = crypto.getRandomValues(new Uint32Array(1));
      return node.admin(PUT, { channel: own, key, data: raw(data), ttl: Number(ttl) || 0 });
    },
  });
}

async function clear(node, own, operation) {
  const { page } = await node.admin(LIST, { names: [own] });
  const row = page[0] ?? { messages: 0, bytes: 0, connections: 0 };
  const size = `${plural(row.messages, "message")} (${bytes(row.bytes)})`;
  const isDeletion = operation === DELETE;
  return ask({
    title: `${isDeletion ? "Delete" : "Purge"} ${name(own)}`,
    text: isDeletion
      ? `${size} go, with the keys of their puts, subscribers that are away, and the mode. ${plural(row.connections, "connection")} stay. This cannot be undone.`
      : `${size} go, also those that consumers hold. This cannot be undone.`,
    action: isDeletion ? "Delete" : "Purge",
    isDanger: true,
    work: async () => {
      let until = 0;
      for (let more = true; more; ) ({ until, more } = await node.admin(operation, { channel: own, until }));
    },
  });
}

/** Ask again and again until all of it is done. */
async function whole(node, queue, operation, which) {
  for (let more = true; more; ) ({ more = false } = await node.jobs(queue, operation, which));
}

function retry(node, owner, which) {
  return attempt(() => whole(node, owner, DEAD_RETRY, which), "The message is put back.");
}

export function retryAll(node, owner) {
  return ask({
    title: `Retry the dead letters of ${name(owner)}`,
    text: "All of them are put back, with all attempts before them.",
    action: "Retry all",
    work: () => whole(node, owner, DEAD_RETRY, { all: true }),
  });
}

export function purgeDead(node, owner) {
  return ask({
    title: `Purge the dead letters of ${name(owner)}`,
    text: "All of them are removed. This cannot be undone.",
    action: "Purge",
    isDanger: true,
    work: () => whole(node, owner, DEAD_PURGE, { all: true }),
  });
}

function join(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
