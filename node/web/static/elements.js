// Elements of the page. Text is always a text node: messages of peers are never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";
const LINK = /https?:\/\/[^\s<>"']+[^\s<>"'.,:;!?)\]}]/g;

export function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes (null and false are left out), and strings or elements in it. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A symbol of index.html; what it means is said beside it. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A QR code: the path of its dark modules, on a light ground with `size` units on each side. */
export function qrCode(size, path, label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "qr");
  svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.setAttribute("shape-rendering", "crispEdges");
  const ground = document.createElementNS(SVG, "rect");
  ground.setAttribute("width", size);
  ground.setAttribute("height", size);
  const modules = document.createElementNS(SVG, "path");
  modules.setAttribute("d", path);
  svg.append(ground, modules);
  return svg;
}

/** Initials on one of eight colours, which the peer's id decides. */
export function avatar(name, id, here) {
  const letters = name.trim().split(/[\s._-]+/).slice(0, 2).map((word) => [...word][0] ?? "");
  const tone = [...id].reduce((sum, letter) => sum + letter.codePointAt(0), 0) % 8;
  return make(
    "span",
    { class: `avatar tone-${tone}${here ? " is-here" : ""}`, "aria-hidden": "true" },
    letters.join("").toUpperCase(),
  );
}

/** Only for who listens. */
export function unseen(text) {
  return make("span", { class: "unseen" }, text);
}

/** The text, and the links in it. */
export function linked(text) {
  const parts = [];
  let place = 0;
  for (const found of text.matchAll(LINK)) {
    parts.push(text.slice(place, found.index));
    const link = { href: found[0], target: "_blank", rel: "noopener noreferrer" };
    parts.push(make("a", link, found[0]));
    place = found.index + found[0].length;
  }
  parts.push(text.slice(place));
  return parts.filter((part) => part !== "");
}

/** Say something to whoever listens; later news replace it. */
export function announce(text) {
  byId("news").textContent = text;
}
