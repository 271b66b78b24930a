// The strategy in hand: its knobs, what it takes, whether it fits, what it loses against the best, and the ways out.

import { lookInside, pin } from "./actions.js";
import { el, refill } from "./dom.js";
import { bytes, count, intervalOf, memoryBelow, number, percent, seconds, signed } from "./format.js";
import { said, t, word } from "./i18n.js";
import { again, followQuestion, inHand, isOwn, knobRow } from "./knobs.js";
import { memoryBars } from "./stages.js";
import { listen, modelName, same, state, update } from "./state.js";
import { alertOf } from "./why.js";

/** The card; hidden until there is a strategy. */
export function cockpit() {
  const parts = { head: el("div", { class: "answer-head" }), tiles: el("div", { class: "tiles" }), verdict: el("div", { class: "verdict-box", "aria-live": "polite" }), bars: el("div", { class: "hand-bars" }), time: el("span", { "aria-live": "polite" }) };
  const node = el(
    "section",
    { "class": "card cockpit", "aria-label": t("cockpit.title") },
    parts.head,
    knobRow(),
    parts.tiles,
    parts.verdict,
    parts.bars,
    state.live ? budgetForm(parts.time) : null,
  );
  const draw = () => {
    node.hidden = !state.step && !state.trouble;
    if (state.step) fill(node, parts, state.step);
    else if (state.trouble) refill(parts.verdict, alertOf(state.trouble));
  };
  listen(["step", "current", "pins", "trouble", "run", "budget"], draw);
  listen(["selected"], () => {
    const { selected, current, asked, question } = state;
    if (!selected || selected === state.step?.strategy) return;
    const own = current?.view.strategy === selected ? current.question : null;
    inHand(own || asked || question, selected);
  });
  let held = state.run?.view;
  listen(["run"], () => {
    const found = state.run?.phase === "done" ? state.run.view : held;
    if (found !== held) again(); // what is in hand is held against another best
    held = found;
  });
  let waiting = 0;
  listen(["question"], () => {
    clearTimeout(waiting);
    waiting = setTimeout(followQuestion, 120);
  });
  draw();
  return node;
}

function fill(node, parts, step) {
  node.classList.toggle("impossible", step.faults.length > 0);
  node.classList.toggle("over", Boolean(step.numbers && step.numbers.fits === "no"));
  refill(parts.head, head(step));
  if (step.numbers) {
    refill(parts.tiles, handTiles(step));
    refill(parts.bars, memoryBars(step.stages, step.numbers.usable_memory || step.numbers.fits_limit, step.numbers.memory_limit));
  }
  refill(parts.time, step.numbers ? inTime(step) : null);
  refill(parts.verdict, state.trouble ? alertOf(state.trouble) : verdict(step));
}

function head(step) {
  const ready = state.current && state.current.view.strategy === step.strategy;
  const best = state.live ? state.run?.view?.strategy : state.carried?.steps[0].strategy,
    away = state.live ? state.asked && best !== step.strategy : !isOwn(step);
  const { question } = step;
  return [
    el(
      "div",
      {},
      el("h2", {}, `${question ? modelName(question) : state.current.view.title} · ${step.cluster}`),
      el("p", { class: "hand" }, el("code", {}, step.strategy)),
    ),
    el(
      "div",
      { class: "heading-buttons" },
      best && away ? backButton(best) : null,
      state.live ? el("button", { type: "button", disabled: !ready, on: { click: () => pin(state.current) } }, t("pin.on")) : null,
      el("button", { class: "primary", type: "button", disabled: step.faults.length > 0, on: { click: () => lookInside(question, step.strategy) } }, t("plan.inside")),
    ),
  ];
}

/** Back to what was found, or to what the file is of. */
export const backButton = best =>
  el("button", { type: "button", class: "back", on: { click: () => back(best) } }, t(state.live || state.run ? "cockpit.back" : "cockpit.back.own"));

function back(best) {
  if (state.live) update({ question: state.asked });
  inHand(state.asked, best);
}

export function handTiles(step) {
  const n = step.numbers;
  return [
    tile("iteration", seconds(n.iteration_seconds), intervalOf(n.interval, seconds)),
    tile("tokens", number(n.tokens_per_second_per_gpu), t("tile.tokens")),
    tile("mfu", percent(n.mfu), t("tile.bubble.share", { share: percent(n.bubble) })),
    tile("memory", bytes(n.total_bytes), memoryBelow(n, bytes), n.fits),
    step.budget ? tile("run", t("tile.days", { days: number(step.budget.days, step.budget.days < 10 ? 1 : 0) }), costOf(step.budget)) : null,
  ];
}

function costOf(run) {
  const hours = t("tile.hours", { hours: count(run.gpu_hours) });
  return run.cost ? `${hours} · $${count(run.cost)}` : hours;
}

const tile = (name, value, below, fits) =>
  el(
    "div",
    { class: `tile ${name}` },
    el("span", { class: "tile-name", title: t(`tile.${name}.tip`) }, t(`tile.${name}.name`), fits ? el("span", { class: `fits ${fits}` }, t(`fits.${fits}`)) : null),
    el("strong", {}, value),
    el("small", {}, below),
  );

