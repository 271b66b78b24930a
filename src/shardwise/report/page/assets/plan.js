// Plan: the question on the left; the search as it runs, the best strategies and all simulated ones on the right.

import { go, pin, select } from "./actions.js";
import { plan as search, stopPlan } from "./api.js";
import { el, refill } from "./dom.js";
import { bytes, number, percent, seconds, signed } from "./format.js";
import { formOf, showFaults } from "./form.js";
import { t } from "./i18n.js";
import { scatterOf } from "./scatter.js";
import { DEFAULT, listen, modelName, same, state, toAsk, update } from "./state.js";
import { alertOf } from "./why.js";

const EXAMPLES = [
  { model: "llama-3-8b", gpus: 16, gpu: "h100", global_batch: 128, seq: 8192 },
  { model: "llama-3-70b", gpus: 64, gpu: "h100", global_batch: 1024, seq: 8192 },
  { model: "mixtral-8x7b", gpus: 64, gpu: "a100", global_batch: 512, seq: 4096 },
];
const FEW = 8; // rows of the table before it is opened
let running = null;
let opened = false;

export function mountPlan(root) {
  const form = state.live ? formOf(() => start()) : null;
  const scatter = scatterOf(strategy => select(strategy));
  const parts = { status: el("div"), chosen: el("div"), plot: el("section", { class: "card scatter-card", "aria-label": t("plan.scatter") }, el("h2", {}, t("plan.scatter")), scatter.node),
    table: el("div"), empty: el("div") };
  refill(root, form, el("div", { class: "results" }, parts.status, parts.chosen, parts.empty, parts.plot, parts.table));
  root.classList.toggle("alone", !form);
  const render = () => draw(parts, scatter, form);
  listen(["run", "selected", "question", "current", "pins"], render);
  listen(["view"], () => state.view === "plan" && render());
  render();
}

/** Ask the server; whatever was found before stays until the new answer is there. */
export async function start(keep = "") {
  if (running) running.abort();
  const own = new AbortController(), question = state.question, before = state.run;
  running = own;
  const run = { phase: "waiting", points: [], progress: null, began: performance.now(), before: before && before.view ? before : before && before.before };
  update({ run, asked: question });
  const heard = (event, data) => {
    if (running !== own) return;
    if (event === "queued") Object.assign(run, { phase: "queued", position: data.position });
    else if (event === "started") Object.assign(run, { phase: "running", id: data.id });
    else if (event === "progress") Object.assign(run, { phase: run.phase === "stopping" ? "stopping" : "running", progress: data });
    else if (event === "point") run.points = run.points.concat(data.points);
    else if (event === "failed") throw Object.assign(new Error(data.error.message), { faults: data.error.faults || [] });
    else if (event === "done") finish(run, data, question, keep);
    update({ run });
  };
  try {
    await search(toAsk(question), heard, own.signal);
    if (running === own && run.phase !== "done") throw new Error(t("plan.cut"));
  } catch (error) {
    if (error.name !== "AbortError" && running === own) update({ run: { ...run, phase: "failed", error } });
  } finally {
    if (running === own) running = null;
  }
}

function finish(run, data, question, keep) {
  Object.assign(run, { phase: "done", plan: data.plan, view: data.view, top: data.top || [], finished: data.finished, closest: data.closest || null, before: null });
  if (data.view && data.view.candidates && data.view.candidates.length > run.points.length) run.points = data.view.candidates;
  if (!data.view) return;
  const best = data.view.strategy;
  for (const point of run.points) point.best = point.strategy === best;
  if (!keep || keep === best) update({ current: { question, plan: data.plan, view: data.view }, selected: best, loading: false, problem: null });
}

function stop() {
  if (!state.run || !state.run.id) return;
  update({ run: Object.assign(state.run, { phase: "stopping" }) });
  stopPlan(state.run.id).catch(() => {});
}

function draw(parts, scatter, form) {
  const { run } = state, shown = run && !run.points.length && !run.view && run.before ? run.before : run;
  const busy = run && ["waiting", "queued", "running", "stopping"].includes(run.phase);
  const faults = run && run.phase === "failed" && run.error.faults ? run.error.faults : [];
  const loose = form ? showFaults(form, faults) : faults;
  if (form) form.querySelector("#plan-button").textContent = busy ? t("form.again") : t("form.plan");
  refill(parts.status, status(run, busy, loose), run && !busy && state.asked && state.live && !same(state.asked, state.question) ? stale() : null);
  const points = shown ? shown.points : [];
  parts.plot.hidden = !points.length;
  if (points.length) scatter.draw(points, limitOf(shown), state.selected);
  refill(parts.table, shown ? table(shown) : null);
  refill(parts.chosen, state.selected && shown && points.length ? chosenCard(shown) : null);
  refill(parts.empty, run || !state.live ? null : welcome());
}

