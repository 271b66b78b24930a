// One tooltip for the whole page: lines of text beside the pointer, kept inside the window.

import { el, refill } from "./dom.js";

let box = null;

export function showTip(x, y, lines) {
  if (!box || !box.isConnected) {
    box = el("div", { class: "tip", role: "tooltip" });
    document.body.append(box);
  }
  refill(
    box,
    lines.map((line, k) => el("div", { class: k ? "" : "strong" }, line)),
  );
  box.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = box;
  const left = x + 14 + width > innerWidth ? x - width - 10 : x + 14;
  const top = y + 14 + height > innerHeight ? y - height - 10 : y + 14;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

export function hideTip() {
  if (box) box.hidden = true;
}

/** Show lines while the pointer is over a node or the keyboard is on it. */
export function tips(node, lines) {
  node.addEventListener("pointermove", event => showTip(event.clientX, event.clientY, lines()));
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("focus", () => {
    const { left, bottom } = node.getBoundingClientRect();
    showTip(left, bottom - 8, lines());
  });
  node.addEventListener("blur", hideTip);
  return node;
}
