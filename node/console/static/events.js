// Events of the node as they come, the newest first.

import { badge, empty, h, panel, show } from "./dom.js";
import { exactly, moment, plain } from "./format.js";
import { explain, isDenied, poll } from "./node.js";
import { Table } from "./table.js";

const EVENTS = 12;
const SHOWN_MAX = 300;
const EVERY_MS = 2000;

export function events({ node, signal }) {
  const found = [];
  const [last, status] = [{ run: "", number: 0 }, h("p", { class: "hint", role: "status" })];
  const search = h("input", { type: "search", placeholder: "Filter, press /", "aria-label": "Filter events", autocomplete: "off", spellcheck: "false" });
  const table = new Table(
    "Events",
    [
      { title: "When", of: ({ at }) => h("time", { datetime: exactly(at * 1000) }, moment(at * 1000)), keep: true, time: true },
      { title: "Level", of: ({ level }) => badge(level, kindOf(level)), keep: true },
      { title: "Event", of: ({ event }) => plain(event) },
      { title: "Details", of: ({ fields }) => textOf(fields), wide: true },
    ],
    { key: ({ number }) => `${last.run}/${number}`, none: empty("No events.") },
  );
  const draw = () => {
    const wanted = search.value.toLowerCase();
    const shown = wanted === "" ? found : found.filter((each) => `${each.level} ${each.event} ${textOf(each.fields)}`.toLowerCase().includes(wanted));
    table.draw(shown.slice(0, SHOWN_MAX));
  };
  search.addEventListener("input", draw);
  const take = async () => {
    for (let more = true; more; ) {
      const page = await node.admin(EVENTS, { after: last.number, run: last.run });
      if (last.run !== "" && page.run !== last.run) found.length = 0;
      last.run = page.run;
      for (const each of page.events) {
        found.unshift(each);
        last.number = each.number;
      }
      more = page.more && page.events.length > 0;
    }
    found.length = Math.min(found.length, 1000);
    draw();
  };
  poll(signal, EVERY_MS, take, (error) => {
    show(status, error === null ? "" : isDenied(error) ? "Your token does not permit events: it needs the right admin." : explain(error));
  });
  const element = h("div", { class: "view" }, h("header", { class: "head" }, h("h1", {}, "Events"), search), status, panel("Events", { class: "panel bare" }, table.element));
  return { title: "Events", element };
}

function kindOf(level) {
  return { error: "bad", critical: "bad", warning: "warn" }[level] ?? "";
}

function textOf(fields) {
  return plain(Object.entries(fields).map(([field, value]) => `${field}=${value}`).join("  "));
}
