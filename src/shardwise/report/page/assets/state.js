// What the page knows, who wants to hear of changes, and the part of it that lives in the address.

export const VIEWS = ["plan", "inside", "compare", "export"];
export const DEFAULT = {
  model: "llama-3-70b",
  custom: null,
  gpus: 64,
  gpu: "h100",
  global_batch: 1024,
  seq: 8192,
  runtime: "megatron",
  dtype: "bf16",
  optimizer: "adamw",
  only: "",
  memory_margin: "",
  gap: 0.5,
  time_limit: 60,
};
const BUDGET = { tokens: 1e12, price: 0, days: 0 };
const WHOLE = ["gpus", "global_batch", "seq"],
  NUMBERS = [...WHOLE, "gap", "time_limit"];
const MOST_ADDRESS = 7000;

export const state = {
  live: true,
  view: "plan",
  lang: "en",
  theme: "auto",
  catalog: null,
  question: { ...DEFAULT },
  asked: null, // the question that the result answers
  run: null, // {phase, progress, points, top, plan, view, finished, closest, error}
  selected: "", // a strategy's text
  current: null, // {question, plan, view, exports}
  loading: false,
  problem: null, // of the current view
  pins: [], // [{question, strategy, plan, view}]
  wanted: [], // pins of the address that are still to be fetched
  step: null, // the strategy in hand: {question, strategy, cluster, faults, numbers, stages, knobs, ...}
  trouble: null, // why a step could not be taken
  budget: { ...BUDGET }, // of the whole run, and of a GPU and hour
  span: null, // of the timeline: {from, to, critical, of}
  carried: null, // in a file: the steps that it holds
  tried: "", // the strategy typed into the why-not box
  target: "",
};

let listeners = [];

/** Call `heard` whenever one of these keys changes. */
export function listen(keys, heard) {
  listeners.push({ keys, heard });
}

export function forget() {
  listeners = [];
}

export function update(patch) {
  const changed = Object.keys(patch);
  Object.assign(state, patch);
  for (const { keys, heard } of listeners.slice()) if (keys.some(key => changed.includes(key))) heard(changed);
}

/** The question as the server wants it. */
export function toAsk(question) {
  return {
    model: question.custom ? question.custom.model : question.model.trim(),
    cluster: `${question.gpus}x${question.gpu}`,
    global_batch: question.global_batch,
    seq: question.seq,
    runtime: question.runtime,
    only: onlyOf(question),
    memory_margin: question.memory_margin.trim() || null,
    gap: question.gap / 100,
    time_limit: question.time_limit,
  };
}

/** The conditions, with what the form says of precision and optimizer where that is not the usual. */
function onlyOf({ only, dtype, optimizer }) {
  const words = [dtype !== DEFAULT.dtype && dtype, optimizer !== DEFAULT.optimizer && optimizer, only.trim()];
  return words.filter(Boolean).join(" ");
}

/** Whether two questions ask the same. */
export function same(one, other) {
  return Boolean(one && other) && JSON.stringify(toAsk(one)) === JSON.stringify(toAsk(other));
}

export function modelName(question) {
  return question.custom ? question.custom.name : question.model;
}

export function isPinned(strategy, question) {
  return state.pins.some(pin => pin.strategy === strategy && (!question || same(pin.question, question)));
}

// The address: #view?model=..&gpus=..&s=..&pin=..  What equals the default is left out.

export function toAddress() {
  const words = new URLSearchParams();
  if (state.live) {
    for (const [name, value] of Object.entries(state.question)) {
      if (name === "custom") {
        if (value) words.set("custom", JSON.stringify(value));
      } else if (value !== DEFAULT[name] || (name === "model" && !state.question.custom)) words.set(name, value);
    }
    if (state.selected) words.set("s", state.selected);
    if (state.asked && state.run && state.run.phase === "done" && same(state.asked, state.question))
      words.set("ran", "1");
    if (state.target) words.set("to", state.target);
    if (state.span && state.view === "inside") {
      words.set("span", `${state.span.from},${state.span.to}`);
      if (state.span.critical) words.set("critical", "1");
    }
    for (const [name, usual] of Object.entries(BUDGET))
      if (state.budget[name] !== usual) words.set(name, state.budget[name]);
  } else if (state.selected) {
    words.set("s", state.selected);
    if (state.step && state.step.cluster !== state.carried.steps[0].cluster) words.set("on", state.step.cluster);
  }
  words.set("lang", state.lang);
  if (state.theme !== "auto") words.set("theme", state.theme);
  return `#${state.view}?${withPins(words)}`;
}

