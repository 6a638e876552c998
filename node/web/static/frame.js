// The layout around a conversation: banner, headers, composer, address, narrow screens.

import { announce, avatar, byId, icon, make } from "./elements.js";
import { count, isContact, presence, trustWord } from "./format.js";
import { groupHindrance, membersOf } from "./groups.js";

const TITLE = "Millpond";
const TEXT_BYTES_MAX = 32 * 1024;
const ID = /^#([a-z2-7]{52})$/;
const BANNER_AFTER_MS = 1200;
const SEALED_MS = 3000;
const isTouched = matchMedia("(pointer: coarse)").matches;
const bytesOf = (text) => new TextEncoder().encode(text).length;

export class Frame {
  /** `page` does what is wanted here: see chat.js. */
  constructor(page) {
    this.page = page;
    this.fresh = 0;
    this.wasAway = false;
    this.draft = byId("draft");
    this.listen();
  }

  /** Nobody is logged in. */
  static showLogin(why) {
    document.body.dataset.view = "login";
    byId("login-why").textContent = why;
    byId("banner").hidden = true;
    document.title = TITLE;
  }

  showLogin(why) {
    Frame.showLogin(why);
  }

  ready() {
    if (document.body.dataset.view === "start") document.body.dataset.view = "list";
  }

  listen() {
    const { page } = this;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.draft.addEventListener("keydown", (event) => {
      const isEnter = event.key === "Enter" && !event.shiftKey && !event.isComposing;
      if (isEnter && !isTouched) {
        event.preventDefault();
        this.send();
      }
    });
    this.draft.addEventListener("keydown", (event) => {
      if (event.key === "ArrowUp" && !event.altKey && !this.draft.value && page.editLast()) {
        event.preventDefault();
      }
    });
    this.draft.addEventListener("input", () => {
      this.measure();
      if (this.draft.value.trim()) page.typing();
    });
    byId("attach").addEventListener("click", () => byId("attached").click());
    byId("attached").addEventListener("change", ({ target }) => {
      page.attach(target.files);
      target.value = "";
    });
    this.draft.addEventListener("paste", (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      page.attach(event.clipboardData.files);
    });
    this.listenToDrops(byId("talk"));
    byId("answering-end").addEventListener("click", () => page.endAnswer());
    byId("back").addEventListener("click", () => this.showList());
    byId("details").addEventListener("click", () => page.details());
    byId("ourselves").addEventListener("click", () => page.ourselves());
    byId("add").addEventListener("click", () => page.add());
    byId("search").addEventListener("click", () => page.search());
    byId("invite").addEventListener("click", () => page.invite());
    byId("invite-first").addEventListener("click", () => page.invite());
    byId("requests").addEventListener("click", () => page.answerRequests());
    byId("add-first").addEventListener("click", () => page.add());
    byId("try-now").addEventListener("click", () => page.home.tryNow());
    byId("load-older").addEventListener("click", () => page.attempt(() => page.loadOlder()));
    byId("to-end").addEventListener("click", () => page.timeline.toEnd());
    byId("timeline").addEventListener("click", ({ target }) => {
      const { retry, drop } = target.dataset;
      if (retry) page.retry(retry);
      if (drop) page.drop(drop);
      const { file, menu, act, key, emoji } = target.closest("button")?.dataset ?? {};
      if (menu) page.toggleMenu(menu);
      if (act) page.act(act, key, emoji);
      if (file) page.useFile(file, key);
    });
    byId("timeline").addEventListener("keydown", (event) => walkMenus(event));
    byId("scroller").addEventListener("keydown", (event) => {
      const buttons = [...byId("timeline").querySelectorAll(".more")];
      if (event.key === "Enter" && event.target === event.currentTarget) buttons.at(-1)?.focus();
    });
    document.addEventListener("keydown", (event) => this.shortcut(event));
    window.addEventListener("hashchange", () => this.follow());
    window.addEventListener("beforeunload", (event) => {
      if (page.hasUnsent) event.preventDefault();
    });
  }

