// The chat page: the open conversation, the draft, and the connection to the node.

import { announce, byId } from "./elements.js";
import { Images, NotTaken, fetchFile, save, sendFile } from "./files.js";
import { Frame } from "./frame.js";
import { newGroup, showGroup } from "./groups.js";
import { Home } from "./home.js";
import * as login from "./login.js";
import { Lost, Refused } from "./p2p.js";
import { People, byNews } from "./peer_list.js";
import { showSearch } from "./search.js";
import { addPeer, showInvites, showOurselves, showPeer, showRequests } from "./sheets.js";
import { Talk, isChange, isUnknown } from "./conversation.js";
import { Tabs } from "./tabs.js";
import { Timeline } from "./timeline.js";
import { count, isContact, refusal } from "./format.js";

const LOOK_MS = 4_000;
const NEWS_MS = 150;
const TYPING_LOOK_MS = 1_500;
const TYPING_EVERY_MS = 4_000;
const SEEN_MS = 50;
const HIDDEN_TURNS = 8;
const FOLLOWED_MAX = 40;
const OPENED_MIN = 40;
const UNREAD_SHOWN = 300;
const QUOTED_CHARS = 120;
const TRANSFERS_LOOK_MS = 1_000;
const FILES_AT_ONCE = 20;

class Page {
  constructor(token) {
    this.home = new Home(token, (state) => this.stateChanged(state));
    this.talks = new Map();
    this.chats = [];
    this.requests = [];
    this.open = null;
    this.gone = null;
    this.followed = new Set();
    this.typingToldAt = 0;
    this.tabs = new Tabs(() => this.lookSoon(), (id) => this.choose(id));
    this.frame = new Frame(this);
    this.people = new People(byId("people-list"), byId("filter"), (id) => this.choose(id));
    this.timeline = new Timeline(
      byId("scroller"),
      byId("timeline"),
      () => this.attempt(() => this.loadOlder()),
      (sequence) => this.seen(sequence),
      (isAtEnd) => this.frame.showPlace(isAtEnd),
    );
  }

  async run() {
    await this.home.run((gone) => this.attempt(() => this.arrive(gone)));
  }

  // How it stands with the node.

  stateChanged(state) {
    this.frame.showState(state);
    if (state.kind !== "open" && this.chats.length) {
      // Nobody's presence is known meanwhile, nor that somebody writes.
      this.chats = this.chats.map((chat) => ({ ...chat, here: null, typing: false }));
      this.people.show(this.chats, this.open);
      if (this.open) this.frame.showChat(this.chat(this.open));
    }
    if (state.kind === "ended") {
      login.forget();
      this.tabs.close();
      this.frame.showLogin("This login has ended. Ask your node for a new link:");
    }
  }

