// Tells a screen reader a sentence when it says something else, not when only its numbers move.

import { html, useRef } from "../lib.js";

// Durations, counts of records and times of day move by themselves; broker ids do not.
const MOVING = /\d{1,2}:\d\d:\d\d|\d[\d,.]*(?= (?:ms|s|min|h|records?)\b)/g;

const bare = (sentence) => sentence.replaceAll(MOVING, "");

export function Announced({ text }) {
  const told = useRef(text);
  if (bare(told.current) !== bare(text)) told.current = text;
  return html`<p class="hidden-text" role="status">${told.current}</p>`;
}