  /** Files are dropped on the conversation. Elsewhere the browser would open them. */
  listenToDrops(stage) {
    const hasFiles = ({ dataTransfer }) => [...(dataTransfer?.types ?? [])].includes("Files");
    const mark = (is) => stage.classList.toggle("is-dropping", is);
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      const isHere = stage.contains(event.target) && !byId("composer").inert;
      event.dataTransfer.dropEffect = isHere ? "copy" : "none";
      mark(isHere);
    });
    document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || mark(false));
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      if (stage.contains(event.target) && !byId("composer").inert) {
        this.page.attach(event.dataTransfer.files);
      }
    });
  }

  shortcut(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.altKey && step) {
      event.preventDefault();
      const next = this.page.people.beside(step);
      if (next) this.page.choose(next);
    } else if (event.key === "Escape" && !byId("sheet").open && this.page.open) {
      if (!this.page.closeMenu() && !this.page.endAnswer()) this.showList();
    }
  }

  // The address: which conversation, so that Back and a reload do what one expects.

  addressed() {
    return ID.exec(location.hash)?.[1];
  }

  follow() {
    const id = this.addressed();
    if (id) {
      this.page.choose(id);
    } else {
      document.body.dataset.view = "list";
    }
  }

  showList() {
    if (this.addressed() && history.state?.isOurs) {
      history.back();
    } else {
      history.replaceState(null, "", location.pathname);
    }
    document.body.dataset.view = "list";
    byId("people-list").querySelector(`[data-id="${this.page.open}"]`)?.focus();
  }

  goTo(chat, isByAddress) {
    const address = `#${chat.id}`;
    if (this.addressed()) {
      history.replaceState(history.state, "", address);
    } else if (!isByAddress) {
      history.pushState({ isOurs: true }, "", address);
    }
    document.body.dataset.view = "talk";
    document.body.classList.add("has-open");
  }

  openTalk(talk, chat) {
    this.draft.value = talk.draft;
    this.showAnswer(talk.answer);
    this.draft.placeholder = `Write to ${chat.name}`;
    this.measure();
    this.setFresh(0);
    byId("empty").hidden = true;
    this.showLoading(false);
    byId("scroller").setAttribute("aria-label", `Messages with ${chat.name}`);
    if (!isTouched) this.draft.focus({ preventScroll: true });
  }

  keepDraft(talk) {
    talk.draft = this.draft.value;
  }

  // Writing.

  send() {
    if (this.isTooLong || !this.page.write(this.draft.value.replace(/\s+$/, ""))) return;
    this.draft.value = "";
    this.measure();
    this.draft.focus();
  }

  /** Show which message the draft answers or edits: {action, quote}; or null. */
  showAnswer(answer) {
    byId("answering").hidden = !answer;
    if (!answer) return;
    const what = answer.action === "edit" ? "Edit" : "Reply to";
    byId("answering-text").textContent = `${what}: ${answer.quote}`;
  }

  compose(text) {
    this.draft.value = text;
    this.measure();
    this.draft.focus();
  }

  takeBack(text) {
    this.draft.value = this.draft.value ? `${text}\n${this.draft.value}` : text;
    this.measure();
    this.draft.focus();
  }

  measure() {
    const size = bytesOf(this.draft.value);
    this.isTooLong = size > TEXT_BYTES_MAX;
    const note = byId("length");
    note.hidden = size < 0.9 * TEXT_BYTES_MAX;
    note.textContent = this.isTooLong
      ? `Too long by ${count(size - TEXT_BYTES_MAX, "byte")}`
      : `${count(TEXT_BYTES_MAX - size, "byte")} left`;
    byId("send").disabled = this.isTooLong || !this.draft.value.trim();
    this.draft.style.height = "auto";
    this.draft.style.height = `${this.draft.scrollHeight}px`;
  }

  // How things stand.

  showState({ kind, retryAt }) {
    clearTimeout(this.bannerAlarm);
    clearInterval(this.countdown);
    const isAway = kind === "away";
    if (isAway) this.ready();
    if (!isAway) {
      byId("banner").hidden = true;
      if (kind === "open" && this.wasAway) announce("Connected again.");
      this.wasAway = false;
      return;
    }
    const tell = () => {
      const left = Math.max(0, Math.round((retryAt - Date.now()) / 1000));
      byId("banner-text").textContent = left
        ? `Your node is not reachable. Next try in ${left} s.`
        : "Your node is not reachable. Trying…";
    };
    // A loss that is over at once is not shown.
    this.bannerAlarm = setTimeout(
      () => {
        if (!this.wasAway) announce("Your node is not reachable.");
        this.wasAway = true;
        byId("banner").hidden = false;
        tell();
        this.countdown = setInterval(tell, 1000);
      },
      this.wasAway ? 0 : BANNER_AFTER_MS,
    );
  }

  showPeople() {
    const isEmpty = this.page.chats.length === 0;
    byId("nobody").hidden = !isEmpty;
    byId("pick").hidden = isEmpty;
  }

  showCount(chats) {
    this.showPeople();
    const unread = chats.reduce((sum, chat) => sum + chat.unread, 0);
    document.title = unread ? `(${unread}) ${TITLE}` : TITLE;
  }

  /** How many unknown senders wait for an answer. */
  showRequests(requests) {
    const button = byId("requests");
    button.hidden = !requests.length;
    button.textContent = count(requests.length, "message request");
  }

  /** Name, presence, and what stands in the way. */
  showChat(chat) {
    if (!chat) return;
    byId("talk-name").textContent = chat.name;
    const standing = chat.group ? membersOf(chat.group) : presence(chat.here, chat.seen_at);
    const writers = chat.group ? `${(chat.group.typing || []).join(", ")}: typing…` : "Typing…";
    byId("talk-presence").textContent = chat.typing ? writers : standing;
    byId("talk-trust").textContent = trustWord(chat);
    byId("talk-trust").classList.toggle("is-changed", Boolean(chat.key_changed));
    byId("talk-presence").classList.toggle("is-here", Boolean(chat.here));
    byId("talk-avatar").replaceChildren(avatar(chat.name, chat.id, chat.here));
    byId("composer").inert = !isContact(chat) || (chat.group && chat.group.status !== "joined");
    byId("details").setAttribute("aria-label", chat.group ? "Details of this group" : "Details of this peer");
    const [text, symbol] = hindrance(chat);
    byId("hindrance").hidden = !text;
    byId("hindrance").replaceChildren(...(text ? [icon(symbol), make("span", {}, text)] : []));
  }

  showEmptiness(talk) {
    const isEmpty = talk.shown.length === 0 && !talk.hasOlder;
    byId("empty").hidden = !isEmpty;
  }

  showLoading(is, isPaused = false) {
    byId("loading").hidden = !is;
    byId("load-older").hidden = is || !isPaused;
  }

  showPlace(isAtEnd) {
    if (isAtEnd) this.setFresh(0);
    byId("to-end").hidden = isAtEnd;
  }

  heard(number) {
    if (!byId("to-end").hidden) this.setFresh(this.fresh + number);
  }

  setFresh(number) {
    this.fresh = number;
    byId("fresh").textContent = number ? `${count(number, "new message")}` : "To the end";
  }
}

/** Arrows go from message to message, where their actions are. */
function walkMenus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const buttons = [...byId("timeline").querySelectorAll(".more")];
  const place = buttons.indexOf(document.activeElement);
  if (place < 0 || !step || event.altKey) return;
  event.preventDefault();
  buttons[place + step]?.focus();
}

function hindrance(chat) {
  if (chat.group) return groupHindrance(chat.group) ?? [null, null];
  if (!isContact(chat)) {
    return ["This peer was not added, so nothing is sent to it. Add its card.", "alert"];
  }
  if (chat.key_changed) {
    return [`The key of ${chat.name} has changed. Compare the safety number before you trust what is said.`, "alert"];
  }
  if (chat.waiting && chat.last && Date.now() - chat.last.at > SEALED_MS) {
    const what = count(chat.waiting, "message");
    const verb = chat.waiting === 1 ? "waits" : "wait";
    return [`${what} ${verb} here until ${chat.name}'s node has given a key to seal with.`, "clock"];
  }
  return [null, null];
}
