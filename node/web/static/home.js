// The user's own node: a reconnecting connection, and the requests to it.

import { Lost, PEERS, Refused, STREAM, code, connect } from "./p2p.js";

const CHANNEL = "millpond!chat";
const RETRY_MS = 500;
const RETRY_MS_MAX = 30_000;
const WAIT_MS = 50_000;
const TEXT = new TextEncoder();

/** Keeps the connection. `onState` hears {kind: "open" | "away" | "ended", retryAt}. */
export class Home {
  constructor(token, onState) {
    this.token = token;
    this.onState = onState;
    this.connection = null;
    this.nudge = () => {};
    window.addEventListener("online", () => this.tryNow());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") {
        this.connection?.look();
        this.tryNow();
      }
    });
  }

  /** Until the session ends: connect, call `atHome` with an AbortSignal that tells of the loss,
   *  and again. */
  async run(atHome) {
    for (let failures = 0; ; failures += 1) {
      try {
        this.connection = await connect(CHANNEL, this.token);
        failures = 0;
        const gone = new AbortController();
        this.onState({ kind: "open" });
        atHome(gone.signal);
        await this.connection.lost;
        gone.abort();
      } catch (error) {
        if (!(error instanceof Lost)) throw error;
        if (error.code === code.NOT_ALLOWED || error.code === code.AUTHENTICATION) {
          this.onState({ kind: "ended" });
          return;
        }
      }
      this.connection = null;
      await this.rest(Math.min(RETRY_MS * 2 ** failures, RETRY_MS_MAX) * (0.5 + Math.random() / 2));
    }
  }

  /** Do not wait for the next attempt. */
  tryNow() {
    this.nudge();
  }

  close() {
    this.connection?.close();
  }

  rest(ms) {
    this.onState({ kind: "away", retryAt: Date.now() + ms });
    return new Promise((resolve) => {
      const alarm = setTimeout(resolve, ms);
      this.nudge = () => {
        clearTimeout(alarm);
        resolve();
      };
    });
  }

  ask(type, operation, fields, signal) {
    const connection = this.connection;
    return connection
      ? connection.ask(type, operation, fields, signal)
      : Promise.reject(new Lost("not connected"));
  }

  // About peers: packets 94.

  who() {
    return this.ask(PEERS, 1, {});
  }

  async peer(id) {
    return (await this.ask(PEERS, 2, { peer: id })).peers[0];
  }

  addPeer(name, card) {
    return this.ask(PEERS, 3, { name, card });
  }

  /** The nodes on this network; null: the node does not look for them. */
  async discovered() {
    try {
      return (await this.ask(PEERS, 61, {})).nodes;
    } catch (error) {
      if (error instanceof Refused) return null;
      throw error;
    }
  }

  /** `action` is done to the message `about`; without one it is a message of its own. */
  send(peer, text, uuid, action, about) {
    const fields = { peer, text, uuid };
    return this.ask(PEERS, 7, action ? { ...fields, action, about } : fields);
  }

  // Files: see files.js.

  /** A file is to be sent in the message `uuid`: {next, error, is_sent}. */
  beginFile(peer, uuid, size, name, type) {
    return this.ask(PEERS, 50, { peer, uuid, size, name, type });
  }

  /** Gives the number of the next chunk. */
  async addChunks(peer, uuid, first, chunks) {
    return (await this.ask(PEERS, 51, { peer, uuid, first, chunks })).next;
  }

  finishFile(peer, uuid) {
    return this.ask(PEERS, 52, { peer, uuid });
  }

  async readFile(peer, sequence, first, count) {
    return (await this.ask(PEERS, 53, { peer, sequence, first, count })).chunks;
  }

  /** The files that are on their way: [{kind, uuid, done, chunks, stored, problem}]. */
  async transfers(peer) {
    return (await this.ask(PEERS, 54, { peer })).transfers;
  }

  /** One conversation, as in `chats`. */
  async chat(peer) {
    return (await this.ask(PEERS, 8, { peer })).chats[0];
  }

  /** Somebody writes to the peer at this moment. */
  typing(peer) {
    return this.ask(PEERS, 31, { peer });
  }

  /** Messages with words, in all conversations: {found, more, left_out}, the newest first. */
  async search(query, offset) {
    for (;;) {
      const answer = await this.ask(PEERS, 30, { query, offset });
      if (!answer.indexing) return answer;
    }
  }

  async chats() {
    return (await this.ask(PEERS, 8, {})).chats;
  }

  /** First messages of unknown senders, the oldest first. */
  async requests() {
    return (await this.ask(PEERS, 12, {})).requests;
  }

  acceptRequest(id, name) {
    return this.ask(PEERS, 13, { id, name });
  }

  refuseRequest(id, block) {
    return this.ask(PEERS, 14, { id, block });
  }

  /** A link that introduces its first holder: {link, error, until, reach, qr_size, qr_path}. */
  invite(name) {
    return this.ask(PEERS, 24, { name });
  }

  async invites() {
    return (await this.ask(PEERS, 25, {})).invites;
  }

  cancelInvite(name) {
    return this.ask(PEERS, 26, { name });
  }

  acceptInvite(link, name) {
    return this.ask(PEERS, 27, { link, name });
  }

  block(peer) {
    return this.ask(PEERS, 28, { peer });
  }

  /** Compare the safety number that the peer has told: {trust, error}. */
  verify(peer, number) {
    return this.ask(PEERS, 29, { peer, number });
  }

  newGroup(name, members) {
    return this.ask(PEERS, 40, { name, members });
  }

  group(group) {
    return this.ask(PEERS, 41, { group });
  }

  /** `change`: add, remove, admin, member, rename, leave or settle. */
  changeGroup(group, change, members, text) {
    return this.ask(PEERS, 42, { group, change, members, text });
  }

  answerGroup(group, accept) {
    return this.ask(PEERS, 43, { group, accept });
  }

  markRead(peer, sequence) {
    return this.ask(PEERS, 9, { peer, sequence });
  }

  // The history: packets 92.

  async describe(stream) {
    const { trim_point: start, tail } = await this.ask(STREAM, 4, { stream: TEXT.encode(stream) });
    return { start, tail };
  }

  /** Up to `count` records from `sequence` on: {records: [[sequence, bytes]], next, tail}. */
  async read(stream, sequence, count) {
    return flat(await this.ask(STREAM, 3, { stream: TEXT.encode(stream), sequence, count }));
  }

  /** The same, but waits for a record where there is none. */
  async follow(stream, sequence, count, signal) {
    const fields = { stream: TEXT.encode(stream), sequence, count, wait_ms: WAIT_MS };
    return flat(await this.ask(STREAM, 3, fields, signal));
  }
}

function flat({ spans, next, tail }) {
  const records = spans.flatMap(({ first, bodies }) =>
    bodies.map((body, place) => [first + place, body]),
  );
  return { records, next, tail };
}
