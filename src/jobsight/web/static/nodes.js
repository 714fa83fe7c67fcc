// Aligns the time series of several nodes to common times, as uPlot requires.

const PARTS = ["mean", "minimum", "maximum"];

// The server inserts a time without values into every gap; gaps are not interpolated.
function interpolate(times, column, wanted) {
  const result = new Array(wanted.length).fill(null);
  let right = 0;
  wanted.forEach((time, index) => {
    while (right < times.length && times[right] < time) right += 1;
    if (right >= times.length) return;
    if (times[right] === time) result[index] = column[right];
    else if (right > 0 && column[right] !== null && column[right - 1] !== null) {
      const share = (time - times[right - 1]) / (times[right] - times[right - 1]);
      result[index] = column[right - 1] + share * (column[right] - column[right - 1]);
    }
  });
  return result;
}

// The times of the node with the most points, extended by those of others before and after.
function commonTimes(nodes) {
  const densest = nodes.reduce((best, node) => (node.times.length > best.times.length ? node : best));
  const first = densest.times[0];
  const last = densest.times.at(-1);
  const longest = nodes.reduce((best, node) => (node.times.at(-1) > best.times.at(-1) ? node : best));
  const earliest = nodes.reduce((best, node) => (node.times[0] < best.times[0] ? node : best));
  return [
    ...earliest.times.filter((time) => time < first),
    ...densest.times,
    ...longest.times.filter((time) => time > last),
  ];
}

export function alignNodes(nodes) {
  const known = nodes.filter((node) => node.times.length);
  if (known.length < 2) return { times: known[0]?.times ?? [], nodes: known };
  const times = commonTimes(known);
  const aligned = known.map((node) => {
    const metrics = {};
    for (const [name, metric] of Object.entries(node.metrics)) {
      metrics[name] = { ...metric };
      for (const part of PARTS) {
        if (metric[part]) metrics[name][part] = interpolate(node.times, metric[part], times);
      }
    }
    return { ...node, times, metrics };
  });
  return { times, nodes: aligned };
}

function fold(columns, length, join) {
  const result = new Array(length).fill(null);
  for (let index = 0; index < length; index++) {
    const values = [];
    for (const column of columns) if (column[index] !== null) values.push(column[index]);
    if (values.length) result[index] = join(values);
  }
  return result;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// The mean over the nodes, and the minimum and maximum of any node.
export function meanOfNodes(aligned) {
  const metrics = {};
  for (const name of new Set(aligned.nodes.flatMap((node) => Object.keys(node.metrics)))) {
    const holders = aligned.nodes.map((node) => node.metrics[name]).filter(Boolean);
    const { length } = aligned.times;
    metrics[name] = {
      unit: holders[0].unit,
      mean: fold(holders.map((metric) => metric.mean), length, mean),
      minimum: fold(holders.map((metric) => metric.minimum ?? metric.mean), length, (v) => Math.min(...v)),
      maximum: fold(holders.map((metric) => metric.maximum ?? metric.mean), length, (v) => Math.max(...v)),
    };
  }
  return { node: null, times: aligned.times, metrics };
}
