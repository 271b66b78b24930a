// Look inside: the numbers of one plan, its stages, its timeline, where time and memory go, and why not another.

import { go, togglePin } from "./actions.js";
import { backButton, lost, handTiles } from "./cockpit.js";
import { el, refill } from "./dom.js";
import { intervalOf, memoryBelow, number, percent, units } from "./format.js";
import { said, t, word } from "./i18n.js";
import { isOwn, knobRow } from "./knobs.js";
import { ledgerTree, memoryLedger } from "./ledger.js";
import { memoryBars, stageBars } from "./stages.js";
import { listen, state, update } from "./state.js";
import { timelineOf } from "./timeline.js";
import { alertOf, whyBox } from "./why.js";

export function mountInside(root) {
  const row = state.live || state.carried ? knobRow() : null; // one for all, as a hand may be on it
  let drawn = null,
    shown = null;
  const render = () => {
    if (state.view !== "inside") return;
    const away = !state.live && state.step && !isOwn(state.step) && state.current === state.pins[0] ? state.step : null;
    if (shown !== (away || state.current)) {
      shown = away || state.current;
      drawn = away ? fillStep(root, row, away) : fill(root, row);
    }
    root.classList.toggle("busy", state.loading);
    if (!state.current) fill(root, row);
  };
  listen(["current", "view", "loading", "problem", ...(state.live ? [] : ["step"])], render);
  listen(["theme"], () => drawn && drawn.redraw());
  listen(["pins"], () => shown && refreshPin(root));
  render();
}

function fill(root, row) {
  const { current } = state;
  if (!current) {
    refill(root, empty());
    return null;
  }
  const { view } = current,
    show = units(view);
  const timeline = view.timeline && view.timeline.ranks.length ? timelineOf(view, spanOf(view), span => update({ span: { ...span, of: view.strategy } })) : null;
  refill(
    root,
    heading(current),
    view.kind === "plan" ? card("hand", t("knobs.label"), row) : null,
    tiles(view, show),
    notes(view),
    card("stages", t("inside.stages"), view.stages.length ? stageBars(view) : null),
    card("timeline", t("inside.timeline"), timeline && timeline.node),
    view.ledger ? card("ledger", t("inside.ledger"), ledgers(view, show)) : null,
    state.live && view.kind === "plan" ? card("why", t("inside.why"), whyBox(current)) : null,
    card("facts", t("inside.facts"), facts(view)),
  );
  return timeline;
}

/** In a file: another strategy than the one whose timeline and ledgers it carries. */
function fillStep(root, row, step) {
  const { numbers: n, strategy, cluster, stages } = step,
    own = state.carried.steps[0];
  const lag = lost(step);
  refill(
    root,
    el(
      "div",
      { class: "heading" },
      el("div", {}, el("h1", {}, state.current.view.title), el("p", { class: "muted" }, cluster), chipsOf(strategy)),
      el("div", { class: "heading-buttons" }, backButton(own.strategy)),
    ),
    card("hand", t("knobs.label"), row),
    el("div", { class: "tiles" }, handTiles(step)),
    el("ul", { class: "notes" }, lag ? el("li", {}, lag) : null, el("li", {}, t("inside.carried", { strategy: own.strategy, cluster: own.cluster }))),
    card("stages", t("stages.memory"), memoryBars(stages, n.usable_memory || n.fits_limit, n.memory_limit)),
  );
  return null;
}

const chipsOf = strategy => el("p", { class: "chips" }, strategy.split(" ").map(chip => el("code", { class: "chip" }, chip)));

/** The stretch of the timeline that was looked at, where it is of this strategy. */
const spanOf = view => (state.span && (!state.span.of || state.span.of === view.strategy) ? state.span : null);

function empty() {
  if (state.problem) return el("div", { class: "card" }, alertOf(state.problem));
  if (state.loading) return el("div", { class: "card empty" }, el("p", {}, t("working")));
  return el(
    "div",
    { class: "card empty" },
    el("h2", {}, t("inside.empty")),
    el("p", {}, t("inside.empty.how")),
    el("button", { class: "primary", type: "button", on: { click: () => go("plan") } }, t("inside.empty.go")),
  );
}

