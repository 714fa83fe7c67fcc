// Refreshes a page while a job runs: requests the same page again and replaces the sections marked
// data-live. A page that has not changed is answered with 304; only elapsed times are continued
// here. All other figures are formatted by the server.

import { _ } from "./texts.js";

const LONGEST_PERIOD = 60000;

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

function ago(seconds) {
  if (seconds < 0) return _("in the future");
  if (seconds < MINUTE) return _("just now");
  if (seconds < HOUR) return _("%(count)s min ago", { count: Math.floor(seconds / MINUTE) });
  if (seconds < 2 * DAY) return _("%(count)s h ago", { count: Math.floor(seconds / HOUR) });
  return _("%(count)s days ago", { count: Math.floor(seconds / DAY) });
}

// As the server formats durations of a second and more.
function duration(seconds) {
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const parts = [whole % DAY / HOUR, whole % HOUR / MINUTE, whole % MINUTE];
  const clock = parts.map((part) => String(Math.floor(part)).padStart(2, "0")).join(":");
  return whole >= DAY ? `${Math.floor(whole / DAY)} d ${clock}` : clock;
}

// When each elapsed time arrived, by the browser's clock, whose time of day may be wrong.
const arrivals = new WeakMap();

function showElapsedTimes() {
  const isStale = document.documentElement.hasAttribute("data-stale");
  for (const element of document.querySelectorAll("[data-elapsed]")) {
    if (!arrivals.has(element)) arrivals.set(element, performance.now());
    const passed = (performance.now() - arrivals.get(element)) / 1000;
    // Without an answer of the server, nobody knows whether the job still runs.
    if (passed >= 1 && !isStale) element.textContent = duration(Number(element.dataset.elapsed) + passed);
  }
}

function showRelativeTimes() {
  for (const time of document.querySelectorAll("time[data-relative]")) {
    const text = ago((Date.now() - Date.parse(time.dateTime)) / 1000);
    if (time.dataset.relative === "title") {
      time.title = text;
    } else {
      let note = time.nextElementSibling;
      if (!note) {
        note = document.createElement("span");
        note.className = "relative";
        time.after(note);
      }
      note.textContent = text;
    }
  }
}

function isSelected(section) {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && selection.intersectsNode
    ? selection.intersectsNode(section)
    : Boolean(selection && !selection.isCollapsed && section.contains(selection.anchorNode));
}

const FOCUSABLE = "a[href], button, [tabindex]";

// The last HTML of each section from the server. The DOM differs from it by the relative times.
const sent = new Map();

// False if the section was kept and is to be replaced later.
function exchange(section, fresh) {
  for (const name of ["data-running", "data-period"]) {
    const value = fresh.getAttribute(name);
    if (value === null) section.removeAttribute(name);
    else section.setAttribute(name, value);
  }
  const html = fresh.innerHTML;
  if (sent.get(section.id) === html) return true;
  // Keep a section while text in it is selected; the next refresh replaces it.
  if (isSelected(section)) return false;
  sent.set(section.id, html);
  const focused = [...section.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  const scrolled = [...section.querySelectorAll(".table-frame")].map((frame) => frame.scrollLeft);
  section.replaceChildren(...document.adoptNode(fresh).childNodes);
  if (focused >= 0) section.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
  section.querySelectorAll(".table-frame").forEach((frame, index) => {
    frame.scrollLeft = scrolled[index] ?? 0;
  });
  return true;
}

function isRunning() {
  return document.querySelector("[data-live][data-running]") !== null;
}

// A section of running jobs says after how many seconds there can be new samples.
function period() {
  const running = [...document.querySelectorAll("[data-live][data-running]")];
  if (running.length) {
    return Math.min(...running.map((section) => (Number(section.dataset.running) || 3) * 1000));
  }
  const slow = document.querySelector("[data-live][data-period]");
  return slow ? Number(slow.dataset.period) * 1000 : null;
}

// The tag of the last answer. The browser keeps no copy of a page, so that it is sent here.
let tag = null;

async function refresh() {
  const headers = { Accept: "text/html", ...(tag ? { "If-None-Match": tag } : {}) };
  const answer = await fetch(location.href, { headers, cache: "no-store" });
  if (answer.status === 304) return;
  // A redirect leads to the sign-in page: the session has expired, and the page is left as it is.
  if (!answer.ok || answer.redirected) throw new Error(`HTTP status ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  tag = answer.headers.get("ETag");
  for (const section of document.querySelectorAll("[data-live][id]")) {
    const fresh = page.getElementById(section.id);
    if (fresh && !exchange(section, fresh)) tag = null;
  }
  showRelativeTimes();
  showElapsedTimes();
}

let failures = 0;

async function round() {
  const wasRunning = isRunning();
  if (!document.hidden) {
    try {
      await refresh();
      failures = 0;
    } catch {
      failures += 1;
    }
    // Once more after the end of the job, for its final values.
    if (wasRunning) document.dispatchEvent(new CustomEvent("jobsight:refresh"));
    document.documentElement.toggleAttribute("data-stale", failures > 1);
  }
  plan();
}

function plan() {
  const wait = period();
  if (wait !== null) setTimeout(round, Math.min(wait * 2 ** failures, LONGEST_PERIOD));
}

showRelativeTimes();
showElapsedTimes();
setInterval(showRelativeTimes, 30000);
setInterval(showElapsedTimes, 1000);
plan();
