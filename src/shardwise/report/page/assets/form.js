// The question: model, cluster, batch, limits. A file that is dropped on it is read by the server.

import { el, refill } from "./dom.js";
import { take, takeText } from "./files.js";
import { bytes, count } from "./format.js";
import { said, t } from "./i18n.js";
import { listen, numberIn, state, update } from "./state.js";

let dragging = new AbortController();

/** The form; `start()` is called by its button and by Enter. */
export function formOf(start) {
  const told = el("div"), // what was read, or what is wrong with it
    custom = el("div"),
    file = el("div", { "class": "file-state", "aria-live": "polite" }, custom, told);
  const form = el(
    "form",
    {
      class: "card form",
      novalidate: true,
      on: {
        submit: event => {
          event.preventDefault();
          const odd = form.querySelector(".field[data-odd] input"); // the question still has the number before it
          if (odd) odd.focus();
          else start();
        },
      },
    },
    el("h2", {}, t("form.title")),
    field("model", t("form.model"), modelInput(), t("form.model.hint")),
    dropZone(told),
    pasteBox(told),
    file,
    el(
      "div",
      { class: "pair" },
      field("gpus", t("form.gpus"), numberInput("gpus", 1)),
      field("gpu", t("form.gpu"), select("gpu", gpus)),
    ),
    el(
      "div",
      { class: "pair" },
      field("global_batch", t("form.batch"), numberInput("global_batch", 1)),
      field("seq", t("form.seq"), numberInput("seq", 1, 1)),
    ),
    field("runtime", t("form.runtime"), select("runtime", runtimes)),
    el(
      "div",
      { class: "pair even" },
      field("dtype", t("form.dtype"), select("dtype", named("dtypes"))),
      field("optimizer", t("form.optimizer"), select("optimizer", named("optimizers"))),
    ),
    el(
      "details",
      { class: "more", open: differs() },
      el("summary", {}, t("form.more")),
      field("only", t("form.only"), textInput("only", "tp<=8 zero1 vpp=1"), t("form.only.hint")),
      field("memory_margin", t("form.margin"), textInput("memory_margin", "6GiB"), t("form.margin.hint")),
      el(
        "div",
        { class: "pair" },
        field("gap", t("form.gap"), numberInput("gap", 0, 0.1)),
        field("time_limit", t("form.time"), numberInput("time_limit", 1)),
      ),
    ),
    el("button", { class: "primary wide", type: "submit", id: "plan-button" }, t("form.plan")),
  );
  drops(form, told);
  showCustom(custom);
  listen(["question"], () => showCustom(custom));
  return form;
}

function differs() {
  const { only, memory_margin: margin, gap, time_limit: time } = state.question;
  return Boolean(only || margin || gap !== 0.5 || time !== 60);
}

function field(name, label, input, hint) {
  input.id = `field-${name}`;
  if (hint) input.setAttribute("aria-describedby", `hint-${name}`);
  return el(
    "div",
    { class: "field", data: { field: name } },
    el("label", { for: input.id }, label),
    input,
    hint ? el("small", { id: `hint-${name}`, class: "muted" }, hint) : null,
    el("small", { class: "fault", role: "alert" }),
  );
}

const set = (name, value) => update({ question: { ...state.question, [name]: value } });

function modelInput() {
  const list = el("datalist", { id: "models" });
  const fill = () => {
    const models = state.catalog ? state.catalog.models : [];
    const told = one => `${count(one.parameters)} · ${t("form.layers", { layers: one.layers })}`;
    refill(
      list,
      models.map(one => el("option", { value: one.name }, told(one))),
    );
  };
  document.getElementById("models")?.remove();
  document.body.append(list);
  const change = value => update({ question: { ...state.question, model: value, custom: null } });
  return kept(input("text", "model", change, { list: "models", required: true }), "model", fill);
}

/** An input that keeps to the question when something else than the user changes it. */
function kept(node, name, fill = () => {}) {
  const sync = () => {
    fill();
    if (node.value !== String(state.question[name] ?? "")) node.value = state.question[name] ?? "";
  };
  listen(["catalog", "question"], changed => {
    if (changed.includes("catalog") || document.activeElement !== node) sync();
  });
  sync();
  return node;
}

function input(type, name, change, more = {}) {
  const on = { input: event => change(event.target.value) };
  return el("input", { type, autocomplete: "off", spellcheck: "false", on, ...more });
}

function textInput(name, placeholder) {
  return kept(
    input("text", name, value => set(name, value), { placeholder }),
    name,
  );
}

function numberInput(name, min, step = 1) {
  const change = text => {
    const value = numberIn(name, text);
    odd(node, value === null ? t(`form.odd.${name === "gap" ? "share" : name === "time_limit" ? "above" : "whole"}`, { value: state.question[name] }) : "");
    if (value !== null) set(name, value);
  };
  const node = input("number", name, change, { min, step, inputmode: "decimal", required: true });
  return kept(node, name, () => odd(node, ""));
}

