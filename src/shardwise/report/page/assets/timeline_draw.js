// Drawing of a timeline on a canvas. Where actions are wider than pixels each is a rectangle with its name; where many
// share a pixel, it is a stack of their colours by the time each has of it, so that the cost of a frame follows the pixels.

import { tickTime, ticks, units } from "./format.js";
import { INK, KIND, LINES, PART } from "./palette.js";
import { rgb } from "./dom.js";
import { KINDS, decode, firstAbove, nameOf } from "./timeline_data.js";

const NARROW = 3, // pixels of an action below which what is drawn are the shares of stretches of time
  FEW = 4, // actions in such a stretch, at least
  WIDEST = 12; // pixels of such a stretch, at most
const DIGIT = 6.4; // pixels of a digit at 11 px

/** Colours of every stream (kind and chunk): later chunks of a rank are lighter. */
export function streamColours(line, colours) {
  const found = [];
  for (let stream = 0; stream < 4 * line.chunks; stream++) {
    const base = rgb(KIND[KINDS[Math.floor(stream / line.chunks)]]);
    const local = Math.floor((stream % line.chunks) / line.pp);
    const lift = Math.min(0.45, 0.22 * local);
    found.push(base.map(part => Math.round(part + (255 - part) * lift)));
  }
  const idle = rgb(colours.idle);
  const faded = found.map(shade => shade.map((part, c) => idle[c] + (part - idle[c]) * 0.28));
  const css = found.map(shade => `rgb(${shade.join(",")})`);
  return { ...colours, table: found, faded, css, idle, paper: rgb(colours.paper), idle_text: colours.idle };
}

/** How many actions lie in sight. */
export function inSight(line, from, to) {
  let sum = 0;
  for (const rank of line.ranks) sum += Math.max(0, firstAbove(rank.start, to) - firstAbove(rank.end, from));
  return sum;
}

/** Shares of the time of every pixel as stacked colours, `levels` pixels high: one stack a rank, or with `together` one of
 * all ranks. What is stacked are the kinds of passes, what follows them, and waiting on top.
 */
export function stacked(line, from, to, width, paint, { levels, together = false, related = null }) {
  const rows = together ? 1 : line.pp,
    image = new ImageData(width, rows * levels),
    names = [...new Set(line.ranks.flatMap(rank => rank.after.map(([name]) => name)))];
  const shades = [...KINDS].map(kind => rgb(KIND[kind])),
    faint = shades.map(shade => shade.map((part, c) => paint.idle[c] + (part - paint.idle[c]) * 0.28));
  const colours = [...shades, ...faint, ...names.map(name => rgb(PART[name]))],
    scale = width / (to - from),
    sums = colours.map(() => new Float64Array(width));
  const add = (sum, start, end) => {
    const a = Math.max(0, (start - from) * scale),
      b = Math.min(width, (end - from) * scale);
    for (let x = Math.floor(a); x < b; x++) sum[x] += (b < x + 1 ? b : x + 1) - (a > x ? a : x);
  };
  line.ranks.forEach((rank, r) => {
    const { codes, streams, start, end } = rank,
      stop = firstAbove(start, to);
    for (let k = firstAbove(end, from); k < stop; k++) {
      const kind = Math.floor(streams[k] / line.chunks);
      add(sums[related && !related.has(codes[k]) ? kind + 4 : kind], start[k], end[k]);
    }
    for (const [name, begin, done] of rank.after) if (done > from && begin < to) add(sums[8 + names.indexOf(name)], begin, done);
    if (together && r < line.pp - 1) return;
    stack(image, together ? 0 : r * levels, levels, sums, colours, paint.idle, together ? line.pp : 1);
    for (const sum of sums) sum.fill(0);
  });
  return image;
}

/** Fill the stacks from below; where passes run together a pixel's time is shared between them. */
function stack(image, top, levels, sums, colours, idle, whole) {
  const { data, width } = image;
  for (let x = 0; x < width; x++) {
    const all = sums.reduce((total, sum) => total + sum[x], 0) / whole,
      fix = (levels / whole) * (all > 1 ? 1 / all : 1);
    let part = 0,
      reached = sums[0][x] * fix;
    for (let level = 0; level < levels; level++) {
      while (part < sums.length && reached < level + 0.5) reached += (sums[(part += 1)]?.[x] ?? 0) * fix;
      const shade = part < sums.length ? colours[part] : idle,
        at = 4 * ((top + levels - 1 - level) * width + x);
      for (let c = 0; c < 3; c++) data[at + c] = shade[c];
      data[at + 3] = 255;
    }
  }
}

