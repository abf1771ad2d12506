// Rows that are picked, and the bar that says what can be done with them.
const boxes = () => [...document.querySelectorAll("input[data-pick]")];

function show() {
  const bar = document.querySelector("[data-picked-bar]");
  if (!bar) return;
  const picked = boxes().filter((box) => box.checked);
  bar.hidden = !picked.length;
  bar.querySelector("[data-picked]").textContent = `${picked.length} selected`;
  for (const button of bar.querySelectorAll("[data-selected]")) {
    button.dataset.confirm = button.dataset.question.replace("{n}", picked.length);
  }
  const all = document.querySelector("input[data-pick-all]");
  if (all) {
    all.checked = picked.length > 0 && picked.length === boxes().length;
    all.indeterminate = picked.length > 0 && !all.checked;
  }
}

export function start() {
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-pick-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("input[data-pick], input[data-pick-all]")) show();
  });
  document.addEventListener("drawn", show);
}
