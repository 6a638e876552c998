// A conversation: records of its stream in, items to display out.
//
// An accepted invite is a note with a state.
// An item is {key, kind: "out" | "in" | "note", sequence, uuid, text, at, sentAt, state, late}, and
// of a message as it is now: {action, about, isEdited, isDeleted, reactions: [{kind, text}]}.
// In a group `by` is the id of the author, and `told` {count, delivered, read} of a message from here.
// A peer chooses the uuids of its messages: one may be that of a message from here, or of an invite.
// Edits, deletions and reactions are records about a message, which may be in an older page.
// A message with a file has {file: {name, size, type}, transfer: {state, reason}} and, while that is
// on its way, {progress: {done, problem}}. In a group one from here has {recipients}, their number,
// and {fileTold: {received, refused}}: how many of them have it, or do not take it.
// A message from here that is not in the stream yet is an item of the outbox, without a sequence.

import { Refused, code } from "./p2p.js";

const PAGE_RECORDS = 200;
const BACK_RECORDS = 1000;
const PAGE_ITEMS = 60;
const LIVE_RECORDS = 500;
// So many records are read back at once; a history of changes alone has few messages in them.
const LOOKED_RECORDS = 5000;
const UUID = /^([0-9a-f]{32})?$/;
const REACTION_BYTES_MAX = 64;
const UTF8 = new TextDecoder();
const BYTES = new TextEncoder();
const CHANGES = new Set(["edit", "delete", "react", "unreact"]);
const ENDED = new Set(["received", "refused", "expired"]);
const RANKS = ["waiting", "kept", "sent", "expired", "refused", "delivered", "read"];

export class Talk {
  /** `stream` in bytes. */
  constructor(peer, stream) {
    this.peer = peer;
    this.stream = stream;
    this.items = [];
    this.outbox = [];
    this.states = new Map();
    this.transfers = new Map();
    this.fileTold = new Map();
    this.byKey = new Map();
    this.keys = new Map();
    this.told = new Map();
    this.names = null;
    this.reading = Promise.resolve();
    this.changes = new Map();
    this.answer = null;
    this.menu = null;
    this.start = 0;
    this.first = 0;
    this.next = null;
    this.marked = -1;
    this.draft = "";
    this.isAccepted = true;
    this.isPaused = false;
  }

  /** Everything there is to show, oldest first. */
  get shown() {
    const unsent = this.outbox.filter((item) => !isChange(item) || item.state === "failed");
    return unsent.length ? [...this.items, ...unsent] : this.items;
  }

  get hasOlder() {
    return this.first > this.start;
  }

  get isOpened() {
    return this.next !== null;
  }

  /** Begin at the end of the stream. */
  async open(home) {
    try {
      const { start, tail } = await home.describe(this.stream);
      this.start = start;
      this.first = this.next = tail;
    } catch (error) {
      if (!isUnknown(error)) throw error;
      this.start = this.first = this.next = 0;
    }
  }

  /** Read backwards until there is a page more to show, or nothing left; gives how many items.
   *  After LOOKED_RECORDS it pauses. */
  older(home, wanted = PAGE_ITEMS) {
    return this.alone(async () => {
      let added = 0;
      let looked = 0;
      for (; this.hasOlder && added < wanted && looked < LOOKED_RECORDS; looked += PAGE_RECORDS) {
        added += await this.readBack(home, PAGE_RECORDS);
      }
      this.isPaused = this.hasOlder && added < wanted;
      return added;
    });
  }

  /** Read backwards until this record is there. */
  back(home, sequence) {
    return this.alone(async () => {
      while (this.hasOlder && this.first > sequence) await this.readBack(home, BACK_RECORDS);
    });
  }

  /** Run `work` behind the work that reads backwards already: each begins where the other ends. */
  alone(work) {
    const done = this.reading.then(work);
    this.reading = done.catch(() => {});
    return done;
  }

  async readBack(home, count) {
    const from = Math.max(this.start, this.first - count);
    const items = this.fold(await this.between(home, from, this.first));
    this.first = from;
    this.items.unshift(...items);
    return items.length;
  }

  async between(home, from, to) {
    const records = [];
    for (let place = from; place < to; ) {
      const page = await home.read(this.stream, place, to - place);
      records.push(...page.records.filter(([sequence]) => sequence < to));
      if (!page.records.length) break;
      place = page.next;
    }
    return records;
  }

  /** Wait for what comes; calls `heard` with the new items, until `signal` is aborted. */
  async follow(home, signal, heard) {
    while (!signal.aborted) {
      const page = await home.follow(this.stream, this.next, LIVE_RECORDS, signal);
      if (signal.aborted) return;
      const added = this.fold(page.records);
      this.items.push(...added);
      this.next = Math.max(this.next, page.next);
      if (page.records.length) heard(added);
    }
  }

