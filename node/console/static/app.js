// The frame of the console: menu, status, login, and the view that the address names.

import { channel, channels } from "./channels.js";
import { announce, byId, h, show, write } from "./dom.js";
import { events } from "./events.js";
import { flow } from "./flows.js";
import { job } from "./job.js";
import { queue, queues } from "./jobs.js";
import { Node, explain, poll } from "./node.js";
import { overview } from "./overview.js";
import { peer, peers } from "./peers.js";
import { replica } from "./replica.js";
import { Sampler } from "./samples.js";
import { stream, streams } from "./streams.js";

const SAMPLE_MS = 2000;
const SECTIONS = [
  ["", "Overview", overview],
  ["channels", "Channels", channels],
  ["streams", "Streams", streams],
  ["jobs", "Jobs", queues],
  ["peers", "Peers", peers],
  ["replica", "Replica", replica],
  ["events", "Events", events],
];
const VIEWS = { ...Object.fromEntries(SECTIONS.map(([path, , view]) => [path, view])), channel, stream, queue, job, flow, peer };
const PARENTS = { channel: "channels", stream: "streams", queue: "jobs", job: "jobs", flow: "jobs", peer: "peers" };

const node = new Node();
const sampler = new Sampler(node);
let leaving = new AbortController();
let session = new AbortController();

/** The parts of the address behind `#/`. */
function place() {
  return location.hash.replace(/^#\/?/, "").split("?")[0].split("/");
}

/** Show the view that the address names; `moved`: a person went there. */
function route(moved) {
  leaving.abort();
  leaving = new AbortController();
  if (document.body.dataset.state === "denied") return;
  const [path, ...rest] = place();
  const view = VIEWS[path] ?? overview;
  const main = byId("main");
  const context = { node, sampler, signal: leaving.signal, main, query: new URLSearchParams(location.hash.split("?")[1]) };
  document.querySelector("dialog")?.remove();
  const { title, element } = view(context, rest);
  document.title = `${title} · Millpond`;
  show(main, element);
  for (const link of document.querySelectorAll("#menu a")) {
    const isHere = link.dataset.path === (PARENTS[path] ?? path);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (moved) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

function state(name, text) {
  document.body.dataset.state = name;
  write(byId("status-text"), text);
}

/** Why there is a login, if something was tried. */
function whyOf() {
  if (node.isStale) return "This link was used already, or has expired.";
  if (node.wasRefused === null) return "";
  return node.wasRefused.startsWith("mpc1.") ? "Your session has ended." : "The node does not know this token.";
}

function logIn() {
  state("denied", "Not logged in");
  leaving.abort();
  session.abort();
  const field = h("input", { type: "password", name: "token", required: true, autocomplete: "off", spellcheck: "false", id: "token" });
  const form = h(
    "form",
    {
      class: "panel login",
      onsubmit: (event) => {
        event.preventDefault();
        state("connecting", "Connecting");
        node.logIn(field.value);
      },
    },
    h("h1", {}, "Log in"),
    whyOf() === "" ? null : h("p", { class: "wrong", role: "alert" }, whyOf()),
    h("p", {}, "Run ", h("code", {}, "millpond console"), " on the node's machine: it prints a link that logs in, once."),
    h("label", { for: "token" }, "Or use an access token"),
    h("div", { class: "row" }, field, h("button", { class: "strong", type: "submit" }, "Log in")),
    h("p", { class: "hint" }, "The console shows what the token permits. It stays in this tab."),
  );
  show(byId("main"), form);
  document.title = "Log in · Millpond";
  field.focus();
}

function open() {
  const wasDenied = document.body.dataset.state === "denied";
  state("open", "Connected");
  byId("log-out").hidden = node.token === null;
  session.abort();
  session = new AbortController();
  poll(session.signal, SAMPLE_MS, () => sampler.take(), told);
  if (wasDenied || byId("main").childElementCount === 0 || byId("main").querySelector(".login") !== null) {
    route(false);
  }
}

/** Show the node's health in the frame, as the overview tells it. */
function told(error) {
  if (error !== null) {
    sampler.failed(error);
    return;
  }
  const { findings, listeners } = sampler.last;
  const isBad = findings.some(({ level }) => level === "bad");
  document.body.dataset.health = isBad ? "bad" : findings.length > 0 ? "warn" : "good";
  write(byId("status-text"), isBad ? "Something is wrong" : findings.length > 0 ? "Worth a look" : "All is well");
  write(byId("where"), listeners.p2p ?? listeners.http ?? location.host);
}

for (const [path, title] of SECTIONS) {
  byId("menu").append(h("li", {}, h("a", { href: `#/${path}`, "data-path": path }, title)));
}
node.addEventListener("open", open);
node.addEventListener("lost", () => {
  if (document.body.dataset.state === "open") announce("The connection to the node is lost. The console connects again.");
  session.abort();
  state("lost", "Not connected");
});
node.addEventListener("denied", logIn);
byId("log-out").addEventListener("click", () => node.logOut());
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
addEventListener("hashchange", () => route(true));
addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    const search = document.querySelector("main input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});
node.start().catch((error) => announce(explain(error)));
