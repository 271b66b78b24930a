// The card of a running search: its numbers change, its stop button stays.

import { el, refill } from "./dom.js";
import { number, percent, seconds } from "./format.js";
import { t } from "./i18n.js";
import { stop } from "./search.js";

const CELLS = {
  considered: p => number(p.considered),
  evaluated: p => number(p.evaluated),
  pruned: p => number(p.pruned),
  left_open: p => number(p.left_open),
  best: p => (p.best ? seconds(p.best.seconds) : "–"),
  bound: p => seconds(p.bound),
  gap: p => percent(p.gap, 2),
  elapsed: p => seconds(p.seconds, 2),
};

/** The card of a running search; `follow` fills in its numbers as they come. */
export function progress() {
  return el(
    "section",
    { "class": "card progress", "aria-label": t("plan.running") },
    el(
      "div",
      { class: "progress-head" },
      el("h2"),
      el("button", { type: "button", class: "stop", on: { click: stop } }, t("plan.stop")),
    ),
    el("div", { "class": "meter", "role": "progressbar", "aria-label": t("plan.gap") }, el("i")),
    el(
      "div",
      { class: "progress-cells" },
      Object.keys(CELLS).map(name =>
        el("div", {}, el("span", { class: "muted" }, t(`plan.${name}`)), el("strong", { data: { cell: name } })),
      ),
    ),
    el("p", { class: "muted" }),
  );
}

export function follow(card, run) {
  const p = run.progress || {},
    known = Number.isFinite(p.gap);
  const closeness = known ? Math.max(0.04, 1 - Math.log10(1 + 99 * Math.min(1, p.gap)) / 2) : 0;
  const titles = { queued: () => t("plan.queued", { position: run.position }), stopping: () => t("plan.stopping") };
  const bar = card.querySelector(".meter i"),
    line = card.querySelector("p");
  card.querySelector("h2").textContent = (titles[run.phase] || (() => t("plan.running")))();
  card.querySelector(".stop").disabled = !run.id || run.phase === "stopping";
  bar.className = known ? "" : "unknown";
  bar.style.width = `${100 * closeness}%`;
  bar.parentElement.setAttribute("aria-valuetext", percent(p.gap, 2));
  for (const cell of card.querySelectorAll("[data-cell]")) cell.textContent = CELLS[cell.dataset.cell](p);
  line.className = p.best ? "best-line" : "muted";
  refill(line, p.best ? el("code", {}, p.best.strategy) : t("plan.first"));
}
