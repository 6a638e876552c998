// Flows: jobs that wait for other jobs. The list of a queue, and one flow with its steps.

import { ask, attempt } from "./dialogs.js";
import { badge, empty, facts, h, panel, show, write } from "./dom.js";
import { queueName } from "./envelope.js";
import { ago, count, escaped, exactly, moment, plain, plural, unescaped } from "./format.js";
import { explain, isDenied, isRefused, poll } from "./node.js";
import { Pages } from "./pages.js";
import { Table } from "./table.js";

const [SHOW, LIST, RETRY, CANCEL] = [37, 38, 39, 40];
const PAGE = 50;
const EVERY_MS = 3000;
const KINDS = { running: "info", blocked: "warn", done: "good", failed: "bad", cancelled: "" };
const STEP_KINDS = { waiting: "", pending: "info", queued: "info", done: "good", failed: "bad", skipped: "warn" };

export function flowsView(node, own) {
  const table = new Table(
    "Flows",
    [
      { title: "Flow", of: (row) => String(row.flow) },
      { title: "State", of: (row) => row.state },
      { title: "Steps that ended", of: (row) => `${count(row.ended)} of ${count(row.steps)}`, num: true },
      { title: "Put", of: (row) => moment(row.created), time: true },
    ],
    { key: (row) => String(row.flow), link: (row) => `#/flow/${escaped(own)}/${row.flow}`, none: empty("No flows.", "await queue.put_flow(chain(Step(fetch, url), Step(parse)))") },
  );
  const pages = new Pages("Pages of flows", async (after) => {
    const page = await node.jobs(own, LIST, { limit: PAGE, ...(after === null ? {} : { after }) });
    table.draw(page.flows);
    return { last: page.flows.at(-1)?.flow ?? null, more: page.more };
  });
  return {
    element: h("section", { class: "panel bare", "aria-label": "Flows" }, table.element, h("div", { class: "inside" }, pages.element)),
    draw: () => pages.again(),
  };
}

export function flow({ node, signal }, [part, number]) {
  const own = unescaped(part ?? "");
  const id = BigInt(/^[0-9]+$/.test(number ?? "") ? number : 0);
  const [head, status, about] = [h("div", { class: "row" }), h("p", { class: "hint", role: "status" }), h("div")];
  const rights = node.rights(own, signal);
  const table = new Table(
    "Steps",
    [
      { title: "Step", of: (row) => `${row.at + 1}` },
      { title: "State", of: (row) => badge(row.state, STEP_KINDS[row.state]) },
      { title: "Queue", of: (row) => queueName(row.channel) },
      { title: "Waits for", of: (row) => (row.after.length === 0 ? "" : row.after.map((at) => `${at + 1}`).join(", ")) },
      { title: "Then", of: (row) => row.before.map((at) => `${at + 1}`).join(", ") },
      { title: "Job", of: (row) => (row.job ? h("a", { href: `#/job/${escaped(row.channel)}/${row.job}` }, String(row.job)) : "") },
      { title: "Why", of: (row) => plain(row.reason ?? ""), wide: true },
    ],
    { key: (row) => String(row.at), none: empty("No steps.") },
  );
  const again = rights.gate(h("button", { type: "button", onclick: () => attempt(() => node.jobs(own, RETRY, { id }), "The failed steps are put again.") }, "Retry failed steps"), "ack");
  const cancel = rights.gate(h("button", {
    type: "button", class: "danger",
    onclick: () => ask({
      title: "Cancel this flow?", text: "Its jobs are removed, also those that run, and what waits is skipped.", action: "Cancel the flow", isDanger: true,
      work: () => node.jobs(own, CANCEL, { id }),
    }),
  }, "Cancel"), "ack");
  poll(signal, EVERY_MS, async () => {
    const found = await node.jobs(own, SHOW, { id });
    const steps = found.steps.map((step, at) => ({ after: [], ...step, at, before: [] }));
    for (const step of steps) for (const at of step.after) steps[at].before.push(step.at);
    show(head, badge(found.state, KINDS[found.state]));
    again.disabled = !["failed", "blocked"].includes(found.state);
    cancel.disabled = found.ended > 0;
    show(about, panel("About", {}, facts([
      ["Put", `${exactly(found.created)} (${ago(found.created)})`],
      found.ended ? ["Ended", `${exactly(found.ended)} (${ago(found.ended)})`] : null,
      ["Steps", plural(steps.length, "step")],
      ["Last", found.last.map((at) => `step ${at + 1}`).join(", ")],
    ])));
    table.draw(steps);
    write(status, "");
  }, (error) => {
    if (error === null) return;
    write(status, isRefused(error, 0x02) ? "The flow is not here any more: it ended a while ago." : isDenied(error) ? "To see a flow takes the right get in the queue." : explain(error));
  });
  const element = h("div", { class: "view" },
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Job queues"), " / ", h("a", { href: `#/queue/${escaped(own)}?tab=flows` }, queueName(own))),
    h("header", { class: "head" }, h("h1", {}, `Flow ${id}`), head, again, cancel), status, about,
    panel("Steps", { class: "panel bare" }, table.element));
  return { title: `Flow ${id}`, element };
}
