// A ledger as a tree that opens: every number with its parts, its share of the whole, and its note.

import { el } from "./dom.js";
import { percent } from "./format.js";
import { said, t, word } from "./i18n.js";

export function ledgerTree(ledger, show, { open = 1 } = {}) {
  return el(
    "div",
    { "class": "ledger", "role": "group", "aria-label": name(ledger) },
    branch(ledger, ledger.value || 1, show, open),
  );
}

const name = ledger => word("ledger", ledger.name);

function branch(ledger, whole, show, open) {
  const parts = [...(ledger.parts || [])].filter(part => Math.abs(part.value) > Math.abs(whole) * 1e-9);
  parts.sort((a, b) => b.value - a.value);
  if (!parts.length) return el("div", { class: "leaf" }, line(ledger, whole, show));
  return el(
    "details",
    { open: open > 0 },
    el("summary", {}, line(ledger, whole, show)),
    el(
      "div",
      { class: "parts" },
      parts.map(part => branch(part, whole, show, open - 1)),
    ),
  );
}

function line(ledger, whole, show) {
  const share = ledger.value / whole;
  return el(
    "span",
    { class: "ledger-line" },
    el(
      "span",
      { class: "ledger-name" },
      name(ledger),
      ledger.note ? el("small", { class: "note", title: said(ledger.note) }, said(ledger.note)) : null,
    ),
    el(
      "span",
      { "class": "ledger-bar", "aria-hidden": "true" },
      el("i", { style: { width: `${Math.min(100, Math.max(0, 100 * share))}%` } }),
    ),
    el("span", { class: "num" }, show(ledger.value)),
    el("span", { class: "num share" }, percent(share)),
  );
}

/** The memory ledgers of all ranks behind one choice of rank; the fullest first. */
export function memoryLedger(ledgers, show) {
  const fullest = ledgers.reduce((best, one, k) => (one.value > ledgers[best].value ? k : best), 0);
  const place = el("div", {}, ledgerTree(ledgers[fullest], show));
  if (ledgers.length === 1) return place;
  const choice = el(
    "select",
    {
      "aria-label": t("rank"),
      "on": { change: () => place.replaceChildren(ledgerTree(ledgers[Number(choice.value)], show)) },
    },
    ledgers.map((ledger, k) =>
      el("option", { value: k, selected: k === fullest }, `${t("rank")} ${k} · ${show(ledger.value)}`),
    ),
  );
  return el("div", {}, el("div", { class: "ledger-choice" }, choice), place);
}
