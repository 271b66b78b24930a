// The knobs of the strategy in hand: every part of it as a stepper, what cannot be run greyed with the reason.

import { stepOf } from "./api.js";
import { moveOn, openStrategy } from "./actions.js";
import { el, refill } from "./dom.js";
import { said, t, word } from "./i18n.js";
import { listen, same, state, toAsk, update } from "./state.js";
import { tips } from "./tooltip.js";

const REST = 450; // milliseconds after which a hand rests, and what takes longer follows
let queue = Promise.resolve(),
  ticket = 0,
  asked = 0,
  resting = 0;

/** The strategy in hand: of the search's question where that is asked for, else of the form's. */
function asking(question, strategy, more = {}) {
  const { plans } = state.run?.view || {};
  const best = (plans?.fastest || plans?.recommended)?.strategy || state.run?.view?.strategy;
  return {
    question: toAsk(question),
    strategy,
    ...(best && sameModel(question) ? { best } : {}),
    tokens: state.budget.tokens || null,
    price: state.budget.price || null,
    ...more,
  };
}

/** Whether the search's answer is of the model in hand; GPUs and batch may be others. */
function sameModel(question) {
  const asked = state.asked;
  return Boolean(asked) && same({ ...asked, gpus: 1, gpu: "" }, { ...question, gpus: 1, gpu: "", global_batch: asked.global_batch, seq: asked.seq });
}

/** Whether a step of a file is the strategy that the file is of: its timeline and its ledgers are there. */
export const isOwn = step => !state.carried || (step.strategy === state.carried.steps[0].strategy && step.cluster === state.carried.steps[0].cluster);

/** A step that a file holds, by its place or its strategy; of its knobs that one turns by which it is a step. */
export function carriedStep({ knobs, steps }, which, cluster = "") {
  const found = typeof which === "number" ? steps[which] : steps.find(one => one.strategy === which && (!cluster || one.cluster === cluster));
  if (!found) return null;
  const open = knob => found === steps[0] || found.knob === knob.name;
  const shown = knobs
    .filter(knob => knob.name in found.values)
    .map(knob => {
      const value = found.values[knob.name];
      return { name: knob.name, value, choices: open(knob) ? knob.choices : [{ value }] };
    });
  return { ...found, knobs: shown };
}

/** Ask for a strategy and put it in hand; true where that went well. */
async function take(question, strategy, change = "") {
  const own = ++ticket,
    before = state.question;
  clearTimeout(resting);
  moveOn();
  try {
    const found = state.live
      ? await stepOf(asking(question, strategy, change ? { change } : {}))
      : carriedStep(state.carried, strategy);
    if (own !== ticket || !found) return false;
    const typed = state.question !== before; // while we asked: that stays, and is followed
    const shown = Boolean(found.numbers || state.step?.numbers || state.step?.shown); // figures, of this or an earlier one
    update({ ...(typed ? {} : { question }), step: { question, shown, ...found }, selected: found.strategy, trouble: null });
    rest(question, found);
    return true;
  } catch (error) {
    if (own === ticket) update({ trouble: error });
    return false;
  }
}

/** When the hand rests: the ways out of what does not fit, and the timeline. */
function rest(question, found) {
  clearTimeout(resting);
  if (!state.live || found.faults.length) return;
  const own = ticket;
  resting = setTimeout(async () => {
    const known = state.current && state.current.view.strategy === found.strategy && same(state.current.question, question);
    if (!known) openStrategy(question, found.strategy);
    const ways = found.numbers.fits !== "yes",
      { days } = state.budget;
    if (!ways && !days) return;
    try {
      const more = await stepOf(asking(question, found.strategy, { ways, ...(days ? { days } : {}) }));
      if (own === ticket) update({ step: { ...state.step, ways: more.ways, enough: more.enough } });
    } catch {
      // the strategy itself was told; its ways out are a help that may fail
    }
  }, REST);
}

/** Put a strategy in hand, as it was typed, chosen or found; whatever was still on its way there is not wanted now. */
export function inHand(question, strategy) {
  const own = ++asked;
  ticket += 1;
  return (queue = queue.then(() => own === asked && take(question, strategy)));
}

/** The same strategy under a question that was changed: its batch, its GPUs, its model. */
export const followQuestion = () => (queue = queue.then(follow));

function follow() {
  const { question, step } = state;
  if (!step || !state.live || same(question, step.question)) return null;
  const words = [`tp${/\btp(\d+)/.exec(step.strategy)?.[1] || 1}`]; // dp follows from the GPUs anew
  const { question: old } = step;
  const differs = name => question[name] !== old[name];
  if (differs("global_batch")) words.push(`gbs${question.global_batch}`);
  if (differs("seq")) words.push(`seq${question.seq}`);
  if (differs("runtime")) words.push(`runtime=${question.runtime}`);
  for (const name of ["dtype", "optimizer"]) if (differs(name)) words.push(question[name]);
  return take(question, step.strategy, words.join(" "));
}

