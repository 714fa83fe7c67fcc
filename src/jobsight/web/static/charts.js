// The time series of one run: fetched from the API, drawn for one node or for all of them.

import { stretches } from "./evidence.js";
import { alignNodes, meanOfNodes } from "./nodes.js";
import { Plot } from "./plot.js";
import { Strip } from "./strip.js";
import { N_, _ } from "./texts.js";
import { elapsed } from "./units.js";

const HEIGHT = 200;

// The first line of a plot is the one that is drawn per node.
const PLOTS = [
  {
    title: _("CPU"),
    kind: "cores",
    requested: "cpus",
    lines: [
      { metric: "cpu.time", label: _("used"), colour: "accent", dash: "solid", band: true },
      { metric: "cpu.system", label: _("system"), colour: "second", dash: "solid", thin: true },
    ],
  },
  {
    title: _("Memory"),
    kind: "bytes",
    requested: "memory",
    lines: [
      { metric: "memory.used", label: _("used"), colour: "accent", dash: "solid", band: true },
      { metric: "memory.current", label: _("with page cache"), colour: "muted", dash: "dashed" },
    ],
  },
  {
    title: _("I/O"),
    kind: "rate",
    lines: [
      { metric: "io.read_characters", label: _("read"), colour: "accent", dash: "solid", band: true },
      { metric: "io.written_characters", label: _("written"), colour: "second", dash: "solid", band: true },
      { metric: "io.read_bytes", label: _("from storage"), colour: "accent", dash: "dashed" },
      { metric: "io.written_bytes", label: _("to storage"), colour: "second", dash: "dashed" },
    ],
  },
  {
    title: _("Processes and threads"),
    kind: "count",
    lines: [
      { metric: "tasks.processes", label: _("processes"), colour: "accent", dash: "solid", band: true },
      { metric: "tasks.threads", label: _("threads"), colour: "second", dash: "solid", band: true },
    ],
  },
];

const MEAN = "mean";
const EACH = "each";
const MANY_NODES = 8;
// Nodes that are drawn as rows of the strip.
const MOST_ROWS = 128;

const section = document.getElementById("curves");
const note = document.getElementById("curves-note");
const tools = section.querySelector(".curves-tools");
const chooser = document.getElementById("node-chooser");
const select = chooser.querySelector("select");
const entireRun = document.getElementById("entire-run");
const area = section.querySelector(".plots");

let nodes = [];
let start = section.dataset.start === "" ? null : Number(section.dataset.start);
let plots = [];
let strip = null;

function address() {
  const metrics = PLOTS.flatMap((plot) => plot.lines.map((line) => line.metric)).join(",");
  // Lines of many nodes lie over each other: fewer points, and the charts are there sooner.
  const points = Number(section.dataset.nodes) > MANY_NODES ? "&points=240" : "";
  return `${section.dataset.series}?metrics=${encodeURIComponent(metrics)}${points}`;
}

const differs = (metric) =>
  metric.minimum?.some((value, index) => value !== null && value !== metric.maximum[index]);

// The request is for the complete job; a plot shows one node or the mean of all nodes.
function requestedLine(plot, length) {
  const requested = Number(section.dataset[plot.requested]);
  if (!plot.requested || !requested) return [];
  const share = requested / Math.max(nodes.length, Number(section.dataset.nodes) || 1);
  const label = nodes.length > 1 ? _("requested, per node") : _("requested");
  const values = new Array(length).fill(share);
  return [{ label, colour: "bad", dash: "limit", fixed: share, values }];
}

function linesOfOne(plot, node) {
  return plot.lines
    .filter((line) => node.metrics[line.metric])
    .map((line) => {
      const metric = node.metrics[line.metric];
      const range = line.band && differs(metric)
        ? { minimum: metric.minimum, maximum: metric.maximum }
        : {};
      return { ...line, values: metric.mean, ...range };
    });
}

function linesOfEach(plot, aligned) {
  return plot.lines.filter((line) => line.band).flatMap((line) =>
    aligned.nodes.filter((node) => node.metrics[line.metric]).map((node) => ({
      ...line,
      label: node.node,
      group: line.label,
      thin: true,
      faint: aligned.nodes.length > 3,
      values: node.metrics[line.metric].mean,
    })));
}

