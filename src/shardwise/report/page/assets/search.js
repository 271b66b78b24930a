// One search at a time: its events become the state; whatever was found before stays until the new answer is there.

import { plan, stopPlan } from "./api.js";
import { t } from "./i18n.js";
import { same, state, toAsk, update } from "./state.js";

let running = null;

/** Ask the server. `keep`: a strategy that stays chosen when the answer comes. */
export async function start(keep = "") {
  if (running) running.abort();
  const own = new AbortController(),
    { question, selected: hand } = state,
    before = state.run;
  running = own;
  const run = {
    phase: "waiting",
    points: [],
    progress: null,
    began: performance.now(),
    before: before && before.view ? before : before && before.before,
  };
  update({ run, asked: question });
  const touched = () => !same(state.question, question) || state.selected !== hand; // while it ran: that stays in hand
  const heard = (event, data) => {
    if (running !== own) return;
    if (event === "queued") Object.assign(run, { phase: "queued", position: data.position });
    else if (event === "started") Object.assign(run, { phase: "running", id: data.id });
    else if (event === "progress")
      Object.assign(run, { phase: run.phase === "stopping" ? "stopping" : "running", progress: data });
    else if (event === "point") run.points = run.points.concat(data.points);
    else if (event === "failed")
      throw Object.assign(new Error(data.error.message), { faults: data.error.faults || [] });
    else if (event === "done") finish(run, data, question, keep || (touched() ? "-" : ""));
    update({ run });
  };
  try {
    await plan(toAsk(question), heard, own.signal);
    if (running === own && run.phase !== "done") throw new Error(t("plan.cut"));
  } catch (error) {
    if (error.name !== "AbortError" && running === own) update({ run: { ...run, phase: "failed", error } });
  } finally {
    if (running === own) running = null;
  }
}

/** An answer that was found before, as if its search had just ended; the timeline comes when it is looked into. */
export function show(done) {
  const { question } = state,
    run = { points: done.points, progress: null, known: true };
  finish(run, { ...done, finished: true }, question, "-");
  update({ run, asked: question, step: { question, ...done.step }, selected: done.view.strategy });
}

function finish(run, data, question, keep) {
  Object.assign(run, {
    phase: "done",
    plan: data.plan,
    view: data.view,
    top: data.top || [],
    finished: data.finished,
    closest: data.closest || null,
    message: data.message || "",
    before: null,
  });
  if (data.view && data.view.candidates && data.view.candidates.length > run.points.length)
    run.points = data.view.candidates;
  if (!data.view) return;
  const best = data.view.strategy;
  run.points = run.points.map(point => ({ ...point, best: point.strategy === best })); // another list: it is drawn anew
  if (!keep || keep === best)
    update({ current: { question, plan: data.plan, view: data.view }, selected: best, loading: false, problem: null });
}

/** Stop it; the best so far follows as its answer. */
export function stop() {
  if (!state.run || !state.run.id) return;
  update({ run: Object.assign(state.run, { phase: "stopping" }) });
  stopPlan(state.run.id).catch(() => {});
}
