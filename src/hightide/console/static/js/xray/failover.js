// Failovers of a partition by their phases, and what replicas cut off after them.

import { html, useState } from "../lib.js";
import { clock, count, plural, span } from "./words.js";

const OUTAGE = ["lost", "detected", "elected", "published", "first_write"];

const NAMES = {
  lost: "leader stops",
  detected: "loss seen",
  elected: "new leader elected",
  published: "told to the brokers",
  first_write: "first write",
  back: "old leader is back",
  in_sync: "in sync again",
};

/** The phases, and before them the moment at which a look saw the old leader stop. */
export function phasesOf({ phases, lost_ms: lost, from }) {
  if (lost == null || !phases.length || lost >= phases[0].time_ms) return phases;
  return [{ name: "lost", time_ms: lost, text: `broker ${from} stops leading, as the console sees it` }, ...phases];
}

/** The phases until writes go on, each with its part of the time. */
export function outage(failover) {
  const phases = phasesOf(failover).filter((phase) => OUTAGE.includes(phase.name));
  return phases.slice(1).map((phase, index) => ({
    name: phase.name,
    ms: Math.max(0, phase.time_ms - phases[index].time_ms),
  }));
}

function Strip({ failover }) {
  const parts = outage(failover);
  const total = parts.reduce((sum, part) => sum + part.ms, 0);
  if (!parts.length || !total) return null;
  return html`<div class="xf-strip" aria-hidden="true">
    ${parts.map(
      (part) => html`<span
        key=${part.name}
        class=${`xf-part xf-${part.name}`}
        style=${`flex-grow:${Math.max(part.ms, total * 0.06)}`}
        title=${`until ${NAMES[part.name]}: ${span(part.ms)}`}
        ><b>${span(part.ms)}</b></span
      >`,
    )}
  </div>`;
}

function Phases({ failover }) {
  const phases = phasesOf(failover);
  const start = phases[0]?.time_ms;
  return html`<ol class="xf-phases">
    ${phases.map(
      (phase) => html`<li key=${phase.name + phase.time_ms} class=${`xf-phase xf-${phase.name}`}>
        <time>${clock(phase.time_ms, 3)}</time>
        <span class="xf-after">${phase.time_ms === start ? "" : `+${span(phase.time_ms - start)}`}</span>
        <span class="xf-text">${phase.text || NAMES[phase.name]}</span>
      </li>`,
    )}
  </ol>`;
}

function Cuts({ truncations }) {
  if (!truncations.length) return null;
  return html`<div class="xf-cuts">
    <h3>Cut off after a failover</h3>
    <ul>
      ${truncations.map(
        (cut) => html`<li key=${cut.time_ms + "/" + cut.broker}>
          <b aria-hidden="true">╳</b>
          <span>
            ${clock(cut.time_ms)} broker ${cut.broker} cut ${plural(Math.abs(cut.from - cut.to), "record")}${" "}
            (${count(Math.min(cut.from, cut.to))} to ${count(Math.max(cut.from, cut.to) - 1)}${cut.epoch == null ? "" : `, epoch ${cut.epoch}`}).${" "}
            <em>${cut.why}</em>${cut.committed_lost ? html` <strong class="xp-error">Committed records lost: ${count(cut.committed_lost)}.</strong>` : " No committed record is lost."}
          </span>
        </li>`,
      )}
    </ul>
  </div>`;
}

function Steps({ failovers, shown, onShow }) {
  if (failovers.length < 2) return null;
  return html`<span class="xf-steps">
    <button type="button" class="xp-plain" aria-label="Earlier failover" disabled=${shown === 0} onClick=${() => onShow(shown - 1)}>◀</button>
    <span>${shown + 1} of ${failovers.length}</span>
    <button type="button" class="xp-plain" aria-label="Later failover" disabled=${shown === failovers.length - 1} onClick=${() => onShow(shown + 1)}>▶</button>
  </span>`;
}

export function Failover({ failovers, truncations, foreign }) {
  const [picked, setPicked] = useState(null);
  const shown = Math.min(picked ?? failovers.length - 1, failovers.length - 1);
  const failover = failovers[shown];
  if (!failover) {
    return html`<section class="panel xp-card xf">
      <header><h2>Failover</h2></header>
      <p class="xp-quiet">
        ${foreign
          ? "No new leader in the last 15 minutes. Of another cluster the console sees the new leader, not the phases in between."
          : "No new leader in the last 15 minutes. When one is elected, every phase is shown here with its milliseconds."}
      </p>
      <${Cuts} truncations=${truncations} />
    </section>`;
  }
  return html`<section class="panel xp-card xf">
    <header>
      <h2>Failover, epoch ${count(failover.epoch_from)} → ${count(failover.epoch_to)}</h2>
      <${Steps} failovers=${failovers} shown=${shown} onShow=${setPicked} />
    </header>
    <p class="xf-sum">
      <b>${failover.from >= 0 && failover.from != null ? `broker ${failover.from}` : "no leader"} → ${failover.to >= 0 && failover.to != null ? `broker ${failover.to}` : "no leader"}</b>
      ${failover.leaderless_ms != null && html`<span><strong>${span(failover.leaderless_ms)}</strong> without a leader</span>`}
      <span class="xf-first">${failover.no_writes_ms == null ? "no write since" : `first write after ${span(failover.no_writes_ms)}`}</span>
    </p>
    ${failover.unclean && html`<p class="xp-error">▲ Unclean: the new leader was not in sync, so committed records may be lost.</p>`}
    <${Strip} failover=${failover} />
    <${Phases} failover=${failover} />
    <${Cuts} truncations=${truncations} />
  </section>`;
}

