// The timeline: zoom and move by mouse, touch, keyboard or buttons; a click names an action and shows what it waits for.

import { colour, el, refill } from "./dom.js";
import { percent, units } from "./format.js";
import { t, word } from "./i18n.js";
import { KIND, LINES } from "./palette.js";
import { hideTip, showTip } from "./tooltip.js";
import { actionAt, decode, feeds, find, nameOf, needs, prepare } from "./timeline_data.js";
import { drawAxis, drawMemory, drawMemoryAxis, drawNames, drawRelated, drawRows, memoryRanks, mixed, streamColours } from "./timeline_draw.js";

const OVERVIEW = 34, AXIS = 30, MEMORY = 130, LEAST = 1e-6, READABLE = 60;

/** A timeline of a view; {node, redraw}. */
export function timelineOf(view) {
  const line = prepare(view.timeline), made = new Drawing(view, line);
  return { node: made.node, redraw: () => made.themed(), drawing: made };
}

/** Where the iteration is long, its beginning: what one can read; the overview shows the rest. */
function firstLook(line) {
  const most = Math.max(...line.ranks.map(rank => rank.codes.length));
  return most > READABLE * 1.5 ? (line.makespan * READABLE) / most : line.makespan;
}

class Drawing {
  constructor(view, line) {
    Object.assign(this, { view, line, from: 0, to: firstLook(line), chosen: null, over: -1, frame: 0, drag: null });
    this.show = units(view);
    this.pointers = new Map();
    this.canvas = el("canvas", { class: "timeline", tabindex: 0, role: "application", "aria-label": this.summary(),
      "aria-describedby": "timeline-keys" });
    this.overview = el("canvas", { class: "overview", "aria-hidden": "true" });
    this.info = el("div", { class: "action-info", "aria-live": "polite" });
    this.buffer = document.createElement("canvas");
    this.canvases = [document.createElement("canvas"), document.createElement("canvas")];
    this.node = el("div", { class: "timeline-box" }, this.toolbar(), this.overview, this.canvas, this.legend(), this.info,
      el("p", { class: "hint", id: "timeline-keys" }, t("timeline.keys")));
    this.listen();
    this.hint();
    new ResizeObserver(() => this.later()).observe(this.canvas);
    this.themed();
  }

  summary() {
    const { pp, microbatches, actions, makespan } = this.line;
    return t("timeline.summary", { pp, microbatches, actions: actions.toLocaleString("en-US"), makespan: this.show.time(makespan) });
  }

  toolbar() {
    const button = (name, text, call) =>
      el("button", { class: "small", type: "button", title: t(name), "aria-label": t(name), on: { click: call } }, text);
    this.where = el("span", { class: "where" });
    return el("div", { class: "toolbar" },
      button("timeline.in", "+", () => this.zoom(1 / 1.8)), button("timeline.out", "−", () => this.zoom(1.8)),
      button("timeline.left", "←", () => this.move(-0.4)), button("timeline.right", "→", () => this.move(0.4)),
      el("button", { class: "small", type: "button", on: { click: () => this.look(0, this.line.makespan) } }, t("timeline.all")),
      this.where);
  }

  legend() {
    const used = [..."FIWB"].filter(kind => this.has(kind));
    const kinds = used.map(kind => this.key(KIND[kind], word("kind", kind)));
    const ranks = memoryRanks(this.line).map((rank, k) => this.key(LINES[k % LINES.length], `${t("rank")} ${rank}`, "line"));
    return el("div", { class: "legend two" }, el("div", {}, kinds, this.key("var(--idle)", word("time", "bubble"))),
      el("div", {}, el("span", { class: "key" }, `${t("memory")}:`), ranks, this.line.limit ? this.key("", t("limit"), "limit") : null));
  }

  has(kind) {
    const { chunks, microbatches, rankOf } = this.line, k = "FIWB".indexOf(kind), size = chunks * microbatches;
    return rankOf.subarray(k * size, (k + 1) * size).some(rank => rank >= 0);
  }

  key(shade, text, kind = "") {
    return el("span", { class: `key ${kind}` }, el("i", { style: { background: shade } }), text);
  }

  themed() {
    const names = ["ink", "muted", "line", "idle", "surface"];
    const [ink, muted, line, idle, paper] = names.map(colour);
    this.paint = streamColours(this.line, { ink, muted, line, idle, paper });
    this.small = this.sheet = null;
    this.later();
  }

