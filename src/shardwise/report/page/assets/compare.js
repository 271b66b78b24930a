// Compare: pinned plans side by side; where they differ is marked, the best number of a line too.

import { go, pin, showPlan, unpin } from "./actions.js";
import { el, refill } from "./dom.js";
import { chanceOf, intervalOf, number, percent, signed, units } from "./format.js";
import { t, word } from "./i18n.js";
import { axisText } from "./inside.js";
import { MEMORY, TIME } from "./palette.js";
import { listen, state } from "./state.js";
import { timelinesOf } from "./timeline.js";

let only = false;
const MOST = 4; // timelines one above the other

export function mountCompare(root) {
  const render = () => {
    if (state.view === "compare") fill(root);
  };
  listen(["pins", "view", "current", "wanted", "loading"], render);
  listen(["theme"], () => above.redraw());
  render();
}

function fill(root) {
  const { pins, current } = state,
    free = current && !pins.some(one => one.view.id === current.view.id && one.view.strategy === current.view.strategy);
  if (!pins.length) return void refill(root, empty(free));
  refill(
    root,
    el(
      "div",
      { class: "heading" },
      el(
        "div",
        {},
        el("h1", {}, t("compare.title")),
        el("p", { class: "muted" }, t(state.live ? "compare.how" : "compare.how.file")),
      ),
      el(
        "div",
        { class: "heading-buttons" },
        free ? el("button", { type: "button", on: { click: () => pin(current) } }, t("compare.add")) : null,
        el(
          "label",
          { class: "check" },
          el("input", {
            type: "checkbox",
            checked: only,
            on: {
              change: event => {
                only = event.target.checked;
                fill(root);
              },
            },
          }),
          t("compare.only"),
        ),
      ),
    ),
    el("section", { "class": "card", "aria-label": t("compare.title") }, el("div", { class: "scroll" }, table(pins))),
    timelines(pins.map(one => one.view)),
  );
}

let above = { key: "", node: null, redraw: () => {} }; // kept while the same are compared: their zoom is

/** The timelines of what is compared, one above the other, where they share a unit. */
function timelines(views) {
  const shown = views.filter(view => view.timeline?.ranks.length && view.unit === views[0].unit).slice(0, MOST);
  if (shown.length < 2) return null;
  const key = JSON.stringify([state.lang, shown.map(view => [view.id, view.strategy])]);
  if (above.key === key) return above.node;
  const { nodes, redraw } = timelinesOf(shown);
  const titled = (node, k) => el("div", {}, el("h3", {}, shown[k].title, shown[k].strategy ? el("code", {}, ` ${shown[k].strategy}`) : null), node);
  const node = el("section", { "class": "card timelines", "aria-label": t("compare.timelines") }, el("h2", {}, t("compare.timelines")), nodes.map(titled));
  above = { key, node, redraw };
  return node;
}

function empty(free) {
  return el(
    "div",
    { class: "card empty" },
    el("h2", {}, t("compare.empty")),
    el("p", {}, t("compare.empty.how")),
    free
      ? el("button", { class: "primary", type: "button", on: { click: () => pin(state.current) } }, t("compare.add"))
      : el(
          "button",
          { class: "primary", type: "button", on: { click: () => go(state.current ? "inside" : "plan") } },
          t(state.current ? "nav.inside" : "inside.empty.go"),
        ),
  );
}

function table(pins) {
  const views = pins.map(one => one.view);
  return el(
    "table",
    { class: "compare-table" },
    el(
      "thead",
      {},
      el("tr", {}, el("th", { scope: "col" }, el("span", { class: "away" }, t("compare.row"))), pins.map(head)),
    ),
    group(t("compare.numbers"), numberRows(views)),
    group(t("compare.strategy"), axisRows(views)),
    group(t("compare.time"), timeRows(views)),
    group(t("compare.memory"), memoryRows(views)),
  );
}

