// Plan: the question on the left; the search as it runs, the best strategies and all simulated ones on the right.

import { select } from "./actions.js";
import { cockpit } from "./cockpit.js";
import { download, el, refill } from "./dom.js";
import { number } from "./format.js";
import { formOf, showFaults } from "./form.js";
import { said, t } from "./i18n.js";
import { answer, bestTable, keepPoints, nothing, rowsOf, tableKey } from "./results.js";
import { keepButton, svgText } from "./keep.js";
import { follow, progress } from "./progress.js";
import { headOf } from "./why.js";
import { scatterOf } from "./scatter.js";
import { start } from "./search.js";
import { DEFAULT, listen, modelName, same, state, update } from "./state.js";

const EXAMPLES = [
  { model: "llama-3-8b", gpus: 16, gpu: "h100", global_batch: 128, seq: 8192 },
  { model: "llama-3-70b", gpus: 64, gpu: "h100", global_batch: 1024, seq: 8192 },
  { model: "mixtral-8x7b", gpus: 64, gpu: "a100", global_batch: 512, seq: 4096 },
];

export function mountPlan(root) {
  const form = state.live ? formOf(() => start()) : null;
  const scatter = scatterOf(strategy => select(strategy));
  const parts = {
    keys: {},
    status: el("div"),
    answer: el("div"),
    plot: el(
      "section",
      { "class": "card scatter-card", "aria-label": t("plan.scatter") },
      el(
        "div",
        { class: "card-head" },
        el("h2", {}, t("plan.scatter")),
        el(
          "div",
          {},
          keepButton("CSV", () => keepPoints((state.run.view || !state.run.before ? state.run : state.run.before).points)),
          keepButton("SVG", () => download("strategies.svg", svgText(scatter.node.querySelector("svg")), "image/svg+xml")),
        ),
      ),
      scatter.node,
    ),
    table: el("div"),
    empty: el("div"),
  };
  refill(
    root,
    el("h1", { class: "away" }, t("welcome.title")),
    form,
    el("div", { class: "results" }, parts.empty, parts.status, cockpit(), parts.answer, parts.plot, parts.table),
  );
  root.classList.toggle("alone", !form);
  const render = () => draw(parts, scatter, form);
  listen(["run", "selected", "question", "current", "pins"], render);
  listen(["view"], () => state.view === "plan" && render());
  render();
}

function draw(parts, scatter, form) {
  const { run } = state,
    shown = run && !run.points.length && !run.view && run.before ? run.before : run;
  const busy = run && ["waiting", "queued", "running", "stopping"].includes(run.phase);
  const faults = run && run.phase === "failed" && run.error.faults ? run.error.faults : [];
  const loose = form ? showFaults(form, faults) : faults;
  if (form) form.querySelector("#plan-button").textContent = busy ? t("form.again") : t("form.plan");
  const old = run && !busy && state.asked && state.live && !same(state.asked, state.question);
  anew(parts, "status", [run && run.began, busy || run?.phase, old], () => [
    status(run, busy, loose),
    old ? stale() : null,
  ]);
  if (busy) follow(parts.status.querySelector(".progress"), run);
  const points = shown ? shown.points : [];
  parts.plot.hidden = !points.length;
  if (points.length) scatter.draw(points, limitOf(shown), state.selected);
  const rows = shown ? rowsOf(shown) : [];
  anew(parts, "table", tableKey(rows), () => bestTable(rows));
  const done = shown && shown.phase === "done" && shown.view;
  anew(parts, "answer", [done && [shown.view.strategy, shown.view.numbers.bound, shown.finished]], () =>
    done ? answer(shown) : null,
  );
  anew(parts, "empty", [Boolean(run), run?.known], () => (state.live && (!run || run.known) ? welcome() : null));
}

/** Fill a part only where what it shows has changed: a button must not be exchanged under the finger. */
function anew(parts, name, key, content) {
  const text = JSON.stringify(key);
  if (parts.keys[name] === text) return;
  parts.keys[name] = text;
  refill(parts[name], content());
}

/** [what may be used of a GPU's memory, what it has]. */
function limitOf(run) {
  const n = run.view && run.view.numbers;
  if (n) return [n.usable_memory || n.memory_limit, n.memory_limit];
  const gpu = state.catalog && state.asked && state.catalog.gpus.find(one => one.name === state.asked.gpu);
  const whole = gpu ? gpu.memory : null;
  return [run.progress?.memory_limit || whole, whole];
}

function welcome() {
  return el(
    "div",
    { class: state.run?.known ? "welcome slim" : "card welcome" },
    el("h2", {}, t("welcome.title")),
    el("p", {}, t(state.run?.known ? "welcome.known" : "welcome.text")),
    el(
      "div",
      { class: "examples" },
      EXAMPLES.map(example =>
        el(
          "button",
          {
            class: "example",
            type: "button",
            on: {
              click: () => {
                update({ question: { ...DEFAULT, ...example, runtime: state.question.runtime } });
                start();
              },
            },
          },
          el("strong", {}, example.model),
          el("span", {}, t("welcome.on", { gpus: example.gpus, gpu: example.gpu.toUpperCase() })),
          el("small", {}, t("welcome.batch", { batch: number(example.global_batch), seq: number(example.seq) })),
        ),
      ),
    ),
    state.run?.known ? null : el("p", { class: "muted" }, t("welcome.more")),
  );
}

function stale() {
  return el(
    "p",
    { class: "stale", role: "status" },
    t("plan.stale", { model: modelName(state.asked), cluster: `${state.asked.gpus}x${state.asked.gpu}` }),
  );
}

function status(run, busy, loose) {
  if (!run) return null;
  if (run.phase === "failed") {
    const { error } = run,
      all = error.faults || [];
    return el(
      "div",
      { class: "alert", role: "alert" },
      el("p", {}, said(headline(error, all, loose))),
      loose.length > 1
        ? el(
            "ul",
            {},
            loose.map(one => el("li", {}, said(one.where ? `${one.where}: ${one.what}` : one.what))),
          )
        : null,
    );
  }
  if (busy) return progress();
  return run.view ? null : nothing(run);
}

/** What stands above the list of faults that have no field. */
function headline(error, all, loose) {
  if (all.length && !loose.length) return t("plan.mend");
  return loose.length === 1 && all.length > 1 ? loose[0].what : headOf(error.message, loose);
}
