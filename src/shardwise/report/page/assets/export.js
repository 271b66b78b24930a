// Export: the files of every target, to copy or to keep; what the target cannot say stands above them.

import { exportTo, report } from "./api.js";
import { go } from "./actions.js";
import { announce, copy, download, el, refill, saved } from "./dom.js";
import { said, t } from "./i18n.js";
import { keepButton, zipped } from "./keep.js";
import { listen, state, update } from "./state.js";
import { alertOf } from "./why.js";

const known = new Map();

export function mountExport(root) {
  const render = () => {
    if (state.view === "export") fill(root);
  };
  listen(["current", "view", "target", "catalog", "loading"], render);
  render();
}

function targets(current) {
  if (current.exports && current.exports.length) return current.exports.map(one => one.target);
  return state.catalog ? state.catalog.targets.map(one => (typeof one === "string" ? one : one.name)) : [];
}

function fill(root) {
  const { current } = state;
  if (!current || current.view.kind !== "plan") return void refill(root, empty());
  const all = targets(current),
    target = all.includes(state.target) ? state.target : all[0];
  const place = el("div", { "class": "export-files", "id": "export-panel", "role": "tabpanel", "aria-live": "polite" });
  refill(
    root,
    el(
      "div",
      { class: "heading" },
      el(
        "div",
        {},
        el("h1", {}, t("export.title")),
        el("p", { class: "muted" }, `${current.view.title} · ${current.view.strategy}`),
      ),
      el("div", { class: "heading-buttons" }, keepButtons(current)),
    ),
    el(
      "div",
      { class: "export-grid" },
      all.length
        ? el(
            "div",
            {
              "class": "targets card",
              "role": "tablist",
              "aria-label": t("export.targets"),
              "aria-orientation": "vertical",
              "on": { keydown: event => walk(event, all, target) },
            },
            all.map(one =>
              el(
                "button",
                {
                  "class": one === target ? "target chosen" : "target",
                  "type": "button",
                  "role": "tab",
                  "aria-selected": one === target ? "true" : "false",
                  "aria-controls": "export-panel",
                  "tabindex": one === target ? 0 : -1,
                  "on": { click: () => update({ target: one }) },
                },
                one.split("@")[0],
                el("small", {}, one.split("@")[1] || ""),
              ),
            ),
          )
        : null,
      place,
    ),
  );
  if (target) show(place, current, target);
  else refill(place, el("div", { class: "card empty" }, el("p", {}, t("export.none"))));
}

function walk(event, all, target) {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  update({ target: all[(all.indexOf(target) + step + all.length) % all.length] });
  document.querySelector(".target.chosen")?.focus();
}

function empty() {
  return el(
    "div",
    { class: "card empty" },
    el("h2", {}, t("export.empty")),
    el("p", {}, t("inside.empty.how")),
    el("button", { class: "primary", type: "button", on: { click: () => go("plan") } }, t("inside.empty.go")),
  );
}

function keepButtons(current) {
  const name = `${current.view.title}-${current.view.id}`.replace(/[^\w.-]+/g, "-");
  return [
    current.plan
      ? el(
          "button",
          {
            type: "button",
            on: {
              click: () => download("plan.json", `${JSON.stringify(current.plan, null, 2)}\n`, "application/json"),
            },
          },
          t("export.plan"),
        )
      : null,
    state.live
      ? el("button", { type: "button", on: { click: () => keepReport(current, `${name}.html`) } }, t("export.report"))
      : null,
  ];
}

async function keepReport(current, name) {
  const plans = [current.plan, ...state.pins.map(pin => pin.plan).filter(plan => plan && plan !== current.plan)];
  try {
    download(name, await report(plans), "text/html");
  } catch (error) {
    announce(said(error.message));
  }
}

async function show(place, current, target) {
  const embedded = (current.exports || []).find(one => one.target === target),
    key = `${current.view.id} ${target}`;
  refill(place, el("div", { class: "card empty" }, el("p", {}, t("working"))));
  let found = embedded || known.get(key);
  if (!found) {
    try {
      found = await exportTo({ plan: current.plan, target });
    } catch (error) {
      found = { error };
    }
    if (!found.error || found.error.faults?.length) known.set(key, found); // a lost connection may come back
  }
  if (place.isConnected) refill(place, found.error ? refusal(found.error, target) : files(found));
}

function refusal(error, target) {
  return el(
    "div",
    { class: "card" },
    el("h2", {}, t("export.refused", { target })),
    alertOf(typeof error === "string" ? new Error(error) : error),
  );
}

function files(found) {
  return [
    el(
      "div",
      { class: "card" },
      el("h2", {}, found.speaks),
      list(t("export.losses"), found.losses, "losses"),
      list(t("export.hand"), found.by_hand, "hand"),
      !found.losses.length && !found.by_hand.length ? el("p", { class: "good" }, t("export.exact")) : null,
    ),
    found.files.length > 1
      ? el("div", {}, keepButton("zip", () => saved(`${found.target || "export"}.zip`.replace(/[^\w.@-]+/g, "-"), zipped(found.files))))
      : null,
    found.files.map(file),
  ];
}

function list(title, lines, kind) {
  return lines.length
    ? el(
        "div",
        { class: `said ${kind}` },
        el("h3", {}, title),
        el(
          "ul",
          {},
          lines.map(line => el("li", {}, line)),
        ),
      )
    : null;
}

function file({ name, text }) {
  const copied = async () => announce((await copy(text)) ? t("export.copied", { name }) : t("export.notcopied"));
  return el(
    "section",
    { "class": "card file", "aria-label": name },
    el(
      "div",
      { class: "file-head" },
      el("h3", {}, el("code", {}, name)),
      el(
        "div",
        {},
        el(
          "button",
          {
            "class": "small copy",
            "type": "button",
            "aria-label": `${t("export.copy")} ${name}`,
            "on": { click: copied },
          },
          t("export.copy"),
        ),
        el(
          "button",
          {
            "class": "small keep",
            "type": "button",
            "aria-label": `${t("export.download")} ${name}`,
            "on": { click: () => download(name, text) },
          },
          t("export.download"),
        ),
      ),
    ),
    el("pre", { tabindex: 0 }, el("code", {}, text)),
  );
}
