// The event feed: newest first, with a filter by level; used by the overview, the X-ray and the events page.

import { Link } from "../router.js";
import { html } from "../lib.js";
import { clock } from "./words.js";

export const LEVELS = [
  { name: "debug", text: "all", sign: "·" },
  { name: "info", text: "info", sign: "●" },
  { name: "warning", text: "warnings", sign: "▲" },
  { name: "error", text: "errors", sign: "✕" },
];

const RANK = { debug: 0, info: 1, warning: 2, warn: 2, error: 3 };

export function rankOf(level) {
  return RANK[String(level ?? "info").toLowerCase()] ?? 1;
}

/** The events of a level or above, of a topic and partition if given, and that contain a text. */
export function chosen(events, { level = "info", topic = null, partition = null, text = "" } = {}) {
  const least = rankOf(level);
  const wanted = text.trim().toLowerCase();
  return events.filter((event) => {
    if (rankOf(event.level) < least) return false;
    if (topic != null && !isAbout(event, topic, partition)) return false;
    return !wanted || `${event.kind} ${event.message} broker ${event.broker_id}`.toLowerCase().includes(wanted);
  });
}

/** Whether an event is about a partition; events about no topic, as of brokers, are about all. */
function isAbout(event, topic, partition) {
  const data = event.data ?? {};
  if (data.topic == null) return /broker|controller|leaders_elected/.test(event.kind);
  return data.topic === topic && (partition == null || data.partition == null || data.partition === partition);
}

export function LevelFilter({ level, onLevel, name = "level" }) {
  return html`<div class="ef-levels" role="group" aria-label="Least level of events">
    ${LEVELS.map(
      (found) => html`<button
        key=${found.name}
        type="button"
        name=${name}
        class="ef-level"
        aria-pressed=${level === found.name ? "true" : "false"}
        onClick=${() => onLevel(found.name)}
      >
        <span aria-hidden="true">${found.sign}</span> ${found.text}
      </button>`,
    )}
  </div>`;
}

/** Where an event's partition can be seen, or null. */
export function placeOf(event) {
  const { topic, partition } = event.data ?? {};
  if (typeof topic !== "string") return null;
  const name = encodeURIComponent(topic);
  return partition == null ? `/t/${name}` : `/x/${name}/${partition}`;
}

export function EventLine({ event }) {
  const rank = rankOf(event.level);
  const to = placeOf(event);
  const text = event.message ?? event.kind;
  return html`<li class=${`ef-line ef-rank-${rank}`}>
    <time title=${new Date(event.time_ms).toISOString()}>${clock(event.time_ms, 3)}</time>
    <b class="ef-sign" aria-hidden="true">${LEVELS[rank].sign}</b>
    <span class="hidden-text">${LEVELS[rank].name}</span>
    <span class="ef-broker" title="the broker that reports it">b${event.broker_id}</span>
    <span class="ef-text">${to ? html`<${Link} to=${to}>${text}<//>` : text}</span>
  </li>`;
}

export const keyOf = (event) => `${event.broker_id}/${event.start_id ?? ""}/${event.sequence ?? ""}/${event.time_ms}/${event.kind}`;

export function Feed({ events, most = 60, empty = "No event of this level yet." }) {
  if (!events.length) return html`<p class="xp-quiet">${empty}</p>`;
  return html`<ol class="ef">
    ${events.slice(0, most).map((event) => html`<${EventLine} key=${keyOf(event)} event=${event} />`)}
  </ol>`;
}
