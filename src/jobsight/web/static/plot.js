// One plot: a panel with a title, a legend that shows the values under the cursor, and a uPlot.

import { _ } from "./texts.js";
import { KINDS, TIME_STEPS, digits, elapsed, tick } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const POINT = 6;
const DASHES = { solid: [], dashed: [5, 3], limit: [2, 3] };

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function translucent(name, share) {
  const hex = colour(name);
  return hex + Math.round(share * 255).toString(16).padStart(2, "0");
}

// A value between two gaps is drawn as a point, because it has no neighbour for a line.
function lonely(u, index) {
  const column = u.data[index];
  const indices = [];
  for (let at = 0; at < column.length; at++) {
    if (column[at] != null && column[at - 1] == null && column[at + 1] == null) indices.push(at);
  }
  return indices.length ? indices : null;
}

// The mark on a line under the cursor; the edges of a band and the requested value have none.
function cursorPoint(line, index) {
  if (!line || line.fixed !== undefined || line.group || index !== line.index) return null;
  const mark = document.createElement("div");
  mark.style.width = mark.style.height = `${POINT}px`;
  mark.style.marginLeft = mark.style.marginTop = `${-POINT / 2}px`;
  mark.style.background = colour(line.colour);
  return mark;
}

// A rate covers the time since the previous sample. The first one would be a vertical line without
// the time at which it begins: that of the sample before, or as long before as the next is after.
function withLeftEdge(times, columns) {
  const filled = columns.map((column) => {
    const first = column.findIndex((value) => value != null);
    if (first < 1) return column;
    const copy = [...column];
    copy[first - 1] = column[first];
    return copy;
  });
  const edge = Math.max(2 * times[0] - times[1], 0);
  if (!(edge < times[0]) || columns.every((column) => column[0] == null)) return [times, ...filled];
  return [[edge, ...times], ...filled.map((column) => [column[0], ...column])];
}

function element(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function sample(line) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("aria-hidden", "true");
  const stroke = document.createElementNS(SVG, "line");
  for (const [name, value] of Object.entries({ x1: 0, x2: 18, y1: 4, y2: 4 })) {
    stroke.setAttribute(name, value);
  }
  stroke.setAttribute("class", `stroke-${line.colour}`);
  stroke.setAttribute("stroke-dasharray", DASHES[line.dash].join(" "));
  picture.append(stroke);
  return picture;
}

