// Line charts over the last minutes, in SVG. The values of a chart are also its label, as text.

import { h, svg, write } from "./dom.js";

export const POINTS = 150;
const POINTS_MIN = 30;
const [WIDTH, HEIGHT] = [300, 72];

/** A chart: `format` gives the text of a value, `series` the names, one line each; `isBinary`: of bytes. */
class Chart {
  constructor(title, format, series, isBinary = false) {
    this.isBinary = isBinary;
    this.format = format;
    this.series = series;
    this.points = [];
    this.lines = series.map((_, at) => svg("path", { class: `line line-${at}` }));
    this.area = svg("path", { class: "area" });
    this.mark = svg("line", { class: "mark", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.drawing = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      svg("line", { class: "ground", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
      this.area,
      ...this.lines,
      this.mark,
    );
    this.top = h("span", { class: "chart-top", "aria-hidden": "true" });
    this.when = h("span", { class: "chart-when", "aria-hidden": "true" });
    this.values = series.map(() => h("b", {}, "–"));
    const legend = series.map((name, at) =>
      h("span", { class: `legend legend-${at}` }, h("i", { "aria-hidden": "true" }), `${name} `, this.values[at]),
    );
    this.title = title;
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("span", { class: "chart-title" }, title), h("span", { class: "legends" }, ...legend)),
      h("div", { class: "plot" }, this.drawing, this.top, this.when),
    );
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
  }

  /** Draw these points: {at (ms), values}, the oldest first; a value may be null. */
  draw(points) {
    this.points = points.slice(-POINTS);
    const values = this.points.flatMap((point) => point.values).filter((value) => value !== null);
    this.most = ceiling(Math.max(0, ...values), this.isBinary);
    write(this.top, values.length === 0 ? "" : this.format(this.most));
    this.lines.forEach((line, series) => line.setAttribute("d", this.path(series)));
    const first = this.path(0);
    const start = this.x(0).toFixed(1);
    this.area.setAttribute("d", first === "" ? "" : `${first}L${WIDTH},${HEIGHT}L${start},${HEIGHT}Z`);
    this.tell(this.points.at(-1));
    const last = this.series.map((name, at) => `${name} ${this.values[at].textContent}`);
    this.drawing.setAttribute("aria-label", `${this.title}: ${last.join(", ")}`);
  }

  /** The points that fit: a minute at first, then all that there are. */
  get wide() {
    return Math.max(POINTS_MIN, this.points.length) - 1;
  }

  x(at) {
    return WIDTH - ((this.points.length - 1 - at) * WIDTH) / this.wide;
  }

  path(series) {
    let [text, isDown] = ["", false];
    this.points.forEach((point, at) => {
      const value = point.values[series];
      if (value === null || value === undefined) {
        isDown = false;
        return;
      }
      const y = HEIGHT - 2 - ((HEIGHT - 6) * value) / this.most;
      text += `${isDown ? "L" : "M"}${this.x(at).toFixed(1)},${y.toFixed(1)}`;
      isDown = true;
    });
    return text;
  }

  tell(point) {
    this.values.forEach((element, at) => {
      const value = point?.values[at];
      write(element, value === null || value === undefined ? "–" : this.format(value));
    });
  }

  point(event) {
    const { left, width } = this.drawing.getBoundingClientRect();
    const place = event === null ? -1 : ((event.clientX - left) / width) * WIDTH;
    const at = Math.round(this.points.length - 1 - ((WIDTH - place) * this.wide) / WIDTH);
    const found = event === null ? undefined : this.points[at];
    this.mark.setAttribute("visibility", found ? "visible" : "hidden");
    if (found) {
      this.mark.setAttribute("x1", this.x(at));
      this.mark.setAttribute("x2", this.x(at));
    }
    write(this.when, found ? new Date(found.at).toLocaleTimeString() : "");
    this.tell(found ?? this.points.at(-1));
  }
}

/** Several charts of the same points: [title, format, [[label, field]], isBinary] of each. */
export class Charts {
  constructor(kinds, label = "Charts of the last five minutes") {
    this.charts = kinds.map(([title, format, series, isBinary]) => ({
      fields: series.map(([, field]) => field),
      chart: new Chart(title, format, series.map(([name]) => name), isBinary),
    }));
    this.element = h("section", { class: "charts", "aria-label": label }, ...this.charts.map(({ chart }) => chart.element));
  }

  /** Points are {at (ms), and the fields}, the oldest first. */
  draw(points) {
    for (const { fields, chart } of this.charts) {
      chart.draw(points.map((each) => ({ at: each.at, values: fields.map((field) => each[field]) })));
    }
  }
}

/** A round number that is not below. */
function ceiling(value, isBinary) {
  if (value <= 0) return 1;
  if (isBinary) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? value;
}
