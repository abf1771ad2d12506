// Changes a region into what the server has drawn anew, node by node, so that focus, selection and scroll stay.
const KEPT = new Set(["open", "aria-selected", "data-frozen"]);

const keyOf = (node) => (node.nodeType === 1 ? node.dataset.key || node.id || null : null);

export function morph(from, to) {
  attributes(from, to);
  children(from, to);
}

function attributes(from, to) {
  for (const { name, value } of to.attributes) {
    if (!KEPT.has(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !KEPT.has(name) && !(name === "class" && from.matches(".here, .dim"))) from.removeAttribute(name);
  }
}

function children(from, to) {
  const keyed = new Map([...from.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const key = keyOf(next);
    let same = key ? keyed.get(key) : at;
    if (same && !key && keyOf(same)) same = null;
    if (same && same.nodeType === next.nodeType && same.nodeName === next.nodeName) {
      if (same !== at) from.insertBefore(same, at);
      one(same, next);
      at = same.nextSibling;
    } else {
      from.insertBefore(document.importNode(next, true), at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function one(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) {
      from.nodeValue = to.nodeValue;
      flash(from.parentElement);
    }
    return;
  }
  if (from.matches("input, select, textarea") && (from === document.activeElement || from.type === "checkbox")) return;
  if (from.matches("[data-frozen]:hover")) return;
  if (from.isEqualNode(to)) return;
  morph(from, to);
}

function flash(element) {
  const cell = element && element.closest("td, dd, .value");
  if (!cell || element.closest("time")) return;
  cell.classList.add("flash");
  cell.addEventListener("animationend", () => cell.classList.remove("flash"), { once: true });
}