  /** Run `work`. Work that a lost connection interrupts goes on when it is back. */
  async attempt(work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Lost)) {
        if (!(error instanceof Refused)) throw error;
        if (!isUnknown(error)) console.warn(error.message);
      }
    }
  }

  async arrive(gone) {
    this.gone = gone;
    this.followed.clear();
    await this.look();
    this.frame.ready();
    for (const talk of this.talks.values()) {
      talk.marked = -1;
      this.sendAgain(talk);
    }
    if (!this.open) {
      await this.choose(this.frame.addressed(), { isByAddress: true });
    } else if (this.timeline.talk) {
      this.follow(this.timeline.talk, this.chat(this.open));
    } else {
      await this.load(this.talks.get(this.open), this.chat(this.open));
    }
    this.watchTyping(gone);
    this.watchTransfers(gone);
    for (let turn = 1; !gone.aborted; turn += 1) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      const isWanted = document.visibilityState === "visible" || turn % HIDDEN_TURNS === 0;
      if (!gone.aborted && isWanted) await this.look();
    }
  }

  /** Look often whether the peer of the open conversation writes. */
  async watchTyping(gone) {
    while (!gone.aborted) {
      await new Promise((resolve) => setTimeout(resolve, TYPING_LOOK_MS));
      const chat = this.chat(this.open);
      if (gone.aborted || !(chat?.here || chat?.group) || document.visibilityState !== "visible") continue;
      await this.attempt(async () => {
        const { typing, group } = await this.home.chat(chat.id);
        const now = this.chat(chat.id);
        if (gone.aborted || !now) return;
        if (typing === now.typing && String(group?.typing) === String(now.group?.typing)) return;
        now.typing = typing;
        if (now.group) now.group.typing = group.typing;
        if (this.open === now.id) this.frame.showChat(now);
      });
    }
  }

  /** Look how far the files of the open conversation are. */
  async watchTransfers(gone) {
    while (!gone.aborted) {
      await new Promise((resolve) => setTimeout(resolve, TRANSFERS_LOOK_MS));
      const talk = this.talks.get(this.open);
      if (gone.aborted || !talk?.pending.length || document.visibilityState !== "visible") continue;
      await this.attempt(async () => {
        const isNew = talk.progress(await this.home.transfers(talk.peer), hex);
        if (isNew && this.timeline.talk === talk) this.timeline.changed();
      });
    }
  }

  /** The draft has changed: tell the peer, but not with each letter. */
  typing() {
    const chat = this.chat(this.open);
    if (!(chat?.here || chat?.group) || Date.now() < this.typingToldAt + TYPING_EVERY_MS) return;
    this.typingToldAt = Date.now();
    this.attempt(() => this.home.typing(chat.id));
  }

  /** Fetch the people, and what is new with them. */
  async look() {
    this.chats = await this.home.chats();
    this.people.show(this.chats, this.open);
    this.frame.showCount(this.chats);
    this.tabs.news(this.chats);
    if (this.open) this.showOpen();
    this.requests = await this.home.requests();
    this.frame.showRequests(this.requests);
    const recent = this.chats.filter(isContact).sort(byNews);
    for (const chat of recent.slice(0, FOLLOWED_MAX)) this.watch(chat);
  }

  showOpen() {
    const chat = this.chat(this.open);
    this.frame.showChat(chat);
    const talk = this.talks.get(this.open);
    if (chat && talk && talk.isAccepted !== chat.accepted) {
      talk.isAccepted = chat.accepted;
      this.timeline.changed();
    }
  }

  chat(id) {
    return this.chats.find((chat) => chat.id === id);
  }

  /** Hear of what comes in any conversation, for the list. */
  watch(chat) {
    if (this.followed.has(chat.id)) return;
    this.followed.add(chat.id);
    const { gone } = this;
    this.attempt(async () => {
      for (let next = chat.tail; !gone.aborted; ) {
        const page = await this.home.follow(chat.stream, next, 100, gone);
        if (page.records.length) this.lookSoon();
        next = page.next;
      }
    }).finally(() => this.followed.delete(chat.id));
  }

  lookSoon() {
    clearTimeout(this.lookAlarm);
    this.lookAlarm = setTimeout(() => this.attempt(() => this.look()), NEWS_MS);
  }

  // The open conversation.

  async choose(id, { isByAddress = false } = {}) {
    const chat = this.chat(id);
    if (!chat) return;
    this.frame.goTo(chat, isByAddress);
    if (id === this.open) return;
    this.leave();
    this.open = id;
    const talk = this.talkOf(chat);
    talk.isAccepted = chat.accepted;
    if (chat.group) talk.names ??= {};
    this.people.show(this.chats, id);
    this.frame.showChat(chat);
    this.frame.openTalk(talk, chat);
    await this.attempt(() => this.load(talk, chat));
  }

  talkOf(chat) {
    if (!this.talks.has(chat.id)) {
      const talk = new Talk(chat.id, chat.stream);
      talk.images = new Images();
      this.talks.set(chat.id, talk);
    }
    return this.talks.get(chat.id);
  }

  /** The names of the members of a group, where an author has none yet. */
  async learnNames(talk) {
    const isNamed = ({ by }) => !by || talk.names[by];
    if (!talk.names || (talk.items.length && talk.items.every(isNamed))) return;
    const { group } = await this.home.chat(talk.peer);
    talk.names = group?.names ?? talk.names;
    if (this.open === talk.peer) this.timeline.changed();
  }

  async load(talk, chat) {
    if (!talk.isOpened) {
      await talk.open(this.home);
      const wanted = Math.min(chat.unread, UNREAD_SHOWN) + OPENED_MIN;
      await talk.older(this.home, wanted);
    }
    if (this.open !== chat.id) return;
    const isUnread = (item) => item.kind === "in" && item.sequence >= chat.read;
    const first = chat.unread ? talk.items.find(isUnread) : null;
    await this.learnNames(talk);
    if (this.open !== chat.id) return;
    this.timeline.open(talk, chat.name, first?.sequence ?? null);
    this.frame.showEmptiness(talk);
    this.frame.showLoading(false, talk.isPaused);
    this.follow(talk, chat);
  }

  async follow(talk, chat) {
    const stop = new AbortController();
    this.stopFollowing = () => stop.abort();
    this.gone?.addEventListener("abort", () => stop.abort());
    try {
      await talk.follow(this.home, stop.signal, (added) => this.heard(talk, chat, added));
    } catch (error) {
      if (isUnknown(error) && !stop.signal.aborted) {
        // Nobody said anything yet, so there is nothing to wait at.
        setTimeout(() => !stop.signal.aborted && this.follow(talk, chat), 1000);
      } else if (!(error instanceof Lost)) {
        throw error;
      }
    }
  }

  heard(talk, chat, added) {
    if (this.open !== chat.id) return;
    this.timeline.changed();
    this.attempt(() => this.learnNames(talk));
    this.frame.showEmptiness(talk);
    const news = added.filter(({ kind }) => kind !== "out");
    if (news.length) {
      const last = news.at(-1);
      const said = last.kind === "note" ? last.text : `${talk.nameOf(last, chat.name)}: ${last.text}`;
      announce(news.length === 1 ? said : `${count(news.length, "new message")}. ${said}`);
      this.frame.heard(news.length);
    }
    this.lookSoon();
  }

  leave() {
    this.stopFollowing?.();
    if (this.open) this.frame.keepDraft(this.talks.get(this.open));
    this.timeline.close();
    this.talks.get(this.open)?.images.clear();
    this.open = null;
  }

  async loadOlder() {
    const talk = this.talks.get(this.open);
    if (!talk || this.isLoading) return;
    this.isLoading = true;
    this.frame.showLoading(true);
    try {
      const added = await talk.older(this.home);
      if (this.timeline.talk === talk) this.timeline.prepended(added);
    } finally {
      this.isLoading = false;
      this.frame.showLoading(false, this.talks.get(this.open)?.isPaused);
    }
  }

  /** Records up to this one were in sight. */
  seen(sequence) {
    const chat = this.chat(this.open);
    const talk = this.talks.get(this.open);
    if (!chat || !talk) return;
    const last = talk.items.findLast((item) => item.kind === "in" && item.sequence <= sequence);
    if (!last || last.sequence < chat.read || last.sequence <= talk.marked) return;
    talk.marked = last.sequence;
    clearTimeout(this.seenAlarm);
    this.seenAlarm = setTimeout(() => this.attempt(() => this.mark(talk)), SEEN_MS);
  }

  async mark(talk) {
    await this.home.markRead(talk.peer, talk.marked);
    this.tabs.read();
    this.lookSoon();
  }

  // Writing.

  write(text) {
    // A peer that was removed meanwhile is in no list: the node refuses, and the person sees it.
    const talk = this.talks.get(this.open);
    if (!talk || !text.trim()) return false;
    const { answer } = talk;
    if (answer?.action === "edit" && text === answer.text) {
      this.endAnswer();
      return false;
    }
    this.say(talk, text, answer?.action, answer?.about);
    this.typingToldAt = 0;
    if (answer?.action !== "edit") this.timeline.toEnd();
    this.frame.showEmptiness(talk);
    if (answer) setTimeout(() => this.endAnswer());
    return true;
  }

  say(talk, text, action, about) {
    const uuid = hex(crypto.getRandomValues(new Uint8Array(16)));
    this.send(talk, talk.write(uuid, text, Date.now(), action, about));
  }

  // Files.

  attach(files) {
    const talk = this.talks.get(this.open);
    if (!talk) return;
    for (const file of [...files].slice(0, FILES_AT_ONCE)) {
      const uuid = hex(crypto.getRandomValues(new Uint8Array(16)));
      const item = talk.write(uuid, `file: ${file.name}`, Date.now());
      item.file = { name: file.name, size: file.size, type: file.type };
      item.source = file;
      item.uploaded = 0;
      this.send(talk, item);
    }
    this.timeline.toEnd();
    this.frame.showEmptiness(talk);
  }

  async upload(talk, item) {
    await sendFile(this.home, talk.peer, bytes(item.uuid), item.source, (done) => {
      item.uploaded = done;
      if (this.timeline.talk === talk) this.timeline.changed();
    });
  }

  /** Save the file of a message, or show it as an image. */
  async useFile(what, key) {
    const talk = this.talks.get(this.open);
    const item = talk?.byKey.get(key);
    if (!item?.file || item.fetched !== undefined) return;
    const changed = () => this.timeline.talk === talk && this.timeline.changed();
    item.fileError = "";
    item.fetched = 0;
    try {
      const parts = await fetchFile(this.home, talk.peer, item, (done) => {
        item.fetched = done;
        changed();
      });
      if (what === "save") save(parts, item.file.name);
      else if (this.timeline.talk === talk) await talk.images.add(key, parts);
    } catch (error) {
      if (error instanceof NotTaken) item.fileError = error.message;
      else if (error instanceof Refused) item.fileError = refusal(error.code);
      else if (error instanceof Lost) item.fileError = "The connection was lost. Try again.";
      else throw error;
      announce(item.fileError);
    } finally {
      delete item.fetched;
      changed();
    }
  }

  // Actions about a message.

  toggleMenu(key) {
    const talk = this.talks.get(this.open);
    talk.menu = talk.menu === key ? null : key;
    this.timeline.changed();
    const row = document.querySelector(`[data-menu="${key}"]`);
    (row?.closest("li").querySelector(".actions button") ?? row)?.focus();
  }

  closeMenu() {
    const key = this.talks.get(this.open)?.menu;
    if (!key) return false;
    this.toggleMenu(key);
    return true;
  }

  act(action, key, emoji) {
    const talk = this.talks.get(this.open);
    const item = talk?.byKey.get(key);
    if (!item) return;
    const { uuid } = item;
    talk.menu = null;
    this.timeline.changed();
    if (action === "copy") navigator.clipboard?.writeText(item.text);
    if (action === "reply" || action === "edit") this.answer(talk, action, item);
    if (action === "react") this.say(talk, emoji, "react", uuid);
    if (action === "unreact") this.say(talk, "", "unreact", uuid);
    if (action === "delete") this.say(talk, "", "delete", uuid);
  }

  answer(talk, action, item) {
    const quote = item.text.replaceAll(/\s+/g, " ").slice(0, QUOTED_CHARS);
    const draft = talk.answer?.action === "edit" ? talk.answer.draft : this.frame.draft.value;
    talk.answer = { action, about: item.uuid, quote, text: item.text, draft };
    this.frame.showAnswer(talk.answer);
    this.frame.compose(action === "edit" ? item.text : draft);
  }

  /** Gives false if there was none. */
  endAnswer() {
    const talk = this.talks.get(this.open);
    const answer = talk?.answer;
    if (!answer) return false;
    talk.answer = null;
    this.frame.showAnswer(null);
    if (answer.action === "edit") this.frame.compose(answer.draft);
    return true;
  }

  editLast() {
    const talk = this.talks.get(this.open);
    const last = talk?.items.findLast((item) => item.kind === "out" && !item.isDeleted);
    if (!last) return false;
    this.answer(talk, "edit", last);
    return true;
  }

  /** Under its uuid a message is the same, however often it is sent. */
  async send(talk, item) {
    item.state = "sending";
    try {
      if (item.file) {
        await this.upload(talk, item);
        this.lookSoon();
        return;
      }
      const about = item.about ? bytes(item.about) : null;
      await this.home.send(talk.peer, item.text, bytes(item.uuid), item.action, about);
      this.lookSoon();
    } catch (error) {
      if (!(error instanceof Refused || error instanceof NotTaken)) {
        if (!(error instanceof Lost)) throw error;
        return;
      }
      item.state = "failed";
      item.error = error instanceof NotTaken ? error.message : refusal(error.code);
      announce(`Not accepted. ${item.error}`);
      this.timeline.changed();
    }
  }

  sendAgain(talk) {
    talk.outbox.filter(({ state }) => state === "sending").forEach((item) => this.send(talk, item));
  }

  retry(uuid) {
    const talk = this.talks.get(this.open);
    const item = talk?.outbox.find((each) => each.uuid === uuid);
    if (item) {
      this.send(talk, item);
      this.timeline.changed();
    }
  }

  drop(uuid) {
    const talk = this.talks.get(this.open);
    const item = talk?.outbox.find((each) => each.uuid === uuid);
    if (item) {
      talk.outbox = talk.outbox.filter((each) => each !== item);
      if (!item.file && (!isChange(item) || item.action === "edit")) this.frame.takeBack(item.text);
      this.timeline.changed();
    }
  }

  // Sheets above the page.

  details() {
    if (this.chat(this.open)?.group) {
      this.attempt(() => showGroup(this.home, this.open, () => this.attempt(() => this.look())));
      return;
    }
    const changed = async (blocked) => {
      await this.attempt(() => this.look());
      if (!blocked || blocked !== this.open) return;
      this.leave();
      document.body.classList.remove("has-open");
      this.frame.showList();
    };
    this.attempt(async () => showPeer(this.home, await this.home.peer(this.open), changed));
  }

  ourselves() {
    this.attempt(async () => showOurselves(await this.home.who(), () => this.logOut()));
  }

  newGroup() {
    const contacts = this.chats.filter((chat) => isContact(chat) && !chat.group);
    newGroup(this.home, contacts, async (id) => {
      await this.attempt(() => this.look());
      this.choose(id);
    });
  }

  add() {
    addPeer(this.home, async (id) => {
      await this.attempt(() => this.look());
      this.choose(id);
    }, () => this.newGroup());
  }

  invite() {
    showInvites(this.home);
  }

  search() {
    showSearch(this.home, (id, sequence) => this.attempt(() => this.goTo(id, sequence)));
  }

  /** Show a message of any age. */
  async goTo(id, sequence) {
    await this.choose(id);
    const talk = this.talks.get(id);
    if (this.open !== id || !talk) return;
    await talk.back(this.home, sequence);
    if (this.open !== id) return;
    this.timeline.open(talk, this.chat(id).name, null);
    this.timeline.show(sequence);
  }

  answerRequests() {
    showRequests(this.home, this.requests, async (id) => {
      await this.attempt(() => this.look());
      if (id) this.choose(id);
      else if (this.requests.length) this.answerRequests();
    });
  }

  async logOut() {
    await login.end();
    this.home.close();
    location.reload();
  }

  get hasUnsent() {
    return [...this.talks.values()].some(({ outbox }) => outbox.length > 0);
  }
}

function hex(values) {
  return [...values].map((value) => value.toString(16).padStart(2, "0")).join("");
}

function bytes(text) {
  return Uint8Array.from(text.match(/../g), (digits) => parseInt(digits, 16));
}

const { token, isStale } = await login.session();
if (token) {
  new Page(token).run();
} else if (isStale) {
  Frame.showLogin("This link was used already or has expired. Ask your node for a new one:");
} else {
  Frame.showLogin("This page opens with a link from your node:");
}
