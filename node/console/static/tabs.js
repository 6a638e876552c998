// Panels of which one is shown. The choice is part of the address, so that it survives a reload.

import { h } from "./dom.js";

/** `panels` are {key, title, element}; `query` is that of the address; `onChoose` is called with the key. */
export class Tabs {
  constructor(label, panels, query, onChoose = () => {}) {
    const wanted = query.get("tab");
    this.onChoose = onChoose;
    this.panels = panels;
    this.buttons = panels.map(({ key, title }) =>
      h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, "data-tab": key, onclick: () => this.choose(key, true) }, title),
    );
    this.list = h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: (event) => this.move(event) }, ...this.buttons);
    const bodies = panels.map(({ key, element }) =>
      h("div", { class: "view", role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}` }, element),
    );
    this.bodies = bodies;
    this.element = h("div", { class: "view" }, this.list, ...bodies);
    this.choose(panels.some(({ key }) => key === wanted) ? wanted : panels[0].key, false);
  }

  choose(key, isMoved) {
    this.chosen = key;
    this.panels.forEach((panel, at) => {
      const isChosen = panel.key === key;
      this.buttons[at].setAttribute("aria-selected", String(isChosen));
      this.buttons[at].tabIndex = isChosen ? 0 : -1;
      this.bodies[at].hidden = !isChosen;
    });
    if (isMoved) {
      const path = location.hash.split("?")[0];
      history.replaceState(null, "", key === this.panels[0].key ? path : `${path}?tab=${key}`);
      this.onChoose(key);
    }
  }

  /** Arrow keys, Home and End, as lists of tabs have them. */
  move(event) {
    const at = this.panels.findIndex(({ key }) => key === this.chosen);
    const last = this.panels.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.choose(this.panels[to].key, true);
    this.buttons[to].focus();
  }
}
