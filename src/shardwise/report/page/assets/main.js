// The frame: header, four views, theme, language, and the address that holds what one sees.

import { catalog, firstAnswer, viewOf } from "./api.js";
import { openStrategy } from "./actions.js";
import { announce, copy, el, refill } from "./dom.js";
import { mountCompare } from "./compare.js";
import { mountExport } from "./export.js";
import { carriedStep, inHand } from "./knobs.js";
import { LANGUAGES, preferred, said, speak, t } from "./i18n.js";
import { mountInside } from "./inside.js";
import { mountPlan } from "./plan.js";
import { show, start } from "./search.js";
import { DEFAULT, VIEWS, forget, fromAddress, listen, modelName, same, state, toAddress, toAsk, update } from "./state.js";

const MOUNTS = { plan: mountPlan, inside: mountInside, compare: mountCompare, export: mountExport };
const THEMES = ["auto", "light", "dark"];

function build() {
  const focused = document.activeElement ? document.activeElement.id : "";
  forget();
  speak(state.lang);
  themed();
  document.querySelectorAll("body > .app").forEach(node => node.remove());
  const roots = Object.fromEntries(VIEWS.map(view => [view, el("div", { class: `view ${view}`, id: `view-${view}` })]));
  const app = el(
    "div",
    { class: "app" },
    header(),
    el(
      "main",
      { tabindex: -1, id: "content" },
      VIEWS.map(view => roots[view]),
    ),
  );
  document.body.prepend(app);
  for (const view of VIEWS) if (offered().includes(view)) MOUNTS[view](roots[view]);
  const turn = () => {
    const nav = app.querySelector("nav"),
      here = document.activeElement,
      walked = nav.contains(here);
    for (const view of VIEWS) roots[view].hidden = view !== state.view;
    refill(nav, tabs());
    // the focus must not fall out of the page with what it stood on
    if (walked) nav.querySelector("a.here")?.focus({ preventScroll: true });
    else if (here?.closest("[hidden]")) app.querySelector("main").focus({ preventScroll: true });
  };
  turn();
  listen(["view", "pins"], turn);
  listen(["view"], () => scrollTo(0, 0));
  listen(Object.keys(state), remember);
  listen(["current"], titled);
  titled();
  if (focused) document.getElementById(focused)?.focus();
}

function titled() {
  document.title = state.current ? `${state.current.view.title} - Shardwise` : "Shardwise";
}

function skip(event) {
  event.preventDefault();
  document.querySelector("main").focus();
}

/** The views that make sense here: a file of a schedule has nothing to plan or to export. */
function offered() {
  if (state.live) return VIEWS;
  const found = ["inside"];
  if (state.run || state.carried) found.unshift("plan");
  if (state.pins.length > 1) found.push("compare");
  if (state.current.exports || state.current.plan) found.push("export");
  return found;
}

function header() {
  return el(
    "header",
    {},
    el("a", { class: "skip", href: "#content", on: { click: skip } }, t("skip")),
    el(
      "a",
      {
        class: "brand",
        href: "#",
        on: {
          click: event => {
            event.preventDefault();
            update({ view: offered()[0] });
          },
        },
      },
      mark(),
      el("span", {}, "Shardwise"),
    ),
    el("nav", { "aria-label": t("nav.label") }),
    el(
      "div",
      { class: "tools" },
      fileChoice(),
      languageButton(),
      themeButton(),
      state.live
        ? el(
            "button",
            { class: "tool", type: "button", title: t("link.copy"), on: { click: copyLink } },
            t("link.short"),
          )
        : null,
    ),
  );
}

function mark() {
  const bars = [
    ["#56b4e9", 0, 62],
    ["#e69f00", 18, 70],
    ["#009e73", 36, 64],
  ];
  return el(
    "i",
    { "class": "mark", "aria-hidden": "true" },
    bars.map(([shade, left, width]) =>
      el("b", { style: { background: shade, marginLeft: `${left}%`, width: `${width}%` } }),
    ),
  );
}

function tabs() {
  return offered().map(view =>
    el(
      "a",
      {
        "href": `#${view}`,
        "class": view === state.view ? "here" : "",
        "aria-current": view === state.view ? "page" : null,
        "on": {
          click: event => {
            event.preventDefault();
            update({ view });
          },
        },
      },
      t(`nav.${view}`),
      view === "compare" && state.pins.length ? el("span", { class: "badge" }, state.pins.length) : null,
    ),
  );
}

/** In a file with several results: which one is looked at. */
function fileChoice() {
  if (state.live || state.pins.length < 2) return null;
  const node = el(
    "select",
    {
      "aria-label": t("file.choose"),
      "class": "tool",
      "on": {
        change: () =>
          update({ current: state.pins[Number(node.value)], selected: state.pins[Number(node.value)].strategy }),
      },
    },
    state.pins.map((one, k) =>
      el(
        "option",
        { value: k, selected: one === state.current },
        `${one.view.title}${one.view.strategy ? ` · ${one.view.strategy}` : ""}`,
      ),
    ),
  );
  return node;
}

function languageButton() {
  const names = Object.keys(LANGUAGES),
    next = names[(names.indexOf(state.lang) + 1) % names.length];
  return el(
    "button",
    {
      class: "tool",
      type: "button",
      lang: next === "zh" ? "zh-CN" : "en",
      on: {
        click: () => {
          update({ lang: next });
          build();
        },
      },
    },
    LANGUAGES[next],
  );
}

