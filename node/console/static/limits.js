// Limits of a queue: how many jobs run at once, how often one starts, and how priorities age.

import { ask } from "./dialogs.js";
import { facts, h, panel, show } from "./dom.js";
import { count, duration } from "./format.js";

const [SHOW_QUEUE, SET_QUEUE] = [20, 21];
const UNITS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A rate as the command line writes it: 100/m. */
function rateText(rate) {
  if (!rate || rate.count === 0) return "";
  const unit = Object.entries(UNITS).find(([, period]) => period === rate.period)?.[0] ?? `${rate.period / 1000}s`;
  return `${rate.count}/${unit}`;
}

/** The rate that somebody typed; throws for what is none. */
function rateOf(text) {
  const typed = text.trim();
  if (typed === "" || typed === "0") return { count: 0 };
  const found = /^(\d+)\s*\/\s*(\d+(?:\.\d+)?)?\s*([smhd])$/.exec(typed);
  if (found === null) throw new Error("A rate is like 100/m, 5/s or 20/10s.");
  return { count: Number(found[1]), period: Math.round(Number(found[2] ?? 1) * UNITS[found[3]]) };
}

const words = (rate) => {
  const text = rateText(rate);
  if (text === "") return "no limit";
  return rate.burst ? `${text}, up to ${count(rate.burst)} at once` : text;
};
const most = (number) => (number === 0 ? "no limit" : `${count(number)} at once`);

export function limitsView(node, own, rights) {
  const body = h("div");
  let now = null;
  const change = () => ask({
    title: "Limits of the queue",
    text: "They hold for all workers together. Empty is no limit.",
    fields: [
      { name: "concurrency", label: "Jobs that run at once", kind: "number", value: String(now.concurrency || "") },
      { name: "rate", label: "Jobs that start", value: rateText(now.rate), hint: "100/m, 5/s, 20/10s" },
      { name: "burst", label: "Of these at once", kind: "number", value: String(now.rate?.burst || ""), hint: "empty: as many as the rate has" },
      { name: "keyConcurrency", label: "With one limit key, at once", kind: "number", value: String(now.key_concurrency || "") },
      { name: "keyRate", label: "With one limit key, that start", value: rateText(now.key_rate) },
      { name: "ageing", label: "Seconds that are worth one priority", kind: "number", value: String(now.ageing / 1000), hint: "0: waiting does not help" },
    ],
    action: "Set",
    work: async (typed) => {
      const rate = { ...rateOf(typed.rate), ...(typed.burst === "" ? {} : { burst: Number(typed.burst) }) };
      now = await node.jobs(own, SET_QUEUE, {
        concurrency: Number(typed.concurrency), rate, key_concurrency: Number(typed.keyConcurrency), key_rate: rateOf(typed.keyRate),
        ageing: Math.round(Number(typed.ageing) * 1000),
      });
      write(now);
    },
  });
  const write = (found) => {
    now = found;
    button.disabled = false;
    show(body, facts([
      ["Jobs that run at once", most(found.concurrency)],
      ["Jobs that start", words(found.rate)],
      ["With one limit key, at once", most(found.key_concurrency)],
      ["With one limit key, that start", words(found.key_rate)],
      ["Priorities", found.ageing === 0 ? "waiting does not raise them" : `${duration(found.ageing / 1000)} of waiting count as one more`],
    ]));
  };
  const button = rights.gate(h("button", { type: "button", disabled: true, onclick: change }, "Change"), "ack");
  return {
    element: panel("Limits and priorities", {}, body, h("div", { class: "row end" }, button)),
    draw: async () => write(await node.jobs(own, SHOW_QUEUE)),
  };
}