function head(one, index) {
  const { view } = one;
  return el(
    "th",
    { scope: "col" },
    el("div", { class: "pin-head" }, el("strong", {}, view.title), state.live ? removal(view, index) : null),
    el("small", { class: "muted pin-title" }, view.subtitle),
    view.strategy ? el("code", { class: "pin-strategy" }, view.strategy) : null,
    el(
      "button",
      {
        class: "link",
        type: "button",
        on: {
          click: () => {
            showPlan({ question: one.question, plan: one.plan, view, exports: one.exports }, one.strategy);
            go("inside");
          },
        },
      },
      t("nav.inside"),
    ),
  );
}

function removal(view, index) {
  const label = t("pin.remove", { title: view.title });
  const on = { click: () => unpin(index) };
  return el("button", { "class": "small", "type": "button", "aria-label": label, on }, "✕");
}

function group(title, rows) {
  const shown = rows.filter(row => !only || row.differs);
  if (!shown.length) return null;
  return el(
    "tbody",
    {},
    el("tr", { class: "group" }, el("th", { colspan: 99, scope: "rowgroup" }, title)),
    shown.map(line),
  );
}

function line(row) {
  return el(
    "tr",
    { class: row.differs ? "differs" : "same" },
    el("th", { scope: "row" }, row.name),
    row.cells.map((cell, k) =>
      el(
        "td",
        { class: `${cell.best ? "leads" : ""} ${cell.odd ? "odd" : ""} ${cell.bad ? "bad" : ""}` },
        cell.bar
          ? el(
              "span",
              { "class": "mini", "aria-hidden": "true" },
              el("i", { style: { width: `${cell.bar}%`, background: cell.shade } }),
            )
          : null,
        el("span", {}, cell.text),
        cell.delta && k ? el("small", { class: "delta" }, cell.delta) : null,
      ),
    ),
  );
}

const NUMBERS = [
  ["iteration_seconds", "tile.iteration.name", "time", -1, "interval"],
  ["makespan", "tile.makespan.name", "time", -1],
  ["tokens_per_second_per_gpu", "tile.tokens.name", "number", 1],
  ["mfu", "tile.mfu.name", "percent", 1],
  ["bubble", "tile.bubble.name", "percent", -1],
  ["total_bytes", "tile.memory.name", "memory", -1, "memory_interval"],
  ["memory_limit", "limit", "memory", 0],
  ["bound", "plan.bound", "time", 0],
  ["gap", "plan.gap", "percent", 0],
];

const TIMES = new Set(["iteration_seconds", "tokens_per_second_per_gpu", "mfu"]);

/** Whether the iterations of plans are nearer to each other than layouts err apart: then none is the fastest. */
function tied(views) {
  const times = views.map(view => view.numbers.iteration_seconds),
    errors = views.map(view => view.numbers.layout_error);
  if (views.length < 2 || ![...times, ...errors].every(Number.isFinite)) return false;
  return Math.log(Math.max(...times) / Math.min(...times)) <= Math.max(...errors);
}

function shower(kind, view) {
  return {
    time: units(view).time,
    memory: units(view).memory,
    number: value => number(value),
    percent: value => percent(value, 2),
  }[kind];
}

function numberRows(views) {
  const shown = NUMBERS.filter(([key]) => views.some(view => Number.isFinite(view.numbers[key])));
  const rows = shown.map(([key, name, kind, better, interval]) => {
    const values = views.map(view => view.numbers[key] ?? null);
    const row = valueRow(
      t(name),
      values,
      values.map((value, k) => shower(kind, views[k])(value)),
      TIMES.has(key) && tied(views) ? 0 : better,
      views,
    );
    row.cells.forEach((cell, k) => {
      const between = intervalOf(views[k].numbers[interval], shower(kind, views[k]));
      if (between) cell.text += ` (${between})`;
      if (cell.delta && TIMES.has(key) && tied([views[0], views[k]])) cell.delta += `, ${t("within.error")}`;
    });
    return row;
  });
  for (const [at, [, , kind]] of shown.entries())
    if (kind === "percent") rows[at].cells.forEach((cell, k) => cell.delta && inPoints(cell, shown[at][0], views, k));
  return views.some(view => view.numbers.fits) ? [...rows, fitsRow(views)] : rows;
}

