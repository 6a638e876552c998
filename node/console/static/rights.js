// The rights of the page's principal: actions without the right are not shown.

import { h, write } from "./dom.js";

const WORDS = { put: "put", get: "read", push: "receive", ack: "acknowledge and remove", list: "list", admin: "administer" };

/** The rights in one channel. `found`: a promise of a set of their names, null where the node does not tell. */
export class Rights {
  constructor(found) {
    this.found = found.catch(() => null);
  }

  /** Hide the element unless all of these rights are there. Gives the element. */
  gate(element, ...needed) {
    this.found.then((rights) => {
      if (rights !== null && needed.some((each) => !rights.has(each))) element.hidden = true;
    });
    return element;
  }

  /** A line that says what is permitted, where something is not. */
  note() {
    const line = h("p", { class: "hint", hidden: true });
    this.found.then((rights) => {
      if (rights === null || Object.keys(WORDS).every((each) => rights.has(each))) return;
      const words = Object.keys(WORDS).filter((each) => rights.has(each)).map((each) => WORDS[each]);
      write(line, words.length === 0 ? "Your token has no right here." : `Your token permits here: ${words.join(", ")}. What it does not permit is not shown.`);
      line.hidden = false;
    });
    return line;
  }
}
