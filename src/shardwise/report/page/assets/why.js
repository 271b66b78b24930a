// "Why not ...?": another strategy typed in, and what it loses or lacks against the one that is shown.

import { whyNot } from "./api.js";
import { el, refill } from "./dom.js";
import { bytes, percent, seconds } from "./format.js";
import { said, t, word } from "./i18n.js";
import { openStrategy } from "./actions.js";
import { state } from "./state.js";

export function whyBox(current) {
  const input = el("input", {
    type: "text",
    id: "why-input",
    placeholder: "tp4 pp8",
    autocomplete: "off",
    spellcheck: "false",
    value: state.tried,
    on: {
      input: () => {
        state.tried = input.value;
      },
    },
  });
  const answer = el("div", { "class": "why-answer", "aria-live": "polite" });
  const form = el(
    "form",
    {
      class: "why-form",
      on: {
        submit: event => {
          event.preventDefault();
          ask(current, input.value, answer);
        },
      },
    },
    el("label", { for: "why-input" }, t("why.label")),
    input,
    el("button", { class: "primary", type: "submit" }, t("why.ask")),
    el("button", { type: "button", on: { click: () => openTyped(current, input.value, answer) } }, t("why.open")),
  );
  return el("div", { class: "why" }, form, answer);
}

async function openTyped(current, text, answer) {
  if (!text.trim()) return refill(answer, el("p", { class: "muted" }, t("why.empty")));
  refill(answer, el("p", { class: "muted" }, t("working")));
  try {
    const { strategy } = await whyNot({ plan: current.plan, strategy: text.trim() }); // what is left out is the plan's
    const refused = await openStrategy(current.question || state.asked || state.question, strategy || text.trim());
    if (refused) throw refused;
    return null;
  } catch (error) {
    return refill(answer, alertOf(error));
  }
}

/** The message of several faults without the list of them, which follows. */
export const headOf = (message, faults) => (faults && faults.length > 1 ? message.split("\n")[0] : message);

export function alertOf(error) {
  return el(
    "div",
    { class: "alert", role: "alert" },
    el("p", {}, said(headOf(error.message, error.faults))),
    error.faults && error.faults.length > 1
      ? el(
          "ul",
          {},
          error.faults.map(one => el("li", {}, said(one.where ? `${one.where}: ${one.what}` : one.what))),
        )
      : null,
  );
}

async function ask(current, text, answer) {
  if (!text.trim()) return refill(answer, el("p", { class: "muted" }, t("why.empty")));
  refill(answer, el("p", { class: "muted" }, t("working")));
  try {
    const found = await whyNot({ plan: current.plan, strategy: text.trim() });
    refill(answer, told(found, current.view.numbers.iteration_seconds));
  } catch (error) {
    refill(answer, alertOf(error));
  }
  return answer.scrollIntoView({ block: "nearest" });
}

/** The server speaks English; in other languages the sentence is made of its numbers. */
function verdict(found, here) {
  if (state.lang === "en" || !Number.isFinite(here)) return found.sentence;
  const times = { share: percent(Math.abs(found.slower)), there: seconds(here * (1 + found.slower)), here: seconds(here) };
  const near = found.within_error ? ` (${t("within.error")})` : "";
  const speed = t(found.slower > 0 ? "why.slower" : "why.faster", times) + near;
  return found.fits !== "no" ? speed : `${t("fits.no")}; ${speed}`;
}

function told(found, here) {
  const parts = (found.parts || []).filter(part => Math.abs(part.lost) > 1e-9).slice(0, 8);
  const most = Math.max(...parts.map(part => Math.abs(part.lost)), 1e-12);
  const mark = found.fits === "no" ? "nofit" : found.within_error ? "near" : found.slower > 0 ? "slower" : "faster";
  return [
    el("p", { class: `verdict ${mark}` }, verdict(found, here)),
    found.missing_bytes > 0 && state.lang !== "en" // the English sentence says it
      ? el("p", { class: "muted" }, t("why.missing", { bytes: bytes(found.missing_bytes), rank: found.rank }))
      : null,
    parts.length
      ? el(
          "table",
          { class: "why-parts" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["part", "here", "there", "difference"].map(name => el("th", { scope: "col" }, t(`why.${name}`))),
            ),
          ),
          el(
            "tbody",
            {},
            parts.map(part =>
              el(
                "tr",
                {},
                el(
                  "th",
                  { scope: "row" },
                  part.name
                    .split(": ")
                    .map(one => word("ledger", one))
                    .join(": "),
                ),
                el("td", { class: "num" }, seconds(part.plan)),
                el("td", { class: "num" }, seconds(part.other)),
                el(
                  "td",
                  { class: "num diff" },
                  el("i", {
                    class: part.lost > 0 ? "lost" : "won",
                    style: { width: `${(50 * Math.abs(part.lost)) / most}%` },
                  }),
                  el("span", {}, `${part.lost > 0 ? "+" : "−"}${seconds(Math.abs(part.lost))}`),
                ),
              ),
            ),
          ),
        )
      : null,
  ];
}
