// What one asks of a timeline: where an action is, and what a stretch of time is spent on.

import { el, refill } from "./dom.js";
import { percent } from "./format.js";
import { t, word } from "./i18n.js";
import { KIND, PART } from "./palette.js";
import { KINDS, find, nearestFirst, searched, spentOn } from "./timeline_data.js";

/** A box that finds actions: all are marked, Enter walks from one to the next. */
export function findBox(drawing) {
  let at = -1;
  const told = el("span", { "class": "muted", "aria-live": "polite" });
  const input = el("input", { "type": "search", "class": "find", "aria-label": t("timeline.find"), "title": t("timeline.find.how"), "placeholder": t("timeline.find"), "autocomplete": "off", "spellcheck": "false" });
  const count = codes => refill(told, input.value.trim() ? t("timeline.found", { at: at + 1, count: codes.length }) : "");
  input.addEventListener("input", () => {
    const codes = searched(drawing.line, input.value);
    at = -1;
    drawing.mark(input.value.trim() ? codes : null);
    count(codes);
  });
  input.addEventListener("keydown", event => {
    if (event.key === "Escape") {
      input.value = "";
      input.dispatchEvent(new Event("input"));
    }
    if (event.key !== "Enter") return;
    event.preventDefault();
    const codes = nearestFirst(drawing.line, searched(drawing.line, input.value));
    if (codes.length) {
      at = (at + (event.shiftKey ? -1 : 1) + codes.length) % codes.length;
      drawing.choose(find(drawing.line, codes[at]), true);
    }
    count(codes);
  });
  return el("span", { class: "finding" }, input, told);
}

/** What a stretch of time is spent on: mean over the ranks, by kind; below it the traffic beside. */
export function spentTable(line, from, to, show) {
  const { kinds, after, idle, lanes } = spentOn(line, from, to),
    whole = to - from;
  const row = (shade, name, seconds, more = "") =>
    el("tr", {}, el("th", { scope: "row" }, el("i", { style: { background: shade } }), name, more ? el("small", {}, more) : null), el("td", { class: "num" }, show(seconds)), el("td", { class: "num" }, percent(seconds / whole)));
  return [
    el("div", { class: "action-name" }, t("timeline.sum.of", { from: show(from), to: show(to), span: show(whole) })),
    el(
      "table",
      { class: "spent" },
      el("thead", {}, el("tr", {}, ["kind", "mean", "share"].map((head, k) => el("th", { scope: "col", class: k ? "num" : "" }, t(`timeline.sum.${head}`))))),
      el(
        "tbody",
        {},
        [...KINDS].filter((_, k) => kinds[k] > 0).map(kind => row(KIND[kind], word("kind", kind), kinds[KINDS.indexOf(kind)])),
        Object.entries(after).map(([name, seconds]) => row(PART[name], word("ledger", name), seconds)),
        row("var(--idle)", word("time", "bubble"), idle),
        lanes.filter(one => one.shown + one.hidden > 0).map(one => row(PART[one.name], word("ledger", one.name), one.shown + one.hidden, one.hidden > 0 ? t("timeline.sum.hidden", { time: show(one.hidden) }) : "")),
      ),
    ),
  ];
}
