// Keeps the page true: one stream a tab says what changed, regions are fetched anew at most once a second.
import { morph } from "./morph.js";
import { setClock, tick } from "./times.js";

const EVERY = 1000;
const POLL = 5000;
const badge = document.querySelector("[data-live]");
let paused = false;
let stream = null;
let poll = null;
let timer = null;
let last = 0;
let busy = false;
let again = false;

export function regions() {
  return [...document.querySelectorAll("[data-region]")];
}

export async function refresh(only = null, url = location.href) {
  if (busy) {
    again = true;
    return;
  }
  const names = regions().map((region) => region.dataset.region).filter((name) => !only || only.includes(name));
  if (!names.length) return;
  busy = true;
  last = Date.now();
  try {
    const answer = await fetch(url, { headers: { "X-Region": names.join(",") }, credentials: "same-origin" });
    if (answer.status === 401 || answer.redirected) return location.reload();
    if (!answer.ok) throw new Error(String(answer.status));
    put(await answer.text());
    setClock(answer.headers.get("X-Now"));
    if (!stream || stream.readyState === EventSource.OPEN) say(paused ? "paused" : "live");
  } catch (failed) {
    say("reconnecting");
  } finally {
    busy = false;
    if (again) {
      again = false;
      soon();
    }
  }
}

export function put(html) {
  const drawn = new DOMParser().parseFromString(html, "text/html");
  for (const next of drawn.querySelectorAll("[data-region]")) {
    const here = document.querySelector(`[data-region="${CSS.escape(next.dataset.region)}"]`);
    if (here) morph(here, next);
  }
  tick();
  document.dispatchEvent(new CustomEvent("drawn"));
}

function soon() {
  if (paused || timer) return;
  timer = setTimeout(() => {
    timer = null;
    if (!paused) refresh();
  }, Math.max(0, last + EVERY - Date.now()));
}

function say(what) {
  if (!badge || badge.dataset.is === what) return;
  badge.dataset.is = what;
  badge.querySelector("[data-words]").textContent = what;
  badge.setAttribute("aria-pressed", String(what === "paused"));
}

function listen() {
  const url = document.body.dataset.stream;
  if (!url || stream) return;
  stream = new EventSource(url);
  stream.addEventListener("open", () => {
    clearInterval(poll);
    poll = setInterval(soon, POLL * 3); // what no frame tells, as ages and rates
    say("live");
  });
  stream.addEventListener("changed", soon);
  stream.addEventListener("error", () => {
    if (stream.readyState === EventSource.CLOSED) stream = null;
    clearInterval(poll);
    poll = setInterval(() => (stream ? soon() : (soon(), listen())), POLL);
    if (stream) say("reconnecting");
  });
}

function deafen() {
  if (stream) stream.close();
  stream = null;
  clearInterval(poll);
}

export function pause(on = !paused) {
  paused = on;
  if (on) {
    deafen();
    say("paused");
  } else {
    say("live");
    listen();
    refresh();
  }
}

export function start() {
  if (!document.body.dataset.stream || !regions().length) return;
  let chosen = false;
  badge.addEventListener("click", () => {
    chosen = !paused;
    pause();
  });
  document.addEventListener("pause-live", () => badge.click());
  document.addEventListener("visibilitychange", () => {
    if (!chosen) pause(document.hidden);
  });
  addEventListener("pagehide", deafen);
  listen();
}
