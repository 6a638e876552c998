// Schedules of a queue: what puts a job at each moment of a cron expression or an interval.

import { ask, attempt } from "./dialogs.js";
import { empty, h } from "./dom.js";
import { jobBytes, payloadOf, summary } from "./envelope.js";
import { count, duration, moment, name, raw } from "./format.js";
import { Pages } from "./pages.js";
import { Table } from "./table.js";

const [PUT, DROP, PAUSE, RUN, LIST] = [10, 11, 12, 13, 14];
const PAGE = 50;

export function schedulesView(node, own, rights) {
  const act = (title, right, operation, fields, done) => rights.gate(
    h("button", { type: "button", class: "quiet", onclick: () => attempt(() => node.jobs(own, operation, fields()), done).then(() => pages.again()) }, title), right);
  const table = new Table(
    "Schedules",
    [
      { title: "Name", of: (row) => name(row.name) },
      { title: "When", of: (row) => (row.cron ? `${name(row.cron)} ${name(row.zone ?? "")}` : `every ${duration(row.every / 1000)}`) },
      { title: "Next", of: (row) => (row.paused ? "paused" : row.next ? moment(row.next) : "never"), time: true },
      { title: "Last", of: (row) => (row.last ? moment(row.last) : "") + (row.refusal ? ` refused (${row.refusal.toString(16)})` : ""), time: true },
      { title: "Jobs", of: (row) => count(row.jobs), num: true },
      { title: "Job", of: (row) => summary(row.data), wide: true },
      {
        title: "Do",
        keep: true,
        of: (row) => h("span", { class: "row" },
          act("Run now", "put", RUN, () => ({ name: row.name, key: crypto.getRandomValues(new Uint32Array(1))[0], at: Date.now() }), "A job is put."),
          act("Pause", "ack", PAUSE, () => ({ name: row.name, paused: true }), "The schedule is paused."),
          act("Resume", "ack", PAUSE, () => ({ name: row.name, paused: false }), "The schedule goes on."),
          rights.gate(h("button", { type: "button", class: "quiet danger", onclick: () => ask({
            title: `Delete the schedule ${name(row.name)}?`, text: "No more jobs are put. Those that are there stay.", action: "Delete", isDanger: true,
            work: () => node.jobs(own, DROP, { name: row.name }),
          }).then(() => pages.again()) }, "Delete"), "ack")),
      },
    ],
    { key: (row) => name(row.name), none: empty("No schedules.") },
  );
  const pages = new Pages("Pages of schedules", async (after) => {
    const page = await node.jobs(own, LIST, { limit: PAGE, ...(after === null ? {} : { after }) });
    table.draw(page.schedules);
    return { last: page.schedules.at(-1)?.name ?? null, more: page.more };
  });
  const add = () => ask({
    title: "New schedule",
    fields: [
      { name: "name", label: "Name", isRequired: true },
      { name: "cron", label: "Cron expression", hint: "0 3 * * 1-5; or" },
      { name: "every", label: "Every so many seconds", kind: "number" },
      { name: "zone", label: "Time zone", value: Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC" },
      { name: "task", label: "Task", hint: "the name of the function, if the queue has several" },
      { name: "payload", label: "Payload, as JSON", kind: "area", value: "null" },
    ],
    action: "Add",
    work: ({ name: wanted, cron, every, zone, task, payload }) => {
      if ((cron.trim() === "") === (every === "")) throw new Error("Give a cron expression, or seconds.");
      const when = cron.trim() === "" ? { every: Math.round(Number(every) * 1000) } : { cron: cron.trim(), zone };
      return node.jobs(own, PUT, { name: raw(wanted), data: jobBytes(payloadOf(payload), task.trim()), ...when });
    },
  }).then((done) => done !== null && pages.again());
  const make = rights.gate(h("button", { type: "button", onclick: add }, "New schedule"), "put");
  return {
    element: h("section", { class: "panel bare", "aria-label": "Schedules" }, h("div", { class: "row inside" }, make), table.element, h("div", { class: "inside" }, pages.element)),
    draw: () => pages.again(),
  };
}
