// Files of what is shown: a table as CSV, a drawing as SVG or PNG, several files as one zip.

import { colour, el, saved, svg } from "./dom.js";
import { t } from "./i18n.js";

const quoted = value => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};

/** Rows of plain values, a head above. */
export const csv = (head, rows) => [head, ...rows].map(row => row.map(quoted).join(",")).join("\n") + "\n";

export function keepButton(kind, call) {
  return el("button", { class: "small keep", type: "button", title: t(`keep.${kind}`), on: { click: call } }, kind);
}

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-size", "font-weight", "font-family", "text-anchor"];

/** An SVG of the page as a file that needs no style sheet, on the colour of the page. */
export function svgText(node) {
  const made = node.cloneNode(true),
    { width, height } = node.getBoundingClientRect();
  const from = [node, ...node.querySelectorAll("*")],
    to = [made, ...made.querySelectorAll("*")];
  from.forEach((one, k) => {
    const style = getComputedStyle(one);
    for (const name of DRAWN) to[k].setAttribute(name, style.getPropertyValue(name));
    to[k].removeAttribute("class");
  });
  made.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  made.setAttribute("width", width);
  made.setAttribute("height", height);
  made.prepend(svg("rect", { width: "100%", height: "100%", fill: colour("surface") })); // ink of a dark page needs its paper
  return new XMLSerializer().serializeToString(made);
}

/** A canvas on the colour of the page. */
export function keepPng(canvas, name, paper) {
  const sheet = document.createElement("canvas"),
    pen = sheet.getContext("2d");
  Object.assign(sheet, { width: canvas.width, height: canvas.height });
  pen.fillStyle = paper;
  pen.fillRect(0, 0, sheet.width, sheet.height);
  pen.drawImage(canvas, 0, 0);
  sheet.toBlob(blob => saved(name, blob), "image/png");
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

function checksum(bytes) {
  let c = 0xffffffff;
  for (const byte of bytes) c = TABLE[(c ^ byte) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

const UNIX = 0x0314; // whose rights the zip tells

/** Files as a zip that stores them as they are; the date is that of no day, so that the same files give the same bytes. */
export function zipped(files) {
  const coder = new TextEncoder(),
    parts = [],
    listed = [];
  let at = 0;
  for (const { name, text } of files) {
    const title = coder.encode(name),
      bytes = coder.encode(text);
    const fields = [[20, 2], [0x800, 2], [0, 2], [0, 2], [33, 2], [checksum(bytes), 4], [bytes.length, 4], [bytes.length, 4], [title.length, 2], [0, 2]];
    const local = [numbers([[0x04034b50, 4], ...fields]), title, bytes];
    const more = [[0, 2], [0, 2], [0, 2], [rights(name), 4], [at, 4]];
    listed.push(numbers([[0x02014b50, 4], [UNIX, 2], ...fields, ...more]), title);
    parts.push(...local);
    at += local.reduce((sum, one) => sum + one.length, 0);
  }
  const size = listed.reduce((sum, one) => sum + one.length, 0);
  const end = numbers([[0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [at, 4], [0, 2]]);
  return new Blob([...parts, ...listed, end], { type: "application/zip" });
}

/** A file's rights under Unix: scripts may be started. */
const rights = name => ((name.endsWith(".sh") ? 0o100755 : 0o100644) << 16) >>> 0;

/** Whole numbers of 2 or 4 bytes, the least first. */
function numbers(fields) {
  const made = new DataView(new ArrayBuffer(fields.reduce((sum, [, size]) => sum + size, 0)));
  let at = 0;
  for (const [value, size] of fields) {
    if (size === 2) made.setUint16(at, value, true);
    else made.setUint32(at, value, true);
    at += size;
  }
  return new Uint8Array(made.buffer);
}
