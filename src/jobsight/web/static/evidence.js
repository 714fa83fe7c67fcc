// The stretches of time in which findings can be seen: read from the cards, drawn by the plots.

const COLOURS = { critical: "bad", warning: "warn", info: "muted" };

// "gpu.*.utilization" stands for all GPUs.
function matches(pattern, metric) {
  const parts = pattern.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join(".*")}$`).test(metric);
}

// The stretches of the findings that name one of the metrics, in seconds since the start.
export function stretches(metrics, start) {
  const cards = [...document.querySelectorAll("#findings [data-series][data-since]")];
  return cards
    .filter((card) => card.dataset.series.split(" ").some(
      (pattern) => metrics.some((metric) => matches(pattern, metric))))
    .map((card) => ({
      since: Number(card.dataset.since) - start,
      until: card.dataset.until === undefined ? Infinity : Number(card.dataset.until) - start,
      colour: COLOURS[card.dataset.severity] ?? "muted",
      title: card.dataset.title,
    }));
}
