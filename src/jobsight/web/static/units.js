// Units of the axes and of the values under the cursor. All other figures are formatted by the
// server.

import { _ } from "./texts.js";

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const BINARY_STEPS = Array.from({ length: 56 }, (_, power) => 2 ** power);
const DECIMAL_STEPS = [];
for (let power = -4; power < 12; power++) {
  for (const digit of [1, 2, 5]) DECIMAL_STEPS.push(digit * 10 ** power);
}
const COUNT_STEPS = DECIMAL_STEPS.filter((step) => step >= 1);
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE,
  30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY,
];

export function digits(value) {
  const size = Math.abs(value);
  if (size >= 99.95 || value === 0) return value.toFixed(0);
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

function binaryScale(largest) {
  let power = 0;
  while (largest >= 1000 && power < BINARY.length - 1) {
    largest /= 1024;
    power += 1;
  }
  return { unit: BINARY[power], divisor: 1024 ** power };
}

// Each kind: the steps of its axis, the scale for a maximum, and the text of one value.
export const KINDS = {
  cores: {
    steps: DECIMAL_STEPS,
    scale: () => ({ unit: _("cores"), divisor: 1 }),
    text: (value) => (Number.isInteger(value) ? String(value) : digits(value)),
  },
  share: {
    steps: DECIMAL_STEPS,
    scale: () => ({ unit: "%", divisor: 0.01 }),
    text: (value) => `${digits(value * 100)} %`,
  },
  bytes: {
    steps: BINARY_STEPS,
    scale: binaryScale,
    text(value) {
      const { unit, divisor } = binaryScale(Math.abs(value));
      return `${digits(value / divisor)} ${unit}`;
    },
  },
  rate: {
    steps: BINARY_STEPS,
    scale(largest) {
      const { unit, divisor } = binaryScale(largest);
      return { unit: `${unit}/s`, divisor };
    },
    text: (value) => `${KINDS.bytes.text(value)}/s`,
  },
  count: {
    steps: COUNT_STEPS,
    scale: () => ({ unit: "", divisor: 1 }),
    text: (value) => (Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(1)),
  },
};

export function tick(value) {
  return Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 });
}

const two = (number) => String(number).padStart(2, "0");

// Time since the start of the job: 12 s, 2:05, 3:00:00, 1 d 02:00.
export function elapsed(seconds, step = 1) {
  if (seconds < 0) return `-${elapsed(-seconds, step)}`;
  if (seconds < MINUTE && step < MINUTE) {
    return `${Number(seconds.toFixed(step < 1 ? 1 : 0))} s`;
  }
  const rounded = Math.round(seconds);
  const days = Math.floor(rounded / DAY);
  const hours = Math.floor((rounded % DAY) / HOUR);
  const minutes = Math.floor((rounded % HOUR) / MINUTE);
  const clock = `${two(minutes)}:${two(rounded % MINUTE)}`;
  if (days) return step >= DAY ? `${days} d` : `${days} d ${two(hours)}:${two(minutes)}`;
  return hours ? `${hours}:${clock}` : `${minutes}:${two(rounded % MINUTE)}`;
}
