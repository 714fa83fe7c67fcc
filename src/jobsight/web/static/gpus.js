// The GPUs of a run over time: a line for each, or a strip of colours for each if there are many.

import { stretches } from "./evidence.js";
import { alignNodes } from "./nodes.js";
import { Plot } from "./plot.js";
import { Strip } from "./strip.js";
import { N_, _ } from "./texts.js";

const HEIGHT = 200;
// Keys whose time series are requested: the address of a request has a limit.
const MAX_KEYS = 32;
const COLOURS = ["accent", "second", "bad", "muted", "good", "warn"];

const section = document.getElementById("gpu-curves");
const note = document.getElementById("gpu-note");
const area = section.querySelector(".plots");
const curves = document.getElementById("curves");
const all = section.dataset.gpus.split(",");
const keys = all.slice(0, MAX_KEYS);
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
      new Plot(area, { title: _("GPU used"), kind: "share", height: HEIGHT, onCursor: quiet, onZoom: quiet }),
      new Plot(area, { title: _("GPU memory"), kind: "bytes", height: HEIGHT, onCursor: quiet, onZoom: quiet }),
    ];
  }
  const named = (...names) => keys.flatMap((key) => names.map((name) => `gpu.${key}.${name}`));
  plots[0].stretches = stretches(named("utilization", "multiprocessor_time", "idle"), start);
  plots[1].stretches = stretches(named("memory_used"), start);
  plots[0].show(times, lines(gpus, "used"));
  plots[1].show(times, lines(gpus, "memory"));
}

async function load() {
  let nodes;
  try {
    const answer = await fetch(address(), { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    nodes = (await answer.json()).nodes.map((node) => ({ ...node, times: node.times_seconds }));
  } catch (error) {
    const reason = error.message;
    note.textContent = _("The time series of the GPUs could not be loaded: %(reason)s.", { reason });
    return;
  }
  const counts = { count: all.length, shown: keys.length };
  note.textContent = all.length > keys.length
    ? _("Of %(count)s GPUs of a node, the first %(shown)s are shown over time.", counts) : "";
  const aligned = alignNodes(nodes);
  const gpus = gpusOf(aligned);
  if (!gpus.length) return;
  area.hidden = false;
  start ??= aligned.times[0] ?? 0;
  const times = aligned.times.map((time) => time - start);
  if (!many) drawLines(times, gpus);
  else {
    if (!strip) {
      strip = new Strip(_("GPU used, each over time"), N_("The use of %(count)s GPUs over time."));
      area.classList.add("wide");
      area.replaceChildren(strip.figure);
    }
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
