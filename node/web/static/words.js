// How times, presence and the fate of a message are said.

const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });
const SHORT = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WEEKDAY = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const DAY_MS = 86_400_000;

/** By state of a message of ours: icon, a word, and what it means. */
export const STATES = {
  sending: ["clock", "Sending", "not at your node yet"],
  failed: ["alert", "Not accepted", "your node did not take it"],
  waiting: ["clock", "Waiting", "kept here until it can be sealed for its reader"],
  kept: ["kept", "Kept", "sealed, and kept here until it can leave"],
  sent: ["check", "Sent", "left your node for the other one, or a relay"],
  delivered: ["checks", "Delivered", "the other node has it"],
  read: ["checks", "Read", "somebody saw it"],
  expired: ["alert", "Expired", "nobody fetched it in time"],
  refused: ["alert", "Refused", "it will not arrive"],
};

/** By code of a refusal. */
const REFUSALS = {
  0x23: "There is nothing in it.",
  0x24: "It is too long.",
  0x26: "Too much waits already. Try again later.",
  0x48: "Your node does not know this peer any more.",
  0xe1: "Your node cannot write to its disk.",
  0xf0: "Your node did not understand. It may be of an older version.",
  0xfe: "It is not known whether your node has it. Trying again does no harm.",
};

export function refusal(code) {
  return REFUSALS[code] ?? `Your node refused (code ${code.toString(16)}).`;
}

/** 09:41. All times are in ms since 1970. */
export function clock(ms) {
  return CLOCK.format(ms);
}

/** The day and the time, for whoever wants to know exactly. */
export function exactly(ms) {
  return FULL.format(ms);
}

/** Days since some day, by the calendar here. */
export function dayOf(ms) {
  const date = new Date(ms);
  return Math.floor(Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) / DAY_MS);
}

/** Today, Yesterday, or which day. */
export function day(ms) {
  const ago = dayOf(Date.now()) - dayOf(ms);
  if (ago === 0) return "Today";
  if (ago === 1) return "Yesterday";
  const year = new Date(ms).getFullYear();
  return year === new Date().getFullYear() ? DAY.format(ms) : `${DAY.format(ms)} ${year}`;
}

/** As short as it can be said. */
export function briefly(ms) {
  const ago = dayOf(Date.now()) - dayOf(ms);
  if (ago === 0) return CLOCK.format(ms);
  if (ago === 1) return "Yesterday";
  return ago > 1 && ago < 7 ? WEEKDAY.format(ms) : SHORT.format(ms);
}

/** Whether a peer is here; `seenAt` in seconds, or null. */
export function presence(here, seenAt) {
  if (here) return "Here";
  if (seenAt === null || seenAt === undefined) return "Away";
  const ms = seenAt * 1000;
  const when = dayOf(ms) === dayOf(Date.now()) ? clock(ms) : `${day(ms)}, ${clock(ms)}`;
  return `Away since ${when}`;
}

/** 1 message, 2 messages. */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
