// The contents of records as text that cannot deceive: control characters and those that turn the
// direction of writing are shown as what they are. JSON as a tree, bytes as hex.

import { html, useState } from "../lib.js";
import { Badge, Button, Notice, format } from "../parts.js";

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufffe\uffff]/g;
const CHILDREN = 100;
const HEX_ROWS = 4096;
const SHOWN_CHARACTERS = 2 * 1024 * 1024;

function named(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// Text with every unseen character made visible; line ends and tabs stay.
export const visible = (text) => text.replace(/\r\n/g, "\n").replace(UNSEEN, named);

// The same in one line, for a list.
export const oneLine = (text) => visible(text).replace(/\n/g, "⏎").replace(/\t/g, "⇥");

// A view of bytes (see record_view.py) in one line.
export function preview(view) {
  if (view.as === "null") return "null";
  if (view.as === "hex") return `0x${view.text}`;
  return oneLine(view.text.length > 400 ? view.text.slice(0, 400) : view.text);
}

// -- JSON --------------------------------------------------------------------------------------

// A number as it was written: 9007199254740993 has no JavaScript number.
class Written {
  constructor(text) {
    this.text = text;
  }
}

export function parse(text) {
  return JSON.parse(text, (key, value, context) => (typeof value === "number" && context?.source ? new Written(context.source) : value));
}

function Scalar({ value }) {
  if (value instanceof Written) return html`<span class="json-number">${value.text}</span>`;
  if (typeof value === "string") return html`<span class="json-text">"${visible(value)}"</span>`;
  return html`<span class="json-word">${String(value)}</span>`;
}

const isBranch = (value) => value !== null && typeof value === "object" && !(value instanceof Written);

// A branch shows its children when it is open, a hundred at a time.
function Branch({ name, value, depth }) {
  const entries = Object.entries(value);
  const [open, setOpen] = useState(depth < 2 && entries.length <= CHILDREN);
  const [most, setMost] = useState(CHILDREN);
  const isList = Array.isArray(value);
  const summary = isList ? `[${format.counted(entries.length, "item")}]` : `{${format.counted(entries.length, "field")}}`;
  return html`<li>
    <button type="button" class="json-toggle" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}>
      <span aria-hidden="true">${open ? "▾" : "▸"}</span> ${name !== null && html`<span class="json-name">${visible(name)}</span>`} <span class="muted">${summary}</span>
    </button>
    ${open && html`<ul>
      ${entries.slice(0, most).map(([key, child]) => html`<${Node} key=${key} name=${key} value=${child} depth=${depth + 1} />`)}
      ${entries.length > most && html`<li><${Button} onClick=${() => setMost(most * 5)}>Show more of ${format.count(entries.length)}</${Button}></li>`}
    </ul>`}
  </li>`;
}

function Node({ name, value, depth }) {
  if (isBranch(value)) return html`<${Branch} name=${name} value=${value} depth=${depth} />`;
  return html`<li>${name !== null && html`<span class="json-name">${visible(name)}</span>: `}<${Scalar} value=${value} /></li>`;
}

function Tree({ text }) {
  let value;
  try {
    value = parse(text);
  } catch {
    return html`<${Text} text=${text} />`;
  }
  return html`<ul class="json"><${Node} name=${null} value=${value} depth=${0} /></ul>`;
}

// -- text and hex ------------------------------------------------------------------------------

const Text = ({ text }) => html`<pre class="contents" tabindex="0">${visible(text.slice(0, SHOWN_CHARACTERS))}</pre>`;

function Hex({ text }) {
  const lines = [];
  for (let at = 0; at < text.length && lines.length < HEX_ROWS; at += 32) {
    const part = text.slice(at, at + 32);
    const bytes = part.match(/../g) ?? [];
    const shown = bytes.map((byte) => {
      const code = parseInt(byte, 16);
      return code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : ".";
    });
    lines.push(`${(at / 2).toString(16).padStart(8, "0")}  ${bytes.join(" ").padEnd(47)}  ${shown.join("")}`);
  }
  const rest = text.length / 2 - lines.length * 16;
  return html`<pre class="contents" tabindex="0">${lines.join("\n")}${rest > 0 ? `\n… and ${format.bytes(rest)} more` : ""}</pre>`;
}

// The contents of a key, a value or a header.
export function Contents({ view, asTree = true }) {
  if (view.as === "null") return html`<p class="muted">null</p>`;
  return html`
    ${view.problem && html`<${Notice} level="warn">${view.problem}</${Notice}>`}
    ${view.invalid && html`<${Notice} level="warn">The bytes are not UTF-8; what does not fit is shown as �. Hex shows them all.</${Notice}>`}
    ${view.size === 0
      ? html`<p class="muted">empty</p>`
      : view.as === "hex"
        ? html`<${Hex} text=${view.text} />`
        : ["json", "avro", "protobuf"].includes(view.as) && asTree && !view.cut
          ? html`<${Tree} text=${view.text} />`
          : html`<${Text} text=${view.text} />`}`;
}

export const FormBadge = ({ view }) =>
  html`<${Badge} text=${view.as === "null" ? "null" : `${view.as}, ${format.bytes(view.size)}${view.cut ? ", cut" : ""}`} />`;