// A line is {label, colour, dash, values, minimum?, maximum?}. Several lines may share one entry of
// the legend (the nodes of a job); it then shows the line nearest to the cursor.
export class Plot {
  constructor(parent, { title, kind, height, onCursor, onZoom }) {
    Object.assign(this, { title, kind: KINDS[kind], height, onCursor, onZoom });
    this.unit = element("span", "unit");
    this.legend = element("div", "legend");
    this.legend.setAttribute("role", "group");
    this.legend.setAttribute("aria-label", _("Lines of %(title)s", { title }));
    this.area = element("div", "plot-area");
    this.area.tabIndex = 0;
    this.area.setAttribute("role", "img");
    // Until it is drawn; then with its extremes.
    this.area.setAttribute("aria-label", title);
    this.stepped = kind === "cores" || kind === "rate" || kind === "share";
    const head = element("div", "plot-head", element("h3", "", title, " ", this.unit), this.legend);
    parent.append(element("figure", "panel plot", head, this.area));
    this.hidden = new Set();
    // {since, until, colour, title}: where a finding can be seen.
    this.stretches = [];
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.area);
  }

  // Redraw the lines, or only update the values of the uPlot if nothing else has changed.
  show(times, lines) {
    const columns = [];
    for (const line of lines) {
      columns.push(line.values);
      if (line.minimum) columns.push(line.minimum, line.maximum);
    }
    const measured = lines.some((line) => line.fixed === undefined && line.values[0] != null);
    const isEdgeNeeded = this.stepped && times.length > 1;
    const data = isEdgeNeeded ? withLeftEdge(times, columns) : [times, ...columns];
    // A requested value alone is no rate that begins earlier.
    if (isEdgeNeeded && !measured && data[0].length > times.length) {
      data.forEach((column, index) => { data[index] = column.slice(1); });
    }
    const layout = JSON.stringify(lines.map((line) => [line.label, line.group, Boolean(line.minimum)]));
    this.lines = lines;
    if (this.u && this.layout === layout) {
      const { min, max } = this.u.scales.x;
      const zoomed = this.zoomed;
      this.u.setData(data, !zoomed);
      if (zoomed) this.u.setScale("x", { min, max });
      return;
    }
    this.layout = layout;
    this.data = data;
    this.draw();
  }

  draw() {
    this.u?.destroy();
    this.area.replaceChildren();
    this.fillLegend();
    const [times] = this.data;
    if (!times.length || this.data.slice(1).every((column) => column.every((value) => value == null))) {
      this.u = null;
      this.layout = null;
      this.unit.textContent = "";
      this.area.append(element("div", "plot-message", _("No values were recorded.")));
      return;
    }
    this.u = new uPlot(this.options(), this.data, this.area);
    this.area.uplot = this.u;
    this.describe();
  }

  options() {
    const axis = {
      stroke: colour("muted"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { stroke: colour("grid"), width: 1, size: 4 },
    };
    const series = [{}];
    const bands = [];
    this.owners = [null];
    for (const line of this.lines) {
      const show = !this.hidden.has(line.group ?? line.label);
      const thin = line.dash !== "solid" || line.thin;
      const stroke = line.faint ? translucent(line.colour, 0.65) : colour(line.colour);
      const points = { show: false, filter: lonely };
      // A rate covers the time since the previous sample, so it is drawn as a step.
      const paths = this.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined;
      line.index = this.owners.length;
      this.owners.push(line);
      series.push({ stroke, paths, width: thin ? 1 : 1.75, dash: DASHES[line.dash], show, points });
      if (!line.minimum) continue;
      const edge = { width: 0, show, paths, points: { show: false } };
      series.push(edge, { ...edge });
      this.owners.push(line, line);
      bands.push({
        series: [series.length - 1, series.length - 2],
        fill: translucent(line.colour, 0.2),
      });
    }
    return {
      width: Math.max(this.area.clientWidth, 100),
      height: this.height,
      legend: { show: false },
      padding: [10, 24, 0, 0],
      cursor: {
        sync: { key: "run", setSeries: false, scales: ["x", null] },
        focus: { prox: 24 },
        points: { show: (u, index) => cursorPoint(this.owners[index], index) },
        drag: { x: true, y: false },
        y: false,
      },
      focus: { alpha: this.lines.length > 8 ? 0.45 : 1 },
      scales: {
        x: { time: false },
        y: { range: (u, least, most) => [0, most > 0 ? most * 1.06 : 1] },
      },
      series,
      bands,
      axes: [
        {
          ...axis,
          size: 28,
          space: 64,
          incrs: TIME_STEPS,
          values: (u, splits, index, space, step) => splits.map((value) => elapsed(value, step)),
        },
        {
          ...axis,
          size: 48,
          space: 28,
          incrs: this.kind.steps,
          values: (u, splits) => {
            const { unit, divisor } = this.kind.scale(splits.at(-1) ?? 0);
            this.unit.textContent = unit;
            return splits.map((value) => tick(value / divisor));
          },
        },
      ],
      hooks: {
        drawClear: [(u) => this.shade(u)],
        setCursor: [() => this.read()],
        setSeries: [(u, index) => this.read(index)],
        setScale: [(u, key) => key === "x" && this.onZoom()],
      },
    };
  }

  // A stretch that is nearly the whole run would say nothing.
  shade(u) {
    const times = u.data[0];
    const { left, top, width, height } = u.bbox;
    for (const { since, until, colour: name } of this.stretches) {
      const first = Math.max(since, times[0]);
      const last = Math.min(until, times.at(-1));
      if (!(last > first) || last - first > 0.97 * (times.at(-1) - times[0])) continue;
      const [from, to] = [first, last].map((time) => u.valToPos(time, "x", true));
      const [begin, end] = [Math.max(from, left), Math.min(to, left + width)];
      if (!(end > begin)) continue;
      u.ctx.save();
      u.ctx.fillStyle = translucent(name, 0.1);
      u.ctx.fillRect(begin, top, end - begin, height);
      u.ctx.fillStyle = colour(name);
      u.ctx.fillRect(begin, top, end - begin, 2 * devicePixelRatio);
      u.ctx.restore();
    }
  }

  get zoomed() {
    const times = this.u?.data[0];
    if (!times?.length) return false;
    const { min, max } = this.u.scales.x;
    return min != null && (min > times[0] || max < times.at(-1));
  }

  // With few lines, the legend has space for the range next to the value.
  get roomy() {
    return this.lines.length < 4;
  }

  fillLegend() {
    this.entries = new Map();
    for (const line of this.lines) {
      const name = line.group ?? line.label;
      if (this.entries.has(name)) continue;
      const value = element("b", line.minimum && this.roomy ? "with-range" : "");
      const button = element("button", "", sample(line), name, value);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
      button.addEventListener("click", () => this.toggle(name, button));
      if (line.fixed !== undefined) value.textContent = this.kind.text(line.fixed);
      this.entries.set(name, value);
    }
    this.legend.replaceChildren(...[...this.entries.values()].map((value) => value.parentElement));
  }

  toggle(name, button) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    const show = !this.hidden.has(name);
    button.setAttribute("aria-pressed", String(show));
    this.owners.forEach((line, index) => {
      if (line && (line.group ?? line.label) === name) this.u?.setSeries(index, { show });
    });
  }

  // Show the values under the cursor in the legend.
  read(focused) {
    if (!this.u) return;
    if (focused !== undefined) this.focused = focused;
    const at = this.u.cursor.idx;
    const shown = new Set();
    this.owners.forEach((line, index) => {
      if (!line || line.fixed !== undefined) return;
      const name = line.group ?? line.label;
      const nearest = this.focused != null && this.owners[this.focused];
      if (shown.has(name) || (line.group && line !== nearest)) return;
      shown.add(name);
      this.entries.get(name).textContent = at == null ? "" : this.text(line, index, at);
    });
    for (const [name, value] of this.entries) {
      const line = this.lines.find((each) => (each.group ?? each.label) === name);
      if (!shown.has(name) && line.fixed === undefined) value.textContent = "";
    }
    this.onCursor(at == null ? null : this.u.data[0][at]);
  }

  text(line, index, at) {
    const value = this.u.data[index][at];
    if (value == null) return _("no value");
    const text = this.kind.text(value);
    if (line.group) return `${line.label} ${text}`;
    if (!line.minimum || !this.roomy) return text;
    const [least, most] = [this.u.data[index + 1][at], this.u.data[index + 2][at]];
    if (least === most) return text;
    const { unit, divisor } = this.kind.scale(most);
    if (divisor === 1) {
      const [low, high] = [least, most].map(this.kind.text);
      return _("%(value)s (%(low)s to %(high)s)", { value: text, low, high });
    }
    const [middle, low, high] = [value, least, most].map((each) => digits(each / divisor));
    return `${_("%(value)s (%(low)s to %(high)s)", { value: middle, low, high })} ${unit}`;
  }

  describe() {
    const words = this.lines.slice(0, 6).map((line) => {
      const known = line.values.filter((value) => value != null);
      if (!known.length) return `${line.label}: ${_("no values")}`;
      if (line.fixed !== undefined) return `${line.label}: ${this.kind.text(line.fixed)}`;
      const [least, most] = [Math.min(...known), Math.max(...known)];
      const [low, high] = [least, most].map(this.kind.text);
      return `${line.label}: ${_("from %(low)s to %(high)s", { low, high })}`;
    });
    const shaded = this.stretches.map(({ title, since, until }) => {
      const from = elapsed(Math.max(since, 0));
      const where = until === Infinity
        ? _("Shaded from %(from)s on", { from })
        : _("Shaded from %(from)s to %(to)s", { from, to: elapsed(until) });
      return `${where}: ${title}. `;
    });
    this.area.setAttribute(
      "aria-label",
      `${this.title}. ${words.join("; ")}. ${shaded.join("")}${_("Arrow keys read values.")}`,
    );
  }

  key(event) {
    if (!this.u) return;
    const times = this.u.data[0];
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    const at = this.u.cursor.idx ?? 0;
    let to;
    if (event.key in steps) to = at + steps[event.key];
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = times.length - 1;
    else return;
    event.preventDefault();
    const left = this.u.valToPos(times[Math.min(Math.max(to, 0), times.length - 1)], "x");
    this.u.setCursor({ left, top: 10 }, true, true);
  }

  showAll() {
    const times = this.u?.data[0];
    if (times?.length) this.u.setScale("x", { min: times[0], max: times.at(-1) });
  }

  fit() {
    const width = this.area.clientWidth;
    if (this.u && width > 0 && width !== this.u.width) this.u.setSize({ width, height: this.height });
  }
}
