// The timeline: zoom and move by mouse, touch, keyboard or buttons; a click names an action and shows what it waits for.

import { colour, el, refill } from "./dom.js";
import { percent } from "./format.js";
import { t, word } from "./i18n.js";
import { keepButton, keepPng } from "./keep.js";
import { HIDDEN, KIND, LINES, PART } from "./palette.js";
import { hideTip, showTip } from "./tooltip.js";
import { TimelineCanvas } from "./timeline_canvas.js";
import { actionAt, afterAt, decode, feeds, find, nameOf, needs, partner, prepare, trafficAt } from "./timeline_data.js";
import { memoryRanks } from "./timeline_draw.js";
import { findBox, spentTable } from "./timeline_tools.js";

/** A timeline of a view; {node, redraw}. `kept`: {from, to, critical} to begin with; `keep(kept)`: what is looked at. */
export function timelineOf(view, kept = null, keep = () => {}) {
  const line = prepare(view.timeline),
    made = new Drawing(view, line, keep);
  if (kept) made.recall(kept);
  return { node: made.node, redraw: () => made.themed(), drawing: made };
}

let drawn = 0; // for ids of their own

/** Several timelines one above the other, on one scale and moved together. */
export function timelinesOf(views) {
  const lines = views.map(view => prepare(view.timeline)),
    whole = Math.max(...lines.map(line => line.whole));
  const all = views.map((view, k) => new Drawing(view, { ...lines[k], whole }, () => {}));
  for (const one of all) {
    one.peers = all.filter(other => other !== one);
    one.recall({ from: 0, to: whole });
  }
  return { nodes: all.map(one => one.node), redraw: () => all.forEach(one => one.themed()) };
}

class Drawing extends TimelineCanvas {
  constructor(view, line, keep) {
    super(view, line);
    Object.assign(this, { keep, drag: null, pointers: new Map(), peers: [], summing: null });
    this.canvas.setAttribute("aria-label", this.summary());
    this.info = el("div", { "class": "action-info", "aria-live": "polite" });
    const id = `timeline-keys-${(drawn += 1)}`;
    this.canvas.setAttribute("aria-describedby", id);
    const keys = el("p", { class: "hint", id }, t("timeline.keys"));
    this.node = el(
      "div",
      { class: "timeline-box" },
      this.toolbar(),
      this.overview,
      this.canvas,
      this.legend(),
      this.info,
      keys,
    );
    this.listen();
    this.hint();
    new ResizeObserver(() => this.later()).observe(this.canvas);
    this.themed();
  }

  /** Look at what was looked at before. */
  recall({ from, to, critical }) {
    if (critical && this.line.critical?.length) {
      this.critical = new Set(this.line.critical);
      this.node.querySelector(".critical").setAttribute("aria-pressed", "true");
      this.hint();
    }
    if (to > from) super.look(from, to);
    else this.later();
  }

  look(from, to) {
    super.look(from, to);
    for (const one of this.peers) if (one.from !== this.from || one.to !== this.to) TimelineCanvas.prototype.look.call(one, from, to);
    clearTimeout(this.kept);
    this.kept = setTimeout(() => this.remember(), 200);
  }

  remember() {
    const rounded = value => Number(value.toPrecision(6));
    this.keep({ from: rounded(this.from), to: rounded(this.to), critical: Boolean(this.critical) });
  }

  summary() {
    const { pp, microbatches, actions, makespan } = this.line;
    return t("timeline.summary", {
      pp,
      microbatches,
      actions: actions.toLocaleString("en-US"),
      makespan: this.show.time(makespan),
    });
  }

  toolbar() {
    const button = (name, text, call) =>
      el(
        "button",
        { "class": "small", "type": "button", "title": t(name), "aria-label": t(name), "on": { click: call } },
        text,
      );
    return el(
      "div",
      { class: "toolbar" },
      button("timeline.in", "+", () => this.zoom(1 / 1.8)),
      button("timeline.out", "−", () => this.zoom(1.8)),
      button("timeline.left", "←", () => this.move(-0.4)),
      button("timeline.right", "→", () => this.move(0.4)),
      el(
        "button",
        { class: "small", type: "button", on: { click: () => this.look(0, this.line.whole) } },
        t("timeline.all"),
      ),
      this.line.critical?.length ? this.criticalButton() : null,
      this.line.lanes.length ? this.trafficButton() : null,
      this.sumButton(),
      findBox(this),
      keepButton("PNG", () => keepPng(this.canvas, "timeline.png", colour("surface"))),
      this.where,
    );
  }