/** What cannot be run, or what is lost against the best, and what would help. */
function verdict(step) {
  if (step.faults.length) return el("div", { class: "alert", role: "alert" }, el("p", {}, said(step.faults[0])), step.shown ? el("p", {}, t("cockpit.faults")) : null);
  return [el("p", { class: "lost" }, lost(step)), step.ways ? ways(step) : null];
}

/** Whether the answer that was found is one to the question in hand. */
const answered = step => (state.live ? same(step.question, state.asked) : step.cluster === state.carried?.steps[0].cluster);

export function lost(step) {
  const { beside, strategy } = step;
  if (!beside) return strategy === state.run?.view?.strategy && answered(step) ? t("cockpit.best") : "";
  const weight = part => part.lost * Math.sign(beside.slower),
    most = beside.parts.length ? weight(beside.parts[0]) : 0;
  const parts = beside.within_error ? [] : beside.parts.filter(part => weight(part) > 0.15 * most);
  const named = parts.map(part => `${word("ledger", part.name)} ${part.lost > 0 ? "+" : "−"}${seconds(Math.abs(part.lost), 3)}`).join(", ");
  const share = signed(beside.slower),
    near = beside.within_error ? ` (${t(`within.${beside.likely || "error"}`)})` : "";
  return t(named ? "cockpit.lost.parts" : "cockpit.lost", { share, near, parts: named, best: t(`cockpit.than.${held()}`) });
}

/** What a strategy is held against: a file carries the plan that it is of, and where nothing was searched just a strategy. */
function held() {
  if (state.live) return state.run?.view?.plans?.fastest ? "fastest" : "recommended";
  return state.run ? "recommended" : "own";
}

function ways(step) {
  if (!step.ways.length) return step.numbers.fits === "no" ? el("p", { class: "ways" }, t("cockpit.noway")) : null;
  return el(
    "div",
    { class: "ways" },
    el("span", {}, t("cockpit.ways")),
    step.ways.map(way =>
      el(
        "button",
        { class: "small way", type: "button", title: way.strategy, on: { click: () => inHand(step.question, way.strategy) } },
        `${said(way.change)} · ${seconds(way.seconds)} · ${bytes(way.bytes, 1)}${way.fits === "yes" ? "" : ` · ${t(`fits.${way.fits}`)}`}`,
      ),
    ),
  );
}

/** Tokens of the run and what an hour of a GPU costs: days and money follow at once. */
function budgetForm(place) {
  const set = (name, value) => {
    update({ budget: { ...state.budget, [name]: value } });
    again();
  };
  const field = (name, shown, placeholder) => {
    const fault = el("small", { class: "fault", role: "alert" });
    const change = ({ target: { value } }) => {
      const read = counted(value),
        odd = value.trim() && !read && Number(value) !== 0; // 0 and nothing: not asked for
      fault.textContent = odd ? t("budget.odd") : "";
      if (!odd) set(name, read);
    };
    return el("label", {}, t(`budget.${name}`), el("input", { type: "text", id: `budget-${name}`, inputmode: "decimal", value: shown, autocomplete: "off", placeholder, on: { change } }), fault);
  };
  return el(
    "div",
    { class: "budget" },
    field("tokens", state.budget.tokens ? count(state.budget.tokens) : "", "1T"),
    field("price", state.budget.price || "", "2.5"),
    field("days", state.budget.days || "", "20"),
    place,
  );
}

/** The way to a run of so many days, by the fewest GPUs on which it fits; or why there is none. */
function inTime({ enough, question, strategy }) {
  const { days, price } = state.budget;
  if (!state.live || !days || !enough) return null;
  if (!enough.strategy) return el("span", {}, t("budget.unfit", { days: plain(days) }));
  const told = { days: plain(days), gpus: number(enough.gpus), reached: tenths(enough.days, enough.reached), cost: price ? ` · $${count(enough.cost)}` : "" };
  if (enough.gpus === question.gpus && enough.strategy === strategy) return el("span", {}, t(enough.reached ? "budget.reached" : "budget.least", told));
  const on = { click: () => inHand({ ...question, gpus: enough.gpus }, enough.strategy) };
  return [
    enough.reached ? null : el("span", {}, t("budget.late", told)),
    el("button", { class: "small", type: "button", title: enough.strategy, on }, t("budget.enough", told)),
  ];
}

const plain = value => number(value, Number.isInteger(value) ? 0 : 1);

/** Days as they are shown: never more than was asked for where that is kept, never less where it is not. */
const tenths = (value, reached) => number((reached ? Math.floor : Math.ceil)(value * 10) / 10, 1);

/** `15T` -> 15e12; nothing where it is no number. */
export function counted(text) {
  const found = /^\s*\$?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*[.,]?\d+(?:e\d+)?)\s*([kmbgt万亿]?)\s*$/i.exec(text);
  const scale = { k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12, 万: 1e4, 亿: 1e8 }[found?.[2].toLowerCase()] || 1;
  const plain = found && /,\d{3}(?:\D|$)/.test(found[1]) ? found[1].replace(/,/g, "") : found?.[1].replace(",", ".");
  const value = found ? Number(plain) * scale : 0;
  return Number.isFinite(value) ? value : 0;
}
