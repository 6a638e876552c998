// The list of conversations.

import { avatar, icon, make, unseen } from "./elements.js";
import { briefly, count, isContact, presence } from "./format.js";
import { membersOf } from "./groups.js";

const FILTER_FROM = 8;
const STATUS = { invited: "Invitation", left: "You have left", removed: "Not a member any more" };

export class People {
  /** `onChoose` hears the id of a conversation. */
  constructor(list, filter, onChoose) {
    this.list = list;
    this.filter = filter;
    this.chats = [];
    this.chosen = null;
    this.rows = new Map();
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) onChoose(button.dataset.id);
    });
    list.addEventListener("keydown", (event) => this.walk(event));
    filter.addEventListener("input", () => this.draw());
  }

  show(chats, chosen) {
    this.chats = [...chats].sort(byNews);
    this.chosen = chosen;
    this.draw();
  }

  /** The one so many places below the chosen one. */
  beside(step) {
    const place = this.chats.findIndex(({ id }) => id === this.chosen);
    const next = this.chats[place < 0 ? 0 : place + step];
    return next?.id;
  }

  draw() {
    this.filter.hidden = this.chats.length < FILTER_FROM && !this.filter.value;
    const wanted = this.filter.value.trim().toLowerCase();
    const shown = this.chats.filter(({ name }) => name.toLowerCase().includes(wanted));
    const focused = this.list.contains(document.activeElement)
      ? document.activeElement.dataset.id
      : null;
    const rows = shown.map((chat) => this.row(chat));
    if (!shown.length && this.chats.length) {
      rows.push(make("li", { class: "nobody" }, "No peer has this name."));
    }
    arrange(this.list, rows);
    const kept = this.rows.get(focused)?.querySelector("button");
    if (kept && kept !== document.activeElement) kept.focus();
    this.forget();
  }

  /** A person's row is the same element for as long as they are listed: a click that is under way
   *  while news come in still finds it. */
  row(chat) {
    if (!this.rows.has(chat.id)) this.rows.set(chat.id, make("li", {}, button(chat.id)));
    const row = this.rows.get(chat.id);
    row.classList.toggle("is-unread", chat.unread > 0);
    const [inside] = row.children;
    if (chat.id === this.chosen) inside.setAttribute("aria-current", "true");
    else inside.removeAttribute("aria-current");
    inside.replaceChildren(...entry(chat));
    return row;
  }

  forget() {
    const known = new Set(this.chats.map(({ id }) => id));
    for (const id of this.rows.keys()) {
      if (!known.has(id)) this.rows.delete(id);
    }
  }

  walk(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    const buttons = [...this.list.querySelectorAll("button")];
    const place = buttons.indexOf(document.activeElement);
    if (place < 0) return;
    const jumps = { Home: 0, End: buttons.length - 1 };
    const target = buttons[event.key in jumps ? jumps[event.key] : place + (steps[event.key] ?? 0)];
    if ((event.key in jumps || event.key in steps) && target) {
      event.preventDefault();
      target.focus();
    }
  }
}

/** The one with the latest message first. */
export function byNews(one, other) {
  return (other.last?.at ?? 0) - (one.last?.at ?? 0) || one.name.localeCompare(other.name);
}

/** Make these the children; what is in its place already is not touched. */
function arrange(list, rows) {
  rows.forEach((row, place) => {
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
  });
  while (list.children.length > rows.length) list.lastElementChild.remove();
}

function button(id) {
  return make("button", { type: "button", "data-id": id });
}

/** The content of a person's button. */
function entry(chat) {
  const says = chat.group ? membersOf(chat.group) : presence(chat.here, chat.seen_at);
  const badge = chat.unread
    ? make("span", { class: "badge", "aria-label": count(chat.unread, "unread message") }, `${chat.unread > 99 ? "99+" : chat.unread}`)
    : null;
  const when = chat.last ? make("span", { class: "entry-when" }, briefly(chat.last.at)) : null;
  const top = make(
    "span",
    { class: "entry-top" },
    make("span", { class: "entry-name", dir: "auto" }, chat.name),
    chat.here ? make("span", { class: "entry-here" }, says) : unseen(says),
    when,
  );
  const bottom = make("span", { class: "entry-bottom" }, ...preview(chat), badge);
  return [
    avatar(chat.name, chat.id, chat.here),
    make("span", { class: "entry" }, top, bottom),
  ];
}

function preview(chat) {
  if (!isContact(chat)) {
    return [make("span", { class: "preview" }, icon("alert"), "Not added")];
  }
  if (chat.group && chat.group.status !== "joined") {
    return [make("span", { class: "preview" }, icon("alert"), STATUS[chat.group.status] ?? "")];
  }
  if (!chat.last) {
    return [make("span", { class: "preview is-empty" }, "No messages yet")];
  }
  const author = chat.last.by ? `${chat.last.by}: ` : "";
  const who = chat.last.kind === "out" ? "You: " : author;
  const text = chat.last.text || "Message deleted";
  return [make("span", { class: "preview", dir: "auto" }, `${who}${text}`)];
}
