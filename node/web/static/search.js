// The search over all conversations.

import { byId, make } from "./elements.js";
import { count, exactly } from "./format.js";
import { open, tryTo } from "./sheets.js";

const QUERY_CHARS_MAX = 256;

/** `onFound` hears the id of the conversation, and the sequence of the message. */
export function showSearch(home, onFound) {
  const query = make("input", { id: "query", type: "search", required: true, maxlength: QUERY_CHARS_MAX, autocomplete: "off" });
  const problem = make("p", { class: "problem", role: "alert" });
  const status = make("p", { class: "hint", role: "status" });
  const list = make("ul", { class: "found-list" });
  const more = make("button", { type: "button", class: "quiet", id: "found-more", hidden: true }, "Show more");
  const form = make(
    "form",
    { class: "form" },
    make("label", { for: "query" }, "Words, or their beginnings"),
    query,
    problem,
    make("button", { type: "submit", class: "strong" }, "Search"),
  );
  let searched = "";
  const load = () => tryTo(problem, async () => {
    const text = searched;
    const offset = list.children.length;
    const answer = await home.search(text, offset);
    if (text !== searched || offset !== list.children.length) return;
    list.append(...answer.found.map((each) => entry(each, onFound)));
    more.hidden = !answer.more;
    const shown = list.children.length;
    const found = shown ? `${count(shown, "message")} shown, the newest first.` : "No message has these words.";
    status.textContent = answer.left_out ? `${found} The oldest messages are not searched.` : found;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    searched = query.value.trim();
    if (!searched) return;
    list.replaceChildren();
    more.hidden = true;
    status.textContent = "Searching…";
    load();
  });
  more.addEventListener("click", load);
  open("Search messages", form, status, list, more);
  query.focus();
}

function entry({ peer, by, id, kind, sequence, at, text }, onFound) {
  const writer = by ? `${by} in ${peer}` : peer;
  const author = kind === "out" ? `You to ${peer}` : writer;
  const button = make(
    "button",
    { type: "button" },
    make("span", { class: "found-top" }, make("span", { class: "found-author", dir: "auto" }, author), make("time", { datetime: new Date(at).toISOString() }, exactly(at))),
    make("span", { class: "found-text", dir: "auto" }, text),
  );
  button.addEventListener("click", () => {
    byId("sheet").close();
    onFound(id, sequence);
  });
  return make("li", {}, button);
}
