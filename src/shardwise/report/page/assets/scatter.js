// All simulated strategies: throughput against peak memory, the frontier, and the memory that a GPU has as a line.

import { el, refill, svg } from "./dom.js";
import { bytes, number, percent, seconds, tickNumber, ticks } from "./format.js";
import { t } from "./i18n.js";
import { hideTip, showTip } from "./tooltip.js";

const GIB = 2 ** 30,
  REACH = 24;

/** {node, draw(points, [limit, whole], selected)}; `choose(strategy)` is called by click, Enter and the arrow keys. */
export function scatterOf(choose) {
  const plot = svg("svg", {
    "class": "scatter",
    "role": "application",
    "tabindex": 0,
    "aria-label": t("scatter.label"),
    "aria-describedby": "scatter-keys",
  });
  const made = { plot, choose, points: [], limit: null, whole: null, selected: "", at: -1, places: [], beyond: [] };
  const legend = el("div", { class: "legend" });
  plot.addEventListener("pointermove", event => hover(made, event));
  plot.addEventListener("pointerleave", () => {
    mark(made, -1);
    hideTip();
  });
  plot.addEventListener("click", event => {
    const k = nearest(made, event);
    if (k >= 0) choose(made.points[k].strategy);
  });
  plot.addEventListener("keydown", event => press(made, event));
  plot.addEventListener("blur", () => {
    mark(made, -1);
    hideTip();
  });
  new ResizeObserver(() => draw(made, legend)).observe(plot);
  const node = el(
    "div",
    { class: "scatter-box" },
    plot,
    legend,
    el("p", { class: "hint", id: "scatter-keys" }, t("scatter.keys")),
  );
  return {
    node,
    draw: (points, [limit, whole], selected) => {
      if (made.points === points && made.limit === limit && made.selected === selected) return;
      Object.assign(made, { points, limit, whole, selected });
      draw(made, legend);
    },
  };
}

const throughput = point => point.tokens_per_second_per_gpu;

/** Points that no other beats in both: the fastest for their memory. */
export function frontier(points) {
  const fit = points
    .filter(point => point.allowed)
    .sort((a, b) => a.total_bytes - b.total_bytes || throughput(b) - throughput(a));
  const found = [];
  for (const point of fit)
    if (!found.length || throughput(point) > throughput(found[found.length - 1])) found.push(point);
  return found;
}

function extent(values, floor) {
  const low = Math.min(...values),
    high = Math.max(...values),
    pad = (high - low) * 0.07 || high * 0.07 || 1;
  return [Math.max(floor, low - pad), high + pad];
}

/** The range that is drawn: strategies far beyond the limit would press all others into a corner. */
function ranges(made) {
  const reach = made.limit ? made.limit * 1.4 : Infinity;
  const near = made.points.filter(point => point.total_bytes <= reach);
  const shown = near.length ? near : made.points;
  return [
    extent([...shown.map(point => point.total_bytes), ...(made.limit ? [made.limit] : [])], 0),
    extent(shown.map(throughput), 0),
  ];
}

function draw(made, legend) {
  const { plot, points, limit } = made,
    width = plot.clientWidth || 600,
    height = plot.clientHeight || 320;
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (!points.length) {
    made.places = [];
    return void refill(plot);
  }
  const left = 56,
    right = width - 12,
    top = 14,
    bottom = height - 40;
  const [[x0, x1], [y0, y1]] = ranges(made);
  const x = value => left + ((value - x0) / (x1 - x0)) * (right - left);
  const y = value => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
  const inside = (low, value, high) => Math.min(high, Math.max(low, value));
  made.places = points.map(point => [
    inside(left, x(point.total_bytes), right),
    inside(top, y(throughput(point)), bottom),
  ]);
  made.beyond = points.map(point => point.total_bytes > x1);
  refill(
    plot,
    axes({ x, y, x0, x1, y0, y1, left, right, top, bottom }),
    limitLine(limit, x, top, bottom, right),
    frontierLine(frontier(points), x, y, limit ? Math.min(right, x(limit)) : right),
    dots(made),
    svg("g", { class: "marker" }),
  );
  mark(made, made.at);
  refill(
    legend,
    key("best", t("scatter.best")),
    key("fits", t("scatter.fits")),
    key("nofit", t("scatter.nofit")),
    made.beyond.includes(true) ? key("beyond", t("scatter.beyond")) : null,
    key("front", t("scatter.frontier")),
    limit ? key("limit-key", limitText(made)) : null,
    made.selected ? key("chosen", t("scatter.selected")) : null,
  );
}

/** The line stands at what may be used; where that is less than what the GPU has, the legend says both. */
function limitText({ limit, whole }) {
  return whole > limit * 1.0001 ? t("scatter.limit", { limit: bytes(limit), whole: bytes(whole) }) : t("limit");
}

const key = (name, text) => el("span", { class: `key dot ${name}` }, el("i"), text);

