// Words of the page in the language that is chosen; names of parts fall back to themselves.

import { en } from "./en.js";
import { zh } from "./zh.js";

export const LANGUAGES = { en: "English", zh: "中文" };
const DICTIONARIES = { en, zh };
let chosen = en;

export function speak(language) {
  chosen = DICTIONARIES[language] || en;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
}

/** The sentence of a key, its {places} filled in. */
export function t(key, places = {}) {
  const text = chosen[key] ?? en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in places ? String(places[name]) : whole));
}

/** A name of data (a part of a ledger, an axis, a fact) where the dictionary has a word for it, else the name. */
export function word(group, name) {
  return chosen[`${group}.${name}`] ?? en[`${group}.${name}`] ?? String(name);
}

/** What the browser asks for, as far as we speak it. */
export function preferred() {
  return (navigator.languages || [navigator.language || "en"]).some(one => /^zh/i.test(one)) &&
    !/^en/i.test((navigator.languages || ["en"])[0])
    ? "zh"
    : "en";
}