function limitOf(run) {
  const n = run.view && run.view.numbers;
  if (n) return n.usable_memory || n.memory_limit;
  const gpu = state.catalog && state.asked && state.catalog.gpus.find(one => one.name === state.asked.gpu);
  return gpu ? gpu.memory : null;
}

function welcome() {
  return el("div", { class: "card empty welcome" }, el("h1", {}, t("welcome.title")), el("p", {}, t("welcome.text")),
    el("div", { class: "examples" }, EXAMPLES.map(example => el("button", { class: "example", type: "button",
      on: { click: () => { update({ question: { ...DEFAULT, ...example, runtime: state.question.runtime }, refresh: Date.now() }); start(); } } },
      el("strong", {}, example.model), el("span", {}, t("welcome.on", { gpus: example.gpus, gpu: example.gpu.toUpperCase() })),
      el("small", {}, t("welcome.batch", { batch: number(example.global_batch), seq: number(example.seq) }))))),
    el("p", { class: "muted" }, t("welcome.more")));
}

function stale() {
  return el("p", { class: "stale", role: "status" }, t("plan.stale", { model: modelName(state.asked), cluster: `${state.asked.gpus}x${state.asked.gpu}` }));
}

function status(run, busy, loose) {
  if (!run) return null;
  if (run.phase === "failed") {
    const { error } = run, all = error.faults || [];
    return el("div", { class: "alert", role: "alert" }, el("p", {}, all.length && !loose.length ? t("plan.mend") : error.message),
      loose.length > 1 ? el("ul", {}, loose.map(one => el("li", {}, one.where ? `${one.where}: ${one.what}` : one.what))) : null);
  }
  if (busy) return progress(run);
  return run.view ? answer(run) : nothing(run);
}

function progress(run) {
  const p = run.progress || {}, closeness = p.gap === null || p.gap === undefined ? 0 : Math.max(0.04, 1 - Math.min(1, Math.log10(1 + 99 * Math.min(1, p.gap)) / 2));
  const title = run.phase === "queued" ? t("plan.queued", { position: run.position }) : run.phase === "stopping" ? t("plan.stopping") : t("plan.running");
  const cell = (name, value) => el("div", {}, el("span", { class: "muted" }, t(name)), el("strong", {}, value));
  return el("section", { class: "card progress", "aria-label": t("plan.running") },
    el("div", { class: "progress-head" }, el("h2", {}, title),
      el("button", { type: "button", class: "stop", disabled: !run.id || run.phase === "stopping", on: { click: stop } }, t("plan.stop"))),
    el("div", { class: "meter", role: "progressbar", "aria-label": t("plan.gap"), "aria-valuetext": percent(p.gap, 2) },
      el("i", { class: p.gap === null || p.gap === undefined ? "unknown" : "", style: { width: `${100 * closeness}%` } })),
    el("div", { class: "progress-cells" },
      cell("plan.considered", number(p.considered ?? null)), cell("plan.evaluated", number(p.evaluated ?? run.points.length)),
      cell("plan.pruned", number(p.pruned ?? null)), cell("plan.best", p.best ? seconds(p.best.seconds) : "–"),
      cell("plan.bound", seconds(p.bound)), cell("plan.gap", percent(p.gap, 2)),
      cell("plan.elapsed", seconds(p.seconds ?? null, 2))),
    p.best ? el("p", { class: "best-line" }, el("code", {}, p.best.strategy)) : el("p", { class: "muted" }, t("plan.first")));
}

function answer(run) {
  const n = run.view.numbers;
  const sub = n.bound === null ? "" : t("plan.proof", { bound: seconds(n.bound), gap: percent(n.gap, 2) });
  return el("section", { class: "card answer", "aria-label": t("plan.answer") },
    el("div", { class: "answer-head" }, el("div", {}, el("h2", {}, `${run.view.title} · ${run.view.subtitle}`),
      el("p", { class: "chips" }, run.view.strategy.split(" ").map(chip => el("code", { class: "chip" }, chip)))),
      el("button", { class: "primary", type: "button", on: { click: () => { select(run.view.strategy); go("inside"); } } }, t("plan.inside"))),
    el("div", { class: "tiles" }, tile("iteration", seconds(n.iteration_seconds), ""), tile("tokens", number(n.tokens_per_second_per_gpu), t("tile.tokens")),
      tile("mfu", percent(n.mfu), ""), tile("memory", bytes(n.total_bytes), t("tile.of", { limit: bytes(n.memory_limit), share: percent(n.total_bytes / n.memory_limit, 0) })),
      n.gap === null ? null : tile("gap", percent(n.gap, 2), run.finished === false ? t("plan.stopped") : t("plan.finished"))),
    sub ? el("p", { class: "muted" }, sub) : null);
}