/** All rows as an image `width` wide and one pixel a rank high: for rows that are too thin for stacks. */
export function mixed(line, from, to, width, paint, related = null) {
  const image = new ImageData(width, line.pp),
    scale = width / (to - from);
  const sums = new Float32Array(4 * width); // red, green, blue and cover of every pixel
  line.ranks.forEach((rank, r) => {
    sums.fill(0);
    const { codes, streams, start, end } = rank,
      stop = firstAbove(start, to);
    for (let k = firstAbove(end, from); k < stop; k++) {
      const table = related && !related.has(codes[k]) ? paint.faded : paint.table,
        shade = table[streams[k]],
        a = Math.max(0, (start[k] - from) * scale);
      const b = Math.min(width, (end[k] - from) * scale);
      for (let x = Math.floor(a); x < b; x++) {
        const share = (b < x + 1 ? b : x + 1) - (a > x ? a : x),
          at = 4 * x;
        sums[at] += share * shade[0];
        sums[at + 1] += share * shade[1];
        sums[at + 2] += share * shade[2];
        sums[at + 3] += share;
      }
    }
    blend(image.data, r * width * 4, sums, paint.idle);
  });
  return image;
}

/** Idle time takes the rest of every pixel. */
function blend(pixels, offset, sums, idle) {
  for (let at = 0; at < sums.length; at += 4) {
    const cover = sums[at + 3],
      rest = cover < 1 ? 1 - cover : 0,
      fix = cover > 1 ? 1 / cover : 1;
    for (let c = 0; c < 3; c++) pixels[offset + at + c] = sums[at + c] * fix + idle[c] * rest;
    pixels[offset + at + 3] = 255;
  }
}

/** Pixels of a stretch of time whose shares are drawn; 0: actions are wide enough to be drawn each. */
export function binOf(line, from, to, width) {
  const each = inSight(line, from, to) / line.pp;
  return each * NARROW > width ? Math.min(WIDEST, Math.max(1, Math.ceil((FEW * width) / each))) : 0;
}

export function drawRows(pen, line, box, paint, related) {
  const { from, to, left, right, top, row, each } = box,
    width = right - left;
  const bin = binOf(line, from, to, width);
  if (bin) return drawShares(pen, line, box, paint, related, bin);
  pen.fillStyle = paint.idle_text;
  for (let r = 0; r < line.pp; r++) pen.fillRect(left, top + r * each, width, row);
  line.ranks.forEach((rank, r) => drawRow(pen, line, rank, r, box, paint, related));
  pen.globalAlpha = 1;
  if (row >= 11) line.ranks.forEach((rank, r) => drawLabels(pen, line, rank, r, box, related));
  line.ranks.forEach((rank, r) => drawPairs(pen, rank, r, box, paint));
  return undefined;
}

/** A frame around passes that run together. */
function drawPairs(pen, rank, r, box, paint) {
  const { from, to, left, right, top, row, each } = box,
    scale = (right - left) / (to - from);
  pen.strokeStyle = paint.ink;
  pen.lineWidth = 1.5;
  for (const k of rank.pairs) {
    const a = left + (rank.start[k] - from) * scale,
      b = left + (rank.end[k + 1] - from) * scale;
    if (b > left && a < right && b - a > 6) pen.strokeRect(a + 0.75, top + r * each + 0.75, b - a - 1.5, row - 1.5);
  }
}

function drawShares(pen, line, box, paint, related, bin) {
  const { from, to, left, right, top, row, each, buffer } = box;
  const width = Math.max(1, Math.round(((right - left) * (bin > 1 ? 1 : box.ratio)) / bin)),
    levels = row >= 8 ? Math.round(row) : 1,
    image = levels > 1 ? stacked(line, from, to, width, paint, { levels, related }) : mixed(line, from, to, width, paint, related);
  Object.assign(buffer, { width, height: line.pp * levels });
  buffer.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  for (let r = 0; r < line.pp; r++) pen.drawImage(buffer, 0, r * levels, width, levels, left, top + r * each, right - left, row);
}

