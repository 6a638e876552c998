// Shows a part of a conversation that is as long as it may be: at most ROWS_MAX items are in the
// page, and what is on the screen stays where it is while others come and go around it.

import { rowsOf } from "./rows.js";

export const ROWS_MAX = 150;
const STEP = 50;
const NEAR_PX = 800;
const AT_END_PX = 48;

export class Timeline {
  /** `onNeed` is called when older items are wanted; `onSeen` with the last sequence in sight. */
  constructor(scroller, list, onNeed, onSeen, onPlace) {
    this.scroller = scroller;
    this.list = list;
    this.onNeed = onNeed;
    this.onSeen = onSeen;
    this.onPlace = onPlace;
    this.elements = new Map();
    this.talk = null;
    scroller.addEventListener("scroll", () => this.moved(), { passive: true });
    new ResizeObserver(() => this.resized()).observe(scroller);
    document.addEventListener("visibilitychange", () => this.see());
    window.addEventListener("focus", () => this.see());
  }

  /** Show a conversation; from `newFrom` on its messages were not read yet. */
  open(talk, name, newFrom) {
    this.talk = talk;
    this.name = name;
    this.newFrom = newFrom;
    this.list.replaceChildren();
    this.elements.clear();
    const place = newFrom === null ? -1 : talk.shown.findIndex((item) => item.sequence === newFrom);
    this.to = talk.shown.length;
    if (place >= 0) {
      this.to = Math.min(this.to, place + ROWS_MAX - STEP);
    }
    this.from = Math.max(0, this.to - ROWS_MAX);
    this.sticks = place < 0;
    this.draw();
    if (place >= 0) {
      this.elements.get("new")?.element.scrollIntoView({ block: "start" });
      this.scroller.scrollTop -= 24;
    }
    this.moved();
  }

  close() {
    this.talk = null;
    this.list.replaceChildren();
    this.elements.clear();
  }

  /** Narrow screens show the list in its place at times. */
  get isInSight() {
    return this.scroller.clientHeight > 0;
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return this.to === this.talk.shown.length && scrollHeight - scrollTop - clientHeight < AT_END_PX;
  }

  /** So many older items are there now. */
  prepended(count) {
    this.from += count;
    this.to += count;
    if (this.from < ROWS_MAX && this.scroller.scrollTop < NEAR_PX) {
      this.from = Math.max(0, this.from - STEP);
      this.trimBelow();
    }
    this.draw();
    this.moved();
  }

  /** Items came behind the last, or changed. */
  changed() {
    if (!this.talk) return;
    const length = this.talk.shown.length;
    if (this.sticks) {
      this.to = length;
      this.from = Math.max(this.from, this.to - ROWS_MAX);
    }
    this.to = Math.min(this.to, length);
    this.draw();
    this.moved();
  }

  /** Show the newest; a conversation that is still being fetched is shown whole when it is there. */
  toEnd() {
    if (!this.talk) return;
    this.to = this.talk.shown.length;
    this.from = Math.max(0, this.to - ROWS_MAX);
    this.sticks = true;
    this.draw();
    this.moved();
  }

  /** Show the message in this record, with others around it. */
  show(sequence) {
    const place = this.talk.shown.findIndex((item) => item.sequence === sequence);
    if (place < 0) return;
    this.sticks = false;
    this.to = Math.min(this.talk.shown.length, place + ROWS_MAX / 2);
    this.from = Math.max(0, this.to - ROWS_MAX);
    this.draw();
    const { element } = this.elements.get(this.talk.shown[place].key);
    element.classList.add("is-found");
    element.scrollIntoView({ block: "center" });
    this.moved();
  }

  /** The page is scrolled: is there enough above and below what is seen? */
  moved() {
    if (!this.talk || this.isDrawing || !this.isInSight) return;
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    const length = this.talk.shown.length;
    this.sticks = this.isAtEnd;
    if (scrollTop < NEAR_PX && this.from > 0) {
      this.from = Math.max(0, this.from - STEP);
      this.trimBelow();
      this.draw();
    } else if (scrollHeight - scrollTop - clientHeight < NEAR_PX && this.to < length) {
      this.to = Math.min(length, this.to + STEP);
      this.from = Math.max(this.from, this.to - ROWS_MAX);
      this.draw();
    }
    if (scrollTop < NEAR_PX && this.from < STEP && this.talk.hasOlder && !this.talk.isPaused) {
      this.onNeed();
    }
    this.onPlace(this.isAtEnd);
    this.see();
  }

  trimBelow() {
    this.to = Math.min(this.to, this.from + ROWS_MAX);
  }

  resized() {
    if (!this.talk) return;
    if (this.sticks) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.moved();
  }

  /** Tell what somebody has in sight. */
  see() {
    const isSeen = this.isInSight && document.visibilityState === "visible" && document.hasFocus();
    if (!this.talk || !isSeen) return;
    if (this.isAtEnd) {
      this.onSeen(this.talk.last);
      return;
    }
    const edge = this.scroller.getBoundingClientRect().bottom;
    for (const element of [...this.list.children].reverse()) {
      const sequence = Number(element.dataset.sequence ?? -1);
      if (sequence >= 0 && element.getBoundingClientRect().bottom <= edge) {
        this.onSeen(sequence);
        return;
      }
    }
  }

  draw() {
    this.isDrawing = true;
    const anchor = this.sticks ? null : this.anchor();
    const shown = this.talk.shown;
    const part = shown.slice(this.from, this.to);
    const isLast = this.to === shown.length;
    this.place(rowsOf(part, shown[this.from - 1], this.newFrom, this.talk, this.name, isLast));
    if (anchor) {
      const { element } = this.elements.get(anchor.key) ?? {};
      if (element) this.scroller.scrollTop += element.getBoundingClientRect().top - anchor.top;
    } else {
      this.scroller.scrollTop = this.scroller.scrollHeight;
    }
    this.isDrawing = false;
  }

  /** The first row in sight, and where it is. */
  anchor() {
    const edge = this.scroller.getBoundingClientRect().top;
    for (const [key, { element }] of this.elements) {
      const { top, bottom } = element.getBoundingClientRect();
      if (bottom > edge && element.dataset.sequence !== undefined) return { key, top };
    }
    return null;
  }

  /** Make the list have these rows, and touch only what is different. */
  place(rows) {
    const kept = this.elements;
    const keys = new Set(rows.map(({ key }) => key));
    for (const [key, { element }] of kept) {
      if (!keys.has(key)) element.remove();
    }
    this.elements = new Map();
    let next = this.list.firstElementChild;
    for (const { key, item, look, build } of rows) {
      const known = kept.get(key);
      let element = known?.element;
      if (known?.look !== look) {
        const focused = known ? focusedIn(known.element) : null;
        element = build();
        if (item?.sequence !== undefined) element.dataset.sequence = item.sequence;
        if (known) known.element.replaceWith(element);
        if (focused) element.querySelector(focused)?.focus({ preventScroll: true });
        if (known && next === known.element) next = element;
      }
      if (element === next) {
        next = next.nextElementSibling;
      } else {
        this.list.insertBefore(element, next);
      }
      this.elements.set(key, { element, look });
    }
  }
}

/** The selector of the focused button in a row, which is built anew at times; null: it has none. */
function focusedIn(row) {
  const { activeElement } = document;
  if (!row.contains(activeElement)) return null;
  const { menu, act, emoji } = activeElement.dataset;
  if (menu) return ".more";
  return act ? `[data-act="${act}"]${emoji ? `[data-emoji="${emoji}"]` : ""}` : null;
}
