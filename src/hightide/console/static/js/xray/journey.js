// The journey of one probe record with acks=all: where it is, after how many milliseconds.

import { post } from "../api.js";
import { Button, Command } from "../parts.js";
import { html, useEffect, useState } from "../lib.js";

function longest(result) {
  return Math.max(result.acknowledged_ms ?? 0, ...result.steps.map((step) => step.after_ms ?? 0), 0.001);
}

function milliseconds(ms) {
  return ms == null ? "waiting" : `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

function Step({ name, broker, ms, total, kind, atMost }) {
  const place = ms == null ? 100 : (ms / total) * 100;
  return html`<li class=${`xj-step${ms == null ? " xj-waiting" : ""}${kind ? ` xj-${kind}` : ""}`}>
    <span class="xj-name">${broker == null ? "" : html`<b>broker ${broker}</b> `}${name}</span>
    <span class="xj-lane" aria-hidden="true"><i style=${`transform:translateX(${place - 100}%)`}></i></span>
    <span class="xj-ms">${atMost ? "≤ " : ""}${milliseconds(ms)}</span>
  </li>`;
}

const NAMES = {
  appended: "appends it",
  fetched: "has fetched it",
  "high watermark passes": "moves the high watermark past it",
  acknowledged: "acknowledged to the producer",
};

const ORDER = ["appended", "fetched", "high watermark passes", "acknowledged"];
const BEFORE_THE_END = ["appended", "high watermark passes"];

/** The steps in the order of cause and effect.  A look sees a step a little after it happens; what must
    happen before the acknowledgement has happened by then. */
export function inOrder({ steps, acknowledged_ms: end }) {
  const rank = (step) => ORDER.indexOf(step.name);
  const known = steps.map((step) => {
    const isLate = end != null && BEFORE_THE_END.includes(step.name) && (step.after_ms ?? end + 1) > end;
    return isLate ? { ...step, after_ms: end, atMost: true } : step;
  });
  return known.sort((a, b) => rank(a) - rank(b) || (a.after_ms ?? Infinity) - (b.after_ms ?? Infinity));
}

function Steps({ result }) {
  const total = longest(result);
  return html`<ol class="xj-steps">
    ${inOrder(result).map(
      (step, index) => html`<${Step}
        key=${index}
        name=${NAMES[step.name] ?? step.name}
        broker=${step.broker}
        ms=${step.after_ms}
        total=${total}
        atMost=${step.atMost}
        kind=${step.name === "acknowledged" ? "end" : ""}
      />`,
    )}
  </ol>`;
}

export function Journey({ topic, partition, session }) {
  const [result, setResult] = useState(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => {
    setResult(null);
    setError(null);
  }, [topic, partition]);
  const send = async () => {
    setBusy(true);
    setError(null);
    try {
      setResult(await post(`xray/${encodeURIComponent(topic)}/${partition}/probe`, { confirm: true }));
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  const refused = session?.read_only ? "This console is read-only: it writes no record." : "";
  return html`<section class="panel xp-card xj">
    <header>
      <h2>Journey of a record, acks=all</h2>
      <${Button} change onClick=${send} disabled=${busy || Boolean(refused)}>${busy ? "On its way…" : "Send a probe"}<//>
    </header>
    ${error && html`<p class="xp-error" role="alert">✕ ${error.message}</p>`}
    ${result
      ? html`<${Steps} result=${result} />`
      : html`<p class="xp-quiet">
          ${refused ||
          `A probe is one real record in ${topic}/${partition}, empty and with the header hightide-probe. It shows
          how long the leader takes to append it, each
          follower to fetch it, and the high watermark to pass it.`}
        </p>`}
    ${result && html`<p class="xp-quiet xj-note">Each time is when the console sees the step, a moment after it happens.</p>`}
    ${result?.command && html`<${Command} text=${result.command} />`}
  </section>`;
}
