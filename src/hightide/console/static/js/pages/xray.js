// The X-ray of one partition: where each replica's log ends against the high watermark, now and in the past.
//
//   live frames (20 a second) ──▶ bars, facts, the sentence       move by transform only
//   history (every 2 s)       ──▶ ribbons, failovers, truncations
//   the scrubber              ──▶ a frame of the past in place of the live one

import { html, useComputed, useEffect, useRef, useSignal } from "../lib.js";
import { Command, Sentence } from "../parts.js";
import { Link } from "../router.js";
import { connection, events, overview, session } from "../store.js";
import { Announced } from "../xray/announced.js";
import { Bars, Legend, Numbers } from "../xray/bars.js";
import { Failover } from "../xray/failover.js";
import { Feed, LevelFilter, chosen } from "../xray/feed.js";
import { Journey } from "../xray/journey.js";
import { partitionOf, shapeOf, useHistory, usePast, useTopic } from "../xray/live.js";
import { Owner } from "../xray/owner.js";
import { RANGES, RibbonLegend, Ribbons } from "../xray/ribbons.js";
import { nextWindow } from "../xray/scale.js";
import { clock, commandFor, count, hasLeader, heldBy, list, sentenceOf, span } from "../xray/words.js";

const CUT_SHOWN_MS = 60_000;
const NO_HISTORY = { frames: [], ribbons: [], failovers: [], truncations: [] };

const ours = (command) => commandFor(command, session.value?.bootstrap);

const SIGNS = { ok: "✓", warn: "▲", bad: "✕", off: "◼" };

function Chips({ topic, partition, frame }) {
  const known = overview.value?.partitions.filter((found) => found.topic === topic) ?? [];
  const shown = known.length ? known : (frame.peek()?.partitions ?? [{ partition }]);
  return html`<nav class="xp-chips" aria-label=${`Partitions of ${topic}`}>
    ${shown.map((found) => {
      const level = found.level ?? "ok";
      return html`<${Link}
        key=${found.partition}
        to=${`/x/${encodeURIComponent(topic)}/${found.partition}`}
        class=${`xp-chip xp-level-${level}`}
        aria-current=${found.partition === partition ? "page" : null}
        title=${`${topic}/${found.partition}`}
        >${level !== "ok" && html`<span aria-hidden="true">${SIGNS[level]}</span>`}${found.partition}<//
      >`;
    })}
  </nav>`;
}

function Head({ topic, partition, frame }) {
  const file = `/api/v1/export.html?topic=${encodeURIComponent(topic)}&partition=${partition}&minutes=15`;
  return html`<header class="xp-head">
    <div>
      <h1><${Link} to=${`/t/${encodeURIComponent(topic)}`}>${topic}<//><span aria-hidden="true"> ▸ </span><b>${partition}</b></h1>
      <${Chips} topic=${topic} partition=${partition} frame=${frame} />
    </div>
    <a class="xp-button" href=${file} download=${`xray-${topic}-${partition}.html`} title="One file with the last 15 minutes, to attach or to show">⤓ Export</a>
  </header>`;
}

function pausedBrokers() {
  return (overview.value?.brokers ?? []).filter((broker) => broker.paused).map((broker) => broker.id);
}

function Fact({ name, children, title }) {
  return html`<div class="xp-fact" title=${title}><dt>${name}</dt><dd>${children}</dd></div>`;
}

