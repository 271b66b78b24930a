// A file that is dropped: a model is read by the server and asked about, a plan is looked into.

import { go, showPlan } from "./actions.js";
import { readModel, readScript, viewOf } from "./api.js";
import { announce, el, refill } from "./dom.js";
import { bytes } from "./format.js";
import { said, t } from "./i18n.js";
import { inHand } from "./knobs.js";
import { DEFAULT, state, toAsk, update } from "./state.js";
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
    else if (chosen.size <= MODEL && isScript(text)) return void (await openScript(chosen.name, text, place));
    else if (chosen.size > MODEL) throw new Error(t("form.big", { size: bytes(chosen.size, 1) }));
    else await useModel(text);
    refill(place);
  } catch (error) {
    error.message = `${chosen.name}: ${error.message.replace(/^the request /, "")}`;
    refill(place, alertOf(error));
    if (state.view !== "plan") announce(said(error.message));
  }
}

/** What is typed or pasted: a strategy's line, or what a file holds. */
export function takeText(text, place) {
  const bare = text.trim();
  if (!bare) return;
  if (!bare.includes("\n") && !bare.includes("--") && !bare.startsWith("{")) {
    refill(place);
    inHand(state.question, bare);
    return;
  }
  take({ name: `pasted${endingOf(bare)}`, size: new Blob([text]).size, text: async () => text }, place);
}

/** A file's ending from its first words: readers go by it. */
function endingOf(text) {
  if (text.startsWith("{")) return ".json";
  if (/^\s*\[[\w.]+\]\s*$/m.test(text)) return ".toml";
  if (/^(from|import|def|class) /m.test(text) && !/(^|\s)--[a-z]/.test(text)) return ".py";
  return /(^|[\s"'(])--[a-z][\w-]+/.test(text) ? ".sh" : ".yaml";
}

/** Not JSON at all, or the JSON of a framework that trains; what describes a model goes another way. */
const isScript = text =>
  !text.trimStart().startsWith("{") ||
  /"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|MODEL_ARGS|parallel_config)"|"shardwise\/huggingface\//.test(text);

async function openScript(name, text, place) {
  const found = await readScript({ name, text, question: toAsk(state.question) });
  const { gpus, global_batch, seq, runtime, dtype, optimizer, parameters, layers, model } = found;
  const known = state.catalog?.models.some(one => one.name === found.name);
  const custom = model ? { name: found.name, parameters, layers, model } : known ? null : state.question.custom;
  const question = { ...state.question, ...(known ? { model: found.name } : {}), custom, gpus, global_batch, seq, runtime, dtype, optimizer };
  update({ question });
  inHand(question, found.strategy);
  refill(place, el("details", { class: "read" }, el("summary", {}, t("form.read", { name })), el("ul", {}, found.notes.map(note => el("li", {}, said(note))))));
  go("plan");
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
  const { global_batch, seq, runtime, dtype = DEFAULT.dtype, optimizer = DEFAULT.optimizer } = strategy,
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
    runtime: runtime.split("+")[0],
    dtype,
    optimizer,
  };
}