  /** Something was written. `action` is done to the message `about`. */
  write(uuid, text, at, action = "", about = "") {
    const item = { key: uuid, kind: "out", uuid, text, at, action, about, state: "sending" };
    this.outbox.push(item);
    return item;
  }

  /** The sequence up to which everything is known. */
  get last() {
    return (this.next ?? 0) - 1;
  }

  fold(records) {
    const added = [];
    for (const [sequence, body] of records) {
      const record = parse(body);
      if (record?.kind === "held" || (record?.kind === "state" && record.by)) {
        continue; // for the node alone
      } else if (record?.kind === "state" && this.names) {
        this.tellMembers(record);
      } else if (record?.kind === "state") {
        this.tell(record.uuid, record.state);
      } else if (record?.kind === "file-in" || record?.kind === "file-out") {
        this.tellFile(record);
      } else if (record && isChange(record)) {
        this.outbox = this.outbox.filter((each) => each.uuid !== record.uuid);
        this.change(record, sequence);
      } else if (record && !this.byKey.has(keyOf(record, sequence))) {
        added.push(this.learn(record, sequence));
      }
    }
    return added;
  }

  learn(record, sequence) {
    const { kind, uuid, text = "", at, sent_at: sentAt, late = false } = record;
    const key = keyOf(record, sequence);
    const { action = "", about = "", by = "" } = record;
    const item = { key, kind, by, sequence, uuid, text, at, sentAt, late, action, about };
    if (isFile(record.file)) {
      item.file = record.file;
      item.transfer = this.transfers.get(key) ?? null;
      item.recipients = Array.isArray(record.members) ? record.members.length : 0;
      if (this.fileTold.has(key)) item.fileTold = fileCounts(this.fileTold.get(key));
    }
    if (kind === "out") {
      this.outbox = this.outbox.filter((each) => each.uuid !== uuid);
      item.state = this.states.get(uuid) ?? record.state ?? "waiting";
    }
    if (kind === "invite") {
      item.kind = "note";
      item.isInvite = true;
      item.state = this.states.get(uuid) ?? record.state ?? "waiting";
    }
    if (this.names && kind === "out") this.showMembers(item);
    this.byKey.set(key, item);
    if (uuid) this.keys.set(uuid, [...(this.keys.get(uuid) ?? []), key]);
    this.apply(item);
    return item;
  }

  /** A record about another message; those of older pages come later, and change less. */
  change({ kind, by, action, about, text, line = "", n = 0 }, sequence) {
    if (!this.changes.has(about)) this.changes.set(about, new Map());
    const authors = this.changes.get(about);
    const author = by || kind;
    if (!authors.has(author)) authors.set(author, {});
    const changed = authors.get(author);
    const order = { line, n, sequence };
    if (action === "delete") {
      changed.isDeleted = true;
    } else if (action === "edit") {
      if (isLater(order, changed.edit)) changed.edit = { text, ...order };
    } else if (isLater(order, changed.reaction)) {
      changed.reaction = { text: action === "react" ? text : null, ...order };
    }
    for (const key of this.keys.get(about) ?? []) {
      const item = this.byKey.get(key);
      if (item) this.apply(item);
    }
  }

  /** The message with this uuid, one from here first. */
  named(uuid) {
    const [first] = this.keys.get(uuid) ?? [];
    return this.byKey.get(uuid) ?? this.byKey.get(first);
  }

  /** Only its author edits or deletes a message; nobody changes anything else. */
  apply(item) {
    const changes = this.changes.get(item.uuid);
    if (!changes) return;
    const { edit, isDeleted } = changes.get(item.by || item.kind) ?? {};
    item.isDeleted = Boolean(isDeleted);
    item.isEdited = Boolean(edit) && !isDeleted;
    if (edit) item.text = edit.text;
    if (isDeleted) item.text = "";
    const authors = isDeleted ? [] : [...changes];
    item.reactions = authors
      .filter(([, { reaction }]) => reaction?.text)
      .map(([by, { reaction }]) => ({ kind: by === "out" ? by : "in", by, text: reaction.text }));
  }

  /** The beginning of the message that an item answers. */
  quote(item) {
    if (item.action !== "reply" || !item.about) return null;
    const told = this.named(item.about);
    if (!told) return { kind: null, text: "An earlier message" };
    return { kind: told.kind, by: told.by, text: told.isDeleted ? "Message deleted" : told.text };
  }

