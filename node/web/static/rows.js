// The rows of a conversation: days, messages, notices, and the mark of the first new message.

import { icon, linked, make, unseen } from "./elements.js";
import { isChange } from "./conversation.js";
import { mayBeShown } from "./files.js";
import { countsOf } from "./groups.js";
import { STATES, clock, day, dayOf, exactly, inviteNote, size } from "./format.js";

const TOGETHER_MS = 5 * 60_000;
const QUOTED_CHARS = 120;
const REACTIONS = ["👍", "❤️", "😂", "😮", "😢", "🙏"];
const UNSENT = { edit: "Edit", delete: "Deletion", react: "Reaction", unreact: "Reaction" };
const DELAYED_MS = 2 * 60_000;

/** The rows of these items: {key, item, look, build}. The same key is the same row later, and the
 *  same look needs no change. `before` is the item above the first; `newFrom` the sequence of the
 *  first message that was not read when the conversation was opened, or null. */
export function rowsOf(items, before, newFrom, talk, name, isLast) {
  const { isAccepted } = talk;
  const rows = [];
  let above = before;
  items.forEach((item, place) => {
    if (!above || dayOf(above.at) !== dayOf(item.at)) {
      const label = day(item.at);
      rows.push({ key: `day ${item.key}`, look: label, build: () => dayRow(label) });
    }
    if (newFrom !== null && item.sequence === newFrom) {
      rows.push({ key: "new", look: "", build: newRow });
    }
    const follows = areTogether(above, item) && item.sequence !== newFrom;
    const below = items[place + 1];
    const isTail = !(below && areTogether(item, below));
    const tells = isLast && place === items.length - 1;
    const quote = talk.quote(item);
    const hasMenu = talk.menu !== null && talk.menu === item.key;
    const author = talk.nameOf(item, name);
    const counts = countsOf(item.told);
    const parts = [item.state, author, counts, isAccepted, item.error, follows, isTail, tells, item.sequence];
    const changes = [item.text, item.isEdited, item.isDeleted, item.reactions, quote, hasMenu];
    const image = talk.images.get(item.key);
    const { transfer, progress, uploaded, fetched, fileError, fileTold } = item;
    const file = item.file && [transfer, progress, uploaded, fetched, fileError, fileTold, image];
    const look = JSON.stringify([...parts, ...changes, file]);
    const build = () =>
      itemRow(item, { image, follows, isTail, tells, name: author, names: talk, chat: name, isAccepted, quote, hasMenu, counts });
    rows.push({ key: item.key, item, look, build });
    above = item;
  });
  return rows;
}

function areTogether(above, item) {
  return (
    Boolean(above) &&
    above.kind === item.kind &&
    above.by === item.by &&
    item.kind !== "note" &&
    item.at - above.at < TOGETHER_MS &&
    dayOf(above.at) === dayOf(item.at)
  );
}

function dayRow(label) {
  return make("li", { class: "day" }, make("span", {}, label));
}

function newRow() {
  return make("li", { class: "new" }, make("span", {}, "New"));
}

function itemRow(item, around) {
  return item.kind === "note" ? noteRow(item, around) : messageRow(item, around);
}

function noteRow(item, { name }) {
  const text = item.by ? `${name} ${item.text}` : item.text;
  return make(
    "li",
    { class: "note", title: exactly(item.at) },
    make("span", {}, icon("note"), item.isInvite ? inviteNote(item.state) : text),
  );
}

function messageRow(item, around) {
  const { image, follows, isTail, tells, name, names, chat, isAccepted, quote, hasMenu, counts } = around;
  const isOurs = item.kind === "out";
  const marks = ["message", isOurs ? "ours" : "theirs", follows && "follows", isTail && "tail"];
  const bubble = make(
    "div",
    { class: "bubble" },
    item.by && !follows ? make("p", { class: "author", dir: "auto" }, name) : unseen(isOurs ? "You: " : `${name}: `),
    quote && quoted(quote, names.nameOf(quote, chat)),
    item.file && !item.isDeleted ? fileCard(item, image) : said(item),
    make(
      "span",
      { class: "meta" },
      item.isEdited ? make("span", { class: "edited" }, "edited") : null,
      ...when(item),
      isOurs ? fate(item, tells, isAccepted, counts) : null,
    ),
  );
  const line = make("div", { class: "line" }, bubble);
  const row = make("li", { class: marks.filter(Boolean).join(" ") }, line);
  if (item.sequence !== undefined && !item.isDeleted) {
    line.append(menuButton(item, hasMenu));
    if (item.reactions?.length) row.append(reactions(item, names, chat));
    if (hasMenu) row.append(menu(item, isOurs));
  }
  if (item.state === "failed") {
    row.append(failure(item));
  }
  return row;
}

/** The text; a deleted message has none, and an unsent change tells what it is. */
function said(item) {
  if (item.isDeleted) return make("p", { class: "text is-deleted" }, "Message deleted");
  if (isChange(item)) return make("p", { class: "text" }, `${UNSENT[item.action]}: ${item.text}`);
  return make("p", { class: "text", dir: "auto" }, ...linked(item.text));
}

