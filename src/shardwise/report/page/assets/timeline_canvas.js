// The canvas of a timeline and the part of it in sight. Rows and curves are drawn once on a sheet wider than the window,
// so that a frame while moving costs a stamp of it and the axis.

import { colour, el } from "./dom.js";
import { units } from "./format.js";
import { t } from "./i18n.js";
import { feeds, find, needs } from "./timeline_data.js";
import {
  binOf,
  drawAxis,
  drawMemory,
  drawMemoryAxis,
  drawNames,
  drawRelated,
  drawRows,
  mixed,
  stacked,
  streamColours,
} from "./timeline_draw.js";
import { drawLaneNames, drawLanes, laneHeight } from "./timeline_lanes.js";

const OVERVIEW = 34,
  AXIS = 30,
  MEMORY = 130,
  LEAST = 1e-6,
  READABLE = 60,
  ROOMY = 64; // lanes of all ranks that are shown unasked

/** Where the iteration is long, its beginning: what one can read; the overview shows the rest. */
function firstLook(line) {
  const most = Math.max(...line.ranks.map(rank => rank.codes.length));
  return most > READABLE * 2.5 ? (line.whole * READABLE) / most : line.whole;
}

export class TimelineCanvas {
  constructor(view, line) {
    Object.assign(this, { view, line, from: 0, to: firstLook(line), chosen: null, critical: null, over: -1, frame: 0 });
    this.traffic = line.lanes.length > 0 && line.pp * line.lanes.length <= ROOMY;
    this.show = units(view);
    this.canvas = el("canvas", {
      "class": "timeline",
      "tabindex": 0,
      "role": "application",
    });
    this.overview = el("canvas", { "class": "overview", "aria-hidden": "true" });
    this.where = el("span", { class: "where" });
    this.buffer = document.createElement("canvas");
    this.canvases = [document.createElement("canvas"), document.createElement("canvas")];
  }

  themed() {
    const names = ["ink", "muted", "line", "idle", "surface"];
    const [ink, muted, line, idle, paper] = names.map(colour);
    this.paint = streamColours(this.line, { ink, muted, line, idle, paper });
    this.small = this.sheet = null;
    this.later();
  }

  later() {
    if (!this.frame)
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
  }

  box() {
    const width = this.canvas.clientWidth || 600,
      pp = this.line.pp,
      narrow = width < 520;
    const row = Math.max(5, Math.min(narrow ? 18 : 24, 560 / pp)),
      gap = row > 10 ? 3 : 1;
    const lane = this.traffic ? laneHeight(row) : 0,
      each = row + gap + lane * this.line.lanes.length;
    const top = AXIS,
      below = top + pp * each + 16;
    return {
      from: this.from,
      to: this.to,
      left: narrow ? 58 : 78,
      right: width - 6,
      top,
      row,
      gap,
      lane,
      each,
      below,
      memory: MEMORY,
      width,
      height: below + MEMORY + 6,
      ratio: devicePixelRatio || 1,
      buffer: this.buffer,
    };
  }