const tile = (name, value, below) => el("div", { class: `tile ${name}` }, el("span", { class: "tile-name" }, t(`tile.${name}.name`)), el("strong", {}, value), el("small", {}, below));

function nothing(run) {
  const near = run.closest;
  return el("div", { class: "card empty" }, el("h2", {}, run.finished === false ? t("plan.none.stopped") : t("plan.none")),
    near ? el("p", {}, t("plan.closest", { missing: bytes(near.missing) })) : null, near ? el("p", {}, el("code", {}, near.strategy)) : null,
    near && near.gpus ? el("p", {}, t("plan.enough", { gpus: near.gpus })) : null,
    near && near.gpus && state.live ? el("button", { class: "primary", type: "button",
      on: { click: () => { update({ question: { ...state.question, gpus: near.gpus }, refresh: Date.now() }); start(); } } }, t("plan.try", { gpus: near.gpus })) : null);
}

/** The strategy that is chosen on the scatter or in the table, where it is not the best. */
function chosenCard(run) {
  const point = run.points.find(one => one.strategy === state.selected);
  if (!point || (run.view && run.view.strategy === state.selected)) return null;
  const ready = state.current && state.current.view.strategy === state.selected;
  const best = run.view ? run.view.numbers.iteration_seconds : Math.min(...run.points.filter(one => one.fits).map(one => one.seconds));
  return el("section", { class: "card chosen", "aria-label": t("scatter.selected") },
    el("div", {}, el("h2", {}, t("scatter.selected")), el("p", { class: "chips" }, point.strategy.split(" ").map(chip => el("code", { class: "chip" }, chip))),
      el("p", { class: "numbers" }, `${seconds(point.seconds)} (${signed(point.seconds / best - 1)}) · ${number(point.tokens_per_second_per_gpu)} ${t("tile.tokens")} · MFU ${percent(point.mfu)} · ${bytes(point.total_bytes)} · ${t(point.fits ? "fits.yes" : "fits.no")}`)),
    state.live ? el("div", { class: "heading-buttons" },
      el("button", { class: "primary", type: "button", disabled: !ready, on: { click: () => go("inside") } }, t("plan.inside")),
      el("button", { type: "button", disabled: !ready, on: { click: () => pin(state.current) } }, t("pin.on"))) : null);
}

function table(run) {
  const rows = run.top && run.top.length ? run.top : [...run.points].filter(point => point.fits).sort((a, b) => a.seconds - b.seconds).slice(0, 10);
  if (!rows.length) return null;
  const fastest = rows[0].seconds;
  const heads = ["strategy", "iteration", "slower", "tokens", "mfu", "memory"];
  return el("section", { class: "card", "aria-label": t("plan.table") }, el("h2", {}, t("plan.table")),
    el("div", { class: "scroll" }, el("table", { class: "best" },
      el("thead", {}, el("tr", {}, heads.map((head, k) => el("th", { scope: "col", class: k ? "num" : "" }, t(`column.${head}`))))),
      el("tbody", {}, rows.slice(0, opened ? rows.length : FEW).map(row => bestRow(row, fastest))))),
    rows.length > FEW && !opened ? el("button", { class: "small all-rows", type: "button", on: { click: () => { opened = true; update({ run: state.run }); } } }, t("plan.all", { count: rows.length })) : null);
}

/** Batch and sequence are the question's: the same in every row. */
const short = strategy => strategy.replace(/ gbs\d+| seq\d+/g, "");

function bestRow(row, fastest) {
  const chosen = row.strategy === state.selected;
  return el("tr", { class: chosen ? "chosen" : "", on: { click: () => select(row.strategy) } },
    el("th", { scope: "row" }, el("button", { class: "strategy", type: "button", title: row.strategy, "aria-pressed": chosen ? "true" : "false" }, short(row.strategy))),
    el("td", { class: "num" }, seconds(row.seconds)), el("td", { class: "num" }, row.seconds === fastest ? "–" : signed(row.seconds / fastest - 1)),
    el("td", { class: "num" }, number(row.tokens_per_second_per_gpu)), el("td", { class: "num" }, percent(row.mfu)), el("td", { class: "num" }, bytes(row.total_bytes)));
}
