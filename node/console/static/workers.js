// The workers of a queue: names, what each has, since when, and how far it got.

import { empty, h, show } from "./dom.js";
import { record, summary } from "./envelope.js";
import { ago, count, escaped, name, percent, plain, plural } from "./format.js";
import { Table } from "./table.js";

const [RESULT, WORKERS] = [35, 22];
const PAGE = 50;
/** Of so many jobs the progress is asked for. */
const PROGRESS_MAX = 40;

/** The report of a job, on one line. */
export function progressText(found) {
  if (found === null || found === undefined) return "";
  const { p: value, t: text } = found;
  const part = typeof value === "number" && value >= 0 && value <= 1 ? percent(value) : value === null || value === undefined ? "" : String(value);
  return plain([part, text ?? ""].filter((each) => each !== "").join(", ")).slice(0, 200);
}

export function workersView(node, own) {
  const table = new Table(
    "Workers",
    [
      { title: "Name", of: (row) => (row.name.length > 0 ? name(row.name) : `connection ${row.connection}`) },
      { title: "Connection", of: (row) => `#${row.connection}`, num: true },
      { title: "Has", of: (row) => `${count(row.held)} of ${count(row.window)}`, num: true },
      { title: "State", of: (row) => (row.takes ? (row.held > 0 ? "works" : "waits for jobs") : "takes no more") },
    ],
    { key: (row) => String(row.connection), none: empty("No worker is connected.", "millpond work module:function --queue NAME") },
  );
  const jobs = new Table(
    "Jobs that workers have",
    [
      { title: "Id", of: (row) => String(row.id) },
      { title: "Worker", of: (row) => row.worker },
      { title: "Since", of: (row) => ago(row.since) },
      { title: "Attempt", of: (row) => count(row.attempt), num: true },
      { title: "State", of: (row) => (row.begun ? "runs" : "waits in the worker") },
      { title: "Progress", of: (row) => row.progress, wide: true },
      { title: "Job", of: (row) => summary(row.data), wide: true },
    ],
    { key: (row) => String(row.id), link: (row) => `#/job/${escaped(own)}/${row.id}`, none: empty("No job runs.") },
  );
  const more = h("p", { class: "hint", role: "status" });
  return {
    element: h("div", { class: "view" },
      h("section", { class: "panel bare", "aria-label": "Workers" }, table.element),
      h("section", { class: "panel bare", "aria-label": "Jobs that workers have" }, jobs.element, more)),
    draw: async () => {
      const found = await node.jobs(own, WORKERS, { limit: PAGE });
      table.draw(found.workers);
      const rows = found.workers.flatMap((worker) =>
        worker.jobs.map((job) => ({ ...job, worker: worker.name?.length > 0 ? name(worker.name) : `connection ${worker.connection}`, progress: "" })));
      await Promise.all(rows.slice(0, PROGRESS_MAX).map(async (row) => {
        try {
          row.progress = progressText(record((await node.jobs(own, RESULT, { id: row.id })).data));
        } catch {
          // It has ended, or the token may not see it.
        }
      }));
      jobs.draw(rows);
      const rest = found.workers.reduce((sum, { held, jobs: shown }) => sum + held - shown.length, 0);
      show(more, found.more ? `Only the first ${PAGE} workers are shown.` : rest > 0 ? `${plural(rest, "job")} more are not shown.` : "");
    },
  };
}
