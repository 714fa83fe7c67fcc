// The time series of several runs in one chart each, by the time since the start of each run. Nodes
// are summed, so that runs on other numbers of nodes can be compared.

import { alignNodes } from "./nodes.js";
import { Plot } from "./plot.js";
import { _ } from "./texts.js";
import { elapsed } from "./units.js";

const METRICS = [
  { title: _("CPU"), kind: "cores", metric: "cpu.time" },
  { title: _("Memory"), kind: "bytes", metric: "memory.used" },
  { title: _("Read"), kind: "rate", metric: "io.read_characters" },
  { title: _("Written"), kind: "rate", metric: "io.written_characters" },
];
const COLOURS = ["accent", "second", "good", "bad", "warn", "muted", "ink", "line"];

const area = document.querySelector("#curves .plots");
const note = document.getElementById("curves-note");
const entire = document.getElementById("entire-run");
const sources = [...area.querySelectorAll("[data-run]")];

function onCursor(time) {
  note.textContent = time === null ? "" : _("%(time)s after the start", { time: elapsed(time) });
}

const plots = METRICS.map(({ title, kind }) => new Plot(area, {
  title,
  kind,
  height: 200,
  onCursor,
  onZoom: () => {
    entire.hidden = !plots.some((plot) => plot.zoomed);
  },
}));
entire.addEventListener("click", () => plots.forEach((plot) => plot.showAll()));

async function load(source) {
  const names = METRICS.map((each) => each.metric).join(",");
  const answer = await fetch(`${source.dataset.run}?metrics=${encodeURIComponent(names)}`, {
    headers: { Accept: "application/json" },
  });
  if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
  const start = Number(source.dataset.start);
  const nodes = (await answer.json()).nodes.map((node) => ({
    ...node,
    times: node.times_seconds.map((time) => time - start),
  }));
  const aligned = alignNodes(nodes);
  const metrics = {};
  for (const { metric } of METRICS) {
    const columns = aligned.nodes.map((node) => node.metrics[metric]?.mean).filter(Boolean);
    if (!columns.length) continue;
    const mean = aligned.times.map((time, index) => {
      const known = columns.map((column) => column[index]).filter((value) => value !== null);
      return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
    });
    metrics[metric] = { mean };
  }
  return { node: source.dataset.label, times: aligned.times, metrics };
}

async function draw() {
  let runs;
  try {
    runs = await Promise.all(sources.map(load));
  } catch (error) {
    note.textContent = _("The time series could not be loaded: %(reason)s.", { reason: error.message });
    return;
  }
  const aligned = alignNodes(runs);
  METRICS.forEach(({ metric }, index) => {
    const lines = runs
      .map((run, number) => ({ number, own: aligned.nodes.find((node) => node.node === run.node) }))
      .filter(({ own }) => own?.metrics[metric])
      .map(({ number, own }) => ({
        label: own.node,
        colour: COLOURS[number],
        dash: "solid",
        values: own.metrics[metric].mean,
      }));
    plots[index].show(aligned.times, lines);
  });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  plots.forEach((plot) => plot.data && plot.draw());
});
draw();
