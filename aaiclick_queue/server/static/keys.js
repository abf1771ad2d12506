// Keys, rows and the theme.
const THEMES = ["system", "light", "dark"];
const row = () => document.querySelector("tr.here");

function theme() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch (refused) { /* then it lasts as long as the page */ }
  const button = document.querySelector("[data-theme-button]");
  if (button) button.title = `Theme: ${next}`;
}

function step(by) {
  const rows = [...document.querySelectorAll("tbody tr[data-key]")];
  if (!rows.length) return;
  const at = rows.indexOf(row());
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))] || rows[0];
  rows.forEach((one) => one.classList.toggle("here", one === next));
  next.scrollIntoView({ block: "nearest" });
  const link = next.querySelector("a.main-link");
  if (link) link.focus({ preventScroll: true });
}

const press = (selector, root = document) => {
  const button = root && root.querySelector(selector);
  if (button) button.click();
};

const KEYS = {
  "/": () => document.querySelector("#search").focus(),
  "?": () => document.querySelector("#help").showModal(),
  t: theme,
  r: () => document.dispatchEvent(new Event("pause-live")),
  j: () => step(1),
  k: () => step(-1),
  x: () => press("input[data-pick]", row()),
  e: () => press("[data-key-act=retry]", row() || document),
  c: () => press("[data-key-act=cancel]", row() || document),
};

export function start() {
  let went = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
    if (event.key === "Escape" && document.querySelector(".nav.open")) press(".menu-button", document);
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    if (event.key === "g") {
      went = Date.now();
      return;
    }
    if (Date.now() - went < 1500) {
      went = 0;
      const link = document.querySelector(`.nav a[data-go="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        location.assign(link.href);
        return;
      }
    }
    if (KEYS[event.key]) {
      event.preventDefault();
      KEYS[event.key]();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-button]")) theme();
    if (event.target.closest("[data-help]")) document.querySelector("#help").showModal();
    const menu = event.target.closest(".menu-button");
    if (menu) menu.setAttribute("aria-expanded", String(document.querySelector(".nav").classList.toggle("open")));
  });
}
