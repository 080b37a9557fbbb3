// The ISR over time: a ribbon for each replica, the epochs below, and the scrubber.

import { html } from "../lib.js";
import { STATES, clock, count, span } from "./words.js";

export const RANGES = [
  { ms: 60_000, text: "1 min" },
  { ms: 300_000, text: "5 min" },
  { ms: 900_000, text: "15 min" },
];

const SHORTEST_LABEL = 0.05;

function fraction(window, ms) {
  return Math.min(1, Math.max(0, (ms - window.from) / (window.to - window.from)));
}

// The spans lie on a strip that a transform moves to the left as time passes: nothing in it is laid
// out again.  Once the strip has moved by its own width it is made anew.

function baseOf(window) {
  const range = window.to - window.from;
  return Math.floor(window.from / range) * range;
}

function Strip({ window, children }) {
  const base = baseOf(window);
  const moved = ((window.from - base) / (window.to - window.from)) * 100;
  return html`<span class="xr-strip" key=${base} style=${`transform:translateX(${-moved}%)`}>${children}</span>`;
}

function Span({ part, window, isLast }) {
  const range = window.to - window.from;
  const base = baseOf(window);
  // The newest span goes on until now: the next look at it comes later than the clock.
  const to = isLast ? window.to : part.to_ms;
  const from = Math.max(part.from_ms, base);
  if (to <= window.from) return null;
  const state = STATES[part.state] ?? STATES.gone;
  return html`<i
    class=${`xr-span xr-${part.state}`}
    style=${`left:${((from - base) / range) * 100}%;width:${(Math.max(0, to - from) / range) * 100}%`}
    title=${`${state.text} from ${clock(part.from_ms)} to ${isLast ? "now" : clock(part.to_ms)}`}
  ></i>`;
}

/** The sign of a span, at its beginning or at the left edge. */
function Sign({ part, window, isLast }) {
  const left = fraction(window, part.from_ms);
  const right = isLast ? 1 : fraction(window, part.to_ms);
  if (right - left < SHORTEST_LABEL) return null;
  return html`<span class="xr-sign" style=${`transform:translateX(${left * 100}%)`}
    ><b class=${`xr-on-${part.state}`}>${STATES[part.state]?.sign}</b></span
  >`;
}

function Ribbon({ ribbon, window, leader }) {
  const spans = ribbon.spans.filter((part) => part.to_ms > window.from || part === ribbon.spans.at(-1));
  const isLast = (part) => part === ribbon.spans.at(-1);
  return html`<div class="xr-row">
    <span class="xr-name">${ribbon.broker}${ribbon.broker === leader ? html` <b>★</b>` : ""}</span>
    <span class="xr-track">
      <${Strip} window=${window}>
        ${spans.map(
          (part) => html`<${Span} key=${part.from_ms} part=${part} window=${window} isLast=${isLast(part)} />`,
        )}
      <//>
      ${spans.map((part) => html`<${Sign} key=${part.from_ms} part=${part} window=${window} isLast=${isLast(part)} />`)}
    </span>
  </div>`;
}

/** When each epoch began: from the failovers, and the epoch before the first of them. */
export function epochsOf(failovers, window, epoch) {
  const marks = failovers
    .map((failover) => {
      const elected = failover.phases.find((phase) => phase.name === "elected") ?? failover.phases[0];
      return { epoch: failover.epoch_to, ms: elected?.time_ms, to: failover.to };
    })
    .filter((mark) => mark.ms != null && mark.ms >= window.from && mark.ms <= window.to)
    .sort((a, b) => a.ms - b.ms);
  const firstShown = failovers.find((failover) => failover.epoch_to === marks[0]?.epoch);
  return { first: firstShown ? firstShown.epoch_from : epoch, marks };
}

function Epochs({ failovers, window, epoch }) {
  const { first, marks } = epochsOf(failovers, window, epoch);
  return html`<div class="xr-row xr-epochs">
    <span class="xr-name">epoch</span>
    <span class="xr-track">
      <span class="xr-epoch xr-epoch-first">${count(first)}</span>
      ${marks.map(
        (mark) => html`<span
          key=${mark.epoch}
          class="xr-epoch"
          style=${`transform:translateX(${fraction(window, mark.ms) * 100}%)`}
          title=${`${clock(mark.ms, 3)}: broker ${mark.to} is elected`}
          ><b>${count(mark.epoch)}</b></span
        >`,
      )}
    </span>
  </div>`;
}

/** In words, for a screen reader. */
function Told({ ribbons, window }) {
  return html`<ul class="hidden-text">
    ${ribbons.map(
      (ribbon) => html`<li key=${ribbon.broker}>
        Broker ${ribbon.broker}:${" "}
        ${ribbon.spans
          .filter((part) => part.to_ms > window.from)
          .slice(-8)
          .map((part) => `${STATES[part.state]?.text ?? part.state} for ${span(part.to_ms - part.from_ms)}`)
          .join(", then ")}
      </li>`,
    )}
  </ul>`;
}

function Scrubber({ window, at, onScrub }) {
  const ago = at == null ? 0 : window.to - at;
  const moved = (event) => {
    const ms = Number(event.currentTarget.value);
    onScrub(ms >= window.to - 250 ? null : ms);
  };
  return html`<div class="xr-row xr-scrub">
    <span class="xr-name" aria-hidden="true">${at == null ? "" : "past"}</span>
    <span class="xr-track">
      <input
        type="range"
        aria-label="Time: move back to see the past"
        aria-valuetext=${at == null ? "now, live" : `${clock(at)}, ${span(ago)} ago`}
        min=${window.from}
        max=${window.to}
        step="50"
        value=${at ?? window.to}
        onInput=${moved}
      />
    </span>
  </div>`;
}

/** `window` is {from, to} in ms; `at` the time that is shown, null when live. */
export function Ribbons({ ribbons, failovers, epoch, leader, window, at, onScrub }) {
  const playhead = at == null ? 1 : fraction(window, at);
  const pick = (event) => {
    const box = event.currentTarget.querySelector(".xr-track").getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    if (part >= 0 && part <= 1) onScrub(part > 0.995 ? null : Math.round(window.from + part * (window.to - window.from)));
  };
  return html`<div class="xr">
    <div class="xr-ribbons" aria-hidden="true" onClick=${pick}>
      ${ribbons.map(
        (ribbon) => html`<${Ribbon} key=${ribbon.broker} ribbon=${ribbon} window=${window} leader=${leader} />`,
      )}
      <${Epochs} failovers=${failovers} window=${window} epoch=${epoch} />
      <div class="xr-head-lane"><i class="xr-head" style=${`transform:translateX(${playhead * 100}%)`}></i></div>
    </div>
    <${Scrubber} window=${window} at=${at} onScrub=${onScrub} />
    <${Told} ribbons=${ribbons} window=${window} />
  </div>`;
}

export function RibbonLegend() {
  return html`<ul class="xb-legend" aria-hidden="true">
    ${Object.entries(STATES).map(
      ([name, state]) => html`<li key=${name}><i class=${`xb-key xr-${name}`}></i><b>${state.sign}</b>${state.text}</li>`,
    )}
  </ul>`;
}