  later() {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  box() {
    const width = this.canvas.clientWidth || 600, pp = this.line.pp, narrow = width < 520;
    const row = Math.max(5, Math.min(narrow ? 18 : 24, 560 / pp)), gap = row > 10 ? 3 : 1;
    const top = AXIS, below = top + pp * (row + gap) + 16;
    return { from: this.from, to: this.to, left: narrow ? 58 : 78, right: width - 6, top, row, gap, below, memory: MEMORY,
      width, height: below + MEMORY + 6, ratio: devicePixelRatio || 1, buffer: this.buffer };
  }

  draw() {
    if (!this.canvas.isConnected || !this.canvas.clientWidth) return;
    const box = this.box(), { canvas, line, paint } = this, pen = this.pen(canvas, box.width, box.height, box.ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(pen, this.view, box, paint);
    const chosen = this.chosen && find(line, this.chosen.code);
    const before = chosen ? needs(line, chosen.code) : [], after = chosen ? feeds(line, chosen.code) : [];
    const related = chosen ? new Set([chosen, ...before, ...after].map(one => one.code)) : null;
    drawMemoryAxis(pen, this.view, line, box, paint);
    this.stamp(pen, box, related, chosen ? chosen.rank : this.over);
    drawNames(pen, line, box, paint, t("rank"));
    if (chosen) drawRelated(pen, line, box, paint, chosen, before, after);
    this.drawOverview(box);
    this.where.textContent = `${this.show.time(this.from)} – ${this.show.time(this.to)}`;
  }

  /** Put the rows and curves in sight on the canvas, from a sheet that reaches half a window further on both sides. */
  stamp(pen, box, related, strong) {
    const key = [box.to - box.from, box.width, box.height, box.ratio, strong, this.chosen ? this.chosen.code : -1].join(" ");
    if (!this.sheet || this.sheet.key !== key || this.sheet.from > box.from || this.sheet.to < box.to) this.sheet = this.sheetOf(box, related, strong, key);
    const { sheet } = this, wide = (box.right - box.left) * box.ratio, scale = wide / (box.to - box.from);
    const x = Math.round((box.from - sheet.from) * scale), high = sheet.canvas.height;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(sheet.canvas, x, 0, wide, high, box.left, box.top, box.right - box.left, high / box.ratio);
  }

  sheetOf(box, related, strong, key) {
    const span = box.to - box.from, from = Math.max(0, box.from - span / 2), to = Math.min(this.line.makespan, box.to + span / 2);
    const wide = ((box.right - box.left) * (to - from)) / span, canvas = this.canvases[this.canvases[0] === this.sheet?.canvas ? 1 : 0];
    const own = { ...box, from, to, left: 0, right: wide, top: 0, below: box.below - box.top, height: box.height - box.top };
    Object.assign(canvas, { width: Math.ceil(wide * box.ratio), height: Math.ceil(own.height * box.ratio) });
    const pen = canvas.getContext("2d");
    pen.setTransform(box.ratio, 0, 0, box.ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawRows(pen, this.line, own, this.paint, related);
    drawMemory(pen, this.line, own, this.paint, strong);
    return { key, from, to, canvas };
  }

  pen(canvas, width, height, ratio) {
    const w = Math.round(width * ratio), h = Math.round(height * ratio);
    if (canvas.width !== w || canvas.height !== h) {
      Object.assign(canvas, { width: w, height: h });
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  /** The whole iteration, small, with the part in sight framed. */
  drawOverview(box) {
    const { line, paint } = this, wide = Math.max(1, Math.round(box.right - box.left));
    if (!this.small || this.small.width !== wide) {
      this.small = Object.assign(document.createElement("canvas"), { width: wide, height: line.pp });
      this.small.getContext("2d").putImageData(mixed(line, 0, line.makespan, wide, paint), 0, 0);
    }
    const pen = this.pen(this.overview, box.width, OVERVIEW, box.ratio);
    pen.imageSmoothingEnabled = true;
    pen.drawImage(this.small, box.left, 2, wide, OVERVIEW - 4);
    const scale = wide / line.makespan, a = box.left + this.from * scale, b = box.left + this.to * scale;
    pen.globalAlpha = 0.68;
    pen.fillStyle = `rgb(${paint.paper.join(",")})`;
    pen.fillRect(box.left, 2, a - box.left, OVERVIEW - 4);
    pen.fillRect(b, 2, box.right - b, OVERVIEW - 4);
    pen.globalAlpha = 1;
    pen.strokeStyle = paint.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(a + 0.75, 1.75, Math.max(2, b - a - 1.5), OVERVIEW - 3.5);
  }

  /** Show a stretch of time, kept inside the iteration. */
  look(from, to) {
    const whole = this.line.makespan, span = Math.min(whole, Math.max(to - from, whole * LEAST));
    this.from = Math.min(Math.max(0, from), whole - span);
    this.to = this.from + span;
    this.later();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(share) {
    const step = (this.to - this.from) * share;
    this.look(this.from + step, this.to + step);
  }

  timeAt(x) {
    const { left, right } = this.box();
    return this.from + ((x - left) / (right - left)) * (this.to - this.from);
  }

  rankAt(y) {
    const { top, row, gap } = this.box(), rank = Math.floor((y - top) / (row + gap));
    return rank >= 0 && rank < this.line.pp ? rank : -1;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", event => this.down(event));
    canvas.addEventListener("pointermove", event => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, event => this.up(event, name));
    canvas.addEventListener("pointerleave", () => { hideTip(); this.hover(-1); });
    canvas.addEventListener("dblclick", () => this.look(0, this.line.makespan));
    canvas.addEventListener("keydown", event => this.press(event));
    const jump = event => { if (event.buttons) this.centre(event.offsetX); };
    this.overview.addEventListener("pointerdown", jump);
    this.overview.addEventListener("pointermove", jump);
  }

  centre(x) {
    const { left, right } = this.box(), half = (this.to - this.from) / 2;
    const at = ((x - left) / (right - left)) * this.line.makespan;
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
    const { drag } = this, { left, right } = this.box(), span = drag.to - drag.from;
    if (drag.pinch) {
      const factor = drag.pinch / this.spread(), at = (drag.from + drag.to) / 2;
      drag.far = true;
      this.look(at - (span * factor) / 2, at + (span * factor) / 2);
      return;
    }
    const shift = event.offsetX - drag.x;
    if (Math.abs(shift) > 4) drag.far = true;
    if (drag.far) {
      const step = (shift / (right - left)) * span;
      this.look(drag.from - step, drag.to - step);
      hideTip();
    }
  }

  pointed(event) {
    const rank = this.rankAt(event.offsetY), hit = rank >= 0 ? actionAt(this.line, rank, this.timeAt(event.offsetX)) : null;
    this.hover(rank);
    if (hit) showTip(event.clientX, event.clientY, this.lines(hit));
    else hideTip();
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
    const rank = this.rankAt(event.offsetY);
    this.choose(rank >= 0 ? actionAt(this.line, rank, this.timeAt(event.offsetX)) : null);
  }

  press(event) {
    const keys = {
      ArrowLeft: () => this.move(-0.15), ArrowRight: () => this.move(0.15), "+": () => this.zoom(1 / 1.5),
      "=": () => this.zoom(1 / 1.5), "-": () => this.zoom(1.5), 0: () => this.look(0, this.line.makespan),
      Home: () => this.look(0, this.to - this.from), End: () => this.look(this.line.makespan, this.line.makespan + 1),
      ".": () => this.walk(1), ",": () => this.walk(-1), ArrowUp: () => this.climb(-1), ArrowDown: () => this.climb(1),
      Escape: () => this.choose(null), Enter: () => this.choose(this.chosen || this.first()),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  first() {
    return find(this.line, this.line.ranks[0].codes[0]);
  }

  walk(step) {
    const now = this.chosen || this.first(), row = this.line.ranks[now.rank];
    const k = Math.min(row.codes.length - 1, Math.max(0, now.k + (this.chosen ? step : 0)));
    this.choose(find(this.line, row.codes[k]), true);
  }

  climb(step) {
    const now = this.chosen || this.first(), rank = Math.min(this.line.pp - 1, Math.max(0, now.rank + step));
    const row = this.line.ranks[rank], time = (now.start + now.end) / 2;
    let k = row.end.findIndex(end => end > time);
    if (k < 0) k = row.codes.length - 1;
    this.choose(find(this.line, row.codes[k]), true);
  }

  choose(hit, follow = false) {
    this.chosen = hit;
    if (hit && (follow || hit.end < this.from || hit.start > this.to)) this.bring(hit);
    if (hit) this.tell(hit);
    else this.hint();
    this.later();
  }

  bring(hit) {
    const span = this.to - this.from;
    if (hit.start < this.from || hit.end > this.to) this.look((hit.start + hit.end - span) / 2, (hit.start + hit.end + span) / 2);
  }

  lines(hit) {
    const { kind, chunk, microbatch } = decode(this.line, hit.code);
    return [
      `${nameOf(this.line, hit.code)} · ${word("kind", kind)}`,
      t("timeline.of", { chunk, microbatch, rank: hit.rank }),
      `${this.show.time(hit.start)} – ${this.show.time(hit.end)} (${this.show.time(hit.end - hit.start)})`,
    ];
  }

  hint() {
    refill(this.info, el("span", { class: "muted" }, t("timeline.click")));
  }

  /** Name an action, what it waited for and what waits for it; each of them a button that leads there. */
  tell(hit) {
    const [name, of, times] = this.lines(hit), { line } = this;
    const waited = Math.max(0, hit.start - (hit.k ? line.ranks[hit.rank].end[hit.k - 1] : 0));
    const jump = one => el("button", { class: "chip", type: "button", on: { click: () => this.choose(find(line, one.code), true) } },
      nameOf(line, one.code), el("small", {}, `${t("rank")} ${one.rank}`));
    const list = (title, found) => el("div", { class: "deps" }, el("span", { class: "muted" }, title),
      found.length ? found.map(jump) : el("span", {}, t("none")));
    refill(this.info,
      el("div", { class: "action-name" }, el("i", { style: { background: KIND[decode(line, hit.code).kind] } }), name),
      el("div", {}, of), el("div", {}, times, waited > line.makespan * 1e-9 ? ` · ${t("timeline.idle", { time: this.show.time(waited) })}` : "",
        ` · ${percent((hit.end - hit.start) / line.makespan, 2)}`),
      list(t("timeline.needs"), needs(line, hit.code)), list(t("timeline.feeds"), feeds(line, hit.code)));
  }
}