function Facts({ partition, minIsr }) {
  const adding = partition.adding ?? [];
  const removing = partition.removing ?? [];
  return html`<dl class="xp-facts">
    <${Fact} name="Leader">${hasLeader(partition) ? html`★ broker ${partition.leader}` : "◼ none"}<//>
    <${Fact} name="Epoch" title="How often a leader was elected">${count(partition.leader_epoch)}<//>
    <${Fact} name="In sync (ISR)">${list(partition.isr)}<//>
    <${Fact} name="acks=all" title="Accepted while as many replicas as min.insync.replicas are in sync">
      ${partition.accepts_all === false ? "✕ refused" : partition.accepts_all == null ? "–" : "✓ accepted"}
      ${minIsr == null ? "" : html` <small>min ISR ${minIsr}</small>`}
    <//>
    <${Fact} name="Not committed">${
      partition.high_watermark == null ? "–" : count(Math.max(0, ...partition.replicas.map((replica) => (replica.end_offset ?? 0) - partition.high_watermark)))
    }<//>
    ${(adding.length > 0 || removing.length > 0) &&
    html`<${Fact} name="Reassignment">${adding.length ? `adds ${list(adding)}` : ""} ${removing.length ? `removes ${list(removing)}` : ""}<//>`}
  </dl>`;
}

function Zoom({ zoom }) {
  return html`<div class="xp-zoom" role="group" aria-label="Offsets shown">
    ${["tail", "whole"].map(
      (name) => html`<button
        type="button"
        key=${name}
        aria-pressed=${zoom.value === name ? "true" : "false"}
        onClick=${() => (zoom.value = name)}
      >
        ${name === "tail" ? "Tail" : "Whole log"}
      </button>`,
    )}
  </div>`;
}

function Held({ partition, paused }) {
  const holders = heldBy(partition, paused);
  if (!holders.length) return html`<p class="xp-held"></p>`;
  const top = Math.max(...partition.replicas.map((replica) => replica.end_offset ?? 0));
  const waiting = Math.max(0, top - (partition.high_watermark ?? top));
  const quiet = Math.max(...holders.map((holder) => holder.lag_ms ?? 0));
  return html`<p class="xp-held xp-held-on">
    <b>‖ broker ${list(holders.map((holder) => holder.broker))}</b> holds the high watermark:${" "}
    <b>${count(waiting)}</b> records wait, <b>${span(quiet)}</b> without a fetch.${" "}
    ${partition.held_why ? html`<span>${partition.held_why}</span>` : ""}
  </p>`;
}

/** The cuts to draw over the bars: those of the minute before the time that is shown. */
function cutsAt(truncations, ms) {
  return truncations
    .filter((cut) => cut.time_ms <= ms && ms - cut.time_ms < CUT_SHOWN_MS)
    .map((cut) => ({ broker: cut.broker, from: Math.max(cut.from, cut.to), to: Math.min(cut.from, cut.to) }));
}

function Now({ topic, number, frame, at, zoom, history }) {
  const past = usePast(topic, number, at.value);
  const shownFrame = at.value == null ? frame.value : past;
  const live = partitionOf(frame.value, number);
  const partition = partitionOf(shownFrame, number) ?? live;
  const range = useRef(null);
  useEffect(() => {
    range.current = null;
  }, [topic, number, zoom.value]);
  const paused = at.value == null ? pausedBrokers() : [];
  if (!partition) return html`<${Waiting} />`;
  range.current = nextWindow(range.current, partition, zoom.value);
  const minIsr = partition.min_isr ?? frame.value?.min_isr;
  const foreign = Boolean(overview.value?.is_foreign);
  const sentence = sentenceOf(topic, partition, minIsr, { paused, foreign });
  const text = at.value == null ? sentence.text : `At ${clock(shownFrame?.time_ms ?? at.value)}: ${sentence.text}`;
  const cuts = cutsAt((history.value ?? NO_HISTORY).truncations ?? [], shownFrame?.time_ms ?? 0);
  const stable = partition.last_stable_offset;
  return html`<${Sentence} level=${sentence.level} text=${text} next=${at.value == null && sentence.next && ours(sentence.next)} />
    <${Announced} text=${text} />
    ${foreign && html`<${Unknowable} />`}
    <section class=${`panel xp-card xp-bars${at.value == null ? (connection.value === "live" ? "" : " xp-stale") : " xp-past"}`} aria-label="Replicas">
      <header>
        <${Facts} partition=${partition} minIsr=${minIsr} />
        <${Zoom} zoom=${zoom} />
      </header>
      <${Bars} partition=${partition} range=${range.current} cuts=${cuts} paused=${paused} holders=${heldBy(partition, paused)} />
      <${Held} partition=${partition} paused=${paused} />
      <${Legend} foreign=${foreign} hasStable=${stable != null && stable >= 0 && stable !== partition.high_watermark} hasCuts=${cuts.length > 0}
        hasDeleted=${partition.replicas.some((replica) => replica.start_offset > range.current.start)} />
      <${Numbers} topic=${topic} partition=${partition} paused=${paused} />
    </section>`;
}

function Unknowable() {
  return html`<p class="xp-note">
    ≈ These brokers are not Hightide's. The protocol tells the high watermark and how far each disk is behind, so the
    bars are approximate. Which replica holds the high watermark back, why one is out of sync, the phases of a failover
    and what was cut off cannot be known.
  </p>`;
}

/** Why there are no bars yet, in words. */
function waitingFor() {
  const sentence = overview.value?.sentence;
  if (connection.value === "lost") return "The console's server does not answer; this page tries again.";
  if (sentence?.level === "off") return sentence.text;
  return "The first look at the replicas is on its way.";
}

function Waiting() {
  return html`<section class="panel xp-card xp-bars xp-waiting"><p role="status">${waitingFor()}</p></section>`;
}

function Missing({ topic, number }) {
  return html`<section class="panel xp-card xp-waiting">
    <p role="status">✕ There is no partition ${topic}/${number}. <${Link} to="/">See all partitions<//>.</p>
    <p><${Command} text=${ours("hightide partition list")} /></p>
  </section>`;
}

/** Whether the cluster answers, and does not know the partition. */
function isMissing(topic, number, shape) {
  const look = overview.value;
  if (shape || !look || look.sentence.level === "off") return false;
  return !look.partitions.some((found) => found.topic === topic && found.partition === number);
}

/** The time on the right edge of the ribbons: the newest frame's, a second at a time. */
function useNow(frame) {
  const now = useSignal(frame.peek()?.time_ms ?? Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      now.value = frame.peek()?.time_ms ?? Date.now();
    }, 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function TimeBar({ at, range, now }) {
  const back = at.value == null ? 0 : now.value - at.value;
  const isConnected = connection.value === "live";
  return html`<div class="xp-time">
    <div class="xp-zoom" role="group" aria-label="Time shown">
      ${RANGES.map(
        (found) => html`<button
          type="button"
          key=${found.ms}
          aria-pressed=${range.value === found.ms ? "true" : "false"}
          onClick=${() => (range.value = found.ms)}
        >
          ${found.text}
        </button>`,
      )}
    </div>
    <span class="xp-at">${at.value == null ? clock(now.value) : html`${clock(at.value, 3)} <small>${span(back)} ago</small>`}</span>
    <button
      type="button"
      class=${`xp-live${at.value == null ? " xp-live-on" : ""}`}
      disabled=${!isConnected && at.value == null}
      aria-pressed=${at.value == null ? "true" : "false"}
      onClick=${() => (at.value = at.value == null ? now.value : null)}
    >
      ${at.value != null ? "▶ Back to live" : isConnected ? html`<i aria-hidden="true"></i> Live` : "… waits"}
    </button>
  </div>`;
}

function Past({ number, frame, history, error, at, range }) {
  const now = useNow(frame);
  const found = history.value ?? NO_HISTORY;
  const partition = partitionOf(frame.peek(), number);
  const window = { from: now.value - range.value, to: now.value };
  return html`<section class="panel xp-card" aria-label="ISR over time">
    <header>
      <h2>ISR over time</h2>
      <${TimeBar} at=${at} range=${range} now=${now} />
    </header>
    ${error.value && html`<p class="xp-error">✕ ${error.value.message}</p>`}
    <${Ribbons}
      ribbons=${found.ribbons}
      failovers=${found.failovers}
      epoch=${partition?.leader_epoch}
      leader=${partition?.leader}
      window=${window}
      at=${at.value}
      onScrub=${(ms) => (at.value = ms)}
    />
    <${RibbonLegend} />
  </section>`;
}

/** The brokers of `hightide up`, those with a replica of the partition only. */
function OwnerOf({ number, frame, shape }) {
  // Read the shape, not the frame: the buttons do not change twenty times a second.
  const partition = shape.value && partitionOf(frame.peek(), number);
  if (!session.value?.owner || session.value?.read_only || !partition) return null;
  const known = new Map((overview.value?.brokers ?? []).map((broker) => [broker.id, broker]));
  const brokers = partition.replicas.map((replica) => ({
    id: replica.broker,
    alive: replica.alive,
    paused: Boolean(known.get(replica.broker)?.paused),
    leads: replica.broker === partition.leader && replica.alive,
  }));
  brokers.sort((a, b) => a.id - b.id);
  return html`<${Owner} brokers=${brokers} />`;
}

function Events({ topic, number, level }) {
  const found = chosen(events.value, { level: level.value, topic, partition: number });
  const empty = overview.value?.is_foreign ? "These brokers are not Hightide's: they keep no events." : undefined;
  return html`<section class="panel xp-card">
    <header>
      <h2>Events</h2>
      <${LevelFilter} level=${level.value} onLevel=${(name) => (level.value = name)} />
    </header>
    <div class="ef-box"><${Feed} events=${found} most=${100} empty=${empty} /></div>
    <${Command} text=${ours(`hightide events --topic ${topic}/${number}`)} />
  </section>`;
}

export default function Xray({ params }) {
  const topic = params.topic;
  const number = Number(params.partition);
  const frame = useTopic(topic);
  const at = useSignal(null);
  const zoom = useSignal("tail");
  const range = useSignal(300_000);
  const level = useSignal("info");
  const place = useSignal(number);
  place.value = number;
  const shape = useComputed(() => shapeOf(partitionOf(frame.value, place.value)));
  const { history, error } = useHistory(topic, number, shape.value);
  const past = history.value ?? NO_HISTORY;
  if (isMissing(topic, number, shape.value)) {
    return html`<div class="xp">
      <${Head} topic=${topic} partition=${number} frame=${frame} />
      <${Missing} topic=${topic} number=${number} />
    </div>`;
  }
  return html`<div class="xp">
    <${Head} topic=${topic} partition=${number} frame=${frame} />
    <${Now} topic=${topic} number=${number} frame=${frame} at=${at} zoom=${zoom} history=${history} />
    <${OwnerOf} number=${number} frame=${frame} shape=${shape} />
    <${Past} number=${number} frame=${frame} history=${history} error=${error} at=${at} range=${range} />
    <div class="xp-two">
      <${Failover} failovers=${past.failovers} truncations=${past.truncations} foreign=${Boolean(overview.value?.is_foreign)} />
      <${Journey} topic=${topic} partition=${number} session=${session.value} />
    </div>
    <${Events} topic=${topic} number=${number} level=${level} />
  </div>`;
}
