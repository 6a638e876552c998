// Texts for times, presence and the states of a message.

const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });
const SHORT = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WEEKDAY = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const DAY_MS = 86_400_000;

/** By state of an outgoing message: icon, label, and explanation. */
export const STATES = {
  sending: ["clock", "Sending", "not accepted by your node yet"],
  failed: ["alert", "Not accepted", "your node did not accept it"],
  waiting: ["clock", "Waiting", "stored here until it can be encrypted for the recipient"],
  kept: ["kept", "Kept", "encrypted, and stored here until it can be sent"],
  sent: ["check", "Sent", "sent to the other node, or to a relay"],
  unaccepted: ["check", "Sent, not accepted yet", "sent; the other side has not accepted you, so it may be a message request there"],
  delivered: ["checks", "Delivered", "received by the other node"],
  read: ["checks", "Read", "read by the recipient"],
  expired: ["alert", "Expired", "not fetched before its deadline"],
  refused: ["alert", "Refused", "it will not be delivered"],
};

/** The text of a note about an accepted invite, by the state of the answer to it. */
export function inviteNote(state) {
  if (state === "delivered" || state === "read") return "Invite accepted. Both sides are added.";
  if (state === "expired" || state === "refused") {
    return "The answer to the invite did not arrive in time. Ask for a new invite.";
  }
  return "Invite accepted here. The other node has not answered yet.";
}

/** Warnings about a card of this node, by where it leads here from. */
export const OWN_REACH = {
  nowhere: "Nobody reaches this node: it has no P2P listener and no relay. Start it with --via RELAY, or with --p2p and an address that others reach.",
  machine: "Only this machine reaches this node. For others start it with --via RELAY, or with --p2p 0.0.0.0:7400 and an access file.",
  network: "Only the private network of this node reaches it. For others start it with --via RELAY, or with --address and its public name.",
};

/** Warnings about a card of a peer. */
export const PEER_REACH = {
  nowhere: "This card has no address and no relay: messages wait until the peer's node dials yours. Ask for a card made with --via RELAY or --address.",
  network: "This card leads to a private network: it works from there only.",
};

/** Texts by error code. */
const REFUSALS = {
  0x02: "This message is too old to be changed, or was deleted.",
  0x23: "The message is empty.",
  0x24: "The message is too long.",
  0x26: "Too many messages are waiting. Try again later.",
  0x48: "Your node does not know this peer any more.",
  0xe1: "Your node cannot write to its disk.",
  0xf0: "Your node did not understand the request. It may be an older version.",
  0xfe: "It is not known whether your node has the message. Trying again does no harm.",
};

export function refusal(code) {
  return REFUSALS[code] ?? `Your node refused (code ${code.toString(16)}).`;
}

/** 300 bytes, 1.5 kB, 20.0 MB. */
export function size(bytes) {
  if (bytes < 1000) return count(bytes, "byte");
  return bytes < 999_950 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** 09:41. All times are in ms since 1970. */
export function clock(ms) {
  return CLOCK.format(ms);
}

/** The full day and time. */
export function exactly(ms) {
  return FULL.format(ms);
}

/** A day number, by the local calendar. */
export function dayOf(ms) {
  const date = new Date(ms);
  return Math.floor(Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) / DAY_MS);
}

/** Today, Yesterday, or the date. */
export function day(ms) {
  const ago = dayOf(Date.now()) - dayOf(ms);
  if (ago === 0) return "Today";
  if (ago === 1) return "Yesterday";
  const year = new Date(ms).getFullYear();
  return year === new Date().getFullYear() ? DAY.format(ms) : `${DAY.format(ms)} ${year}`;
}

/** The shortest form of a time. */
export function briefly(ms) {
  const ago = dayOf(Date.now()) - dayOf(ms);
  if (ago === 0) return CLOCK.format(ms);
  if (ago === 1) return "Yesterday";
  return ago > 1 && ago < 7 ? WEEKDAY.format(ms) : SHORT.format(ms);
}

/** True for a peer that messages can be sent to. */
export function isContact({ trust }) {
  return trust === "added" || trust === "verified" || trust === "group";
}

/** The trust in a contact in a word or two; the same words as in a terminal. */
export function trustWord({ trust, key_changed: isChanged }) {
  if (trust === "verified") return "Verified";
  if (trust === "group") return "";
  if (trust === "added") return isChanged ? "KEY CHANGED, not verified" : "Not verified";
  return trust[0].toUpperCase() + trust.slice(1);
}

/** The presence of a peer; `seenAt` in seconds, or null. */
export function presence(here, seenAt) {
  if (here === null) return "Not known while you are offline";
  if (here) return "Online";
  if (seenAt === null || seenAt === undefined) return "Away";
  const ms = seenAt * 1000;
  const when = dayOf(ms) === dayOf(Date.now()) ? clock(ms) : `${day(ms)}, ${clock(ms)}`;
  return `Away since ${when}`;
}

/** 1 message, 2 messages. */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
