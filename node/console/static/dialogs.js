// Questions before something is done, in a dialog that Escape closes.

import { announce, h } from "./dom.js";
import { explain } from "./node.js";

/** Ask, and do it: `work(values)` gets what was filled in, and its error is shown in the dialog.
 *  `fields` are {name, label, kind, value, hint, options}. Gives what `work` gave, or null. */
export function ask({ title, text = null, fields = [], action, isDanger = false, work }) {
  const wrong = h("p", { class: "wrong", role: "alert" });
  const inputs = fields.map(fieldOf);
  const go = h("button", { type: "submit", class: `strong${isDanger ? " danger" : ""}` }, action);
  const stop = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  let outcome = null;
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        wrong.textContent = "";
        try {
          const values = Object.fromEntries(inputs.map(({ name, read }) => [name, read()]));
          outcome = { value: await work(values) };
          dialog.close();
        } catch (error) {
          wrong.textContent = explain(error);
        }
        go.disabled = false;
      },
    },
    h("h2", { id: "dialog-title" }, title),
    text === null ? null : typeof text === "string" ? h("p", {}, text) : text,
    ...inputs.map(({ element }) => element),
    wrong,
    h("div", { class: "row end" }, stop, go),
  );
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(outcome === null ? null : outcome.value ?? true);
    });
    dialog.showModal();
    // A destructive button is not focused at first: Enter must not press it.
    (inputs[0]?.focusable ?? (isDanger ? stop : go)).focus();
  });
}

/** Do it without a question, and say what went wrong. */
export async function attempt(work, done = "") {
  try {
    const value = await work();
    if (done !== "") announce(done);
    return value ?? true;
  } catch (error) {
    announce(explain(error));
    return null;
  }
}

function fieldOf({ name, label, kind = "text", value = "", hint = "", options = [], isRequired = false }) {
  const id = `field-${name}`;
  const common = { id, name, required: isRequired, autocomplete: "off", spellcheck: "false" };
  let input;
  if (kind === "area") {
    input = h("textarea", common, value);
  } else if (kind === "choice") {
    input = h("select", common, ...options.map((each) => h("option", { value: each, selected: each === value }, each)));
  } else if (kind === "check") {
    input = h("input", { id, name, type: "checkbox", checked: value === true });
  } else {
    input = h("input", { ...common, type: kind, value, min: kind === "number" ? 0 : null });
  }
  const labelled = h("label", { for: id }, label);
  const told = hint === "" ? null : h("span", { class: "hint" }, hint);
  const element =
    kind === "check" ? h("div", { class: "row" }, input, labelled, told) : h("div", { class: "field" }, labelled, input, told);
  return { name, element, focusable: input, read: () => (kind === "check" ? input.checked : input.value) };
}
