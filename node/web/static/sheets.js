// Dialogs: the details of a peer, the own identity, and a new peer.

import { avatar, byId, icon, make, qrCode } from "./elements.js";
import { canScan, scan } from "./camera.js";
import * as login from "./login.js";
import { canNotify, notifies, setNotifies } from "./tabs.js";
import { Refused } from "./p2p.js";
import { OWN_REACH, PEER_REACH, count, exactly, presence, refusal } from "./format.js";

const TRUST = {
  added: "Not verified: nothing shows yet that this key is your peer's.",
  changed: "KEY CHANGED, not verified: this key took the place of another one. Compare the safety number before you trust what is said.",
  verified: "Verified: you compared the safety number.",
  pinned: "Pinned on first contact, and not added: it has no rights.",
  relay: "Relay: it stores your messages, and is no contact.",
  blocked: "Blocked: messages from this key are rejected.",
};

export function open(title, ...children) {
  const sheet = byId("sheet");
  byId("sheet-title").textContent = title;
  byId("sheet-body").replaceChildren(...children.filter((child) => child !== null));
  if (!sheet.open) sheet.showModal();
}

/** The sheet of a peer, an entry of PEERS. `onChanged` is called once it is verified or blocked. */
export function showPeer(home, peer, onChanged) {
  const trust = peer.key_changed ? "changed" : peer.trust;
  open(
    peer.name,
    make(
      "div",
      { class: "who" },
      avatar(peer.name, peer.id, peer.here),
      make("p", {}, presence(peer.here, peer.seen_at)),
    ),
    make("p", { class: `trust is-${trust}` }, icon(peer.trust === "verified" ? "checks" : "alert"), TRUST[trust] ?? trust),
    words(
      "Safety number",
      "Your peer sees the same number if nobody sits between you. Have it read to you, in person or on the phone, and type it below.",
      peer.safety_number,
    ),
    peer.qr_size ? make("p", { class: "hint" }, "Or have your peer scan this code in these details on their page:") : null,
    peer.qr_size ? qrCode(peer.qr_size, peer.qr_path, `QR code of the safety number, for ${peer.name} to scan`) : null,
    peer.qr_size ? make("details", { class: "code-text" }, make("summary", {}, "The code as text"), code(peer.code)) : null,
    peer.trust === "verified" ? null : verification(home, peer, onChanged),
    facts([
      ["Fingerprint in words", peer.words],
      ["Fingerprint", code(peer.fingerprint)],
      ["Peer id", code(peer.id)],
      ["Addresses", list(peer.addresses)],
      ["Relays", list(peer.relays)],
      ["Waiting here", count(peer.queued, "message")],
    ]),
    blocking(home, peer, onChanged),
  );
}

function verification(home, peer, onChanged) {
  const number = make("input", { id: "number", required: true, maxlength: "200", autocomplete: "off" });
  const problem = make("p", { class: "problem", role: "alert" });
  const scanner = make("button", { type: "button", id: "scan", hidden: true }, "Scan the code by camera");
  const camera = make("video", { class: "camera", hidden: true, muted: true, playsinline: true, "aria-label": "Picture of the camera" });
  const stopped = new AbortController();
  const form = make(
    "form",
    { class: "form" },
    make("label", { for: "number" }, `Number that ${peer.name} reads to you, or the text of the code`),
    number,
    problem,
    make("button", { type: "submit", class: "strong" }, "Compare"),
    scanner,
    camera,
  );
  canScan().then((can) => (scanner.hidden = !can), () => {});
  scanner.addEventListener("click", () => tryTo(problem, async () => {
    problem.textContent = "";
    camera.hidden = false;
    scanner.disabled = true;
    try {
      const text = await scan(camera, stopped.signal);
      if (text === null) return;
      number.value = text;
      form.requestSubmit();
    } catch (error) {
      if (error instanceof Refused || !(error instanceof DOMException)) throw error;
      problem.textContent = "The camera cannot be used. Paste the text of the code, or compare the number.";
    } finally {
      camera.hidden = true;
      scanner.disabled = false;
    }
  }));
  byId("sheet").addEventListener("close", () => stopped.abort(), { once: true });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryTo(problem, async () => {
      const { error } = await home.verify(peer.id, number.value);
      if (error) {
        problem.textContent = error;
      } else {
        await onChanged();
        showPeer(home, await home.peer(peer.id), onChanged);
      }
    });
  });
  return form;
}

/** A button that asks once more. */
function blocking(home, peer, onChanged) {
  const problem = make("p", { class: "problem", role: "alert" });
  const block = make("button", { type: "button", class: "quiet", id: "block" }, "Block this peer");
  let isSure = false;
  block.addEventListener("click", () => {
    if (!isSure) {
      isSure = true;
      block.textContent = `Block ${peer.name} for ever: press again`;
      return;
    }
    tryTo(problem, async () => {
      await home.block(peer.id);
      byId("sheet").close();
      await onChanged(peer.id);
    });
  });
  return make("div", {}, block, problem);
}

