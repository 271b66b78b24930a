// Colours that colour-blind eyes tell apart (Okabe and Ito), the same in both themes.

const BLUE = "#0072b2",
  SKY = "#56b4e9",
  GREEN = "#009e73",
  ORANGE = "#e69f00",
  RED = "#d55e00";
const PURPLE = "#cc79a7",
  YELLOW = "#f0e442",
  GREY = "#8b949e";

export const KIND = { F: BLUE, I: ORANGE, W: GREEN, B: RED };
export const INK = { F: "#ffffff", I: "#1a1a1a", W: "#ffffff", B: "#ffffff" };

export const TIME = {
  forward: BLUE,
  inputs: ORANGE,
  weights: GREEN,
  backward: RED,
  recompute: PURPLE,
  communication: SKY,
  bubble: "var(--idle)",
  update: YELLOW,
  other: GREY,
};
export const MEMORY = {
  static: BLUE,
  weights: BLUE,
  gradients: SKY,
  states: GREEN,
  activations: ORANGE,
  buffers: PURPLE,
  other: GREY,
};
export const LINES = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, "#9a8700"];

// Parts of an iteration beside its passes, by their names in the ledger; the figure has the same.
export const PART = {
  "tp communication": SKY,
  "cp communication": PURPLE,
  "ep communication": "#9a8700",
  "parameter sharding": "#a6611a",
  "gradient reduction": "#9467bd",
  "weight gathering": "#ef5675",
  "optimizer": YELLOW,
  "framework": GREY,
  "hidden communication": "#b8c0c8",
  "stragglers": "#586069",
  "waiting for documents": "#c9a227",
};
export const HIDDEN = 0.45;