/** Shares differ by points, not by a share of a share. */
function inPoints(cell, key, views, k) {
  const points = 100 * (views[k].numbers[key] - views[0].numbers[key]);
  const near = cell.delta.includes(", ") ? cell.delta.slice(cell.delta.indexOf(", ")) : "";
  cell.delta = t("compare.points", { points: `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(2)}` }) + near;
}

function fitsRow(views) {
  const texts = views.map(({ numbers: { fits, fits_probability: share } }) => {
      const word = { yes: t("yes"), no: t("no"), close: t("fits.close") }[fits] || "–";
      return Number.isFinite(share) ? `${word} (${chanceOf(share)})` : word;
    }),
    differs = new Set(texts).size > 1;
  const cells = texts.map((text, k) => ({
    text,
    odd: differs && text !== texts[0],
    bad: views[k].numbers.fits === "no",
  }));
  return { name: t("compare.fits"), differs, cells };
}

/** A line of numbers; what does not fit cannot be the best of it. */
function valueRow(name, values, texts, better, views = []) {
  const known = values.filter((value, k) => Number.isFinite(value) && views[k]?.numbers.fits !== "no"),
    first = values[0];
  const lead = better && known.length > 1 ? (better > 0 ? Math.max(...known) : Math.min(...known)) : null;
  const differs = new Set(texts).size > 1;
  return {
    name,
    differs,
    cells: values.map((value, k) => ({
      text: texts[k],
      best: differs && lead !== null && value === lead && views[k]?.numbers.fits !== "no",
      odd: differs && texts[k] !== texts[0],
      delta: differs && Number.isFinite(value) && first && value !== first ? signed(value / first - 1) : "",
    })),
  };
}

function axisRows(views) {
  const names = [...new Set(views.flatMap(view => Object.keys(view.axes)))];
  if (views.some(view => layersOf(view))) names.push("layers");
  return names.map(name => {
    const shown = view => (name === "layers" ? layersOf(view) || "–" : name in view.axes ? axisText(view.axes[name]) : "–");
    const texts = views.map(shown),
      differs = new Set(texts).size > 1;
    return {
      name: word("axis", name),
      differs,
      cells: texts.map(text => ({ text, odd: differs && text !== texts[0] })),
    };
  });
}

/** Layers of every chunk, rank by rank. */
const layersOf = view => view.stages.map(stage => stage.layers.join("+")).filter(Boolean).join(", ");

/** The busiest rank's time by part, as bars on one scale. */
function timeRows(views) {
  const parts = views.map(
    view => view.stages.reduce((best, stage) => (busy(stage) > busy(best) ? stage : best), view.stages[0])?.time || {},
  );
  return partRows("time", views, parts, TIME, view => units(view).time);
}

const busy = stage =>
  Object.entries(stage.time).reduce((sum, [name, value]) => (name === "bubble" ? sum : sum + value), 0);

function memoryRows(views) {
  const parts = views.map(
    view =>
      view.stages.reduce((best, stage) => (stage.total > best.total ? stage : best), view.stages[0])?.memory || {},
  );
  return partRows("memory", views, parts, MEMORY, view => units(view).memory);
}

function partRows(group, views, parts, colours, show) {
  const used = Object.keys(colours).filter(name => parts.some(one => one[name] > 0));
  const most = Math.max(...parts.flatMap(one => used.map(name => one[name] || 0)), 1e-12);
  return used.map(name => {
    const values = parts.map(one => one[name] || 0),
      row = valueRow(
        word(group, name),
        values,
        values.map((value, k) => show(views[k])(value)),
        0,
      );
    row.cells.forEach((cell, k) =>
      Object.assign(cell, {
        bar: Math.max(0.5, (100 * values[k]) / most),
        shade: name === "bubble" ? "var(--muted)" : colours[name],
      }),
    );
    return row;
  });
}