function card(name, title, content) {
  return content
    ? el("section", { "class": `card card-${name}`, "aria-label": title }, el("h2", {}, title), content)
    : null;
}

function heading(current) {
  const { view } = current;
  return el(
    "div",
    { class: "heading" },
    el(
      "div",
      {},
      el("h1", {}, view.title),
      el("p", { class: "muted" }, view.subtitle),
      view.strategy ? chipsOf(view.strategy) : null,
    ),
    el(
      "div",
      { class: "heading-buttons" },
      state.live ? pinButton(current) : null,
      view.kind === "plan"
        ? el("button", { type: "button", on: { click: () => go("export") } }, t("nav.export"))
        : null,
    ),
  );
}

function pinButton(current) {
  return el(
    "button",
    {
      "type": "button",
      "class": "pin",
      "aria-pressed": pinned(current) ? "true" : "false",
      "on": { click: () => togglePin(current) },
    },
    pinned(current) ? t("pin.off") : t("pin.on"),
  );
}

function pinned(current) {
  return state.pins.some(one => one.view.id === current.view.id && one.view.strategy === current.view.strategy);
}

function refreshPin(root) {
  const old = root.querySelector("button.pin");
  if (old && state.current) old.replaceWith(pinButton(state.current));
}

/** The numbers that decide, large. */
function tiles(view, show) {
  const n = view.numbers,
    plan = view.kind === "plan";
  const memory = memoryBelow(n, show.memory);
  const list = plan
    ? [
        [
          "iteration",
          show.time(n.iteration_seconds),
          intervalOf(n.interval, show.time),
        ],
        ["tokens", number(n.tokens_per_second_per_gpu), t("tile.tokens")],
        ["mfu", percent(n.mfu), n.tflops_per_gpu ? `${number(n.tflops_per_gpu)} TFLOPS` : ""],
        ["memory", show.memory(n.total_bytes), memory, n.fits],
        ["bubble", percent(n.bubble), t("tile.bubble")],
      ]
    : [
        ["makespan", show.time(n.makespan), ""],
        ["bubble", percent(n.bubble, 2), t("tile.bubble")],
        ["memory", show.memory(n.total_bytes), memory, n.fits],
      ];
  if (n.bound) list.push(["gap", percent(n.gap, 2), t("tile.bound", { bound: show.time(n.bound) })]);
  return el(
    "div",
    { class: "tiles" },
    list.map(([name, value, below, fits]) =>
      el(
        "div",
        { class: `tile ${name}` },
        el("span", { class: "tile-name" }, t(`tile.${name}.name`)),
        el("strong", {}, value),
        el("small", {}, below),
        fits ? el("span", { class: `fits ${fits}` }, t(`fits.${fits}`)) : null,
      ),
    ),
  );
}

function notes(view) {
  return view.notes.length
    ? el(
        "ul",
        { class: "notes" },
        view.notes.map(note => el("li", {}, said(note))),
      )
    : null;
}

function ledgers(view, show) {
  const { time, memory } = view.ledger;
  return el(
    "div",
    { class: "ledgers" },
    el(
      "section",
      {},
      el("h3", {}, t(view.kind === "plan" ? "ledger.time.title" : "ledger.makespan.title")),
      ledgerTree(time, show.time),
    ),
    memory.length ? el("section", {}, el("h3", {}, t("ledger.memory.title")), memoryLedger(memory, show.memory)) : null,
  );
}

function facts(view) {
  const axes = Object.entries(view.axes).filter(([, value]) => value !== "" && value !== null);
  return el(
    "div",
    { class: "facts-grid" },
    el(
      "dl",
      {},
      view.facts.map(([key, text]) => [el("dt", {}, word("fact", key)), el("dd", {}, said(text))]),
    ),
    axes.length
      ? el(
          "dl",
          { class: "axes" },
          axes.map(([key, value]) => [el("dt", {}, word("axis", key)), el("dd", {}, axisText(value))]),
        )
      : null,
  );
}

export function axisText(value) {
  if (value === true) return t("yes");
  if (value === false) return t("no");
  return typeof value === "number" ? number(value) : String(value);
}