function axes({ x, y, x0, x1, y0, y1, left, right, top, bottom }) {
  const across = ticks(x0 / GIB, x1 / GIB, (right - left) / 64),
    up = ticks(y0, y1, (bottom - top) / 55);
  return svg(
    "g",
    { class: "axes" },
    up.map(value => [
      svg("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { "x": left - 8, "y": y(value) + 4, "text-anchor": "end" }, tickNumber(value, up)),
    ]),
    across.map(value =>
      svg("text", { "x": x(value * GIB), "y": bottom + 18, "text-anchor": "middle" }, tickNumber(value, across)),
    ),
    svg("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { "class": "title", "x": right, "y": bottom + 34, "text-anchor": "end" }, t("scatter.x")),
    svg("text", { class: "title", x: left, y: top - 3 }, t("scatter.y")),
  );
}

function limitLine(limit, x, top, bottom, right) {
  if (!limit || x(limit) > right) return null;
  const near = x(limit) > right - 64;
  return svg(
    "g",
    { class: "limit-line" },
    svg("line", { x1: x(limit), x2: x(limit), y1: top, y2: bottom }),
    svg(
      "text",
      { "x": x(limit) + (near ? -6 : 6), "y": bottom - 8, "text-anchor": near ? "end" : "start" },
      bytes(limit, 1),
    ),
  );
}

function frontierLine(found, x, y, right) {
  if (found.length < 2) return null;
  const steps = found.map((point, k) =>
    k ? `H${x(point.total_bytes)}V${y(throughput(point))}` : `M${x(point.total_bytes)} ${y(throughput(point))}`,
  );
  return svg("path", { class: "frontier", d: `${steps.join("")}H${right}` });
}

function dots(made) {
  const order = made.points.map((_, k) => k).sort((a, b) => rankOf(made, a) - rankOf(made, b));
  return svg(
    "g",
    { class: "dots" },
    order.map(k => dot(made, k)),
  );
}

const rankOf = (made, k) =>
  made.points[k].strategy === made.selected ? 3 : made.points[k].best ? 2 : made.points[k].allowed ? 1 : 0;

function dot(made, k) {
  const point = made.points[k],
    [cx, cy] = made.places[k],
    selected = point.strategy === made.selected;
  if (!point.allowed) {
    const shape = made.beyond[k] ? `M${cx - 2} ${cy - 4}l4 4l-4 4` : `M${cx - 3} ${cy - 3}l6 6m0 -6l-6 6`;
    const cross = svg("path", { class: "nofit", d: shape });
    return selected ? [cross, svg("circle", { class: "ring", cx, cy, r: 7 })] : cross;
  }
  const name = `${point.best ? "best" : "fits"}${selected ? " chosen" : ""}`;
  return svg("circle", { class: name, cx, cy, r: selected || point.best ? 6 : 3.6 });
}

function nearest(made, event) {
  const box = made.plot.getBoundingClientRect(),
    px = event.clientX - box.left,
    py = event.clientY - box.top;
  let found = -1,
    least = REACH * REACH;
  made.places.forEach(([cx, cy], k) => {
    const far = (cx - px) ** 2 + (cy - py) ** 2;
    if (far < least) [found, least] = [k, far];
  });
  return found;
}

function hover(made, event) {
  const k = nearest(made, event);
  mark(made, k);
  made.plot.style.cursor = k >= 0 ? "pointer" : "default";
  if (k < 0) hideTip();
  else showTip(event.clientX, event.clientY, lines(made.points[k]));
}

function lines(point) {
  return [
    point.strategy,
    `${number(throughput(point))} ${t("tile.tokens")}`,
    `${seconds(point.seconds)} · MFU ${percent(point.mfu)}`,
    `${bytes(point.total_bytes)} · ${t(`fits.${point.fits}`)}`,
  ];
}

function mark(made, k) {
  made.at = k;
  const marker = made.plot.querySelector(".marker");
  if (!marker) return;
  marker.replaceChildren();
  const place = made.places[k];
  if (place) marker.append(svg("circle", { cx: place[0], cy: place[1], r: 9 }));
}

/** Arrow keys walk along the strategies by throughput; Enter chooses. */
function press(made, event) {
  const order = made.points.map((_, k) => k).sort((a, b) => throughput(made.points[b]) - throughput(made.points[a]));
  const now = order.indexOf(made.at),
    all = order.length;
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -all, End: all }[event.key];
  if (step && order.length) {
    event.preventDefault();
    const k = order[now < 0 && step !== all ? 0 : Math.min(order.length - 1, Math.max(0, now + step))],
      box = made.plot.getBoundingClientRect();
    mark(made, k);
    showTip(box.left + made.places[k][0], box.top + made.places[k][1], lines(made.points[k]));
  } else if (event.key === "Enter" && made.at >= 0) {
    event.preventDefault();
    made.choose(made.points[made.at].strategy);
  }
}
