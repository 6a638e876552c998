// Tables whose rows are changed in place: what has the focus, or is selected, stays.

import { h, show, write } from "./dom.js";

/** A table. A column has `title`, `of(row)` (text, or an element with `keep`: made once), `num`
 *  for numbers, `time` for times, `wide` for texts that take a line of their own on a telephone. `key(row)` tells rows apart, `link(row)` is where the first column leads. */
export class Table {
  constructor(label, columns, { key, link = null, none = null, mark = null }) {
    this.columns = columns;
    this.key = key;
    this.link = link;
    this.mark = mark;
    this.rows = new Map();
    this.body = h("tbody");
    this.none = none;
    this.table = h(
      "table",
      { "aria-label": label },
      h("thead", {}, h("tr", {}, ...columns.map((each) => h("th", { scope: "col", class: each.num ? "num" : null }, each.title)))),
      this.body,
    );
    this.element = h("div", { class: "table" }, this.table);
  }

  /** Show these rows, in this order. */
  draw(rows) {
    if (rows.length === 0 && this.none !== null) {
      this.rows.clear();
      show(this.body);
      show(this.element, this.none);
      return;
    }
    if (this.table.parentNode !== this.element) {
      show(this.element, this.table);
    }
    const before = this.rows;
    this.rows = new Map();
    let place = this.body.firstChild;
    for (const row of rows) {
      const key = this.key(row);
      const shown = before.get(key) ?? this.made();
      before.delete(key);
      this.rows.set(key, shown);
      this.update(shown, row);
      if (shown.element === place) {
        place = place.nextSibling;
      } else {
        this.body.insertBefore(shown.element, place);
      }
    }
    for (const gone of before.values()) {
      gone.element.remove();
    }
  }

  made() {
    const cells = this.columns.map((column, at) => {
      const link = at === 0 && this.link !== null ? h("a", {}) : null;
      const cell = h(at === 0 ? "th" : "td", {
        scope: at === 0 ? "row" : null,
        class: column.num ? "num" : column.time ? "time" : column.wide ? "wide" : null,
        "data-title": column.title,
      }, link);
      return { cell, text: link ?? cell, link, isMade: false };
    });
    return { element: h("tr", {}, ...cells.map(({ cell }) => cell)), cells };
  }

  update(shown, row) {
    this.columns.forEach((column, at) => {
      const { text, link } = shown.cells[at];
      if (link !== null) {
        const target = this.link(row);
        if (link.getAttribute("href") !== target) link.setAttribute("href", target);
      }
      if (column.keep && shown.cells[at].isMade) {
        return;
      }
      const value = column.of(row);
      if (value instanceof Element) {
        // An element that looks the same stays: it may have the focus.
        if (!text.firstChild?.isEqualNode(value)) show(text, value);
        shown.cells[at].isMade = true;
      } else {
        write(text, String(value ?? ""));
      }
    });
    if (this.mark !== null) {
      shown.element.className = this.mark(row) ?? "";
    }
  }
}
