// A job's graph, timeline and table are three views of one selection, which is told beside them.
import { put } from "./live.js";

let selected = null;

function mark() {
  for (const element of document.querySelectorAll("[data-select]")) {
    element.classList.toggle("here", element.dataset.select === selected);
  }
  const only = document.querySelector("[data-only]");
  for (const element of document.querySelectorAll("a.node, a.lane")) {
    const wanted = !only || !only.value || only.value.split(" ").includes(element.dataset.status);
    element.classList.toggle("dim", !wanted);
  }
}

async function tell() {
  const url = new URL(location.href);
  url.searchParams.set("task", selected);
  history.replaceState(null, "", url);
  const answer = await fetch(url, { headers: { "X-Region": "brief" }, credentials: "same-origin" });
  if (answer.ok) put(await answer.text());
  mark();
}

export function start() {
  if (!document.querySelector("[data-job]")) return;
  selected = new URL(location.href).searchParams.get("task");
  document.addEventListener("click", (event) => {
    const node = event.target.closest("a[data-select]");
    if (!node || event.ctrlKey || event.metaKey || node.closest("[data-region=brief]")) return;
    event.preventDefault();
    selected = node.dataset.select;
    mark();
    tell();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-only]")) mark();
  });
  document.addEventListener("drawn", mark);
  mark();
}
