// The replica of the node in an object store: how far it is, its owner, its snapshots, and the standbys.

import { badge, empty, facts, h, panel, show, tile, write } from "./dom.js";
import { ago, bytes, count, duration, exactly, moment, plain, plural } from "./format.js";
import { explain, isDenied, poll } from "./node.js";
import { Table } from "./table.js";

const REPLICA = 27;
const EVERY_MS = 2000;
const KINDS = { shipping: "good", claiming: "warn", away: "bad" };

/** The part of the journal that waits to be shipped, in words. */
export function lagOf(info) {
  return info.lag_bytes === 0 ? "nothing waits" : `${bytes(info.lag_bytes)}, ${duration(info.lag_s)}`;
}

/** The records of streams that are in the replica alone, in words. */
export function coldOf(cold) {
  if (cold === null || (cold.bytes === 0 && cold.objects === 0)) {
    return "none since the start";
  }
  const damaged = cold.damaged.length === 0 ? "" : `; damaged: ${plural(cold.damaged.length, "object")}`;
  const error = cold.error === "" ? "" : `; ${plain(cold.error)}`;
  return `${bytes(cold.bytes)} are here alone, ${plural(cold.fetches, "fetch", "fetches")}${damaged}${error}`;
}

function ownerOf(found) {
  const { info } = found;
  return facts([
    ["Address", plain(info.url)],
    ["Owner", info.epoch === 0 ? "this node does not own it yet" : `this node, ${plain(found.host)}, the owner number ${count(info.epoch)}`],
    found.owner_since === 0 ? null : ["Since", ago(found.owner_since * 1000)],
    ["Standbys send clients to", found.public_url === "" ? "nowhere: public_url is not set" : plain(found.public_url)],
    ["Last record", count(info.lsn)],
    ["Next object", count(info.number)],
    ["Made since the start", `${plural(info.objects, "object")}, ${bytes(info.bytes)}`],
    ["Moments are kept for", duration(found.keep_s)],
    ["Identity and keys", !found.has_keys ? "not in it: a takeover is another peer" : info.keys_at === 0 ? "not shipped yet" : `sealed, of ${ago(info.keys_at * 1000)}`],
    ["Cold streams", coldOf(info.cold)],
    info.breaks > 0 ? ["New histories", count(info.breaks)] : null,
  ]);
}

export function replica({ node, signal }) {
  const [status, marks, tiles] = [h("p", { class: "hint", role: "status" }), h("div", { class: "row" }), h("div", { class: "tiles" })];
  const [about, body, none] = [panel("Owner"), h("div", { class: "view", hidden: true }), h("div", { hidden: true })];
  const snapshots = new Table(
    "Snapshots",
    [
      { title: "Snapshot", of: ({ at }) => h("time", { datetime: exactly(at * 1000), title: exactly(at * 1000) }, moment(at * 1000)), keep: true },
      { title: "Age", of: ({ at }) => ago(at * 1000) },
      { title: "Record", of: ({ lsn }) => count(lsn), num: true },
      { title: "Size", of: (row) => bytes(row.bytes), num: true },
      { title: "Messages", of: ({ messages }) => count(messages), num: true },
      { title: "Streams", of: ({ streams }) => count(streams), num: true },
    ],
    { key: ({ at, lsn }) => `${at}/${lsn}`, none: empty("No snapshot yet: nothing can be restored.") },
  );
  const standbys = new Table(
    "Standbys",
    [
      { title: "Standby", of: ({ id }) => h("code", {}, plain(id.slice(0, 16))) },
      { title: "Takes over after", of: (row) => duration(row.takeover_s), num: true },
      { title: "Told of itself", of: ({ seen_s: seen }) => `${duration(Math.round(seen))} ago`, num: true },
    ],
    { key: ({ id }) => id, none: empty("No standby follows.", "millpond serve --standby --replica URL starts one") },
  );
  const draw = (found) => {
    const { info } = found;
    body.hidden = info === null;
    none.hidden = info !== null;
    if (info === null) {
      show(none, empty("This node has no replica.", "millpond serve --replica URL ships its journal to an object store"));
      return;
    }
    show(marks,
      badge(plain(info.state), KINDS[info.state] ?? ""),
      info.is_refusing ? badge("refuses what has to be replicated", "bad") : null,
      info.error === "" ? null : h("span", { class: "wrong" }, plain(info.error)));
    const last = found.snapshots[0];
    show(tiles,
      tile("Behind", lagOf(info), "of the journal"),
      tile("Snapshots", count(found.snapshot_count), last === undefined ? "none yet" : `the last ${ago(last.at * 1000)}`),
      tile("Standbys", count(found.standbys.length), "told of themselves within a minute"));
    show(about, h("h2", {}, "Owner"), ownerOf(found));
    snapshots.draw(found.snapshots);
    standbys.draw(found.standbys);
  };
  poll(signal, EVERY_MS, async () => draw(await node.admin(REPLICA)), (error) => {
    write(status, error === null ? "" : isDenied(error) ? "Your token does not permit the replica: it needs the right admin." : explain(error));
  });
  show(body, marks, tiles, about, panel("Standbys", { class: "panel bare" }, standbys.element), panel("Snapshots", { class: "panel bare" }, snapshots.element));
  return { title: "Replica", element: h("div", { class: "view" }, h("h1", {}, "Replica"), status, none, body) };
}
