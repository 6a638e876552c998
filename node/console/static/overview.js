// The overview: health in words, charts of the last minutes, store, memory, connections, and what is busy.

import { Charts } from "./charts.js";
import { attempt } from "./dialogs.js";
import { badge, empty, facts, h, panel, show, write } from "./dom.js";
import { bytes, count, duration, escaped, name, percent, plain, plural, rate, short } from "./format.js";
import { HEAVY, explain, isDenied, poll } from "./node.js";
import { movesOf } from "./peers.js";
import { DISK } from "./samples.js";
import { Table } from "./table.js";

const ACTIVITY = 11;
const BUSY_MS = 5000;
/** Of more channels and streams than this, the node looks for the busiest only when somebody asks. */
const BUSY_CELLS_MAX = 20_000;
const PEERS_SHOWN = 10;

const CHARTS = [
  ["Messages", rate, [["in", "kept"], ["acknowledged", "acks"]]],
  ["Requests and records", rate, [["requests", "requests"], ["records", "appended"]]],
  ["Answered within", duration, [["half", "median"], ["99 %", "slow"]]],
  ["Disk", (value) => `${bytes(value)}/s`, [["written", "written"]], true],
  ["Processor", percent, [["of a core", "cpu"]]],
  ["Memory", bytes, [["of the process", "rss"]], true],
];

export function overview({ node, sampler, signal }) {
  const charts = new Charts(CHARTS);
  const health = h("div", { class: "health", role: "status" });
  const tiles = h("div", { class: "tiles" });
  const store = panel("Store");
  const memory = panel("Memory");
  const replica = panel("Replica", { hidden: true });
  const protocols = new Table(
    "Connections by protocol",
    [
      { title: "Protocol", of: (row) => row.name },
      { title: "Open", of: (row) => count(row.open), num: true },
      { title: "Requests", of: (row) => rate(row.requests), num: true },
      { title: "99 % within", of: (row) => (row.slow === null ? "–" : duration(row.slow)), num: true },
      { title: "Address", of: (row) => row.address },
    ],
    { key: (row) => row.name },
  );
  const peers = new Table(
    "Connections by peer",
    [
      { title: "Peer", of: (row) => `${row.id.slice(0, 16)}…` },
      { title: "Open", of: (row) => count(row.connections), num: true },
      { title: "Moves", of: movesOf, num: true },
      { title: "Moved", of: (row) => bytes(row.bytes), num: true },
    ],
    { key: (row) => row.id, link: (row) => `#/peer/${row.id}`, none: empty("No client has proved a key.") },
  );
  const busy = busiest();
  const draw = () => {
    if (sampler.error) {
      const text = isDenied(sampler.error) ? "Your token does not permit the overview: it needs the right admin." : explain(sampler.error);
      show(health, finding("warn", text, ""));
      return;
    }
    const sample = sampler.last;
    if (sample === null) return;
    const point = sampler.points.at(-1);
    show(health, ...healthOf(sample));
    show(tiles, ...tilesOf(sample));
    charts.draw(sampler.points);
    show(store, h("h2", {}, "Store"), storeOf(sample));
    show(memory, h("h2", {}, "Memory"), memoryOf(sample.memory));
    replica.hidden = !sample.replica;
    if (sample.replica) show(replica, h("h2", {}, "Replica"), replicaOf(sample.replica, sample.now));
    protocols.draw(
      Object.keys(sample.latencies)
        .filter((each) => !DISK.includes(each))
        .map((each) => ({
          name: each,
          open: sample.open[each] ?? 0,
          requests: point?.protocols[each]?.requests ?? null,
          slow: point?.protocols[each]?.slow ?? null,
          address: sample.listeners[each] ?? (sample.open[each] ? "at the HTTP port" : "off"),
        })),
    );
    peers.draw([...sampler.peers.values()].slice(0, PEERS_SHOWN));
  };
  sampler.addEventListener("sample", draw, { signal });
  draw();
  const look = async () => busy.draw(await node.admin(ACTIVITY, { limit: 8 }));
  const lookNow = h("button", { type: "button", onclick: () => attempt(look) }, "Show what is busy");
  const large = h("div", { class: "row", hidden: true }, lookNow, h("span", { class: "hint" }, "This node holds so much that this is done when you ask for it: it takes the node a moment."));
  poll(signal, BUSY_MS, async () => {
    large.hidden = sampler.last === null || sampler.last.totals.cells <= BUSY_CELLS_MAX;
    if (sampler.last !== null && large.hidden) await look();
  }, undefined, HEAVY);
  const element = h(
    "div",
    { class: "view" },
    h("h1", {}, "Overview"),
    health,
    tiles,
    charts.element,
    h("div", { class: "columns" }, store, memory, replica),
    h("div", { class: "columns" }, panel("Connections by protocol", {}, protocols.element), panel("Connections by peer", {}, peers.element)),
    large,
    busy.element,
  );
  return { title: "Overview", element };
}

