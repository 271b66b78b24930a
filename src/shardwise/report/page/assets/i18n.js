// Words of the page in the language that is chosen; names of parts fall back to themselves.

import { en } from "./en.js";
import { SENTENCES, WORDS } from "./sentences.js";
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

/** A sentence of the server in the language that is chosen: clause by clause; what we have no words for stays as it is. */
export function said(text) {
  if (chosen === en || !text) return text;
  return String(text).split("\n").map(line).join("\n");
}

const KEY = /^([\w.-]+|[a-z ]+ (?:communication|and recurrence)): /;

/** `tp: 3 does not divide ...; use tp 2 or 4`: what it is of, and clauses. */
function line(text) {
  const key = KEY.exec(text),
    rest = key ? text.slice(key[0].length) : text;
  const clauses = rest.includes(" -> ") ? [rest.split(", "), "，"] : [rest.split("; "), "；"];
  const all = clauses[0].map(one => clause(one) ?? one).join(clauses[1]);
  return key ? `${chosen[`ledger.${key[1]}`] ?? chosen[`axis.${key[1]}`] ?? key[1]}：${all}` : all;
}

function clause(text) {
  for (const [pattern, told] of patterns()) {
    const found = pattern.exec(text);
    if (found) return told.replace(/\{(\d)\}/g, (whole, k) => place(found[Number(k) + 1]));
  }
  return null;
}

const place = text => WORDS.find(([english]) => english === text)?.[1] ?? text.replace(/ or /g, " 或 ").replace(/ and /g, " 与 ").replace(/(\d\S*) to (?=\d)/g, "$1 至 ");

let made = null;

function patterns() {
  const plain = text => text.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{\d\}/g, "(.+?)");
  made ??= SENTENCES.map(([english, told]) => [new RegExp(`^${plain(english)}$`), told]);
  return made;
}

/** What the browser asks for, as far as we speak it. */
export function preferred() {
  return (navigator.languages || [navigator.language || "en"]).some(one => /^zh/i.test(one)) &&
    !/^en/i.test((navigator.languages || ["en"])[0])
    ? "zh"
    : "en";
}
