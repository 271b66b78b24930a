// What a search found: the recommended plan, the fastest and the simplest, the one that is chosen, the table of the best, or what is missing.

import { select } from "./actions.js";
import { download, el } from "./dom.js";
import { bytes, number, percent, seconds, signed } from "./format.js";
import { said, t, word } from "./i18n.js";
import { csv } from "./keep.js";
import { start } from "./search.js";
import { state, update } from "./state.js";

const FEW = 8; // rows of the table before it is opened
let opened = false,
  sorted = { by: "iteration", down: false };

/** What is recommended and what is proven of it; its numbers stand in the hand above. */
export function answer(run) {
  const { view } = run,
    n = view.numbers;
  return el(
    "section",
    { "class": "card answer", "aria-label": t("plan.answer") },
    el("h2", {}, `${t("plan.answer")} · ${view.title} · ${view.subtitle}`),
    el("p", { class: "chips" }, view.strategy.split(" ").map(chip => el("code", { class: "chip" }, chip))),
    run.finished === false ? el("p", { class: "gap strong" }, t("plan.stopped")) : null,
    el("p", { class: "muted" }, n.bound === null ? t("plan.unproven") : proof(n, view.plans?.fastest)),
    plans(view.plans || {}),
  );
}

/** The proof speaks of the fastest; the recommended plan has its own distance from the bound. */
function proof(n, fastest) {
  const gaps = { bound: seconds(n.bound), gap: percent(n.gap, 2) };
  if (!fastest || fastest.gap === n.gap) return t("plan.proof", gaps);
  return t("plan.proof.both", { ...gaps, fastest: percent(fastest.gap, 2) });
}

/** The plans of an answer as cards, each strategy once, and the measured run that is nearest. */
function plans(found) {
  const names = ["recommended", "fastest", "simplest"].filter(name => found[name]);
  if (!names.length) return null;
  const first = names.filter((name, k) => names.findIndex(one => found[one].strategy === found[name].strategy) === k);
  return el(
    "ul",
    { "class": "plans", "aria-label": t("plan.plans") },
    first.map(name => planCard(names.filter(one => found[one].strategy === found[name].strategy), found)),
    found.nearest ? nearest(found.nearest) : null,
  );
}

function planCard(names, found) {
  const one = found[names[0]],
    share = one.iteration_seconds / found.recommended.iteration_seconds - 1;
  const regret = one.regret === undefined ? "" : t("plan.regret", { regret: one.regret < 0.005 ? "< 1%" : percent(one.regret, 0) });
  return el(
    "li",
    { class: "tile" },
    el("div", {}, roles(names)),
    el("strong", {}, seconds(one.iteration_seconds)),
    el("button", { class: "strategy", type: "button", title: one.strategy, on: { click: () => select(one.strategy) } }, short(one.strategy)),
    names.includes("recommended") ? null : el("small", {}, t("plan.beside", { share: signed(share) }), likeness(one, besideFastest(one, found))),
    el("small", {}, regret),
  );
}

/** Within the error nothing is surely slower; what likely is, is not called equal. */
const likeness = (one, beside = "") => {
  if (!one.within_error) return null;
  const words = one.likely === "slower" && beside ? t("within.slower.fastest", { share: beside }) : t(`within.${one.likely || "error"}`);
  return el("small", { class: "likeness" }, words);
};

/** The simplest is held against the fastest, whose share stands in the table only where that is recommended. */
const besideFastest = (one, found) =>
  one === found.simplest && found.fastest && found.fastest.strategy !== found.recommended.strategy
    ? signed(one.iteration_seconds / found.fastest.iteration_seconds - 1)
    : "";

const roles = names => names.map(name => el("span", { class: `role ${name}` }, t(`role.${name}`)));

/** What practitioners reached with the like of it, beside what we predict of that. */
function nearest(run) {
  const off = run.predicted_seconds / run.seconds - 1;
  return el(
    "li",
    { class: "tile", title: run.sentence },
    el("div", {}, el("span", { class: "role nearest" }, t("role.nearest"))),
    el("strong", {}, seconds(run.seconds)),
    el("code", {}, run.strategy),
    el("small", {}, `${run.id}: ${run.model} · ${run.cluster} · MFU ${percent(run.mfu)}`),
    el("small", {}, t("plan.nearest", { predicted: seconds(run.predicted_seconds), off: signed(off) })),
  );
}

const titleOf = run => (run.finished === false ? "plan.none.stopped" : run.closest ? "plan.none" : "plan.invalid");

export function nothing(run) {
  const near = run.closest;
  return el(
    "div",
    { class: "card empty" },
    el("h2", {}, t(titleOf(run))),
    near ? null : el("p", { class: "lines" }, said(run.message)),
    near ? el("p", {}, t("plan.closest", {
          missing: bytes(near.missing_bytes),
          needed: bytes(near.needed_bytes),
          limit: bytes(near.limit_bytes),
          memory: bytes(near.memory_bytes),
        })) : null,
    near ? el("p", {}, el("code", {}, near.strategy)) : null,
    near ? el("p", {}, near.ledger.filter(part => part.value > 0.01 * near.needed_bytes).map(part => `${word("ledger", part.name)} ${bytes(part.value)}`).join(" · ")) : null,
    near && near.ladder.length ? ladder(near) : near ? el("p", { class: "lines" }, said(run.message)) : null,
  );
}