  /** The name of the author of an item; `name` is that of the conversation. */
  nameOf({ by }, name) {
    return by && this.names ? (this.names[by] ?? by.slice(0, 8)) : name;
  }

  tellMembers({ uuid, state, members = [], count = 0 }) {
    if (state === "waiting") return;
    const told = this.told.get(uuid) ?? { count: 0, delivered: new Set(), read: new Set(), isLost: false };
    this.told.set(uuid, told);
    told.count = Math.max(told.count, count);
    told.isLost ||= state === "expired";
    for (const member of state === "delivered" || state === "read" ? members : []) {
      told.delivered.add(member);
      if (state === "read") told.read.add(member);
    }
    const item = this.byKey.get(uuid);
    if (item) this.showMembers(item);
  }

  /** The state of a message from here, by what members say. */
  showMembers(item) {
    const told = this.told.get(item.uuid);
    if (!told) return;
    item.told = { ...told };
    const { count, delivered, read, isLost } = told;
    if (isLost) item.state = "expired";
    else if (count && read.size >= count) item.state = "read";
    else item.state = count && delivered.size >= count ? "delivered" : "sent";
  }

  /** The file of a message has a new state; of an older page, it may be no news. */
  tellFile({ kind, uuid, by = "", transfer, text = "", at, members = [] }) {
    const key = keyOf({ kind: kind === "file-in" ? "in" : "out", uuid, by });
    if (members.length) {
      this.tellFileOfMembers(key, transfer, members);
      return;
    }
    if ((this.transfers.get(key)?.at ?? -1) > at) return;
    this.transfers.set(key, { state: transfer, reason: text, at });
    const item = this.byKey.get(key);
    if (item) item.transfer = this.transfers.get(key);
  }

  /** Members of a group have a file from here, or do not take it. */
  tellFileOfMembers(key, transfer, members) {
    const told = this.fileTold.get(key) ?? { received: new Set(), refused: new Set() };
    this.fileTold.set(key, told);
    for (const member of members) told[transfer]?.add(member);
    const item = this.byKey.get(key);
    if (item) item.fileTold = fileCounts(told);
  }

  /** Files that are on their way. */
  get pending() {
    return this.items.filter(
      ({ file, transfer, isDeleted }) => file && !isDeleted && !ENDED.has(transfer?.state),
    );
  }

  /** Learn how far transfers are; gives whether anything is new. */
  progress(transfers, hex) {
    let isNew = false;
    for (const { kind, uuid, by, done, chunks, problem, stored } of transfers) {
      const item = this.byKey.get(keyOf({ kind, uuid: hex(uuid), by }));
      if (!item?.file) continue;
      const progress = { done: stored ? 1 : done / chunks, problem };
      isNew ||= JSON.stringify(progress) !== JSON.stringify(item.progress);
      item.progress = progress;
    }
    return isNew;
  }

  tell(uuid, state) {
    const rank = RANKS.indexOf(state);
    if (rank <= RANKS.indexOf(this.states.get(uuid))) return;
    this.states.set(uuid, state);
    const item = this.byKey.get(uuid);
    if (item && rank > RANKS.indexOf(item.state)) item.state = state;
  }
}

function fileCounts({ received, refused }) {
  return { received: received.size, refused: refused.size };
}

function isFile(file) {
  return typeof file?.name === "string" && Number.isSafeInteger(file.size) && file.size >= 0;
}

/** True for what changes another message, and is none itself. */
export function isChange({ kind, action, about, text = "" }) {
  const isMessage = kind === "in" || kind === "out";
  const isTooLong = action === "react" && BYTES.encode(text).length > REACTION_BYTES_MAX;
  return isMessage && Boolean(about) && CHANGES.has(action) && !isTooLong;
}

/** True if a change counts and `than` no more: within a line of messages by its number, as some
 *  arrive late; else by its record. */
function isLater(change, than) {
  if (!than) return true;
  if (change.line === than.line && change.n !== than.n) return change.n > than.n;
  return change.sequence > than.sequence;
}

/** Is the stream not there, as nothing was said yet? */
export function isUnknown(error) {
  return error instanceof Refused && error.code === code.UNKNOWN_STREAM;
}

function keyOf(record, sequence) {
  if (record.kind === "note" || !record.uuid) return `#${sequence}`;
  if (record.kind !== "in") return record.uuid;
  return record.by ? `in ${record.by} ${record.uuid}` : `in ${record.uuid}`;
}

/** The record of a body; null where it cannot be read: the node passes over such records, too. */
function parse(body) {
  try {
    const record = JSON.parse(UTF8.decode(body));
    const isRecord = record?.v === 1 && typeof record.kind === "string";
    return isRecord && UUID.test(record.uuid ?? "") ? record : null;
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}
