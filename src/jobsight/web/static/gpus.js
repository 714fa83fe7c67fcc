// The GPUs of a run over time: a line for each, or a strip of colours for each if there are many.

import { stretches } from "./evidence.js";
import { alignNodes } from "./nodes.js";
import { Plot, colour } from "./plot.js";
import { elapsed } from "./units.js";

const HEIGHT = 200;
const ROW_HEIGHT = 12;
const GAP = 2;
const LEVELS = 20;
// Keys whose time series are asked for: the address of a request has a limit.
const MOST_KEYS = 32;
const COLOURS = ["accent", "second", "bad", "muted", "good", "warn"];

const section = document.getElementById("gpu-curves");
const note = document.getElementById("gpu-note");
const area = section.querySelector(".plots");
const curves = document.getElementById("curves");
const keys = section.dataset.gpus.split(",").slice(0, MOST_KEYS);
const many = Number(section.dataset.count) > Number(section.dataset.many);

let plots = [];
let strip = null;
let start = curves.dataset.start === "" ? null : Number(curves.dataset.start);

function address() {
  const names = ["multiprocessor_time", "utilization", ...(many ? [] : ["memory_used"])];
  const metrics = keys.flatMap((key) => names.map((name) => `gpu.${key}.${name}`)).join(",");
  return `${curves.dataset.series}?metrics=${encodeURIComponent(metrics)}`;
}

const has = (metric) => metric?.mean.some((value) => value !== null);

// How much of a GPU was used, from 0 to 1: of its multiprocessors, else its utilization.
function used(node, key) {
  const busy = node.metrics[`gpu.${key}.multiprocessor_time`];
  // A GPU is read some milliseconds before or after the time of its row: a rate may exceed 1.
  if (has(busy)) return busy.mean.map((value) => (value === null ? null : Math.min(value, 1)));
  const active = node.metrics[`gpu.${key}.utilization`];
  return active?.mean.map((value) => (value === null ? null : value / 100));
}

function gpusOf(aligned) {
  return aligned.nodes.flatMap((node) =>
    keys.filter((key) => Object.keys(node.metrics).some((name) => name.startsWith(`gpu.${key}.`)))
      .map((key) => ({
        label: aligned.nodes.length > 1 ? `${node.node} ${key}` : `GPU ${key}`,
        used: used(node, key) ?? [],
        memory: node.metrics[`gpu.${key}.memory_used`]?.mean,
      })));
}

function lines(gpus, figure) {
  return gpus.filter((gpu) => gpu[figure]?.length).map((gpu, index) => ({
    label: gpu.label,
    colour: COLOURS[index % COLOURS.length],
    dash: index < COLOURS.length ? "solid" : "dashed",
    values: gpu[figure],
  }));
}

function drawLines(times, gpus) {
  if (!plots.length) {
    const quiet = () => {};
    plots = [
      new Plot(area, { title: "GPU used", kind: "share", height: HEIGHT, onCursor: quiet, onZoom: quiet }),
      new Plot(area, { title: "GPU memory", kind: "bytes", height: HEIGHT, onCursor: quiet, onZoom: quiet }),
    ];
  }
  const named = (...names) => keys.flatMap((key) => names.map((name) => `gpu.${key}.${name}`));
  plots[0].stretches = stretches(named("utilization", "multiprocessor_time", "idle"), start);
  plots[1].stretches = stretches(named("memory_used"), start);
  plots[0].show(times, lines(gpus, "used"));
  plots[1].show(times, lines(gpus, "memory"));
}

class Strip {
  constructor() {
    this.figure = document.createElement("figure");
    this.figure.className = "panel plot heat";
    const head = document.createElement("div");
    head.className = "plot-head";
    const title = document.createElement("h3");
    title.textContent = "GPU used, each over time";
    this.reading = document.createElement("span");
    this.reading.className = "unit";
    head.append(title, this.scale(), this.reading);
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
    area.classList.add("wide");
    area.replaceChildren(this.figure);
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

  show(times, gpus) {
    Object.assign(this, { times, gpus });
    this.names.replaceChildren(...gpus.map((gpu) => {
      const name = document.createElement("span");
      name.textContent = gpu.label;
      return name;
    }));
    const idle = gpus.filter((gpu) => gpu.used.every((value) => !value)).map((gpu) => gpu.label);
    const never = idle.length ? ` Never used: ${idle.join(", ")}.` : "";
    this.canvas.setAttribute("aria-label", `The use of ${gpus.length} GPUs over time.${never}`);
    this.axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((share) => {
      const label = document.createElement("span");
      const [first, last] = [times[0], times.at(-1)];
      label.textContent = elapsed(first + (last - first) * share, (last - first) / 4);
      return label;
    }));
    this.draw();
  }

  draw() {
    if (!this.gpus?.length) return;
    const width = Math.max(this.canvas.clientWidth, 50);
    const height = this.gpus.length * (ROW_HEIGHT + GAP);
    const ratio = globalThis.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const [empty, full] = [colour("track"), colour("accent")];
    const span = this.times.at(-1) - this.times[0] || 1;
    this.gpus.forEach((gpu, row) => {
      const top = row * (ROW_HEIGHT + GAP);
      context.globalAlpha = 1;
      context.fillStyle = empty;
      context.fillRect(0, top, width, ROW_HEIGHT);
      context.fillStyle = full;
      for (let at = 1; at < this.times.length; at++) {
        const value = gpu.used[at];
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
    const gpu = this.gpus[row];
    if (!gpu || at < 0) return;
    const value = gpu.used[at];
    const text = value == null ? "no value" : `${(value * 100).toFixed(1)} %`;
    this.reading.textContent = `${gpu.label}: ${text}, ${elapsed(this.times[at])} after the start`;
  }
}

async function load() {
  let nodes;
  try {
    const answer = await fetch(address(), { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    nodes = (await answer.json()).nodes.map((node) => ({ ...node, times: node.times_seconds }));
  } catch (error) {
    note.textContent = `The time series of the GPUs could not be loaded: ${error.message}.`;
    return;
  }
  note.textContent = "";
  const aligned = alignNodes(nodes);
  const gpus = gpusOf(aligned);
  if (!gpus.length) return;
  area.hidden = false;
  start ??= aligned.times[0] ?? 0;
  const times = aligned.times.map((time) => time - start);
  if (!many) drawLines(times, gpus);
  else {
    strip ??= new Strip();
    strip.show(times, gpus);
  }
}

const redraw = () => {
  plots.forEach((plot) => plot.data && plot.draw());
  strip?.draw();
};

document.addEventListener("jobsight:refresh", load);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => setTimeout(redraw));
addEventListener("afterprint", redraw);
load();