/** Ask again for what is in hand: the price has changed, or the best that it is held against. */
export const again = () =>
  (queue = queue.then(follow).then(() => state.step && take(state.step.question, state.step.strategy)));

function turned(knob, choice) {
  const { question, strategy } = state.step;
  if (!state.live) return take(question, choice.at);
  const words = choice.words ?? knob.name + choice.value;
  if (knob.name !== "pp" && knob.name !== "vpp") return take(questionAfter(question, knob, choice), strategy, words);
  const at = text => `${JSON.stringify(toAsk(question).model)} ${/\bpp(\d+)(?:x(\d+))?/.exec(text)?.slice(1).map(one => one || 1)}`;
  layers.set(at(strategy), / (layers=\S+)/.exec(strategy)?.[1] || "");
  return take(question, strategy, `${words} ${layers.get(at(words)) || ""}`.trim());
}

/** Layers that were set for a pipeline: they come back with it. */
const layers = new Map();

function questionAfter(question, knob, choice) {
  const found = /^(\d+)x(.+)$/.exec(choice.cluster || "");
  if (found) return { ...question, gpus: Number(found[1]), gpu: found[2] };
  if (knob.name === "gbs") return { ...question, global_batch: Number(choice.value) };
  if (knob.name === "seq") return { ...question, seq: Number(choice.value) };
  if (knob.name === "dtype" || knob.name === "optimizer") return { ...question, [knob.name]: choice.value };
  return question;
}

/** Turn a knob by so many values, or to one; turns that come fast wait for each other. */
function turn(name, pick) {
  queue = queue.then(follow).then(() => {
    const knob = state.step?.knobs.find(one => one.name === name);
    const choice = knob && pick(knob);
    return choice && !choice.fault && choice.value !== knob.value ? turned(knob, choice) : null;
  });
}

const placeOf = knob => knob.choices.findIndex(one => one.value === knob.value);
const beyond = (knob, by) => knob.choices[placeOf(knob) + by];

/** {node, draw()}: the row of knobs; its nodes stay, so that none is exchanged under a finger. */
export function knobRow() {
  const node = el("div", { "class": "knobs", "role": "group", "aria-label": t("knobs.label") });
  const made = new Map();
  const draw = () => {
    const all = state.step ? state.step.knobs : [];
    for (const knob of all) if (!made.has(knob.name)) made.set(knob.name, knobNode(knob.name));
    const shown = all.map(knob => made.get(knob.name).node);
    if (shown.length !== node.children.length || shown.some((one, k) => node.children[k] !== one)) refill(node, shown);
    for (const knob of all) made.get(knob.name).draw(knob);
  };
  listen(["step"], draw);
  draw();
  return node;
}

function knobNode(name) {
  let knob = null;
  const label = word("knob", name);
  const buttons = [-1, 1].map(by => {
    const button = el(
      "button",
      {
        "class": "step",
        "type": "button",
        "aria-label": `${label} ${by < 0 ? "−" : "+"}`,
        "on": { click: () => turn(name, now => beyond(now, by)) },
      },
      by < 0 ? "−" : "+",
    );
    tips(button, () => {
      const next = beyond(knob, by);
      return [next ? `${label} ${next.value}` : t(state.live ? "knobs.end" : "knobs.carried"), ...(next && next.fault ? [said(next.fault)] : [])];
    });
    return button;
  });
  const choice = el("select", {
    "aria-label": label,
    "on": {
      change: () => {
        const { value } = choice; // now: a step that is under way draws the box anew
        turn(name, now => now.choices.find(one => one.value === value));
      },
    },
  });
  const node = el(
    "div",
    { class: "knob", data: { knob: name } },
    el("span", { "class": "knob-name", "title": t(`knob.${name}.tip`) }, label),
    el("div", {}, buttons[0], choice, buttons[1]),
  );
  const draw = given => {
    knob = given;
    const key = JSON.stringify(knob.choices);
    if (choice.dataset.key !== key) {
      choice.dataset.key = key;
      refill(
        choice,
        knob.choices.map(one =>
          el("option", { value: one.value, disabled: Boolean(one.fault) }, one.value, one.fault ? ` · ${said(one.fault)}` : ""),
        ),
      );
    }
    choice.value = knob.value;
    choice.style.width = `${Math.min(16, Math.max(4, knob.value.length)) + 1}ch`;
    buttons.forEach((button, k) => {
      const next = beyond(knob, k ? 1 : -1);
      button.setAttribute("aria-disabled", !next || next.fault ? "true" : "false");
    });
  };
  return { node, draw };
}