function drawRow(pen, line, rank, r, box, paint, related) {
  const { from, to, left, right, top, row, each } = box;
  const scale = (right - left) / (to - from),
    y = top + r * each,
    stop = firstAbove(rank.start, to);
  let last = -1;
  for (let k = firstAbove(rank.end, from); k < stop; k++) {
    const a = Math.max(left, left + (rank.start[k] - from) * scale);
    const wide = Math.min(right, left + (rank.end[k] - from) * scale) - a;
    if (related) pen.globalAlpha = related.has(rank.codes[k]) ? 1 : 0.28;
    if (rank.streams[k] !== last) pen.fillStyle = paint.css[(last = rank.streams[k])];
    pen.fillRect(a, y, Math.max(0.5, wide - (wide > 3 ? 0.75 : 0)), row);
  }
}

function drawLabels(pen, line, rank, r, box, related) {
  const { from, to, left, right, top, row, each } = box;
  const scale = (right - left) / (to - from),
    y = top + r * each + row / 2,
    stop = firstAbove(rank.start, to);
  for (let k = firstAbove(rank.end, from); k < stop; k++) {
    const a = Math.max(left, left + (rank.start[k] - from) * scale);
    const wide = Math.min(right, left + (rank.end[k] - from) * scale) - a,
      code = rank.codes[k];
    if (wide < 17 || (related && !related.has(code))) continue;
    const { kind, chunk, microbatch } = decode(line, code);
    const text = wide > 46 ? nameOf(line, code) : String(microbatch);
    if (text.length * DIGIT > wide - 5) continue;
    pen.fillStyle = chunk >= line.pp ? "#111111" : INK[kind];
    pen.fillText(text, a + 3, y);
  }
}

/** The chosen action and what hangs on it: outlines, and curves from each to the next. */
export function drawRelated(pen, line, box, paint, chosen, before, after) {
  const { from, to, left, right, top, row, each } = box,
    scale = (right - left) / (to - from);
  const x = time => left + (time - from) * scale,
    y = rank => top + rank * each;
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, right - left, box.height);
  pen.clip();
  const all = [...before, chosen, ...after];
  for (const one of all) {
    pen.fillStyle = paint.css[Math.floor(one.code / line.microbatches)];
    pen.fillRect(x(one.start), y(one.rank), Math.max(2, (one.end - one.start) * scale), row);
    pen.strokeStyle = paint.ink;
    pen.lineWidth = one === chosen ? 2.5 : 1.5;
    pen.strokeRect(x(one.start), y(one.rank), Math.max(2, (one.end - one.start) * scale), row);
  }
  pen.lineWidth = 1.5;
  pen.strokeStyle = paint.ink;
  for (const one of before) curve(pen, x(one.end), y(one.rank) + row / 2, x(chosen.start), y(chosen.rank) + row / 2);
  for (const one of after) curve(pen, x(chosen.end), y(chosen.rank) + row / 2, x(one.start), y(one.rank) + row / 2);
  pen.restore();
}

function curve(pen, x0, y0, x1, y1) {
  const bend = Math.max(12, Math.abs(x1 - x0) / 3);
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 6, y1 - 3.5);
  pen.lineTo(x1 - 6, y1 + 3.5);
  pen.closePath();
  pen.fillStyle = pen.strokeStyle;
  pen.fill();
}

export function drawAxis(pen, view, box, paint) {
  const { from, to, left, right, top } = box,
    own = view.unit === "units";
  pen.fillStyle = paint.muted;
  pen.strokeStyle = paint.line;
  pen.lineWidth = 1;
  const shown = ticks(from, to, Math.max(2, (right - left) / 110));
  for (const value of shown) {
    const x = left + ((value - from) / (to - from)) * (right - left);
    const text = tickTime(value, to - from, own),
      wide = pen.measureText(text).width;
    pen.beginPath();
    pen.moveTo(x + 0.5, top - 5);
    pen.lineTo(x + 0.5, box.height - 2);
    pen.stroke();
    pen.fillText(text, Math.min(Math.max(left, x - wide / 2), right - wide), top - 12);
  }
}

