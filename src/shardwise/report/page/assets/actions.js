// What several views do to the state: open a strategy, pin it, leave a pin, go to another view.

import { viewOf } from "./api.js";
import { announce } from "./dom.js";
import { t } from "./i18n.js";
import { isPinned, same, state, toAsk, update } from "./state.js";

let latest = 0;

export function go(view) {
  if (state.view !== view) update({ view });
}

/** Look inside the strategy in hand; where its timeline is not here yet, it is fetched. */
export function lookInside(question, strategy) {
  const { current } = state;
  const here = current && current.view.strategy === strategy && (!question || same(current.question, question));
  if (!here && state.live) openStrategy(question, strategy);
  go("inside");
}

/** Fetch the view of a strategy and make it the current one; the error where that is refused. */
export async function openStrategy(question, strategy) {
  const known = state.pins.find(pin => pin.strategy === strategy && same(pin.question, question));
  if (known) return void showPlan({ question, plan: known.plan, view: known.view }, strategy);
  const ticket = ++latest;
  update({ loading: true, problem: null });
  try {
    const found = await viewOf({ question: toAsk(question), strategy });
    if (ticket === latest) showPlan({ question, plan: found.plan, view: found.view }, found.view.strategy);
    return null;
  } catch (error) {
    if (ticket === latest) update({ loading: false, problem: state.current ? null : error });
    return error;
  }
}

/** The hand has moved on: a view that is still under way is no longer wanted. */
export function moveOn() {
  latest += 1;
  if (state.loading) update({ loading: false });
}

/** Make a plan that is here the current one. */
export function showPlan(current, selected) {
  latest += 1; // an answer that is still under way is no longer wanted
  update({ current, selected, loading: false, problem: null });
}

/** Choose one of the candidates of a search; the best one's view is here already. */
export function select(strategy) {
  if (!strategy || (state.selected === strategy && state.current)) return;
  if (state.run?.view?.timeline && state.run.view.strategy === strategy) {
    showPlan({ question: state.asked, plan: state.run.plan, view: state.run.view }, strategy);
    return;
  }
  update({ selected: strategy }); // it is put in hand, and its view follows
}

export function pin(current) {
  if (!current || isPinned(current.view.strategy || current.view.id, current.question)) return;
  const strategy = current.view.strategy || current.view.id;
  update({
    pins: [
      ...state.pins,
      { question: current.question, strategy, plan: current.plan, view: current.view, exports: current.exports },
    ],
  });
  announce(t("pin.done", { count: state.pins.length }));
}

export function unpin(index) {
  update({ pins: state.pins.filter((_, k) => k !== index) });
}

export function togglePin(current) {
  const index = state.pins.findIndex(
    one => one.view.id === current.view.id && one.strategy === (current.view.strategy || current.view.id),
  );
  if (index >= 0) unpin(index);
  else pin(current);
}