function finding(level, text, hint) {
  const word = { bad: "Wrong", warn: "Look", good: "Well" }[level];
  return h("p", { class: `finding ${level}` }, badge(word, level), h("span", {}, text, hint === "" ? null : h("span", { class: "hint" }, hint)));
}

function healthOf({ findings }) {
  if (findings.length === 0) return [finding("good", "Everything is in order.", "")];
  return findings.map(({ level, text, hint }) => finding(level, text, hint));
}

function tilesOf({ totals, uptime_s, durability, version }) {
  const rows = [
    ["Messages", short(totals.messages), bytes(totals.message_bytes), "#/channels"],
    ["Streams", short(totals.streams), bytes(totals.stream_bytes), "#/streams"],
    ["Connections", short(totals.connections), "open now", "#/events"],
    ["Up for", duration(uptime_s), `version ${version}, durability ${durability}`, null],
  ];
  return rows.map(([title, value, more, link]) =>
    h(link === null ? "div" : "a", { class: "tile", href: link }, h("span", { class: "hint" }, title), h("b", {}, value), h("span", { class: "hint" }, more)),
  );
}

function storeOf({ store, redis, durability }) {
  if (redis) {
    return facts([
      ["Redis", plain(redis.url)],
      ["Writes", redis.health.is_writable ? "go through" : `fail: ${plain(redis.health.reason)}`],
      ["Highest durability", plain(`${redis.durability} (${redis.reason})`)],
      ["Channels and streams", count(redis.partitions)],
      ["On their way", bytes(redis.waiting_bytes)],
      ...redis.damaged.map((text) => ["Damaged", plain(text)]),
      ...(redis.damages > redis.damaged.length ? [["Damages in all", count(redis.damages)]] : []),
    ]);
  }
  if (store === null) return empty("Nothing is on disk.", `This node keeps everything in ${durability}: it is gone when the node stops.`);
  const used = store.disk_total > 0 ? 1 - store.disk_free / store.disk_total : 0;
  return h(
    "div",
    {},
    store.disk_total > 0 ? meter("The disk", used, `${bytes(store.disk_free)} left of ${bytes(store.disk_total)}`) : null,
    facts([
      ["Folder", name(store.folder)],
      ["Writes", store.is_writable ? "go through" : `fail: ${store.reason}`],
      ["Journal", `${bytes(store.journal_bytes)} in ${plural(store.segments, "segment")}`],
      ["Files", count(store.files)],
      ["Damage", store.damages === 0 ? "none known" : plural(store.damages, "damage")],
      ["Scrub", `${percent(store.scrub_progress)} of this pass, ${plural(store.scrub_passes, "pass", "passes")} done`],
    ]),
  );
}

function memoryOf(memory) {
  return h(
    "div",
    {},
    meter("Budget of connections", memory.used / memory.max, `${bytes(memory.used)} of ${bytes(memory.max)}`),
    facts([
      ["Process", bytes(memory.rss)],
      ["Waiting for memory", plural(memory.waiting, "request")],
      ["Refused for it", count(memory.refused)],
      ["Connections closed for it", count(memory.closed)],
    ]),
  );
}

