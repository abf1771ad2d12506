// Follows the log of a run: what is new is asked for where the last answer ended.
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

export function start() {
  const log = document.querySelector("[data-tail]");
  if (!log) return;
  const follow = document.querySelector("[data-follow]");
  let after = log.dataset.after;
  const bottom = () => { log.scrollTop = log.scrollHeight; };
  const look = async () => {
    if (document.hidden || !follow.checked || !log.dataset.tail) return;
    try {
      const url = new URL(log.dataset.tail, location.href);
      if (after) url.searchParams.set("after", after);
      const answer = await fetch(url, { credentials: "same-origin" });
      if (!answer.ok) return;
      const told = await answer.json();
      if (told.after !== undefined) after = told.after;
      if (!told.lines || !told.lines.length) return;
      const none = log.querySelector("[data-none]");
      if (none) none.remove();
      log.append(...told.lines.map(line));
      tick(log);
      bottom();
    } catch (failed) { /* the badge says it */ }
  };
  bottom();
  setInterval(look, EVERY);
}