export function drawNames(pen, line, box, paint, word) {
  const { left, top, row, each } = box,
    every = Math.max(1, Math.ceil(13 / each));
  pen.fillStyle = paint.muted;
  for (let r = 0; r < line.pp; r += every) {
    const text = left > 60 ? `${word} ${r}` : String(r);
    pen.fillText(text, left - 8 - pen.measureText(text).width, top + r * each + row / 2);
  }
}

/** The ranks whose memory is drawn: all of few; of many the fullest, the first, the last and some between. */
export function memoryRanks(line) {
  if (line.pp <= LINES.length) return line.ranks.map((_, r) => r);
  const fullest = line.peaks.indexOf(Math.max(...line.peaks)),
    steps = LINES.length - 2;
  const even = Array.from({ length: steps + 1 }, (_, k) => Math.round((k * (line.pp - 1)) / steps));
  return [...new Set([...even, fullest])].sort((a, b) => a - b);
}

const mostOf = line => Math.max(line.peak, line.limit || 0) * 1.06 || 1;

export function drawMemory(pen, line, box, paint, strong) {
  const { below, memory } = box,
    most = mostOf(line),
    level = held => below + memory * (1 - held / most);
  memoryRanks(line).forEach((r, k) => {
    if (r !== strong)
      memoryCurve(pen, line.ranks[r], box, level, LINES[k % LINES.length], 1.4, strong < 0 ? 0.95 : 0.3);
  });
  if (strong >= 0) memoryCurve(pen, line.ranks[strong], box, level, paint.ink, 2, 1);
  pen.globalAlpha = 1;
}

/** What stands around the memory curves: the frame, the limit, the scale. */
export function drawMemoryAxis(pen, view, line, box, paint) {
  const { left, right, below, memory } = box,
    most = mostOf(line),
    show = units(view).memory;
  const level = held => below + memory * (1 - held / most);
  pen.strokeStyle = paint.line;
  pen.lineWidth = 1;
  pen.strokeRect(left + 0.5, below + 0.5, right - left - 1, memory - 1);
  if (line.limit) {
    pen.strokeStyle = "#d55e00";
    pen.setLineDash([6, 4]);
    pen.beginPath();
    pen.moveTo(left, level(line.limit));
    pen.lineTo(right, level(line.limit));
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.fillStyle = paint.muted;
  for (const value of memoryTicks(view, most)) {
    const text = show(value).replace(/\.00 /, " "),
      y = level(value);
    pen.fillText(text, left - 8 - pen.measureText(text).width, Math.max(below + 6, y));
  }
}

/** Round gibibytes, or round numbers of the user's own unit. */
function memoryTicks(view, most) {
  const unit = view.unit === "units" ? 1 : most > 4 * 2 ** 30 ? 2 ** 30 : 2 ** 20;
  return ticks(0, most / unit, 4).map(value => value * unit);
}

/** A step line; where many steps share a pixel only their lowest and highest are drawn. */
function memoryCurve(pen, rank, box, level, shade, wide, alpha) {
  const { from, to, left, right } = box,
    scale = (right - left) / (to - from);
  const x = time => Math.min(right, Math.max(left, left + (time - from) * scale));
  let k = Math.max(0, firstAbove(rank.times, from) - 1),
    y = level(rank.held[k]);
  pen.globalAlpha = alpha;
  pen.strokeStyle = shade;
  pen.lineWidth = wide;
  pen.beginPath();
  pen.moveTo(left, y);
  for (k += 1; k < rank.times.length && rank.times[k] < to;) {
    const at = x(rank.times[k]),
      column = Math.floor(at);
    let low = rank.held[k],
      high = low,
      last = low;
    for (k += 1; k < rank.times.length && Math.floor(x(rank.times[k])) === column; k++) {
      last = rank.held[k];
      if (last < low) low = last;
      if (last > high) high = last;
    }
    pen.lineTo(at, y);
    if (high !== low) {
      pen.lineTo(at, level(high));
      pen.lineTo(at, level(low));
    }
    y = level(last);
    pen.lineTo(at, y);
  }
  pen.lineTo(right, y);
  pen.stroke();
}
