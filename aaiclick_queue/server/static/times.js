// Times as this reader lives them: relative and ticking, both zones where the pointer rests.
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const STYLES = {
  time: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
  day: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" }),
  moment: new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
  clock: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }),
};
let skew = null; // the server's clock less ours

export function setClock(iso) {
  if (!iso) return;
  // What was long on its way tells too little, never too much; more than a minute off, one of the clocks was set.
  const told = Date.parse(iso) - Date.now();
  skew = skew === null || Math.abs(told - skew) > 60000 ? told : Math.max(skew, told);
}

export function brief(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

export function tick(root = document) {
  const now = Date.now() + (skew ?? 0);
  for (const element of root.querySelectorAll("time[data-as]")) {
    const at = Date.parse(element.dateTime);
    const words = told(element.dataset.as, at, now);
    if (element.textContent !== words) element.textContent = words;
    if (element.dataset.titled !== element.dateTime) {
      element.title = `${local.format(at)}\n${new Date(at).toISOString().replace("T", " ").slice(0, 19)} UTC`;
      element.dataset.titled = element.dateTime;
    }
  }
  for (const element of root.querySelectorAll("text[data-at]")) {
    element.textContent = STYLES[element.dataset.style].format(Date.parse(element.dataset.at));
  }
}

function told(as, at, now) {
  if (as === "since") return brief((now - at) / 1000);
  if (STYLES[as]) return STYLES[as].format(at);
  const seconds = (now - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${brief(seconds)} ago` : `in ${brief(-seconds)}`;
}

export function start() {
  tick();
  setInterval(tick, 1000);
}