/** Ways out where nothing fits, each with its price and what to plan for. */
function ladder(near) {
  const heads = ["change", "iteration", "slower", "dearer", "memory", "strategy"];
  const planned = rung => {
    const { memory_margin: asked } = state.question;
    const margin = rung.unlimited ? "" : asked;
    update({
      question: { ...state.question, gpus: rung.gpus, gpu: rung.gpu, only: rung.conditions, memory_margin: margin },
    });
    start();
  };
  return el(
    "section",
    { "aria-label": t("plan.ladder") },
    el("h3", {}, t("plan.ladder")),
    el("p", {}, t("plan.ladder.price", { seconds: seconds(near.seconds) })),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "best" },
        el("thead", {}, el("tr", {}, heads.map(head => el("th", { scope: "col" }, t(`column.${head}`))))),
        el(
          "tbody",
          {},
          near.ladder.map(rung =>
            el(
              "tr",
              {},
              el(
                "td",
                {},
                state.live
                  ? el("button", { type: "button", on: { click: () => planned(rung) } }, `${said(rung.change)} · ${rung.cluster}`)
                  : `${said(rung.change)} · ${rung.cluster}`,
              ),
              el("td", { class: "num" }, `≤ ${seconds(rung.seconds)}`),
              el("td", { class: "num" }, signed(rung.slower)),
              el("td", { class: "num" }, signed(rung.dearer)),
              el("td", { class: "num" }, `${bytes(rung.total_bytes)} / ${bytes(rung.memory)}`),
              el("td", {}, el("code", {}, rung.strategy)),
            ),
          ),
        ),
      ),
    ),
  );
}

/** What the table shows depends on. */
export function tableKey(rows) {
  return [rows.map(row => row.strategy), state.selected, opened, sorted];
}

/** The best of every layout; while the search runs, the fastest so far. */
export function rowsOf(run) {
  if (run.top && run.top.length) return run.top;
  return run.points
    .filter(point => point.allowed)
    .sort((a, b) => a.seconds - b.seconds)
    .slice(0, 10);
}

export function bestTable(rows) {
  if (!rows.length) return null;
  const heads = ["strategy", "iteration", "slower", "tokens", "mfu", "memory"],
    fastest = rows[0].seconds;
  const all = () => {
    opened = true;
    update({ run: state.run });
  };
  return el(
    "section",
    { "class": "card", "aria-label": t("plan.table") },
    el("h2", {}, t("plan.table")),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "best" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            heads.map((head, k) => el("th", { "scope": "col", "class": k ? "num" : "", "aria-sort": sortOf(head) }, sortButton(head))),
          ),
        ),
        el(
          "tbody",
          {},
          inOrder(rows.filter((row, k) => opened || k < FEW || row.roles?.length)).map(row => bestRow(row, fastest)),
        ),
      ),
    ),
    rows.length > FEW && !opened
      ? el(
          "button",
          { class: "small all-rows", type: "button", on: { click: all } },
          t("plan.all", { count: rows.length }),
        )
      : null,
  );
}

const VALUES = {
  strategy: row => row.strategy,
  iteration: row => row.seconds,
  slower: row => row.seconds,
  tokens: row => row.tokens_per_second_per_gpu,
  mfu: row => row.mfu,
  memory: row => row.total_bytes,
};

const sortOf = head => (sorted.by === head ? (sorted.down ? "descending" : "ascending") : "none");

function sortButton(head) {
  const flip = () => {
    sorted = { by: head, down: sorted.by === head && !sorted.down };
    update({ run: state.run });
    document.querySelector(`table.best [data-sort=${head}]`)?.focus({ preventScroll: true });
  };
  const arrow = sorted.by === head ? (sorted.down ? " ↓" : " ↑") : "";
  return el("button", { class: "sort", type: "button", data: { sort: head }, on: { click: flip } }, t(`column.${head}`) + arrow);
}

function inOrder(rows) {
  const value = VALUES[sorted.by],
    sign = sorted.down ? -1 : 1;
  return rows.slice().sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
}

const COLUMNS = ["strategy", "seconds", "tokens_per_second_per_gpu", "mfu", "total_bytes", "fits", "allowed"];

/** All simulated strategies, for a spreadsheet. */
export const keepPoints = points => download("strategies.csv", csv(COLUMNS, points.map(point => COLUMNS.map(name => point[name]))), "text/csv");

/** Batch and sequence are the question's: the same in every row. */
const short = strategy => strategy.replace(/ gbs\d+| seq\d+/g, "");

const slower = (row, fastest) => [signed(row.seconds / fastest - 1), likeness(row)];

function bestRow(row, fastest) {
  const chosen = row.strategy === state.selected;
  return el(
    "tr",
    { class: chosen ? "chosen" : "", on: { click: () => select(row.strategy) } },
    el(
      "th",
      { scope: "row" },
      el(
        "button",
        { "class": "strategy", "type": "button", "title": row.strategy, "aria-pressed": chosen ? "true" : "false" },
        short(row.strategy),
      ),
      roles(row.roles || []),
    ),
    el("td", { class: "num" }, seconds(row.seconds)),
    el("td", { class: "num" }, row.seconds === fastest ? "–" : slower(row, fastest)),
    el("td", { class: "num" }, number(row.tokens_per_second_per_gpu)),
    el("td", { class: "num" }, percent(row.mfu)),
    el("td", { class: "num" }, bytes(row.total_bytes)),
  );
}
