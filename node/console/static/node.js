// The node behind the page: its session, and connections of the P2P protocol, one for questions about
// everything (`millpond!probe`), and one for each channel that is looked into.

import { ADMIN, JOBS, Lost, PEERS, Refused, STREAM, connect } from "./p2p.js";
import { Rights } from "./rights.js";

const PROBE = "millpond!probe";
const TEXT = new TextEncoder();
const AGENT = "millpond console";
const SESSION = "millpond.console";
const SECRET = /^#(mpc1\.[A-Za-z0-9_-]{20,})$/;
const REFUSED_LOGIN = [0xf5, 0xf6];
const RETRY_MS = [500, 1000, 2000, 5000];
const RIGHTS = 25;
const IDLE_MS = 15_000;
const WAIT_MS_MAX = 60_000;
/** The part of the node's time that lists of everything may take. */
export const HEAVY = 0.01;

const REASONS = {
  0x02: "There is no such message any more.",
  0x24: "That is too large.",
  0x26: "The channel, the stream or the node is full. Try again later.",
  0x27: "The answer is too large for this page.",
  0x28: "The job is not leased to this connection any more.",
  0x29: "The channel is not a queue.",
  0x2a: "It exists in another mode.",
  0x2b: "There is no such channel.",
  0x40: "There is a stream or a topic of this name.",
  0x41: "There is no such stream.",
  0x42: "The time lies before that of the last record.",
  0x43: "The requested records are trimmed.",
  0x44: "The stream has other records now.",
  0x45: "The stream is fenced by another writer.",
  0x46: "A partition belongs to its topic.",
  0x48: "There is no such peer.",
  0x4a: "The stream is closed.",
  0x50: "The state is larger than the node holds.",
  0xa0: "Too many requests. Try again in a moment.",
  0xe1: "The store cannot write, or this is damaged. The overview says why.",
  0xf0: "The node does not understand the request. It may be of an earlier version.",
  0xf2: "The node does not have that.",
  0xf6: "Your token has no right to do this.",
  0xfe: "The outcome is unknown: it was carried out, or not.",
};

/** An error in words. */
export function explain(error) {
  if (error instanceof Refused) {
    return REASONS[error.code] ?? `The node refused (code ${error.code.toString(16)}).`;
  }
  return error instanceof Lost ? "The connection to the node is lost." : String(error.message ?? error);
}

/** True for a refusal for lack of a right. */
export function isDenied(error) {
  return error instanceof Refused && error.code === 0xf6;
}

/** True for a refusal with this code. */
export function isRefused(error, code) {
  return error instanceof Refused && error.code === code;
}

/** Tells "open", "lost" and "denied" by events of these names. */
export class Node extends EventTarget {
  constructor() {
    super();
    this.token = sessionStorage.getItem(SESSION);
    this.isStale = false;
    /** The token that was refused last; null: there was none. */
    this.wasRefused = null;
    this.probe = null;
    this.channels = new Map();
    this.attempts = 0;
  }

  /** Use the link in the address, if there is one, and connect until the page is left. */
  async start() {
    const secret = SECRET.exec(location.hash)?.[1];
    if (secret) {
      // Out of the address at once, so that it is in no history and no bookmark.
      history.replaceState(null, "", location.pathname);
      const answer = await fetch("/millpond/console/login", { method: "POST", body: secret });
      this.isStale = !answer.ok;
      if (answer.ok) {
        this.keep((await answer.json()).token);
      }
    }
    await this.open();
  }

  keep(token) {
    this.token = token || null;
    if (this.token === null) {
      sessionStorage.removeItem(SESSION);
    } else {
      sessionStorage.setItem(SESSION, this.token);
    }
  }

  /** Log in with a token. */
  async logIn(token) {
    this.keep(token.trim());
    this.isStale = false;
    await this.open();
  }

  /** End the session, here and at the node. */
  async logOut() {
    const token = this.token;
    this.keep(null);
    this.probe?.close();
    if (token?.startsWith("mpc1.")) {
      await fetch("/millpond/console/logout", { method: "POST", body: token });
    }
    location.reload();
  }

  async open() {
    clearTimeout(this.retry);
    try {
      this.probe = await connect(PROBE, this.token, AGENT);
    } catch (error) {
      this.probe = null;
      if (REFUSED_LOGIN.includes(error.code)) {
        this.wasRefused = this.token;
        this.keep(null);
        this.dispatchEvent(new Event("denied"));
      } else {
        this.dispatchEvent(new Event("lost"));
        this.again();
      }
      return;
    }
    this.attempts = 0;
    this.probe.lost.then(() => {
      this.probe = null;
      this.dispatchEvent(new Event("lost"));
      this.again();
    });
    this.dispatchEvent(new Event("open"));
  }

  again() {
    const wait = RETRY_MS[Math.min(this.attempts, RETRY_MS.length - 1)];
    this.attempts += 1;
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), wait);
  }

  admin(operation, fields = {}) {
    return this.ask(ADMIN, operation, fields);
  }

  streams(operation, fields, signal) {
    return this.ask(STREAM, operation, fields, signal);
  }

  peers(operation, fields = {}) {
    return this.ask(PEERS, operation, fields);
  }

  /** The rights of the page in a channel; without a name: in the one that stands for the node. */
  rights(channel = TEXT.encode(PROBE)) {
    return new Rights(this.admin(RIGHTS, { channels: [channel] }).then(({ rights: [names] }) => new Set(names)));
  }

  ask(type, operation, fields, signal) {
    if (this.probe === null) {
      return Promise.reject(new Lost("not connected"));
    }
    return this.probe.ask(type, operation, fields, signal);
  }

  /** A question about jobs in a queue. */
  async jobs(queue, operation, fields = {}) {
    return (await this.channel(queue)).ask(JOBS, operation, fields);
  }

  /** A connection to a channel, to which nothing is pushed. It ends when it is not used for a while. */
  async channel(nameOfChannel) {
    const key = Array.from(nameOfChannel).join();
    let entry = this.channels.get(key);
    if (entry === undefined) {
      const opening = connect(nameOfChannel, this.token, AGENT);
      entry = { opening, timer: 0 };
      this.channels.set(key, entry);
      opening.then((found) => found.lost.then(() => this.forget(key, entry)), () => this.forget(key, entry));
    }
    clearTimeout(entry.timer);
    entry.timer = setTimeout(() => {
      this.forget(key, entry);
      entry.opening.then((found) => found.close(), () => {});
    }, IDLE_MS);
    try {
      return await entry.opening;
    } catch (error) {
      throw REFUSED_LOGIN.includes(error.code) ? new Refused(0xf6) : error;
    }
  }

  forget(key, entry) {
    clearTimeout(entry.timer);
    if (this.channels.get(key) === entry) {
      this.channels.delete(key);
    }
  }
}

/** Do something every `ms` until the signal, and not while the page is hidden. `told` gets errors, and
 *  null when it went well. `share`: what takes long is done so rarely that it takes a part of the time. */
export function poll(signal, ms, work, told = () => {}, share = 0) {
  let timer = 0;
  const run = async () => {
    if (signal.aborted) return;
    const began = performance.now();
    let wait = ms;
    if (!document.hidden) {
      try {
        await work();
        told(null);
        if (share > 0) wait = Math.max(ms, Math.min(WAIT_MS_MAX, (performance.now() - began) / share));
      } catch (error) {
        if (!signal.aborted) told(error);
      }
    }
    if (!signal.aborted) timer = setTimeout(run, wait);
  };
  const look = () => {
    if (!document.hidden) {
      clearTimeout(timer);
      run();
    }
  };
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  run();
}