/** The file of a message: its name and size, how far it is, and what can be done with it. */
function fileCard(item, image) {
  const { file, key, fetched } = item;
  const isWhole = item.sequence !== undefined && (item.kind === "out" || item.transfer?.state === "received");
  const words = fileWords(item);
  const card = make(
    "div",
    { class: "file" },
    icon("file"),
    make("span", { class: "file-name", dir: "auto" }, file.name),
    make("span", { class: "file-size" }, size(file.size)),
    make("span", { class: "file-state" }, words),
  );
  const done = item.uploaded ?? fetched ?? (isOnItsWay(item) ? item.progress?.done : undefined);
  if (done !== undefined && done < 1) {
    const label = `${file.name}: progress`;
    card.append(make("progress", { max: "1", value: String(done), "aria-label": label }));
  }
  if (image) card.append(make("img", { class: "file-image", src: image, alt: file.name }));
  if (isWhole && fetched === undefined) {
    const buttons = [make("button", { type: "button", "data-file": "save", "data-key": key }, "Save")];
    if (!image && mayBeShown(file)) {
      buttons.push(make("button", { type: "button", "data-file": "show", "data-key": key }, "Show image"));
    }
    card.append(make("div", { class: "file-actions" }, ...buttons));
  }
  return card;
}

function isOnItsWay({ transfer, sequence }) {
  return sequence !== undefined && (!transfer || transfer.state === "stored");
}

function fileWords(item) {
  const { transfer, progress, kind } = item;
  if (item.fileError) return item.fileError;
  if (item.sequence === undefined) return item.state === "failed" ? "" : "being added";
  const why = transfer?.reason ? `: ${transfer.reason}` : "";
  const counts = fileCountsOf(item);
  switch (transfer?.state) {
    case "received":
      return kind === "out" ? counts || "received" : "";
    case "refused":
      return `not taken${why}`;
    case "expired":
      return `not complete${why}`;
    case "stored":
      return "at a relay, until it is fetched";
    default:
      return [counts, progress?.problem].filter(Boolean).join(", ") || (kind === "out" ? "on its way" : "arriving");
  }
}

/** How many members of a group have a file from here. */
function fileCountsOf({ fileTold, recipients }) {
  if (!fileTold || !recipients) return "";
  const { received, refused } = fileTold;
  const counted = `received by ${received} of ${recipients}`;
  return refused ? `${counted}, not taken by ${refused}` : counted;
}

function quoted({ kind, text }, name) {
  const author = { in: name, out: "You" }[kind] ?? "";
  const letters = [...text];
  const start = letters.slice(0, QUOTED_CHARS).join("");
  return make(
    "blockquote",
    { class: "quote", dir: "auto" },
    author ? make("span", { class: "quote-author" }, author) : null,
    make("span", {}, letters.length > QUOTED_CHARS ? `${start}…` : start),
  );
}

function reactions(item, talk, name) {
  const given = item.reactions.map(({ kind, by, text }) => {
    const author = kind === "in" ? talk.nameOf({ by: by === "in" ? "" : by }, name) : "you";
    return make("span", { class: "reaction", role: "img", "aria-label": `${text} by ${author}`, title: author }, text);
  });
  return make("div", { class: "reactions" }, ...given);
}

function menuButton(item, isOpen) {
  const attributes = {
    type: "button",
    class: "more",
    "aria-label": "Actions of this message",
    "aria-expanded": String(isOpen),
    "data-menu": item.key,
    tabindex: "-1",
  };
  return make("button", attributes, icon("more"));
}

function menu(item, isOurs) {
  const mine = item.reactions?.find(({ kind }) => kind === "out")?.text;
  const emoji = REACTIONS.map((text) => {
    const isMine = text === mine;
    const label = isMine ? `Take back ${text}` : `React ${text}`;
    return action(isMine ? "unreact" : "react", item, text, { "aria-label": label, "data-emoji": text, "aria-pressed": String(isMine) });
  });
  const words = [action("reply", item, "Reply"), action("copy", item, "Copy")];
  if (isOurs) words.push(action("edit", item, "Edit"), action("delete", item, "Delete for both"));
  return make("div", { class: "actions", role: "group", "aria-label": "Actions of this message" }, ...emoji, ...words);
}

function action(name, item, label, attributes = {}) {
  return make("button", { type: "button", "data-act": name, "data-key": item.key, ...attributes }, label);
}

/** When it was written; and when it came, if that was long after. */
function when(item) {
  const written = item.sentAt || item.at;
  const time = { datetime: new Date(written).toISOString(), title: exactly(written) };
  const parts = [make("time", time, clock(written))];
  if (item.sentAt && Math.abs(item.at - item.sentAt) > DELAYED_MS) {
    const isSameDay = dayOf(item.at) === dayOf(item.sentAt);
    const wrote = isSameDay ? clock(item.sentAt) : `${day(item.sentAt)}, ${clock(item.sentAt)}`;
    parts[0].textContent = `written ${wrote}`;
    const came = { class: "came", datetime: new Date(item.at).toISOString() };
    parts.push(make("time", { ...came, title: exactly(item.at) }, `came ${clock(item.at)}`));
  }
  if (item.late) {
    parts.push(make("span", { title: "Later messages were displayed first" }, "out of order"));
  }
  return parts;
}

/** Icon and word; the word is shown where it matters, and always there for who listens. */
function fate(item, tells, isAccepted, counts) {
  const state = item.state === "sent" && !isAccepted ? "unaccepted" : item.state;
  const [symbol, stateWord, meaning] = STATES[state] ?? STATES.waiting;
  const word = counts ?? stateWord;
  const shows = tells || Boolean(counts) || ["failed", "expired", "refused", "waiting"].includes(item.state);
  return make(
    "span",
    { class: `fate is-${item.state}`, role: "img", "aria-label": word, title: `${word}: ${meaning}` },
    icon(symbol),
    shows ? make("span", { class: "word", "aria-hidden": "true" }, word) : null,
  );
}

function failure(item) {
  return make(
    "div",
    { class: "failure" },
    make("span", {}, item.error),
    make("button", { type: "button", "data-retry": item.uuid }, "Try again"),
    make("button", { type: "button", "data-drop": item.uuid }, "Discard"),
  );
}