  draw() {
    if (!this.canvas.isConnected || !this.canvas.clientWidth) return;
    const box = this.box(),
      { canvas, line, paint } = this,
      pen = this.pen(canvas, box.width, box.height, box.ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(pen, this.view, box, paint);
    const chosen = this.chosen && find(line, this.chosen.code);
    const before = chosen ? needs(line, chosen.code) : [],
      after = chosen ? feeds(line, chosen.code) : [];
    const related = this.found ?? (chosen ? new Set([chosen, ...before, ...after].map(one => one.code)) : this.critical);
    drawMemoryAxis(pen, this.view, line, box, paint);
    this.stamp(pen, box, related, chosen ? chosen.rank : this.over);
    drawNames(pen, line, box, paint, t("rank"));
    drawLaneNames(pen, line, box, paint);
    if (chosen) drawRelated(pen, line, box, paint, chosen, before, after);
    if (this.summing) this.shade(pen, box);
    this.drawOverview(box);
    this.where.textContent = `${this.show.time(this.from)} – ${this.show.time(this.to)}`;
  }

  /** The stretch of time that is summed. */
  shade(pen, box) {
    const x = time => Math.min(box.right, Math.max(box.left, box.left + ((time - box.from) / (box.to - box.from)) * (box.right - box.left)));
    const [a, b] = [x(this.summing.from), x(this.summing.to)];
    pen.globalAlpha = 0.14;
    pen.fillStyle = this.paint.ink;
    pen.fillRect(a, box.top - 6, b - a, box.height - box.top);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.paint.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(a + 0.75, box.top - 5.25, Math.max(0, b - a - 1.5), box.height - box.top + 3);
  }

  /** Put the rows and curves in sight on the canvas, from a sheet that reaches half a window further on both sides. */
  stamp(pen, box, related, strong) {
    const key = [
      (box.to - box.from).toPrecision(9),
      box.width,
      box.height,
      box.ratio,
      strong,
      this.traffic,
      this.chosen ? this.chosen.code : this.critical ? -2 : -1,
    ].join(" ");
    if (!this.sheet || this.sheet.key !== key || this.sheet.from > box.from || this.sheet.to < box.to)
      this.sheet = this.sheetOf(box, related, strong, key);
    const { sheet } = this,
      wide = (box.right - box.left) * box.ratio,
      scale = wide / (box.to - box.from);
    const x = Math.round((box.from - sheet.from) * scale),
      high = sheet.canvas.height;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(sheet.canvas, x, 0, wide, high, box.left, box.top, box.right - box.left, high / box.ratio);
  }

  sheetOf(box, related, strong, key) {
    const span = box.to - box.from,
      from = Math.max(0, box.from - span / 2),
      to = Math.min(this.line.whole, box.to + span / 2);
    const wide = ((box.right - box.left) * (to - from)) / span,
      canvas = this.canvases[this.canvases[0] === this.sheet?.canvas ? 1 : 0];
    const own = {
      ...box,
      from,
      to,
      left: 0,
      right: wide,
      top: 0,
      below: box.below - box.top,
      height: box.height - box.top,
    };
    Object.assign(canvas, { width: Math.ceil(wide * box.ratio), height: Math.ceil(own.height * box.ratio) });
    const pen = canvas.getContext("2d");
    pen.setTransform(box.ratio, 0, 0, box.ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawRows(pen, this.line, own, this.paint, related);
    drawLanes(pen, this.line, own, this.paint);
    drawMemory(pen, this.line, own, this.paint, strong);
    return { key, from, to, canvas };
  }

  pen(canvas, width, height, ratio) {
    const w = Math.round(width * ratio),
      h = Math.round(height * ratio);
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
    const { line, paint } = this,
      wide = Math.max(1, Math.round(box.right - box.left));
    if (!this.small || this.smallFor !== wide) {
      const bin = binOf(line, 0, line.whole, wide),
        columns = Math.round(wide / (bin || 1));
      const image = bin
        ? stacked(line, 0, line.whole, columns, paint, { levels: OVERVIEW - 4, together: true })
        : mixed(line, 0, line.whole, wide, paint);
      this.small = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
      this.small.getContext("2d").putImageData(image, 0, 0);
      this.smallFor = wide;
    }
    const pen = this.pen(this.overview, box.width, OVERVIEW, box.ratio);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.small, box.left, 2, wide, OVERVIEW - 4);
    const scale = wide / line.whole,
      a = box.left + this.from * scale,
      b = box.left + this.to * scale;
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
    const whole = this.line.whole,
      span = Math.min(whole, Math.max(to - from, whole * LEAST));
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
    const { top, each } = this.box(),
      rank = Math.floor((y - top) / each);
    return rank >= 0 && rank < this.line.pp ? rank : -1;
  }

  /** The lane of a rank's traffic at a height; -1: its passes. */
  laneAt(y) {
    const { top, row, lane, each } = this.box(),
      inside = (y - top) % each;
    return lane && inside > row + 1 ? Math.floor((inside - row - 2) / lane) : -1;
  }
}