/** Say at a field that what stands in it is no number that can be; the question keeps the one before. */
function odd(node, sentence) {
  const field = node?.closest(".field");
  if (!field) return;
  if (sentence) field.dataset.odd = sentence;
  else delete field.dataset.odd;
  field.classList.toggle("wrong", Boolean(sentence));
  field.querySelector(".fault").textContent = sentence;
}

/** A choice whose options come with the catalog; what the address says stays a choice, known or not. */
function select(name, choices) {
  const node = el("select", { on: { change: () => set(name, node.value) } });
  const fill = () => {
    const all = choices(),
      value = state.question[name];
    const known = all.some(one => one.value === value) ? all : [{ value, text: value }, ...all];
    const text = JSON.stringify(known);
    if (node.dataset.options === text) return;
    node.dataset.options = text;
    refill(
      node,
      known.map(one => el("option", { value: one.value }, one.text)),
    );
  };
  return kept(node, name, fill);
}

const named = list => () => (state.catalog?.[list] || []).map(name => ({ value: name, text: name }));
const runtimes = named("runtimes");

function gpus() {
  const told = gpu => `${gpu.name} · ${bytes(gpu.memory, 0)}`;
  return (state.catalog ? state.catalog.gpus : []).map(gpu => ({ value: gpu.name, text: told(gpu) }));
}

function dropZone(file) {
  const input = el("input", {
    "type": "file",
    "aria-label": t("form.choose"),
    class: "away",
    id: "model-file",
    tabindex: -1,
    on: {
      change: () => {
        if (input.files[0]) take(input.files[0], file);
        input.value = "";
      },
    },
  });
  return el(
    "div",
    { class: "drop" },
    el("span", {}, t("form.drop")),
    el("button", { class: "link", type: "button", on: { click: () => input.click() } }, t("form.choose")),
    input,
  );
}

/** A strategy of one's own, or a script that was copied: it is put in hand as it is. */
function pasteBox(file) {
  const box = el("textarea", { id: "own-strategy", rows: 2, spellcheck: "false", placeholder: "tp8 pp4 · torchrun … --tensor-model-parallel-size 8 …" });
  const read = () => takeText(box.value, file);
  box.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || box.value.includes("\n")) return;
    event.preventDefault();
    read();
  });
  return el(
    "details",
    { class: "own" },
    el("summary", {}, t("form.own")),
    el("label", { for: box.id, class: "muted" }, t("form.own.hint")),
    box,
    el("button", { class: "small", type: "button", on: { click: read } }, t("form.own.read")),
  );
}

/** The whole window takes a file while it is dragged, so that one cannot miss and leave the page. */
function drops(form, file) {
  dragging.abort(); // those of a form before this one
  dragging = new AbortController();
  const { signal } = dragging;
  const carries = event => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  addEventListener(
    "dragover",
    event => {
      if (carries(event)) {
        event.preventDefault();
        form.classList.add("dragging");
      }
    },
    { signal },
  );
  addEventListener(
    "dragleave",
    event => {
      if (!event.relatedTarget) form.classList.remove("dragging");
    },
    { signal },
  );
  addEventListener(
    "drop",
    event => {
      if (!carries(event)) return;
      event.preventDefault();
      form.classList.remove("dragging");
      if (form.isConnected && event.dataTransfer.files[0]) take(event.dataTransfer.files[0], file);
    },
    { signal },
  );
}

function showCustom(place) {
  const { custom } = state.question,
    input = document.getElementById("field-model");
  if (input) input.classList.toggle("overruled", Boolean(custom));
  if (!custom) {
    refill(place);
    return;
  }
  refill(
    place,
    el(
      "div",
      { class: "file-chip" },
      el(
        "div",
        {},
        el("strong", {}, custom.name),
        el("small", {}, `${count(custom.parameters)} · ${t("form.layers", { layers: custom.layers })}`),
      ),
      el(
        "button",
        {
          "class": "small",
          "type": "button",
          "aria-label": t("form.drop.remove"),
          "on": { click: () => set("custom", null) },
        },
        "✕",
      ),
    ),
  );
}

/** Put the server's faults beside their fields; those without a field are returned. */
export function showFaults(form, faults) {
  const names = {
    "cluster": "gpus",
    "cluster.gpus": "gpus",
    "strategy.global_batch": "global_batch",
    "strategy.seq": "seq",
  };
  for (const node of form.querySelectorAll(".field")) {
    node.classList.toggle("wrong", Boolean(node.dataset.odd));
    node.querySelector(".fault").textContent = node.dataset.odd || "";
  }
  return faults.filter(fault => {
    const name = names[fault.where] || fault.where,
      node = form.querySelector(`.field[data-field="${CSS.escape(name || "")}"]`);
    if (!node) return true;
    const place = node.querySelector(".fault");
    node.classList.add("wrong");
    place.textContent = [place.textContent, said(fault.what)].filter(Boolean).join("\n");
    if (node.closest("details")) node.closest("details").open = true;
    return false;
  });
}