function draw() {
  const aligned = alignNodes(nodes);
  const view = select.value;
  const chosen = aligned.nodes.length > 1 && view === MEAN
    ? meanOfNodes(aligned)
    : aligned.nodes.find((node) => node.node === view) ?? aligned.nodes[0] ?? { metrics: {} };
  start ??= aligned.times[0] ?? 0;
  const times = aligned.times.map((time) => time - start);
  PLOTS.forEach((plot, index) => {
    const lines = view === EACH ? linesOfEach(plot, aligned) : linesOfOne(plot, chosen);
    plots[index].stretches = stretches(plot.lines.map((line) => line.metric), start);
    plots[index].show(times, [...lines, ...requestedLine(plot, times.length)]);
  });
  if (aligned.nodes.length > 1) drawStrip(aligned, times);
}

// How much of its part of the requested CPUs each node used; without a request, of the busiest.
function drawStrip(aligned, times) {
  const rates = aligned.nodes.map((node) => node.metrics["cpu.time"]?.mean ?? []);
  const requested = Number(section.dataset.cpus) / Math.max(nodes.length, Number(section.dataset.nodes) || 1);
  const full = requested || Math.max(...rates.flat().map((value) => value ?? 0), 1e-9);
  if (!strip) {
    strip = new Strip(_("CPU used by node over time"), N_("The use of %(count)s nodes over time."));
    strip.figure.classList.add("nodes-strip");
    area.after(strip.figure);
  }
  strip.show(times, aligned.nodes.slice(0, MOST_ROWS).map((node, index) => ({
    label: node.node,
    used: rates[index].map((value) => (value === null ? null : Math.min(value / full, 1))),
  })));
}

function fillChooser() {
  const names = nodes.map((node) => node.node);
  const views = [
    [MEAN, _("mean and range of %(count)s", { count: names.length })],
    [EACH, _("one line each")],
  ];
  const options = [...views, ...names.map((name) => [name, name])];
  chooser.hidden = names.length < 2;
  tools.hidden = false;
  if (select.options.length === options.length) return;
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  select.value = names.includes(before) || before === EACH ? before : MEAN;
}

function showNote(text) {
  if (note.textContent !== text) note.textContent = text;
}

function onCursor(time) {
  if (time === null) {
    showNote("");
    return;
  }
  const clock = new Date((time + start) * 1000).toISOString().slice(11, 19);
  showNote(_("%(time)s after the start, %(clock)s UTC", { time: elapsed(time), clock }));
}

function onZoom() {
  entireRun.hidden = !plots.some((plot) => plot.zoomed);
}

function makePlots() {
  area.replaceChildren();
  plots = PLOTS.map(({ title, kind }) => new Plot(area, { title, kind, height: HEIGHT, onCursor, onZoom }));
}

// The tag of the last answer; without new values the next one is 304.
let tag = null;
// The note says why.
let hasFailed = false;

async function load() {
  try {
    const headers = { Accept: "application/json", ...(tag ? { "If-None-Match": tag } : {}) };
    const answer = await fetch(address(), { headers, cache: "no-store" });
    if (answer.status === 304) return;
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    nodes = (await answer.json()).nodes.map((node) => ({ ...node, times: node.times_seconds }));
    tag = answer.headers.get("ETag");
  } catch (error) {
    showNote(_("The time series could not be loaded: %(reason)s.", { reason: error.message }));
    hasFailed = true;
    return;
  }
  if (hasFailed) showNote("");
  hasFailed = false;
  fillChooser();
  draw();
}

const redraw = () => {
  plots.forEach((plot) => plot.data && plot.draw());
  strip?.draw();
};

area.hidden = false;
makePlots();
select.addEventListener("change", draw);
entireRun.addEventListener("click", () => plots.forEach((plot) => plot.showAll()));
document.addEventListener("jobsight:refresh", load);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
// A canvas keeps its colours: redraw it with the colours for print.
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("on-paper");
  redraw();
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("on-paper");
  redraw();
});
load();
