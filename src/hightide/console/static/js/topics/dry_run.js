// What a change would do, while a person fills in its dialog: the server checks it and gives the
// command of the command line that does the same.

import { html, useEffect, useState } from "../lib.js";
import { session } from "../api.js";
import { Command, Notice } from "../parts.js";

const PAUSE_MS = 250;

// ask: () => promise of an answer with `command`, or null while something is missing.
export function useDryRun(ask, inputs) {
  const [state, setState] = useState({ answer: null, error: null });
  useEffect(() => {
    if (session.value?.read_only) return undefined;
    let current = true;
    const timer = setTimeout(async () => {
      const asked = ask();
      if (!asked) {
        setState({ answer: null, error: null });
        return;
      }
      try {
        const answer = await asked;
        if (current) setState({ answer, error: null });
      } catch (error) {
        if (current) setState({ answer: null, error });
      }
    }, PAUSE_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, inputs);
  return state;
}

// The line under a dialog's fields: the command, or why it cannot be done. It keeps its height.
export function SameInTerminal({ state }) {
  return html`<div class="dry-run" aria-live="polite">
    ${state.error
      ? html`<${Notice} level="warn">${state.error.message}</${Notice}>`
      : html`<p class="same">The same in a terminal: ${state.answer
          ? state.answer.command.split("\n").map((line) => html`<${Command} key=${line} text=${line} />`)
          : "…"}</p>`}
  </div>`;
}
