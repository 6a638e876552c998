// Samples of the node's counters, and the rates, latencies and durations between two of them.

import { POINTS } from "./charts.js";
import { duration, rate } from "./format.js";

const OVERVIEW = 17;
export const DISK = ["commit", "sync"];

/** The charts of one queue, or of all, over `jobRates`. */
export const JOB_CHARTS = [
  ["Jobs", rate, [["put", "put"], ["done", "done"], ["failed", "failed"]]],
  ["Attempts take", duration, [["half", "median"], ["99 %", "slow"]]],
];

/** Samples of the node, and what they say of the time between them. */
export class Sampler extends EventTarget {
  constructor(node) {
    super();
    this.node = node;
    this.last = null;
    this.points = [];
    /** The traffic of peers' connections, by their ids. */
    this.peers = new Map();
  }

  async take() {
    const sample = await this.node.admin(OVERVIEW);
    const before = this.last;
    this.last = sample;
    this.error = null;
    this.peers = new Map((sample.peers ?? []).map((each) => [each.id, { ...each, at: sample.at, rate: rateOf(each, this.peers.get(each.id), sample.at) }]));
    // Counters of another run begin anew.
    if (before !== null && sample.at > before.at && sample.uptime_s >= before.uptime_s) {
      this.points.push({ at: Date.now(), ...between(before, sample) });
      this.points.splice(0, this.points.length - POINTS);
    }
    this.dispatchEvent(new Event("sample"));
  }

  failed(error) {
    this.error = error;
    this.dispatchEvent(new Event("sample"));
  }
}

/** Bytes a second of a peer; null: not known yet, or a connection has closed meanwhile. */
function rateOf(peer, before, at) {
  return before === undefined || at <= before.at || peer.bytes < before.bytes ? null : (peer.bytes - before.bytes) / (at - before.at);
}

/** Rates, latencies and sizes between two samples. */
function between(before, now) {
  const seconds = now.at - before.at;
  const of = (counter) => ((now.counters[counter] ?? 0) - (before.counters[counter] ?? 0)) / seconds;
  const protocols = Object.keys(now.latencies).filter((each) => !DISK.includes(each));
  const requests = (each) => of(`${each}_requests`);
  const answered = sums(protocols.map((each) => rises(before.latencies[each], now.latencies[each])));
  const commits = rises(before.latencies.commit, now.latencies.commit);
  return {
    kept: of("kept"),
    acks: of("acks"),
    appended: of("appended"),
    requests: protocols.reduce((sum, each) => sum + requests(each), 0),
    median: quantile(answered, now.bounds, 0.5),
    slow: quantile(answered, now.bounds, 0.99),
    commit: quantile(commits, now.bounds, 0.99),
    written: of("written_bytes"),
    jobs: jobRates(before.jobs, now.jobs, seconds),
    cpu: (now.cpu_s - before.cpu_s) / seconds,
    rss: now.memory.rss,
    protocols: Object.fromEntries(
      protocols.map((each) => {
        const counts = rises(before.latencies[each], now.latencies[each]);
        return [each, { requests: requests(each), slow: quantile(counts, now.bounds, 0.99) }];
      }),
    ),
  };
}

function rises(before, now) {
  return now === undefined ? [] : now.map((value, at) => value - (before?.[at] ?? 0));
}

function sums(lists) {
  return lists.reduce((all, each) => each.map((value, at) => value + (all[at] ?? 0)), []);
}

/** The value below which this part of all is, by the upper bounds of their classes; null of none. */
function quantile(counts, bounds, part) {
  const all = counts.reduce((sum, value) => sum + value, 0);
  if (all === 0) return null;
  let left = all * part;
  for (let at = 0; at < counts.length; at += 1) {
    if (left <= counts[at]) {
      const [low, high] = [at === 0 ? 0 : bounds[at - 1], bounds[at] ?? bounds.at(-1)];
      return low + ((high - low) * left) / counts[at];
    }
    left -= counts[at];
  }
  return bounds.at(-1);
}

/** Rates and durations of a queue, or of all queues, in the seconds between two counts; null where a node counts none. */
export function jobRates(before, now, seconds) {
  if (!before || !now) return null;
  const of = (field) => Math.max(0, now[field] - before[field]) / seconds;
  const ended = rises(before.durations, now.durations);
  return { put: of("put"), done: of("done"), failed: of("failed") + of("lost"), median: quantile(ended, now.bounds, 0.5), slow: quantile(ended, now.bounds, 0.99) };
}

/** Points of one queue, from its counts as they are asked for. */
export class QueueSampler {
  constructor() {
    this.before = null;
    this.points = [];
  }

  take(stats) {
    const now = { at: performance.now(), stats };
    const { before } = this;
    this.before = now;
    // Counters of another run of the node begin anew.
    if (!stats || !before?.stats || stats.put < before.stats.put || now.at - before.at < 500) return;
    this.points.push({ at: Date.now(), ...jobRates(before.stats, stats, (now.at - before.at) / 1000) });
    this.points.splice(0, this.points.length - POINTS);
  }
}