function withPins(words) {
  if (!state.live) return words;
  for (const pin of [...state.pins, ...state.wanted]) {
    const own = same(pin.question, state.question) ? { s: pin.strategy } : { s: pin.strategy, q: pin.question };
    words.append("pin", JSON.stringify(own));
  }
  while (words.toString().length > MOST_ADDRESS && words.getAll("pin").length) {
    const kept = words.getAll("pin").slice(0, -1);
    words.delete("pin");
    kept.forEach(pin => words.append("pin", pin));
  }
  return words;
}

/** What an address says; nonsense is passed over. */
export function fromAddress(hash) {
  const [view, rest] = hash.replace(/^#/, "").split("?");
  const words = new URLSearchParams(rest || "");
  const question = { ...DEFAULT };
  for (const name of Object.keys(DEFAULT)) {
    if (!words.has(name)) continue;
    if (name === "custom") question.custom = customOf(parsed(words.get(name)));
    else question[name] = NUMBERS.includes(name) ? numberIn(name, words.get(name)) ?? DEFAULT[name] : words.get(name);
  }
  return {
    view: VIEWS.includes(view) ? view : null,
    question,
    asks: words.has("model") || Boolean(question.custom),
    selected: words.get("s") || "",
    cluster: words.get("on") || "",
    ran: words.get("ran") === "1",
    target: words.get("to") || "",
    span: spanIn(words),
    budget: Object.fromEntries(
      Object.entries(BUDGET).map(([name, usual]) => [name, words.has(name) ? Number(words.get(name)) || 0 : usual]),
    ),
    lang: words.get("lang"),
    theme: words.get("theme"),
    pins: words
      .getAll("pin")
      .map(text => pinOf(text, question))
      .filter(Boolean),
  };
}

/** The number that a text says for a field of the question; null where it says none that can be. */
export function numberIn(name, text) {
  const value = text.trim() ? Number(text) : NaN;
  if (!Number.isFinite(value)) return null;
  if (WHOLE.includes(name)) return Number.isInteger(value) && value >= 1 ? value : null;
  return value > 0 || (value === 0 && name === "gap") ? value : null;
}

function spanIn(words) {
  const [from, to] = (words.get("span") || "").split(",").map(Number);
  return Number.isFinite(from) && Number.isFinite(to) ? { from, to, critical: words.get("critical") === "1" } : null;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A model that came by the address, where it is one; the server checks what is inside. */
function customOf(found) {
  const whole = found && typeof found.name === "string" && found.model && typeof found.model === "object";
  const number = value => (Number.isFinite(value) ? value : 0);
  return whole
    ? { name: found.name, parameters: number(found.parameters), layers: number(found.layers), model: found.model }
    : null;
}

/** A question whose values have the kinds they should have, whatever was typed into an address. */
function questionOf(found) {
  const question = { ...DEFAULT };
  for (const [name, value] of Object.entries(DEFAULT)) {
    if (name === "custom") question.custom = customOf(found.custom);
    else if (NUMBERS.includes(name)) question[name] = numberIn(name, String(found[name] ?? "")) ?? value;
    else if (typeof found[name] === typeof value) question[name] = found[name];
  }
  return question;
}

function pinOf(text, question) {
  const found = parsed(text);
  if (!found || typeof found.s !== "string") return null;
  return { strategy: found.s, question: found.q && typeof found.q === "object" ? questionOf(found.q) : question };
}
