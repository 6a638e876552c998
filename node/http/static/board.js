// The page of a shared state: a board of notes, and the state behind it as a table.

import { SharedState } from "./shared.js";

const COLOURS = ["sun", "leaf", "sky", "rose"];
const ROWS_MAX = 500;
const SEND_MS = 40;

const byId = (id) => document.getElementById(id);
const [board, rows, form, empty] = ["board", "rows", "open", "empty"].map(byId);
const notes = new Map();
const pending = new Map();
let state = null;
let held = null;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Notes: one element each, made once and moved after.

function draw() {
  const values = state.of("note");
  for (const [key, element] of notes) {
    if (!values.has(key)) {
      element.remove();
      notes.delete(key);
    }
  }
  for (const [key, value] of values) {
    if (value === null || typeof value !== "object") continue;
    if (!notes.has(key)) notes.set(key, newNote(key));
    place(notes.get(key), key, value);
  }
  empty.hidden = notes.size > 0;
  drawTable();
}

function place(element, key, { x = 0, y = 0, colour = "sun", text = "" }) {
  element.dataset.colour = COLOURS.includes(colour) ? colour : "sun";
  if (held?.key !== key) {
    element.style.left = `${clamp(x)}%`;
    element.style.top = `${clamp(y)}%`;
  }
  const area = element.querySelector("textarea");
  if (area !== document.activeElement && area.value !== String(text)) area.value = String(text);
}

function clamp(value) {
  return Math.min(100, Math.max(0, Number(value) || 0));
}

function newNote(key) {
  const area = make("textarea", { rows: 3, maxlength: 500, "aria-label": "Text of the note" });
  const grip = make("button", { type: "button", class: "grip", "aria-label": "Move the note: arrows" });
  const gone = make("button", { type: "button", class: "gone", "aria-label": "Remove the note" }, "×");
  const element = make("article", { class: "note", "data-key": key }, grip, gone, area);
  area.addEventListener("input", () => change(key, { text: area.value }));
  gone.addEventListener("click", () => send(() => state.remove("note", key)));
  grip.addEventListener("pointerdown", (event) => take(event, key, element));
  grip.addEventListener("pointermove", (event) => drag(event, element));
  grip.addEventListener("pointerup", drop);
  grip.addEventListener("pointercancel", drop);
  grip.addEventListener("keydown", (event) => nudge(event, key));
  board.append(element);
  return element;
}

function take(event, key, element) {
  event.target.setPointerCapture(event.pointerId);
  const box = element.getBoundingClientRect();
  held = { key, dx: event.clientX - box.left, dy: event.clientY - box.top };
}

function drag(event, element) {
  if (held === null) return;
  const box = board.getBoundingClientRect();
  const x = clamp(((event.clientX - box.left - held.dx) / box.width) * 100);
  const y = clamp(((event.clientY - box.top - held.dy) / box.height) * 100);
  element.style.left = `${x}%`;
  element.style.top = `${y}%`;
  change(held.key, { x: Math.round(x * 10) / 10, y: Math.round(y * 10) / 10 });
}

function drop() {
  held = null;
}

function nudge(event, key) {
  const steps = { ArrowLeft: [-2, 0], ArrowRight: [2, 0], ArrowUp: [0, -2], ArrowDown: [0, 2] };
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  const { x = 0, y = 0 } = latest(key);
  change(key, { x: clamp(x + step[0]), y: clamp(y + step[1]) });
}

// Writing: of many changes to one note only the last is sent, one after the other.

function latest(key) {
  return { ...state.get("note", key), ...pending.get(key)?.value };
}

function change(key, part) {
  const value = { ...latest(key), ...part };
  const waiting = pending.get(key);
  pending.set(key, { value, timer: waiting?.timer ?? setTimeout(() => flush(key), SEND_MS) });
}

async function flush(key) {
  const { value } = pending.get(key);
  pending.delete(key);
  if (state.of("note").has(key)) await send(() => state.put("note", key, value));
}

async function send(work) {
  try {
    await work();
    tell();
  } catch (error) {
    tell(`not written: ${error.message}`);
  }
}

// The table, and what is said.

function drawTable() {
  const found = [];
  for (const [type, values] of state.types) {
    for (const [key, value] of values) {
      if (found.length < ROWS_MAX) found.push([type, key, JSON.stringify(value)]);
    }
  }
  rows.replaceChildren(
    ...found.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, text)))),
  );
  const all = [...state.types.values()].reduce((sum, values) => sum + values.size, 0);
  byId("count").textContent = `${all} values, position ${state.position}`;
}

function tell(problem = "") {
  const words = { live: "live", away: "connecting" };
  document.body.dataset.status = state.status;
  byId("status").textContent = problem || state.reason || words[state.status];
}

async function open(name, token) {
  state?.close();
  notes.forEach((element) => element.remove());
  notes.clear();
  const url = new URL(encodeURIComponent(name), new URL("/millpond/state/", location.origin));
  state = new SharedState(url.href, token);
  state.onchange = draw;
  state.onstatus = () => tell();
  tell();
  try {
    await state.create();
  } catch {
    // A user without the right to write may still read; following says what is wrong.
  }
  state.follow();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = encodeURIComponent(form.elements.stream.value);
  open(form.elements.stream.value, form.elements.token.value);
});
byId("add").addEventListener("click", () => {
  const key = crypto.randomUUID();
  const [x, y] = [5 + Math.random() * 60, 5 + Math.random() * 60].map(Math.round);
  const colour = COLOURS[Math.floor(Math.random() * COLOURS.length)];
  send(() => state.put("note", key, { text: "", x, y, colour }));
});
byId("clear").addEventListener("click", () => send(() => state.reset()));
window.addEventListener("hashchange", begin);

function begin() {
  const name = decodeURIComponent(location.hash.slice(1)) || "board";
  if (form.elements.stream.value === name && state !== null) return;
  form.elements.stream.value = name;
  open(name, form.elements.token.value);
}

begin();