  /** Show only the chain of actions that the iteration's length hangs on. */
  criticalButton() {
    const flip = event => {
      this.critical = this.critical ? null : new Set(this.line.critical);
      event.currentTarget.setAttribute("aria-pressed", this.critical ? "true" : "false");
      this.choose(null);
      this.remember();
    };
    const on = { click: flip };
    return el(
      "button",
      { "class": "small flip critical", "type": "button", "aria-pressed": "false", on },
      t("timeline.critical"),
    );
  }

  /** Sum what is in sight by kind; while it is on, dragging chooses the stretch. */
  sumButton() {
    const flip = event => {
      this.summing = this.summing ? null : { from: this.from, to: this.to };
      event.currentTarget.setAttribute("aria-pressed", String(Boolean(this.summing)));
      this.sum();
    };
    return el("button", { "class": "small flip sum", "type": "button", "title": t("timeline.sum.how"), "aria-pressed": "false", "on": { click: flip } }, t("timeline.sum"));
  }

  sum() {
    if (this.summing) refill(this.info, spentTable(this.line, this.summing.from, this.summing.to, this.show.time));
    else this.choose(null);
    this.later();
  }

  /** Mark the actions that were searched for; null: none is. */
  mark(codes) {
    this.found = codes && new Set(codes);
    this.sheet = null;
    this.choose(null);
  }

  /** Show or hide the lanes of traffic. */
  trafficButton() {
    const flip = event => {
      this.traffic = !this.traffic;
      event.currentTarget.setAttribute("aria-pressed", String(this.traffic));
      this.later();
    };
    return el(
      "button",
      { "class": "small flip", "type": "button", "aria-pressed": String(this.traffic), "on": { click: flip } },
      t("timeline.traffic"),
    );
  }

  /** Keys of what stands beside the passes; none where there is nothing. */
  parts() {
    const { line } = this,
      after = new Set(line.ranks.flatMap(rank => rank.after.map(([name]) => name)));
    if (!line.lanes.length && !after.size) return null;
    const keys = [...line.lanes, ...after].map(name => this.key(PART[name], word("ledger", name)));
    const faint = el("i", { style: { background: PART["tp communication"], opacity: HIDDEN } });
    return el("div", {}, keys, el("span", { class: "key" }, faint, t("timeline.hidden")));
  }

  legend() {
    const used = [..."FIWB"].filter(kind => this.has(kind));
    const kinds = used.map(kind => this.key(KIND[kind], word("kind", kind)));
    const ranks = memoryRanks(this.line).map((rank, k) =>
      this.key(LINES[k % LINES.length], `${t("rank")} ${rank}`, "line"),
    );
    return el(
      "div",
      { class: "legend two" },
      el("div", {}, kinds, this.key("var(--idle)", word("time", "bubble"))),
      this.parts(),
      el(
        "div",
        {},
        el("span", { class: "key" }, `${t("memory")}:`),
        ranks,
        this.line.limit ? this.key("", t("limit"), "limit") : null,
      ),
    );
  }

  has(kind) {
    const { chunks, microbatches, rankOf } = this.line,
      k = "FIWB".indexOf(kind),
      size = chunks * microbatches;
    return rankOf.subarray(k * size, (k + 1) * size).some(rank => rank >= 0);
  }

  key(shade, text, kind = "") {
    return el("span", { class: `key ${kind}` }, el("i", { style: { background: shade } }), text);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", event => this.down(event));
    canvas.addEventListener("pointermove", event => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, event => this.up(event, name));
    canvas.addEventListener("pointerleave", () => {
      hideTip();
      this.hover(-1);
    });
    canvas.addEventListener("dblclick", () => this.look(0, this.line.whole));
    canvas.addEventListener("keydown", event => this.press(event));
    const jump = event => {
      if (event.buttons) this.centre(event.offsetX);
    };
    this.overview.addEventListener("pointerdown", jump);
    this.overview.addEventListener("pointermove", jump);
  }

