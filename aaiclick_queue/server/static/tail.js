// Follows the log of a task, attempt after attempt: what is new is asked for where the last answer ended.
import { tick } from "./times.js";

const EVERY = 1000;

function line(one) {
  const item = document.createElement("li");
  item.className = String(one.level || "info").toLowerCase();
  const time = Object.assign(document.createElement("time"), { dateTime: one.at });
  time.dataset.as = "clock";
  const level = Object.assign(document.createElement("span"), { textContent: one.level || one.stream || "" });
  const words = Object.assign(document.createElement("span"), { className: "words", textContent: one.text });
  item.append(time, level, words);
  return item;
}

function head(attempt) {
  const item = document.createElement("li");
  item.dataset.attempt = attempt;
  item.append(Object.assign(document.createElement("span"), { className: "words soft", textContent: `attempt ${attempt}` }));
  return item;
}

async function ask(path, given) {
  const url = new URL(path, location.href);
  for (const [name, value] of Object.entries(given)) url.searchParams.set(name, value);
  const answer = await fetch(url, { credentials: "same-origin" });
  return answer.ok ? answer.json() : null;
}

export function start() {
  const log = document.querySelector("[data-tail]");
  if (!log) return;
  const follow = document.querySelector("[data-follow]");
  const isChosen = new URL(log.dataset.tail, location.href).searchParams.has("attempt");
  let attempt = Number(log.dataset.attempt) || 1;
  let after = Number(log.dataset.after) || 0;
  let headed = attempt;
  let isBusy = false;
  const bottom = () => { log.scrollTop = log.scrollHeight; };
  const show = (lines) => {
    const none = log.querySelector("[data-none]");
    if (none) none.remove();
    if (headed !== attempt) log.append(head(attempt));
    headed = attempt;
    log.append(...lines.map(line));
    tick(log);
    bottom();
  };
  const look = async () => {
    const told = await ask(log.dataset.tail, { attempt, after });
    if (!told) return;
    after = told.after;
    if (told.lines.length) { show(told.lines); return; }
    if (isChosen || !told.is_end) return;
    // Places are those of one attempt's log: the next one is read from its beginning.
    const last = await ask(log.dataset.tail, { limit: 1 });
    if (last && last.attempt > attempt) { attempt += 1; after = 0; }
  };
  const turn = async () => {
    if (isBusy || document.hidden || !follow.checked || !log.dataset.tail) return;
    isBusy = true;
    try { await look(); } catch (failed) { /* the badge says it */ }
    isBusy = false;
  };
  bottom();
  setInterval(turn, EVERY);
}
