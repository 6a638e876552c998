// Dialogs: the details of a peer, the own identity, and a new peer.

import { avatar, byId, icon, make } from "./elements.js";
import * as login from "./login.js";
import { Refused } from "./p2p.js";
import { count, presence, refusal } from "./format.js";

const TRUST = {
  trusted: "Trusted: you confirmed this key.",
  pinned: "Pinned on first contact, not confirmed yet: compare the safety words below with your peer.",
  revoked: "Revoked: messages from this key are rejected.",
};

function open(title, ...children) {
  const sheet = byId("sheet");
  byId("sheet-title").textContent = title;
  byId("sheet-body").replaceChildren(...children);
  if (!sheet.open) sheet.showModal();
}

/** Who a peer is: `peer` is an entry of PEERS. */
export function showPeer(peer) {
  open(
    peer.name,
    make(
      "div",
      { class: "who" },
      avatar(peer.name, peer.id, peer.here),
      make("p", {}, presence(peer.here, peer.seen_at)),
    ),
    make("p", { class: `trust is-${peer.trust}` }, icon(peer.trust === "trusted" ? "checks" : "alert"), TRUST[peer.trust] ?? peer.trust),
    words("Compare these words with your peer, in person or on the phone. If they match, nobody is intercepting the connection.", peer.words),
    facts([
      ["Fingerprint", code(peer.fingerprint)],
      ["Peer id", code(peer.id)],
      ["Addresses", list(peer.addresses)],
      ["Relays", list(peer.relays)],
      ["Waiting here", count(peer.queued, "message")],
    ]),
  );
}

/** Who we are: the answer to WHO; and this browser's session. `onLeave` ends it. */
export function showOurselves(who, onLeave) {
  const stay = make("input", { type: "checkbox", id: "stay" });
  stay.checked = login.isRemembered();
  stay.addEventListener("change", () => login.remember(stay.checked));
  const leave = make("button", { type: "button", class: "quiet" }, "Log out of this page");
  leave.addEventListener("click", () => {
    byId("sheet").close();
    onLeave();
  });
  open(
    "You",
    words("Your safety words, for your peers to compare.", who.words),
    make("h3", {}, "Your card"),
    make("p", { class: "hint" }, "Give this line to people who want to write to you. It contains no secret."),
    copyable(who.card),
    facts([
      ["Fingerprint", code(who.fingerprint)],
      ["Peer id", code(who.id)],
      ["Addresses", list(who.addresses)],
      ["Relays", list(who.relays)],
    ]),
    make("h3", {}, "This browser"),
    make("label", { class: "choice", for: "stay" }, stay, "Stay logged in when the tab is closed"),
    make("p", { class: "hint" }, "A login lasts 30 days. Your keys never leave your node."),
    leave,
  );
}

/** A peer by card; `onAdded` hears the id. */
export function addPeer(home, onAdded) {
  const name = make("input", { id: "peer-name", required: true, maxlength: "64", autocomplete: "off", autocapitalize: "none" });
  const card = make("textarea", { id: "peer-card", required: true, rows: "4", spellcheck: "false", autocapitalize: "none", placeholder: "millpond:…" });
  const problem = make("p", { class: "problem", role: "alert" });
  const form = make(
    "form",
    { class: "form" },
    make("label", { for: "peer-name" }, "Name for this peer"),
    name,
    make("label", { for: "peer-card" }, "Contact card"),
    card,
    make("p", { class: "hint" }, "Your peer finds it under the person icon at the top of this page, or with: millpond keys show --card"),
    problem,
    make("button", { type: "submit", class: "strong" }, "Add"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      const { id, error } = await home.addPeer(name.value.trim(), card.value.trim());
      if (error) {
        problem.textContent = error;
      } else {
        byId("sheet").close();
        onAdded(id);
      }
    } catch (error) {
      problem.textContent = error instanceof Refused ? refusal(error.code) : "Your node is not reachable now.";
    }
  });
  open("Add a peer", form);
  name.focus();
}

function words(hint, text) {
  const each = text.split(/\s+/).map((word) => make("li", {}, word));
  return make("div", { class: "words" }, make("ol", { "aria-label": "Safety words of the key" }, ...each), make("p", { class: "hint" }, hint));
}

function copyable(text) {
  const copy = make("button", { type: "button", class: "strong" }, icon("copy"), "Copy");
  const line = make("textarea", { class: "card", readonly: true, rows: "3", "aria-label": "Your card", spellcheck: "false" });
  line.value = text;
  copy.addEventListener("click", async () => {
    line.select();
    // Browsers give the clipboard to secure pages alone; the old way works everywhere.
    const isDone = navigator.clipboard
      ? await navigator.clipboard.writeText(text).then(() => true, () => false)
      : document.execCommand("copy");
    copy.lastChild.textContent = isDone ? "Copied" : "Press Ctrl+C";
  });
  return make("div", { class: "copyable" }, line, copy);
}

function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null);
  return make("dl", { class: "facts" }, ...told.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function code(text) {
  return make("code", {}, text);
}

function list(texts) {
  return texts.length ? make("ul", {}, ...texts.map((text) => make("li", {}, code(text)))) : null;
}

byId("sheet-close").addEventListener("click", () => byId("sheet").close());
byId("sheet").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close();
});
