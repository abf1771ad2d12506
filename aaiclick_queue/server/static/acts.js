// Acts: every change is one request to the API, named on the page by data attributes, asked about and told.
import { refresh } from "./live.js";

const dialog = document.querySelector("#ask");
const toasts = document.querySelector("#toasts");

export function toast(words, { bad = false, undo = null } = {}) {
  const one = document.createElement("div");
  one.className = bad ? "toast bad" : "toast";
  one.append(Object.assign(document.createElement("span"), { textContent: words }));
  if (undo) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Undo" });
    button.addEventListener("click", () => {
      one.remove();
      act({ method: "POST", path: undo, done: "Undone" });
    });
    one.append(button);
  }
  toasts.append(one);
  setTimeout(() => one.remove(), bad ? 12000 : 6000);
}

export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  let told = {};
  try {
    told = text ? JSON.parse(text) : {};
  } catch (unreadable) { /* a proxy's page, perhaps */ }
  if (!answer.ok) throw new Error(told.detail || told.title || `the server answered ${answer.status}`);
  return told;
}

async function act({ method, path, body, done, undo }) {
  try {
    const told = await call(method, path, body);
    toast(sentence(done, told), { undo });
  } catch (failed) {
    toast(failed.message, { bad: true });
  }
  refresh();
}

function sentence(done, told) {
  if (told.operation_id) return `${done}: operation ${told.operation_id} works on it`;
  return told.changed === false && told.detail ? told.detail : done;
}

async function counted(method, path, body) {
  try {
    const told = await call(method, path, { ...body, dry_run: true });
    const looked = told.looked_at ? ` (among the ${told.looked_at.toLocaleString("en")} that were looked at)` : "";
    if (told.count) return `${told.count.toLocaleString("en")}${told.is_more ? "+" : ""} ${told.count === 1 ? "task" : "tasks"}${leaving(told)}`;
    if (told.matching) return `${told.matching.toLocaleString("en")}${told.is_more ? "+" : ""}${looked}`;
    if (told.is_more) return `an unknown number of (none among the first ${(told.looked_at ?? 0).toLocaleString("en")})`;
    toast("Nothing that matches can take this now");
  } catch (failed) {
    toast(failed.message, { bad: true });
  }
  return null;
}

function leaving({ leaving: n }) {
  return n ? ` (${n.toLocaleString("en")} that they had added leave the job)` : "";
}

async function filled(question, fields, body, verb) {
  const given = await asked(question, fields, { verb, danger: false });
  return given ? { ...body, ...given } : null;
}

async function pressed(button) {
  const { act: method, path, confirm, ask, preview, done = "Done", undo, danger } = button.dataset;
  let body = button.dataset.body ? JSON.parse(button.dataset.body) : undefined;
  const verb = button.dataset.verb || button.textContent.trim();
  const fields = ask ? JSON.parse(ask) : [];
  let question = confirm;
  if (preview !== undefined) {
    if (ask) body = await filled(button.textContent.trim(), fields, body, verb);
    if (body === null) return;
    const told = await counted(method, path, body);
    if (!told) return;
    question = confirm.replaceAll("{n}", told);
    if (!(await asked(question, [], { verb, danger: danger !== undefined }))) return;
    body = { ...body, dry_run: false };
  } else if (question || ask) {
    const given = await asked(question || verb, fields, { verb, danger: danger !== undefined });
    if (!given) return;
    if (ask || body) body = { ...body, ...given };
  }
  if (button.dataset.selected !== undefined) {
    if (button.dataset.selected !== "ids") return each(method, path, done);
    const picked = [...document.querySelectorAll("input[data-pick]:checked")];
    body = { ids: picked.map((box) => box.value) };
    picked.forEach((box) => { box.checked = false; });
  }
  return act({ method, path, body, done, undo });
}

async function each(method, path, done) {
  const picked = [...document.querySelectorAll("input[data-pick]:checked")];
  const answers = await Promise.allSettled(picked.map((box) => call(method, path.replace("{id}", box.value))));
  const changed = answers.filter((one) => one.status === "fulfilled" && one.value.changed !== false).length;
  const refused = answers.find((one) => one.status === "rejected");
  toast(`${done}: ${changed} of ${picked.length}${refused ? `. ${refused.reason.message}` : ""}`, { bad: Boolean(refused) });
  picked.forEach((box) => { box.checked = false; });
  refresh();
}

function asked(question, fields, { verb, danger }) {
  const form = dialog.querySelector("form");
  dialog.querySelector("h2").textContent = question;
  const inputs = fields.map((field) => {
    const label = Object.assign(document.createElement("label"), { textContent: field.label });
    const input = document.createElement("input");
    for (const [name, value] of Object.entries({ type: "text", ...field })) if (name !== "label" && name !== "null") input.setAttribute(name, value);
    label.append(input);
    return label;
  });
  dialog.querySelector("[data-fields]").replaceChildren(...inputs);
  const yes = dialog.querySelector("[value=yes]");
  yes.textContent = verb;
  yes.classList.toggle("danger", danger);
  dialog.returnValue = "";
  dialog.showModal();
  (inputs[0] ? inputs[0].querySelector("input") : danger ? dialog.querySelector("[value=no]") : yes).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return resolve(null);
      const given = {};
      for (const [name, text] of new FormData(form)) {
        const field = fields.find((one) => one.name === name);
        if (field && "value" in field && text === String(field.value)) continue;
        if (text !== "") given[name] = field && field.type === "number" ? Number(text) : text;
        else if (field && "null" in field) given[name] = null;
      }
      return resolve(given);
    }, { once: true });
  });
}

export function start() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button && !button.disabled) pressed(button);
    const copy = event.target.closest("button[data-copy]");
    if (copy) copied(copy.dataset.copy);
  });
  dialog.querySelector("[value=no]").addEventListener("click", () => dialog.close(""));
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch (refused) { // plain http off the loopback has no clipboard
    asked("Copy this", [{ name: "text", label: "Text", value: text, readonly: "" }], { verb: "Close", danger: false });
  }
}
