// Lanes of a whole iteration: below every rank's passes its traffic, hidden or not, beside them what follows.

import { HIDDEN, PART } from "./palette.js";
import { firstAbove } from "./timeline_data.js";

const CROWDED = 6000; // spans beyond which the cover of every pixel is drawn
const SHORT = { "parameter sharding": "zero 3", "gradient reduction": "reduce", "weight gathering": "gather" };

export const shortName = name => SHORT[name] || name.split(" ")[0];

/** Pixels of a lane with the gap below it; 0 where rows are too thin for lanes to be seen. */
export const laneHeight = row => (row >= 16 ? 9 : row >= 10 ? 6 : 0);

function spansInSight(line, from, to) {
  let sum = 0;
  for (const rank of line.ranks)
    for (const lane of rank.lanes) sum += Math.max(0, firstAbove(lane.start, to) - firstAbove(lane.end, from));
  return sum;
}

export function drawLanes(pen, line, box, paint) {
  line.ranks.forEach((rank, r) => drawAfter(pen, rank, box.top + r * box.each, box));
  if (!box.lane) return;
  const crowded = spansInSight(line, box.from, box.to) > CROWDED,
    draw = crowded ? drawCover : drawSpans;
  line.ranks.forEach((rank, r) =>
    rank.lanes.forEach((lane, k) => {
      const y = box.top + r * box.each + box.row + 2 + k * box.lane,
        high = box.lane - 2;
      pen.fillStyle = paint.idle_text;
      pen.globalAlpha = 0.5;
      pen.fillRect(box.left, y, box.right - box.left, high);
      pen.fillStyle = PART[line.lanes[k]];
      draw(pen, lane, y, high, box);
    }),
  );
  pen.globalAlpha = 1;
}

function drawAfter(pen, rank, y, box) {
  const scale = (box.right - box.left) / (box.to - box.from);
  for (const [name, start, end] of rank.after) {
    const a = Math.max(box.left, box.left + (start - box.from) * scale),
      b = Math.min(box.right, box.left + (end - box.from) * scale);
    if (b <= a) continue;
    pen.fillStyle = PART[name];
    pen.fillRect(a, y, Math.max(0.5, b - a), box.row);
  }
}

function drawSpans(pen, lane, y, high, box) {
  const { from, to, left, right } = box,
    scale = (right - left) / (to - from),
    stop = firstAbove(lane.start, to);
  for (let k = firstAbove(lane.end, from); k < stop; k++) {
    const a = Math.max(left, left + (lane.start[k] - from) * scale),
      b = Math.min(right, left + (lane.end[k] - from) * scale);
    pen.globalAlpha = lane.hidden[k] ? HIDDEN : 1;
    pen.fillRect(a, y, Math.max(0.5, b - a), high);
  }
}

/** Where many spans share a pixel: as strong as the share of it that they take. */
function drawCover(pen, lane, y, high, box) {
  const { from, to, left, right } = box,
    width = Math.max(1, Math.ceil(right - left)),
    scale = width / (to - from),
    cover = new Float32Array(width),
    stop = firstAbove(lane.start, to);
  for (let k = firstAbove(lane.end, from); k < stop; k++) {
    const a = Math.max(0, (lane.start[k] - from) * scale),
      b = Math.min(width, (lane.end[k] - from) * scale),
      strong = lane.hidden[k] ? HIDDEN : 1;
    for (let x = Math.floor(a); x < b; x++) cover[x] += strong * (Math.min(b, x + 1) - Math.max(a, x));
  }
  for (let x = 0; x < width; x++) {
    if (cover[x] < 0.02) continue;
    pen.globalAlpha = Math.min(1, cover[x]);
    pen.fillRect(left + x, y, 1, high);
  }
}

export function drawLaneNames(pen, line, box, paint) {
  if (box.lane < 9) return;
  pen.save();
  pen.font = "8.5px system-ui, sans-serif";
  pen.fillStyle = paint.muted;
  for (let r = 0; r < line.pp; r++)
    line.lanes.forEach((name, k) => {
      const text = shortName(name),
        y = box.top + r * box.each + box.row + 2 + k * box.lane + (box.lane - 2) / 2;
      pen.fillText(text, box.left - 8 - pen.measureText(text).width, y);
    });
  pen.restore();
}
