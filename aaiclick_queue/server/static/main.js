// Everything a page does beyond being read.
import * as acts from "./acts.js";
import * as jobs from "./jobs.js";
import * as keys from "./keys.js";
import * as live from "./live.js";
import * as picking from "./picking.js";
import * as tail from "./tail.js";
import * as times from "./times.js";

times.setClock(document.body.dataset.now);
for (const part of [times, keys, acts, picking, jobs, tail, live]) part.start();
for (const control of document.querySelectorAll("[data-submits]")) control.addEventListener("change", () => control.form.requestSubmit());
