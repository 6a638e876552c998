// Elements. Text is always a text node: names and bodies of others are never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  return document.getElementById(id);
}

/** An element. Attributes that are null, undefined or false are left out; a function is the handler
 *  of that event (`onclick`). Children are strings, numbers or elements; null is left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** The element with these children alone. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null));
  return element;
}

/** Set the text of an element, if it is another one: a selection in it stays otherwise. */
export function write(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Say something to screen readers, and for a moment to everybody. */
export function announce(text) {
  byId("news").textContent = text;
  const toast = h("div", { class: "toast", "aria-hidden": "true" }, text);
  document.querySelector(".toast")?.remove();
  document.body.append(toast);
  setTimeout(() => toast.remove(), 5000);
}

/** A section with a heading. */
export function panel(title, attributes = {}, ...children) {
  return h("section", { class: "panel", "aria-label": title, ...attributes }, h("h2", {}, title), ...children.filter((child) => child !== null));
}

/** Names and values. */
export function facts(rows) {
  const shown = rows.filter((row) => row !== null);
  return h("dl", { class: "facts" }, ...shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A number that matters, with its title and a remark. */
export function tile(title, value, more) {
  return h("div", { class: "tile" }, h("span", { class: "hint" }, title), h("b", {}, value), h("span", { class: "hint" }, more));
}

/** A remark where there is nothing to list. */
export function empty(text, hint = "") {
  return h("p", { class: "empty" }, text, hint === "" ? null : h("span", { class: "hint" }, hint));
}

/** A small mark with a word. */
export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