function themeButton() {
  const next = THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length];
  return el(
    "button",
    {
      "class": "tool theme",
      "type": "button",
      "title": t("theme.title"),
      "aria-label": `${t("theme.title")}: ${t(`theme.${state.theme}`)}`,
      "on": {
        click: event => {
          update({ theme: next });
          themed();
          event.currentTarget.replaceWith(themeButton());
          document.querySelector(".tool.theme").focus();
        },
      },
    },
    t(`theme.${state.theme}`),
  );
}

function themed() {
  document.documentElement.dataset.theme = state.theme;
}

/** The address; of a server that only this machine reaches, with how others see the same. */
async function copyLink() {
  const alone = /^(localhost|127\.|\[::1\])/.test(location.hostname);
  announce((await copy(alone ? alike() : location.href)) ? t(alone ? "link.copied.how" : "link.copied") : t("export.notcopied"));
}

function alike() {
  const { question, step } = state,
    strategy = step?.strategy || state.selected;
  const line = strategy && !question.custom ? [`shardwise estimate ${quoted(question.model)} -c ${quoted(`${question.gpus}x${question.gpu}`)} -s ${quoted(strategy)}`] : [];
  return [`${modelName(question)} · ${question.gpus}x${question.gpu}${strategy ? ` · ${strategy}` : ""}`, t("link.how"), location.href, ...line].join("\n");
}

/** As one word of a shell: an address may hold anything. */
function quoted(text) {
  if (/^[\w.+-]+$/.test(text)) return text;
  return /["$`\\!\n]/.test(text) ? `'${text.replace(/'/g, "'\\''")}'` : `"${text}"`;
}

function remember(changed) {
  const address = toAddress();
  if (location.hash === address) return;
  if (changed.includes("view")) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** Take over what the address says; fetch what it names. */
function recall() {
  const said = fromAddress(location.hash);
  const lang = said.lang in LANGUAGES ? said.lang : state.lang,
    theme = THEMES.includes(said.theme) ? said.theme : state.theme;
  Object.assign(state, {
    budget: said.budget,
    span: said.span,
    lang,
    theme,
    view: said.view && offered().includes(said.view) ? said.view : state.view,
    target: said.target,
  });
  if (state.live && said.asks)
    Object.assign(state, { question: said.question, selected: said.selected, wanted: said.pins });
  return said;
}

async function fetchPins() {
  const wanted = state.wanted;
  for (const pin of wanted) {
    try {
      const { plan, view } = await viewOf({ question: toAsk(pin.question), strategy: pin.strategy });
      update({ pins: [...state.pins, { question: pin.question, strategy: view.strategy, plan, view }] });
    } catch (error) {
      announce(said(error.message));
    }
  }
  update({ wanted: [] });
}

async function live() {
  const said = recall();
  build();
  addEventListener("popstate", travelled);
  if (!said.asks && !said.ran) openAnswered();
  pursue(said);
  try {
    update({ catalog: await catalog() });
  } catch (error) {
    announce(said(error.message));
  }
}

/** A page without a question opens on a finished answer: the usual question's, which came with the package. */
async function openAnswered() {
  try {
    const { done } = await firstAnswer();
    if (done && !state.run && same(state.question, DEFAULT)) show(done); // it is no answer to what was typed meanwhile
  } catch {
    // the form asks as well without it
  }
}

/** Fetch what an address names: the chosen strategy, the search behind it, the pinned plans. */
function pursue(said) {
  if (said.selected && said.asks)
    openStrategy(state.question, said.selected).then(error => error && inHand(state.question, said.selected));
  if (said.ran && said.asks) start(said.selected);
  fetchPins();
}

/** Back, forward, or another link in the same tab: only what is different is fetched, and pins stay. */
function travelled() {
  const before = { ...state },
    said = recall();
  state.wanted = said.pins.filter(
    pin => !state.pins.some(one => one.strategy === pin.strategy && same(one.question, pin.question)),
  );
  const asked = said.ran && !same(said.question, before.asked),
    moved = !same(state.question, before.question),
    chosen = moved || said.selected !== before.selected;
  build();
  if (moved && said.selected) inHand(state.question, said.selected);
  pursue({ ...said, ran: asked, selected: chosen || asked ? said.selected : "" });
}

function fromFile(data) {
  const pins = data.views.map((view, k) => ({
    question: null,
    strategy: view.strategy || view.id,
    view,
    plan: data.plans[k] || null,
    exports: data.exports[k] && data.exports[k].length ? data.exports[k] : null,
  }));
  const first = pins[0],
    points = first.view.candidates;
  const run = points.length
    ? { phase: "done", points, top: [], view: first.view, plan: first.plan, finished: true }
    : null;
  const carried = data.steps || null,
    step = carried ? carriedStep(carried, 0) : null;
  if (step) Object.assign(state, { carried, step: { question: null, ...step } });
  Object.assign(state, { live: false, pins, current: first, selected: first.strategy, run, view: "inside" });
  carry(recall());
  build();
  addEventListener("popstate", () => {
    const now = fromAddress(location.hash);
    if (now.view && offered().includes(now.view)) update({ view: now.view });
    carry(now);
  });
}

/** In a file: put in hand the strategy that the address names, where the file carries it. */
function carry({ selected, cluster }) {
  const found = selected && state.carried ? carriedStep(state.carried, selected, cluster) : null,
    pin = state.pins.find(one => one.strategy === selected);
  if (pin && !found) update({ current: pin, selected });
  else if (found) update({ step: { question: null, ...found }, selected });
  else if (selected && selected !== state.selected) announce(t("file.unknown", { strategy: selected }));
}

state.lang = preferred();
const block = document.getElementById("data");
if (block) fromFile(JSON.parse(block.textContent));
else live();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => update({ theme: state.theme }));
