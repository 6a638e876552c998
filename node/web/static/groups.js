// Groups: who is in one, what may be changed, invitations, and a new group.

import { byId, icon, make } from "./elements.js";
import { count } from "./format.js";
import { open, tryTo } from "./sheets.js";

const STANDINGS = {
  left: "You have left this group.",
  removed: "You are no member of this group any more.",
};

/** Members and invited ones in a few words. */
export function membersOf({ members, invited }) {
  const told = count(members, "member");
  return invited ? `${told}, ${invited} invited` : told;
}

/** The obstacle of a group: [text, symbol], or null. */
export function groupHindrance({ status, forks, invited_by: by }) {
  if (status === "invited") return [`${by} invites you into this group. Open its details to accept or decline.`, "alert"];
  if (STANDINGS[status]) return [STANDINGS[status], "alert"];
  if (forks) return ["FORK: two admins have changed this group at the same time. See its details.", "alert"];
  return null;
}

/** How many members have a message: `told` is {count, delivered, read}. */
export function countsOf(told) {
  if (!told?.count) return null;
  const read = told.read.size ? `, read by ${told.read.size}` : "";
  return `Delivered to ${told.delivered.size} of ${told.count}${read}`;
}

/** The sheet of a group. `onChanged` is called after each change. */
export async function showGroup(home, id, onChanged) {
  const info = await home.group(id);
  const own = info.members.find(({ you }) => you);
  const isAdmin = info.status === "joined" && Boolean(own?.admin);
  const problem = make("p", { class: "problem", role: "alert" });
  const act = (work) => tryTo(problem, async () => {
    const { error } = await work();
    if (error) {
      problem.textContent = error;
      return;
    }
    await onChanged();
    await showGroup(home, id, onChanged);
  });
  const change = (what, members = [], text = "") => act(() => home.changeGroup(id, what, members, text));
  open(
    info.name,
    info.status === "invited" ? invitation(home, id, onChanged, problem) : null,
    STANDINGS[info.status] ? make("p", { class: "warning" }, icon("alert"), STANDINGS[info.status]) : null,
    ...info.forks.map((fork) => forkOf(fork)),
    info.forks.length && isAdmin ? button("Settle the fork: all follow what this node follows", () => change("settle"), { id: "settle" }) : null,
    make("ul", { class: "member-list", "aria-label": "Members" }, ...info.members.map((each) => memberRow(each, isAdmin, change))),
    problem,
    isAdmin ? field("group-add", "Add a contact (name)", "Add", (name) => change("add", [name])) : null,
    isAdmin ? field("group-rename", "New name of the group", "Rename", (name) => change("rename", [], name)) : null,
    info.status === "joined" ? button("Leave the group", () => change("leave"), { id: "leave" }) : null,
  );
}

function invitation(home, id, onChanged, problem) {
  const answer = (accept) => tryTo(problem, async () => {
    const { error } = await home.answerGroup(id, accept);
    problem.textContent = error ?? "";
    if (error) return;
    byId("sheet").close();
    await onChanged();
  });
  return make(
    "div",
    { class: "form" },
    make("p", {}, "You are invited. Nothing of this group is stored here before you accept."),
    button("Accept", () => answer(true), { class: "strong", id: "accept-group" }),
    button("Decline", () => answer(false), { id: "decline-group" }),
  );
}

function forkOf({ kept, other }) {
  return make(
    "p",
    { class: "warning", role: "note" },
    icon("alert"),
    `FORK. Followed here: ${kept}. Not followed: ${other}.`,
  );
}

function memberRow(member, isAdmin, change) {
  const { id, name, admin, status, trust, you, reachable } = member;
  const marks = [admin && "admin", status !== "joined" && status];
  if (!you) marks.push(trust === "unknown" ? "not your contact" : trust, !reachable && "not reached from here");
  const row = make("li", { "data-id": id }, make("span", { dir: "auto" }, [name, ...marks.filter(Boolean)].join(", ")));
  if (isAdmin && !you) {
    const label = admin ? "No admin" : "Make admin";
    row.append(
      button(label, () => change(admin ? "member" : "admin", [id]), { "aria-label": `${label}: ${name}` }),
      button("Remove", () => change("remove", [id]), { "aria-label": `Remove ${name}` }),
    );
  }
  return row;
}

function field(id, label, word, work) {
  const input = make("input", { id, required: true, maxlength: "64", autocomplete: "off", autocapitalize: "none" });
  const form = make("form", { class: "form" }, make("label", { for: id }, label), input, make("button", { type: "submit", class: "quiet-strong" }, word));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    work(input.value.trim());
  });
  return form;
}

function button(label, work, attributes = {}) {
  const made = make("button", { type: "button", class: "quiet", ...attributes }, label);
  made.addEventListener("click", work);
  return made;
}

/** A new group of some contacts; `onMade` hears its id. */
export function newGroup(home, contacts, onMade) {
  const name = make("input", { id: "group-name", required: true, maxlength: "64", autocomplete: "off" });
  const problem = make("p", { class: "problem", role: "alert" });
  const boxes = contacts.map(({ id, name: called }) => make("label", { class: "choice" }, make("input", { type: "checkbox", value: id }), called));
  const form = make(
    "form",
    { class: "form" },
    make("label", { for: "group-name" }, "Name of the group"),
    name,
    make("fieldset", { class: "choices" }, make("legend", {}, "Contacts to invite"), ...boxes),
    problem,
    make("button", { type: "submit", class: "strong" }, "Make the group"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryTo(problem, async () => {
      const members = [...form.querySelectorAll("input:checked")].map(({ value }) => value);
      const { id, error } = await home.newGroup(name.value.trim(), members);
      if (error) {
        problem.textContent = error;
        return;
      }
      byId("sheet").close();
      onMade(id);
    });
  });
  open("New group", form);
  name.focus();
}