/** The sheet of the own node (the answer to WHO) and this browser's session. `onLeave` ends it. */
export function showOurselves(who, onLeave) {
  const stay = make("input", { type: "checkbox", id: "stay" });
  stay.checked = login.isRemembered();
  stay.addEventListener("change", () => login.remember(stay.checked));
  const notify = make("input", { type: "checkbox", id: "notify", disabled: !canNotify() });
  notify.checked = notifies();
  notify.addEventListener("change", async () => {
    const wanted = notify.checked;
    notify.checked = await setNotifies(wanted);
    if (wanted && !notify.checked) byId("notify-hint").textContent = "Your browser does not allow it: see its settings for this page.";
  });
  const leave = make("button", { type: "button", class: "quiet" }, "Log out of this page");
  leave.addEventListener("click", () => {
    byId("sheet").close();
    onLeave();
  });
  open(
    "You",
    make("h3", {}, "Your card"),
    make("p", { class: "hint" }, "Give this line to people who want to write to you. It contains no secret."),
    copyable(who.card, "Your card"),
    warning(OWN_REACH[who.reach]),
    facts([
      ["Fingerprint in words", who.words],
      ["Fingerprint", code(who.fingerprint)],
      ["Peer id", code(who.id)],
      ["Addresses", list(who.addresses)],
      ["Relays", list(who.relays)],
    ]),
    make("h3", {}, "This browser"),
    make("label", { class: "choice", for: "notify" }, notify, "Notify me of new messages"),
    make("p", { class: "hint", id: "notify-hint", role: "status" }, canNotify() ? "While you look at no tab of this page. The sender and the text are shown." : "Browsers notify for pages over HTTPS or of this machine alone."),
    make("label", { class: "choice", for: "stay" }, stay, "Stay logged in when the tab is closed"),
    make("p", { class: "hint" }, "A login lasts 30 days. Your keys never leave your node."),
    leave,
  );
}

/** A link for somebody, and the links that are still open. */
export async function showInvites(home) {
  const name = make("input", { id: "invite-name", required: true, maxlength: "64", autocomplete: "off", autocapitalize: "none" });
  const problem = make("p", { class: "problem", role: "alert" });
  const made = make("div", { id: "invite-made" });
  const listed = make("div", {});
  const form = make(
    "form",
    { class: "form" },
    make("label", { for: "invite-name" }, "Name of the person you invite"),
    name,
    make("p", { class: "hint" }, "The link works once. It adds both of you, so give it to this person alone."),
    problem,
    make("button", { type: "submit", class: "strong" }, "Make a link"),
  );
  const refresh = async () => listed.replaceChildren(...openInvites(await home.invites(), cancel));
  const cancel = (each) => tryTo(problem, async () => {
    await home.cancelInvite(each);
    made.replaceChildren();
    await refresh();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryTo(problem, async () => {
      const invited = name.value.trim();
      const answer = await home.invite(invited);
      if (answer.error) {
        problem.textContent = answer.error;
        return;
      }
      made.replaceChildren(...invitation(invited, answer));
      await refresh();
      made.querySelector("button").focus();
    });
  });
  open("Invite", form, made, listed);
  name.focus();
  await tryTo(problem, refresh);
}

function invitation(name, { link, until, reach, qr_size: size, qr_path: path }) {
  return [
    copyable(link, "Invite link"),
    qrCode(size, path, `QR code of the link for ${name}`),
    make("p", { class: "hint" }, `For ${name}, until ${exactly(until * 1000)}. The other side opens Add in its page, or types: millpond chat accept LINK NAME`),
    warning(OWN_REACH[reach]),
  ].filter(Boolean);
}

function openInvites(invites, cancel) {
  if (!invites.length) return [];
  const rows = invites.map(({ name, until }) => {
    const end = make("button", { type: "button", class: "quiet", "aria-label": `Cancel the invite for ${name}` }, "Cancel");
    end.addEventListener("click", () => cancel(name));
    return make("li", { "data-name": name }, make("span", {}, `${name}, until ${exactly(until * 1000)}`), end);
  });
  return [make("h3", {}, "Open invites"), make("ul", { class: "invite-list" }, ...rows)];
}

/** Run `work`, and show an error in the sheet. */
export async function tryTo(problem, work) {
  problem.textContent = "";
  try {
    await work();
  } catch (error) {
    problem.textContent = error instanceof Refused ? refusal(error.code) : "Your node is not reachable now.";
  }
}

function warning(text) {
  return text ? make("p", { class: "warning", role: "note" }, icon("alert"), text) : null;
}