/** The copy of the journal in an object store. */
function replicaOf(found, now) {
  return facts([
    ["Address", plain(found.url)],
    ["State", found.error === "" ? plain(found.state) : `${plain(found.state)}: ${plain(found.error)}`],
    ["Behind", found.lag_bytes === 0 ? "nothing waits" : `${bytes(found.lag_bytes)}, ${duration(found.lag_s)}`],
    ["Last record", count(found.lsn)],
    ["Last object", `${count(found.number)} of owner ${count(found.epoch)}`],
    ["Made since the start", `${plural(found.objects, "object")}, ${bytes(found.bytes)}`],
    ["Snapshots", found.snapshot_at === 0 ? "none yet" : `${count(found.snapshots)}, the last ${duration(Math.max(0, now - found.snapshot_at))} ago`],
    found.breaks > 0 ? ["New histories", count(found.breaks)] : null,
  ]);
}

function meter(title, part, text) {
  const level = part > 0.95 ? "bad" : part > 0.85 ? "warn" : "good";
  return h(
    "div",
    { class: `meter ${level}` },
    h("span", {}, title, h("b", {}, text)),
    h("progress", { max: 1000, value: Math.round(1000 * Math.min(1, part)), "aria-label": `${title}: ${text}` }),
  );
}

/** The busiest channels, queues, streams and connections. */
function busiest() {
  const link = (path) => (row) => `#/${path}/${escaped(row.name)}`;
  const named = { title: "Name", of: (row) => name(row.name) };
  const of = (title, field, format = count) => ({ title, of: (row) => format(row[field]), num: true });
  const key = (row) => name(row.name);
  const tables = {
    channels: new Table(
      "Busiest channels",
      [named, of("In", "in_s", rate), of("Out", "out_s", rate), of("Waiting", "messages"), of("Lag", "lag")],
      { key, link: link("channel"), none: empty("No channels yet.", "millpond put chat/1 hello makes the first one.") },
    ),
    queues: new Table(
      "Busiest queues",
      [named, of("In", "in_s", rate), of("Done", "out_s", rate), of("Ready", "ready"), of("Running", "leased"), of("Dead", "dead"), of("Workers", "workers")],
      { key, link: link("queue"), none: empty("No queues yet.") },
    ),
    streams: new Table(
      "Busiest streams",
      [named, of("In", "in_s", rate), of("Records", "records"), of("Size", "bytes", bytes), of("Lag", "lag")],
      { key, link: link("stream"), none: empty("No streams yet.", "millpond stream append s 'a record' makes the first one.") },
    ),
    connections: new Table(
      "Busiest connections",
      [
        { title: "From", of: (row) => row.peer },
        { title: "Protocol", of: (row) => row.listener },
        { title: "Channel", of: (row) => (row.channel === null ? "" : name(row.channel)) },
        { title: "Peer", of: (row) => (row.identity === null ? "" : `${row.identity.slice(0, 12)}…`) },
        { title: "Moves", of: (row) => `${bytes(row.bytes_s)}/s`, num: true },
        { title: "Open for", of: (row) => duration(row.seconds), num: true },
      ],
      { key: (row) => row.number },
    ),
  };
  const element = h(
    "div",
    { class: "columns" },
    panel("Channels", {}, tables.channels.element),
    panel("Streams", {}, tables.streams.element),
    panel("Queues", {}, tables.queues.element),
    panel("Connections", {}, tables.connections.element),
  );
  const isOwn = (row) => name(row.name).startsWith("millpond!");
  return {
    element,
    draw: (activity) => {
      tables.channels.draw(activity.channels.filter((row) => !isOwn(row)));
      tables.queues.draw(activity.queues);
      tables.streams.draw(activity.streams);
      tables.connections.draw(activity.connections);
    },
  };
}