  centre(x) {
    const { left, right } = this.box(),
      half = (this.to - this.from) / 2;
    const at = ((x - left) / (right - left)) * this.line.whole;
    this.look(at - half, at + half);
  }

  /** The wheel zooms once the timeline has the focus, or with Ctrl; else the page scrolls on. */
  wheel(event) {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.move(event.deltaX / this.canvas.clientWidth);
    } else if (event.ctrlKey || event.metaKey || document.activeElement === this.canvas) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 240), this.timeAt(event.offsetX));
    }
  }

  down(event) {
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.offsetX);
    this.drag = { x: event.offsetX, y: event.offsetY, from: this.from, to: this.to, far: false, pinch: this.spread() };
  }

  spread() {
    const xs = [...this.pointers.values()];
    return xs.length > 1 ? Math.max(20, Math.abs(xs[0] - xs[1])) : 0;
  }

  moved(event) {
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, event.offsetX);
    if (this.drag) this.dragged(event);
    else this.pointed(event);
  }

  dragged(event) {
    const { drag } = this,
      { left, right } = this.box(),
      span = drag.to - drag.from;
    if (drag.pinch) {
      const factor = drag.pinch / this.spread(),
        at = (drag.from + drag.to) / 2;
      drag.far = true;
      this.look(at - (span * factor) / 2, at + (span * factor) / 2);
      return;
    }
    const shift = event.offsetX - drag.x;
    if (Math.abs(shift) > 4) drag.far = true;
    if (drag.far && (this.summing || event.shiftKey)) {
      const [a, b] = [drag.x, event.offsetX].map(x => Math.min(this.line.whole, Math.max(0, this.timeAt(x))));
      this.summing = { from: Math.min(a, b), to: Math.max(a, b) };
      this.node.querySelector(".sum").setAttribute("aria-pressed", "true");
      hideTip();
      this.sum();
    } else if (drag.far) {
      const step = (shift / (right - left)) * span;
      this.look(drag.from - step, drag.to - step);
      hideTip();
    }
  }

  pointed(event) {
    const rank = this.rankAt(event.offsetY),
      time = this.timeAt(event.offsetX),
      lane = this.laneAt(event.offsetY),
      hit = rank >= 0 && lane < 0 ? actionAt(this.line, rank, time) : null,
      part = hit || rank < 0 ? null : lane < 0 ? afterAt(this.line, rank, time) : trafficAt(this.line, rank, lane, time);
    this.hover(rank);
    if (hit || part) showTip(event.clientX, event.clientY, hit ? this.lines(hit) : this.partLines(part, rank));
    else hideTip();
  }

  partLines(part, rank) {
    const of = part.code >= 0 ? nameOf(this.line, part.code) : "";
    return [
      [word("ledger", part.name), of, part.hidden ? t("timeline.hidden") : ""].filter(Boolean).join(" · "),
      `${t("rank")} ${rank}`,
      `${this.show.time(part.start)} – ${this.show.time(part.end)} (${this.show.time(part.end - part.start)})`,
    ];
  }

  hover(rank) {
    if (rank === this.over) return;
    this.over = rank;
    this.later();
  }

  up(event, name) {
    this.pointers.delete(event.pointerId);
    const { drag } = this;
    this.drag = null;
    if (!drag || drag.far || name === "pointercancel") return;
    const rank = this.rankAt(event.offsetY); // also in its lanes: traffic belongs to the pass above it
    this.choose(rank >= 0 ? actionAt(this.line, rank, this.timeAt(event.offsetX)) : null);
  }

  press(event) {
    const keys = {
      "ArrowLeft": () => this.move(-0.15),
      "ArrowRight": () => this.move(0.15),
      "+": () => this.zoom(1 / 1.5),
      "=": () => this.zoom(1 / 1.5),
      "-": () => this.zoom(1.5),
      "0": () => this.look(0, this.line.whole),
      "Home": () => this.look(0, this.to - this.from),
      "End": () => this.look(this.line.whole, this.line.whole + 1),
      ".": () => this.walk(1),
      ",": () => this.walk(-1),
      "ArrowUp": () => this.climb(-1),
      "ArrowDown": () => this.climb(1),
      "Escape": () => this.choose(null),
      "Enter": () => this.choose(this.chosen || this.first()),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  first() {
    return find(this.line, this.line.ranks[0].codes[0]);
  }

  walk(step) {
    const now = this.chosen || this.first(),
      row = this.line.ranks[now.rank];
    const k = Math.min(row.codes.length - 1, Math.max(0, now.k + (this.chosen ? step : 0)));
    this.choose(find(this.line, row.codes[k]), true);
  }

  climb(step) {
    const now = this.chosen || this.first(),
      rank = Math.min(this.line.pp - 1, Math.max(0, now.rank + step));
    const row = this.line.ranks[rank],
      time = (now.start + now.end) / 2;
    let k = row.end.findIndex(end => end > time);
    if (k < 0) k = row.codes.length - 1;
    this.choose(find(this.line, row.codes[k]), true);
  }

  choose(hit, follow = false) {
    this.chosen = hit;
    if (hit && this.summing) {
      this.summing = null;
      this.node.querySelector(".sum").setAttribute("aria-pressed", "false");
    }
    if (hit && (follow || hit.end < this.from || hit.start > this.to)) this.bring(hit);
    if (hit) this.tell(hit);
    else this.hint();
    this.later();
  }

  bring(hit) {
    const span = this.to - this.from;
    if (hit.start < this.from || hit.end > this.to)
      this.look((hit.start + hit.end - span) / 2, (hit.start + hit.end + span) / 2);
  }

  lines(hit) {
    const { kind, chunk, microbatch } = decode(this.line, hit.code),
      other = partner(this.line, hit),
      beside = other ? ` · ${t("timeline.together", { other: nameOf(this.line, other.code) })}` : "";
    return [
      `${nameOf(this.line, hit.code)} · ${word("kind", kind)}${beside}`,
      t("timeline.of", { chunk, microbatch, rank: hit.rank }),
      `${this.show.time(hit.start)} – ${this.show.time(hit.end)} (${this.show.time(hit.end - hit.start)})`,
    ];
  }

  hint() {
    const { critical, line } = this;
    const [first, last] = critical ? [line.critical[0], line.critical.at(-1)].map(code => nameOf(line, code)) : [];
    const text = critical ? t("timeline.chain", { count: critical.size, first, last }) : t("timeline.click");
    refill(this.info, el("span", { class: "muted" }, text));
  }

  /** Name an action, what it waited for and what waits for it; each of them a button that leads there. */
  tell(hit) {
    const [name, of, times] = this.lines(hit),
      { line } = this;
    const waited = Math.max(0, hit.start - (hit.k ? line.ranks[hit.rank].end[hit.k - 1] : 0));
    const jump = one =>
      el(
        "button",
        { class: "chip", type: "button", on: { click: () => this.choose(find(line, one.code), true) } },
        nameOf(line, one.code),
        el("small", {}, `${t("rank")} ${one.rank}`),
      );
    const list = (title, found) =>
      el(
        "div",
        { class: "deps" },
        el("span", { class: "muted" }, title),
        found.length ? found.map(jump) : el("span", {}, t("none")),
      );
    refill(
      this.info,
      el("div", { class: "action-name" }, el("i", { style: { background: KIND[decode(line, hit.code).kind] } }), name),
      el("div", {}, of),
      el(
        "div",
        {},
        times,
        waited > line.makespan * 1e-9 ? ` · ${t("timeline.idle", { time: this.show.time(waited) })}` : "",
        ` · ${percent((hit.end - hit.start) / line.makespan, 2)}`,
      ),
      list(t("timeline.needs"), needs(line, hit.code)),
      list(t("timeline.feeds"), feeds(line, hit.code)),
    );
  }
}
