// The list of conversations.

import { avatar, icon, make, unseen } from "./elements.js";
import { briefly, count, presence } from "./words.js";

const FILTER_FROM = 8;

export class People {
  /** `onChoose` hears the id of a conversation. */
  constructor(list, filter, onChoose) {
    this.list = list;
    this.filter = filter;
    this.chats = [];
    this.chosen = null;
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
    this.list.replaceChildren(...shown.map((chat) => entry(chat, chat.id === this.chosen)));
    if (!shown.length && this.chats.length) {
      this.list.append(make("li", { class: "nobody" }, "Nobody of that name."));
    }
    this.list.querySelector(`button[data-id="${CSS.escape(focused ?? "")}"]`)?.focus();
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

function entry(chat, isChosen) {
  const says = presence(chat.here, chat.seen_at);
  const badge = chat.unread
    ? make("span", { class: "badge", "aria-label": count(chat.unread, "unread message") }, `${chat.unread > 99 ? "99+" : chat.unread}`)
    : null;
  const button = make(
    "button",
    { type: "button", "data-id": chat.id, "aria-current": isChosen && "true" },
    avatar(chat.name, chat.id, chat.here),
    make(
      "span",
      { class: "entry" },
      make(
        "span",
        { class: "entry-top" },
        make("span", { class: "entry-name", dir: "auto" }, chat.name),
        chat.here ? make("span", { class: "entry-here" }, says) : unseen(says),
        chat.last ? make("span", { class: "entry-when" }, briefly(chat.last.at)) : null,
      ),
      make("span", { class: "entry-bottom" }, ...preview(chat), badge),
    ),
  );
  return make("li", { class: chat.unread ? "is-unread" : null }, button);
}

function preview(chat) {
  if (chat.trust !== "trusted") {
    return [make("span", { class: "preview" }, icon("alert"), "Key not confirmed")];
  }
  if (!chat.last) {
    return [make("span", { class: "preview is-empty" }, "Nothing said yet")];
  }
  const who = chat.last.kind === "out" ? "You: " : "";
  return [make("span", { class: "preview", dir: "auto" }, `${who}${chat.last.text}`)];
}
