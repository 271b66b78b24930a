// Numbers as people read them, the same words as the command line.

import { t } from "./i18n.js";

export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function significant(value, digits) {
  const text = Number(value.toPrecision(digits));
  return text.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export function seconds(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Math.abs(value) < 1e-12) return "0 s"; // what is left of two sums that should be the same
  for (const [scale, unit] of [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
  ]) {
    if (Math.abs(value) >= scale) return `${significant(value / scale, digits)} ${unit}`;
  }
  return `${significant(value * 1e9, 3)} ns`;
}

export function bytes(value, digits = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  for (const [scale, unit] of [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ]) {
    if (Math.abs(value) >= scale) return `${(value / scale).toFixed(digits)} ${unit}`;
  }
  return `${value.toFixed(0)} B`;
}

export function percent(value, digits = 1) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return `${(100 * value).toFixed(digits)}%`;
}

export function signed(value, digits = 1) {
  return `${value >= 0 ? "+" : "−"}${percent(Math.abs(value), digits)}`;
}

export function count(value) {
  for (const [scale, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (Math.abs(value) >= scale) return `${significant(value / scale, 3)}${unit}`;
  }
  return significant(value, 3);
}

/** What nine runs in ten lie between. */
export function intervalOf(interval, show) {
  return interval ? t("tile.interval", { low: show(interval[0]), high: show(interval[1]) }) : "";
}

/** How likely a plan is to fit; what is nearly sure is not said to more digits than there are. */
export function chanceOf(share) {
  if (!Number.isFinite(share)) return "";
  const near = share > 0.99 ? t("tile.over", { share: "99%" }) : share < 0.01 ? t("tile.under", { share: "1%" }) : "";
  return t("tile.chance", { share: near || percent(share, 0) });
}

/** What stands below the memory of a plan: its interval, its share of the device, and how likely it is to fit. */
export function memoryBelow(n, show) {
  const limit = n.fits_limit || n.memory_limit;
  const share = limit
    ? t("tile.of", { limit: show(limit), share: percent(n.total_bytes / limit, 0) })
    : "";
  return [intervalOf(n.memory_interval, show), share, chanceOf(n.fits_probability)].filter(Boolean).join(" · ");
}

/** Time and memory of a view: seconds and bytes, or the user's own units. */
export function units(view) {
  const own = view && view.unit === "units";
  return {
    time: value => (own ? plain(value) : seconds(value)),
    memory: value => (own ? plain(value) : bytes(value)),
  };
}

function plain(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return significant(value, 6);
}

/** Round steps of an axis: about `wanted` of them between low and high. */
export function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find(one => one * power >= raw) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

/** A number beside an axis, with the digits that tell one tick from the next. */
export function tickNumber(value, all) {
  const step = all.length > 1 ? all[1] - all[0] : Math.abs(value) || 1;
  const digits = [0, 1, 2, 3, 4, 5].find(one => Math.abs(step * 10 ** one - Math.round(step * 10 ** one)) < 1e-6);
  return number(value, digits ?? 6);
}

/** A tick's label: a time in the unit that fits the whole axis. */
export function tickTime(value, span, own) {
  if (own) return significant(value, 6);
  const [scale, unit] = span >= 2 ? [1, "s"] : span >= 2e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${Number((value / scale).toPrecision(6)).toLocaleString("en-US")} ${unit}`;
}
