// A strip of colours for each of many GPUs or nodes: how much of it was used over time.

import { colour } from "./plot.js";
import { _ } from "./texts.js";
import { elapsed } from "./units.js";

const ROW_HEIGHT = 12;
const GAP = 2;
const LEVELS = 20;

// Rows are {label, used}: a share from 0 to 1 at each time, or null.
export class Strip {
  constructor(title, description) {
    this.description = description;
    this.figure = document.createElement("figure");
    this.figure.className = "panel plot heat";
    const head = document.createElement("div");
    head.className = "plot-head";
    const heading = document.createElement("h3");
    heading.textContent = title;
    this.reading = document.createElement("span");
    this.reading.className = "unit";
    head.append(heading, this.scale(), this.reading);
    this.body = document.createElement("div");
    this.body.className = "heat-body";
    this.names = document.createElement("div");
    this.names.className = "heat-names";
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.axis = document.createElement("div");
    this.axis.className = "heat-axis unit";
    this.body.append(this.names, this.canvas, this.axis);
    this.figure.append(head, this.body);
    this.canvas.addEventListener("mousemove", (event) => this.read(event));
    this.canvas.addEventListener("mouseleave", () => { this.reading.textContent = ""; });
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  scale() {
    const legend = document.createElement("span");
    legend.className = "heat-scale unit";
    legend.append("0 %", ...Array.from({ length: 6 }, (_, index) => {
      const box = document.createElement("i");
      box.className = `heat-${Math.round((index * LEVELS) / 5)}`;
      return box;
    }), "100 %");
    return legend;
  }

  show(times, rows) {
    Object.assign(this, { times, rows });
    this.names.replaceChildren(...rows.map((each) => {
      const name = document.createElement("span");
      name.textContent = each.label;
      if (each.used.every((value) => !value)) name.className = "unused";
      return name;
    }));
    const idle = rows.filter((each) => each.used.every((value) => !value)).map((each) => each.label);
    const never = idle.length ? ` ${_("Never used: %(names)s.", { names: idle.join(", ") })}` : "";
    this.canvas.setAttribute("aria-label", `${_(this.description, { count: rows.length })}${never}`);
    this.axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((share) => {
      const label = document.createElement("span");
      const [first, last] = [times[0], times.at(-1)];
      label.textContent = elapsed(first + (last - first) * share, (last - first) / 4);
      return label;
    }));
    this.draw();
  }

  draw() {
    if (!this.rows?.length) return;
    const width = Math.max(this.canvas.clientWidth, 50);
    const height = this.rows.length * (ROW_HEIGHT + GAP);
    const ratio = globalThis.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const [empty, full] = [colour("track"), colour("accent")];
    const span = this.times.at(-1) - this.times[0] || 1;
    this.rows.forEach((each, row) => {
      const top = row * (ROW_HEIGHT + GAP);
      context.globalAlpha = 1;
      context.fillStyle = empty;
      context.fillRect(0, top, width, ROW_HEIGHT);
      context.fillStyle = full;
      for (let at = 1; at < this.times.length; at++) {
        const value = each.used[at];
        if (!value) continue;
        const left = ((this.times[at - 1] - this.times[0]) / span) * width;
        const right = ((this.times[at] - this.times[0]) / span) * width;
        context.globalAlpha = Math.min(Math.max(value, 0.06), 1);
        context.fillRect(left, top, right - left + 0.5, ROW_HEIGHT);
      }
    });
  }

  read(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / (ROW_HEIGHT + GAP));
    const share = (event.clientX - box.left) / box.width;
    const wanted = this.times[0] + share * (this.times.at(-1) - this.times[0]);
    const at = this.times.findIndex((time) => time >= wanted);
    const each = this.rows[row];
    if (!each || at < 0) return;
    const value = each.used[at];
    const text = value == null ? _("no value") : `${(value * 100).toFixed(1)} %`;
    const after = _("%(time)s after the start", { time: elapsed(this.times[at]) });
    this.reading.textContent = `${each.label}: ${text}, ${after}`;
  }
}
