// Small helpers over the DOM. Data only ever becomes text: there is no innerHTML anywhere in this page.

const SVG = "http://www.w3.org/2000/svg";

/** el("button", {class: "x", on: {click: f}, aria-label: "y"}, "text", child): an element. */
export function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  put(node, ...children);
  return node;
}

/** Append children; lists are spread, nothing is skipped over silently but null and false. */
export function put(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** Exchange the children; the focus stays on what it stood on, or on what took its place. */
export function refill(node, ...children) {
  const held = node.contains(document.activeElement) ? document.activeElement : null;
  node.replaceChildren();
  put(node, ...children);
  if (held) heir(node, held)?.focus({ preventScroll: true });
  return node;
}

const nameOf = node => node.id || node.getAttribute("aria-label") || node.textContent;

function heir(node, held) {
  if (held.isConnected) return held;
  return [...node.querySelectorAll(held.tagName)].find(one => nameOf(one) === nameOf(held));
}

/** A colour of the style sheet as the browser resolves it, for canvases. */
export function colour(name) {
  const probe = el("span", { style: { color: `var(--${name})`, display: "none" } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** [r, g, b] of a resolved colour. */
export function rgb(text) {
  const hex = /^#(..)(..)(..)$/.exec(text);
  if (hex) return [1, 2, 3].map(k => parseInt(hex[k], 16));
  return (text.match(/[\d.]+/g) || [0, 0, 0]).slice(0, 3).map(Number);
}

let voice = null;

/** Say something to those who listen to the page, and show it for a moment to those who look. */
export function announce(text) {
  if (!voice || !voice.isConnected) {
    voice = el("div", { "class": "toast", "role": "status", "aria-live": "polite" });
    document.body.append(voice);
  }
  voice.textContent = text;
  voice.classList.add("shown");
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => voice.classList.remove("shown"), 2600);
}

export const download = (name, text, type = "text/plain") => saved(name, new Blob([text], { type }));

export function saved(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Copy text; where the clipboard is not to be had (a file opened from disk), the old way. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { "class": "away", "aria-hidden": "true", "value": text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
