// A timeline as typed arrays, and what waits for what. An action is a number, as in shardwise.pipeline.action:
// (kind * chunks + chunk) * microbatches + microbatch.

export const KINDS = "FIWB";
const F = 0,
  I = 1,
  W = 2,
  B = 3;

export function prepare(data) {
  const size = 4 * data.chunks * data.microbatches;
  const rankOf = new Int32Array(size).fill(-1),
    placeOf = new Int32Array(size);
  const ranks = data.ranks.map((rank, r) => {
    const codes = Int32Array.from(rank.codes);
    codes.forEach((code, k) => {
      rankOf[code] = r;
      placeOf[code] = k;
    });
    return {
      codes,
      streams: codes.map(code => Math.floor(code / data.microbatches)),
      start: Float64Array.from(rank.start),
      end: Float64Array.from(rank.end),
      times: Float64Array.from(rank.times),
      held: Float64Array.from(rank.held),
      lanes: (rank.lanes || []).map(lane => ({
        start: Float64Array.from(lane.start),
        end: Float64Array.from(lane.end),
        hidden: lane.hidden,
        codes: lane.codes,
      })),
      after: rank.after || [],
      pairs: rank.pairs || [],
    };
  });
  const actions = ranks.reduce((sum, rank) => sum + rank.codes.length, 0);
  return { ...data, ranks, rankOf, placeOf, actions, lanes: data.lanes || [], whole: data.seconds || data.makespan };
}

export function decode(line, code) {
  const stream = Math.floor(code / line.microbatches),
    kind = Math.floor(stream / line.chunks);
  return { kind: KINDS[kind], chunk: stream % line.chunks, microbatch: code % line.microbatches };
}

export function nameOf(line, code) {
  const { kind, chunk, microbatch } = decode(line, code);
  return `${chunk}${kind}${microbatch}`;
}

/** {code, rank, k, start, end} of an action; null where the schedule has none. */
export function find(line, code) {
  const rank = line.rankOf[code];
  if (rank === undefined || rank < 0) return null;
  const k = line.placeOf[code];
  return { code, rank, k, start: line.ranks[rank].start[k], end: line.ranks[rank].end[k] };
}

function actions(line, microbatch, pairs) {
  const inside = pairs.filter(([, chunk]) => chunk >= 0 && chunk < line.chunks);
  const codes = inside.map(([kind, chunk]) => (kind * line.chunks + chunk) * line.microbatches + microbatch);
  return codes.map(code => find(line, code)).filter(Boolean);
}

/** What must have ended before an action can start. */
export function needs(line, code) {
  const { kind, chunk, microbatch } = decode(line, code);
  if (kind === "F") return actions(line, microbatch, [[F, chunk - 1]]);
  if (kind === "W") return actions(line, microbatch, [[I, chunk]]);
  return actions(line, microbatch, [
    [F, chunk],
    [I, chunk + 1],
    [B, chunk + 1],
  ]);
}

/** What waits for an action. */
export function feeds(line, code) {
  const { kind, chunk, microbatch } = decode(line, code);
  if (kind === "F")
    return actions(line, microbatch, [
      [F, chunk + 1],
      [I, chunk],
      [B, chunk],
    ]);
  if (kind === "I")
    return actions(line, microbatch, [
      [W, chunk],
      [I, chunk - 1],
      [B, chunk - 1],
    ]);
  if (kind === "B")
    return actions(line, microbatch, [
      [I, chunk - 1],
      [B, chunk - 1],
    ]);
  return [];
}

/** The first place in a rising list whose value is above `value`. */
export function firstAbove(list, value) {
  let low = 0,
    high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The action of a rank at a time; null in a bubble. */
export function actionAt(line, rank, time) {
  const row = line.ranks[rank];
  if (!row) return null;
  const k = firstAbove(row.end, time);
  return k < row.codes.length && row.start[k] <= time ? find(line, row.codes[k]) : null;
}

/** {name, start, end, hidden, code} of a rank's lane at a time; null where it is empty. */
export function trafficAt(line, rank, lane, time) {
  const own = line.ranks[rank]?.lanes[lane];
  if (!own) return null;
  const k = firstAbove(own.end, time);
  if (k >= own.start.length || own.start[k] > time) return null;
  return { name: line.lanes[lane], start: own.start[k], end: own.end[k], hidden: own.hidden[k], code: own.codes[k] };
}

/** What a rank does at a time after its passes; null where it waits. */
export function afterAt(line, rank, time) {
  const found = line.ranks[rank]?.after.find(([, start, end]) => start <= time && time < end);
  return found ? { name: found[0], start: found[1], end: found[2], hidden: false, code: -1 } : null;
}

/** Codes of the actions that a text names: `1F3`, or a part of it: `F3` a pass of a micro batch, `3` all of it, `F`, `1F`. */
export function searched(line, text) {
  const found = /^(\d+)?([FIWB])(\d+)?$/i.exec(text.trim()) || (/^\d+$/.test(text.trim()) ? [text, undefined, undefined, text.trim()] : null);
  if (!found) return [];
  const [chunk, kind, microbatch] = [found[1], found[2]?.toUpperCase(), found[3]].map((one, k) => (one === undefined || k === 1 ? one : Number(one)));
  const fits = one => (chunk === undefined || one.chunk === chunk) && (kind === undefined || one.kind === kind) && (microbatch === undefined || one.microbatch === microbatch);
  return line.ranks.flatMap(rank => [...rank.codes].filter(code => fits(decode(line, code))));
}

/** Actions in the order in which they start. */
export const nearestFirst = (line, codes) => codes.map(code => find(line, code)).sort((a, b) => a.start - b.start || a.rank - b.rank).map(one => one.code);

/** What the ranks do between two times, in mean over them: passes by kind, what follows them, waiting, and traffic. */
export function spentOn(line, from, to) {
  const inside = (start, end) => Math.max(0, Math.min(end, to) - Math.max(start, from));
  const kinds = [0, 0, 0, 0],
    after = {},
    lanes = line.lanes.map(name => ({ name, shown: 0, hidden: 0 }));
  let busy = 0;
  for (const rank of line.ranks) {
    const stop = firstAbove(rank.start, to);
    let last = from;
    for (let k = firstAbove(rank.end, from); k < stop; k++) {
      kinds[Math.floor(rank.streams[k] / line.chunks)] += inside(rank.start[k], rank.end[k]) / line.pp;
      busy += inside(Math.max(last, rank.start[k]), rank.end[k]) / line.pp; // passes that run together count once
      last = Math.max(last, rank.end[k]);
    }
    for (const [name, start, end] of rank.after) {
      after[name] = (after[name] || 0) + inside(start, end) / line.pp;
      busy += inside(start, end) / line.pp;
    }
    rank.lanes.forEach((lane, at) => {
      const end = firstAbove(lane.start, to);
      for (let k = firstAbove(lane.end, from); k < end; k++) lanes[at][lane.hidden[k] ? "hidden" : "shown"] += inside(lane.start[k], lane.end[k]) / line.pp;
    });
  }
  for (const name of Object.keys(after)) if (!after[name]) delete after[name];
  return { kinds, after, lanes, idle: Math.max(0, to - from - busy) };
}

/** The pass that runs together with one; null where it runs alone. */
export function partner(line, hit) {
  const row = line.ranks[hit.rank],
    other = row.pairs.includes(hit.k) ? hit.k + 1 : row.pairs.includes(hit.k - 1) ? hit.k - 1 : -1;
  return other < 0 ? null : find(line, row.codes[other]);
}
