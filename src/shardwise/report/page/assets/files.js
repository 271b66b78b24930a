// A file that is dropped: a model is read by the server and asked about, a plan is looked into.

import { go, showPlan } from "./actions.js";
import { readModel, viewOf } from "./api.js";
import { announce, el, refill } from "./dom.js";
import { bytes } from "./format.js";
import { t } from "./i18n.js";
import { DEFAULT, state, update } from "./state.js";
import { alertOf } from "./why.js";

const MODEL = 2 ** 20,
  PLAN = 4 * 2 ** 20;

/** Take a file; what is wrong with it is told at `place`. */
export async function take(chosen, place) {
  refill(place, el("p", { class: "muted" }, t("working")));
  try {
    const text = chosen.size > PLAN ? "" : await chosen.text();
    const plan = planIn(text);
    if (plan) await openPlan(plan);
    else if (chosen.size > MODEL) throw new Error(t("form.big", { size: bytes(chosen.size, 1) }));
    else await useModel(text);
    if (plan) refill(place);
  } catch (error) {
    error.message = `${chosen.name}: ${error.message.replace(/^the request /, "")}`;
    refill(place, alertOf(error));
    if (state.view !== "plan") announce(error.message);
  }
}

async function useModel(text) {
  const { name, parameters, layers, model } = await readModel(text);
  update({ question: { ...state.question, custom: { name, parameters, layers, model } } });
}

/** The plan in a text; null where it is something else. */
function planIn(text) {
  if (!text.includes('"shardwise/plan/')) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function openPlan(plan) {
  const found = await viewOf({ plan });
  const question = questionOf(found.plan.inputs);
  update({ question });
  showPlan({ question, plan: found.plan, view: found.view }, found.view.strategy);
  go("inside");
}

/** The question that a plan answers, as the form can say it. */
function questionOf({ model, cluster, strategy }) {
  const { global_batch, seq, runtime } = strategy,
    { name, layers } = model;
  const known = state.catalog && state.catalog.models.some(one => one.name === name);
  const custom = known ? null : { name, parameters: 0, layers, model };
  return {
    ...DEFAULT,
    model: known ? name : DEFAULT.model,
    custom,
    gpus: cluster.gpus,
    gpu: cluster.gpu.name,
    global_batch,
    seq,
    runtime,
  };
}
