// Peers and the outbox: who is known, trusted how far, online, and what waits for whom and why.

import { ask } from "./dialogs.js";
import { announce, badge, empty, facts, h, panel, show, write } from "./dom.js";
import { ago, bytes, count, plain, plural } from "./format.js";
import { explain, isDenied, poll } from "./node.js";
import { Pages } from "./pages.js";
import { Table } from "./table.js";

const [WHO, PEERS, REMOVE] = [1, 2, 4];
const PAGE = 50;
const EVERY_MS = 4000;
const TRUST = { verified: "verified", added: "not verified", pinned: "seen, not added", relay: "relay", blocked: "blocked" };
const KINDS = { verified: "good", added: "warn", pinned: "warn", relay: "info", blocked: "bad" };

/** The traffic of a peer's open connections. */
export function movesOf(traffic) {
  return traffic === undefined || traffic.rate === null ? "" : `${bytes(traffic.rate)}/s`;
}

/** Why messages for a peer wait here. */
function reasonOf(peer) {
  if (peer.queued === 0) return peer.unconfirmed > 0 ? `${plural(peer.unconfirmed, "message")} without a receipt yet` : "";
  if (peer.trust === "blocked") return "The peer is blocked.";
  if (!peer.can_seal) return "No key of the peer is known that a message could be encrypted with; it is asked for.";
  if (peer.here) return "They are being sent.";
  if (peer.relays.length > 0) return `The peer is away; the relay ${plain(peer.relays[0])} does not take them now.`;
  return peer.addresses.length === 0 ? "No address of the peer is known, and it has no relay." : "The peer is away, and it has no relay.";
}

export function peers({ node, sampler, signal }) {
  const [status, own] = [h("p", { class: "hint", role: "status" }), panel("This node")];
  const table = new Table(
    "Peers",
    [
      { title: "Name", of: (row) => plain(row.name) },
      { title: "Trust", of: (row) => TRUST[row.trust] ?? row.trust },
      { title: "Presence", of: (row) => (row.here ? "online" : row.seen_at === null ? "away" : `away since ${ago(row.seen_at * 1000)}`) },
      { title: "Connections", of: (row) => count(sampler.peers.get(row.id)?.connections ?? 0), num: true },
      { title: "Moves", of: (row) => movesOf(sampler.peers.get(row.id)), num: true },
      { title: "Waiting", of: (row) => count(row.queued), num: true },
      { title: "Unconfirmed", of: (row) => count(row.unconfirmed), num: true },
      { title: "Why", of: reasonOf, wide: true },
    ],
    { key: (row) => row.id, link: (row) => `#/peer/${encodeURIComponent(row.name)}`, none: empty("No peers are known.", "millpond peer add NAME --card CARD adds one") },
  );
  const pages = new Pages("Pages of peers", async (after) => {
    const page = await node.peers(PEERS, { after: after ?? "", limit: PAGE });
    table.draw(page.peers);
    return { last: page.peers.at(-1)?.name ?? null, more: page.more };
  });
  poll(signal, EVERY_MS, async () => {
    await pages.again();
    const who = await node.peers(WHO);
    show(own, h("h2", {}, "This node"), facts([
      ["Id", h("code", {}, who.id)],
      ["Fingerprint", who.fingerprint],
      ["Addresses", who.addresses.map(plain).join(", ") || "none: peers reach it by a relay alone"],
      ["Relays", who.relays.map(plain).join(", ") || "none"],
    ]));
  }, (error) => write(status, error === null ? "" : isDenied(error) ? "Peers are shown to the node's operator: use the link of millpond console." : explain(error)));
  const element = h("div", { class: "view" }, h("h1", {}, "Peers and outbox"), status, panel("Peers", { class: "panel bare" }, table.element), pages.element, own);
  return { title: "Peers", element };
}

export function peer({ node, signal }, [part]) {
  const wanted = decodeURIComponent(part ?? "");
  const [status, body] = [h("p", { class: "hint", role: "status" }), h("div", { class: "view" })];
  poll(signal, EVERY_MS, async () => {
    const { peers: [found] } = await node.peers(PEERS, { peer: wanted });
    if (found === undefined) {
      show(body);
      write(status, "There is no such peer.");
      return;
    }
    show(body,
      h("div", { class: "row" }, badge(TRUST[found.trust] ?? found.trust, KINDS[found.trust]), badge(found.here ? "online" : "away", found.here ? "good" : "")),
      panel("Outbox", {}, facts([
        ["Waiting here", plural(found.queued, "message")],
        ["Without a receipt", plural(found.unconfirmed, "message")],
        reasonOf(found) === "" ? null : ["Why", reasonOf(found)],
      ])),
      panel("About", {}, facts([
        ["Id", h("code", {}, found.id)],
        ["Fingerprint", found.fingerprint],
        ["Words", found.words],
        found.safety_number ? ["Safety number", found.safety_number] : null,
        ["Addresses", found.addresses.map(plain).join(", ") || "none"],
        ["Relays", found.relays.map(plain).join(", ") || "none"],
        ["Last seen", found.here ? "now" : found.seen_at === null ? "not since the node started" : ago(found.seen_at * 1000)],
      ])));
  }, (error) => error !== null && write(status, isDenied(error) ? "Peers are shown to the node's operator." : explain(error)));
  const remove = () => ask({
    title: `Remove ${plain(wanted)}?`,
    text: "The peer loses its rights here, and what waits for it is not sent.",
    action: "Remove",
    isDanger: true,
    work: () => node.peers(REMOVE, { peer: wanted }),
  }).then((done) => {
    if (done) {
      announce("The peer is removed.");
      location.hash = "#/peers";
    }
  });
  const element = h("div", { class: "view" }, h("p", { class: "crumbs" }, h("a", { href: "#/peers" }, "Peers")),
    h("header", { class: "head" }, h("h1", {}, plain(wanted)), node.rights().gate(h("button", { type: "button", class: "danger", onclick: remove }, "Remove"), "operator")), status, body);
  return { title: plain(wanted), element };
}
