// Pages of long lists: Next and Back over the names behind which each page begins.

import { h } from "./dom.js";

/** `load(after)` gives {last, more} of the page behind `after`. */
export class Pages {
  constructor(label, load) {
    this.load = load;
    this.starts = [null];
    this.back = h("button", { type: "button", onclick: () => this.go(-1) }, "Back");
    this.next = h("button", { type: "button", onclick: () => this.go(1) }, "Next");
    this.element = h("nav", { class: "row pages", "aria-label": label }, this.back, this.next);
    this.draw(false);
  }

  /** Show the first page. */
  async first() {
    this.starts = [null];
    await this.again();
  }

  /** Show this page anew. */
  async again() {
    const { last, more } = await this.load(this.starts.at(-1));
    this.last = last;
    this.draw(more);
  }

  async go(step) {
    if (step > 0) this.starts.push(this.last);
    else this.starts.pop();
    await this.again();
  }

  draw(more) {
    this.back.disabled = this.starts.length === 1;
    this.next.disabled = !more;
    this.element.hidden = this.starts.length === 1 && !more;
  }
}