/** A peer by invite or card; `onAdded` hears the id. `onGroup` begins a new group instead. */
export function addPeer(home, onAdded, onGroup) {
  const name = make("input", { id: "peer-name", required: true, maxlength: "64", autocomplete: "off", autocapitalize: "none" });
  const card = make("textarea", { id: "peer-card", required: true, rows: "4", spellcheck: "false", autocapitalize: "none", placeholder: "millpond:…" });
  const problem = make("p", { class: "problem", role: "alert" });
  const form = make(
    "form",
    { class: "form" },
    make("label", { for: "peer-name" }, "Name for this peer"),
    name,
    make("label", { for: "peer-card" }, "Invite link or contact card"),
    card,
    make("p", { class: "hint" }, "An invite adds both sides: your peer makes one with Invite in its page, or with millpond chat invite. A contact card adds the peer here only."),
    problem,
    make("button", { type: "submit", class: "strong" }, "Add"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryTo(problem, async () => {
      const line = card.value.replaceAll(/\s+/g, "");
      const called = name.value.trim();
      const answer = line.includes(".") ? await home.acceptInvite(line, called) : await home.addPeer(called, line);
      if (answer.error) {
        problem.textContent = answer.error;
        return;
      }
      onAdded(answer.id);
      const text = PEER_REACH[answer.reach];
      if (text) open(called, make("p", {}, "Added."), warning(text));
      else byId("sheet").close();
    });
  });
  const group = make("button", { type: "button", class: "quiet", id: "new-group" }, "New group");
  group.addEventListener("click", onGroup);
  const near = make("div", { class: "nearby" });
  open("Add a peer", form, near, group);
  name.focus();
  showNearby(home, near, (found) => {
    card.value = found;
    name.focus();
  });
}

/** The nodes on this network that are in no address book yet; `onChosen` hears the card of one. */
async function showNearby(home, near, onChosen) {
  const nodes = ((await home.discovered().catch(() => null)) ?? []).filter((each) => each.name === null);
  if (!nodes.length) return;
  const row = ({ id, words, address, card }) => {
    const choose = make("button", { type: "button", class: "quiet" }, "Use");
    choose.setAttribute("aria-label", `Use the card of ${words}`);
    choose.addEventListener("click", () => onChosen(card));
    return make("li", { title: id }, make("p", {}, words), make("p", { class: "hint" }, `Unverified, at ${address}`), choose);
  };
  near.append(
    make("h3", {}, "On this network"),
    make("p", { class: "hint" }, "These nodes have proved their keys, not whose they are. Give one a name, add it, and compare the safety number."),
    make("ul", { class: "request-list" }, ...nodes.map(row)),
  );
}

/** First messages of unknown senders. `onAnswered` hears the id of an accepted one, or null. */
export function showRequests(home, requests, onAnswered) {
  open(
    "Message requests",
    make("p", { class: "hint" }, "These senders are unknown to your node. They do not learn that it has their messages until you accept. Anybody can claim to be somebody: compare the safety number afterwards."),
    make("ul", { class: "request-list" }, ...requests.map((each) => request(home, each, onAnswered))),
  );
}

function request(home, { id, words, texts }, onAnswered) {
  const name = make("input", { required: true, maxlength: "64", autocomplete: "off", autocapitalize: "none", placeholder: "Name for this peer", "aria-label": "Name for this peer" });
  const problem = make("p", { class: "problem", role: "alert" });
  const refuse = make("button", { type: "button", class: "quiet" }, "Ignore");
  const block = make("button", { type: "button", class: "quiet" }, "Block");
  const form = make("form", { class: "form" }, name, problem, make("button", { type: "submit", class: "strong" }, "Accept"), refuse, block);
  const answer = async (work, accepted) => {
    problem.textContent = "";
    try {
      const { error } = (await work()) ?? {};
      if (error) {
        problem.textContent = error;
      } else {
        byId("sheet").close();
        onAnswered(accepted);
      }
    } catch (error) {
      problem.textContent = error instanceof Refused ? refusal(error.code) : "Your node is not reachable now.";
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answer(() => home.acceptRequest(id, name.value.trim()), id);
  });
  refuse.addEventListener("click", () => answer(() => home.refuseRequest(id, false), null));
  block.addEventListener("click", () => answer(() => home.refuseRequest(id, true), null));
  return make(
    "li",
    { class: "request", "data-id": id },
    ...texts.map(({ text, at }) => make("p", { class: "request-text", dir: "auto", title: exactly(at) }, text)),
    facts([["Fingerprint in words", words], ["Peer id", code(id)]]),
    form,
  );
}

function words(label, hint, text) {
  const each = text.split(/\s+/).map((word) => make("li", {}, word));
  return make("div", { class: "words" }, make("ol", { "aria-label": label }, ...each), make("p", { class: "hint" }, hint));
}

function copyable(text, label) {
  const copy = make("button", { type: "button", class: "strong" }, icon("copy"), "Copy");
  const line = make("textarea", { class: "card", readonly: true, rows: "3", "aria-label": label, spellcheck: "false" });
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
