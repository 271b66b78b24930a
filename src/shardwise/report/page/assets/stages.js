// Two stacked bars a pipeline rank: what its iteration is spent on, and what its memory holds against the limit.

import { el } from "./dom.js";
import { bytes, percent, units } from "./format.js";
import { t, word } from "./i18n.js";
import { MEMORY, TIME } from "./palette.js";
import { hideTip, showTip, tips } from "./tooltip.js";

const sum = parts => Object.values(parts).reduce((total, value) => total + value, 0);

/** The bars of a view; with `small` only one line each, for comparing. */
export function stageBars(view) {
  const show = units(view),
    { stages, numbers } = view,
    usable = numbers.usable_memory || null; // where a search kept some free, both pictures draw what was left
  const longest = Math.max(...stages.map(stage => sum(stage.time))) || 1;
  const most = Math.max(...stages.map(stage => Math.max(stage.total, usable || stage.limit || 0))) || 1;
  return el(
    "div",
    { class: "stage-grid" },
    el(
      "section",
      {},
      el("h3", {}, t("stages.time")),
      legend(
        "time",
        stages.map(stage => stage.time),
        TIME,
      ),
      el(
        "div",
        { class: "bars", role: "list" },
        stages.map(stage => row("time", stage, stage.time, TIME, longest, show.time, sum(stage.time))),
      ),
    ),
    el(
      "section",
      {},
      el("h3", {}, t("stages.memory")),
      legend(
        "memory",
        stages.map(stage => stage.memory),
        MEMORY,
        usable || stages[0].limit,
        usable && numbers.memory_limit,
      ),
      el(
        "div",
        { class: "bars", role: "list" },
        stages.map(stage => row("memory", stage, stage.memory, MEMORY, most, show.memory, stage.total, usable || stage.limit)),
      ),
    ),
  );
}

/** The memory of every rank against the limit, for the strategy in hand. */
export function memoryBars(stages, limit, whole) {
  const most = Math.max(limit || 0, ...stages.map(stage => stage.total)) || 1;
  return [
    legend("memory", stages.map(stage => stage.memory), MEMORY, limit, whole),
    el(
      "div",
      { class: "bars", role: "list" },
      stages.map(stage => row("memory", stage, stage.memory, MEMORY, most, bytes, stage.total, limit)),
    ),
  ];
}

function legend(group, all, colours, limit, whole) {
  const used = Object.keys(colours).filter(name => all.some(parts => parts[name] > 0));
  return el(
    "div",
    { class: "legend" },
    used.map(name =>
      el("span", { class: "key" }, el("i", { style: { background: colours[name] } }), word(group, name)),
    ),
    limit ? el("span", { class: "key limit" }, el("i"), whole ? t("scatter.limit", { limit: bytes(limit), whole: bytes(whole) }) : t("limit")) : null,
  );
}

function row(group, stage, parts, colours, whole, show, total, limit = null) {
  const listed = Object.keys(colours).filter(name => parts[name] > 0);
  const over = limit !== null && total > limit;
  const said = listed.map(name => `${word(group, name)} ${show(parts[name])}`).join(", ");
  const label = `${t("rank")} ${stage.rank}: ${show(total)}${limit ? ` / ${show(limit)}` : ""}. ${said}`;
  const bar = el(
    "div",
    { "class": "bar", "role": "listitem", "tabindex": 0, "aria-label": label },
    listed.map(name => segment(group, name, parts[name], colours[name], whole, show, total)),
    limit ? el("b", { class: "limit-mark", style: { left: `${(100 * limit) / whole}%` } }) : null,
  );
  tips(bar, () => [
    `${t("rank")} ${stage.rank} · ${show(total)}`,
    ...listed.map(name => `${word(group, name)} ${show(parts[name])}`),
  ]);
  const idle = group === "time" ? (parts.bubble || 0) / (total || 1) : null; // the sum is the same on every rank
  return el(
    "div",
    { class: "bar-row" },
    el("span", { class: "bar-name" }, String(stage.rank), layers(stage)),
    bar,
    el("span", { class: over ? "bar-total over" : "bar-total" }, idle === null ? show(total) : t("stages.busy", { share: percent(1 - idle, 0) })),
  );
}

function segment(group, name, value, shade, whole, show, total) {
  const node = el("span", { class: "segment", style: { width: `${(100 * value) / whole}%`, background: shade } });
  node.addEventListener("pointermove", event => {
    event.stopPropagation();
    showTip(event.clientX, event.clientY, [word(group, name), `${show(value)} · ${percent(value / (total || 1))}`]);
  });
  node.addEventListener("pointerleave", hideTip);
  return node;
}

function layers(stage) {
  if (!stage.layers?.length) return null;
  const again = stage.recomputed.reduce((a, b) => a + b, 0);
  const text = `${stage.layers.join("+")}${again ? ` ⟳${stage.recomputed.join("+")}` : ""}`;
  return el(
    "small",
    { title: again ? t("stages.again", { layers: stage.recomputed.join("+") }) : t("stages.layers") },
    text,
  );
}
