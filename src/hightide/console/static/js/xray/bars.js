// A bar for each replica: what is committed, what is not yet, and where each log ends.
//
// Every part is as wide as the track and is moved by a transform, so a frame never causes layout.

import { html } from "../lib.js";
import { edgeAt, endAt, place, ticks } from "./scale.js";
import { STATES, count, isSilent, span, stateOf } from "./words.js";

const byId = (replicas) => [...replicas].sort((a, b) => a.broker - b.broker);

function Part({ range, to, kind }) {
  return html`<i class=${`xb-part xb-${kind}`} style=${endAt(place(range, to))}></i>`;
}

/** A stretch between two offsets, drawn over the bar. */
function Stretch({ range, from, to, kind, title }) {
  const left = place(range, from);
  const width = place(range, to) - left;
  if (width <= 0) return null;
  return html`<i
    class=${`xb-stretch xb-${kind}`}
    style=${`left:${left * 100}%;width:${width * 100}%`}
    title=${title}
  ></i>`;
}

function Track({ range, replica, partition, cuts }) {
  const end = replica.end_offset;
  if (end == null) return html`<span class="xb-track xb-unknown"><em>log end not known</em></span>`;
  const watermark = partition.high_watermark ?? end;
  const committed = Math.min(end, Math.max(0, watermark));
  const isLeft = end < range.start;
  return html`<span class=${`xb-track${replica.approximate ? " xb-approximate" : ""}`}>
    <${Part} range=${range} to=${end} kind="open" />
    <${Part} range=${range} to=${committed} kind="committed" />
    <${Part} range=${range} to=${replica.start_offset ?? 0} kind="deleted" />
    ${cuts.map(
      (cut) => html`<${Stretch}
        range=${range}
        from=${cut.to}
        to=${cut.from}
        kind="cut"
        title=${`cut off: ${count(cut.to)} to ${count(cut.from - 1)}`}
      />`,
    )}
    ${replica.high_watermark != null &&
    html`<i class="xb-own" style=${edgeAt(place(range, replica.high_watermark))}></i>`}
    <i class="xb-mark" style=${edgeAt(place(range, watermark))}></i>
    ${isLeft && html`<b class="xb-left">◀ ends ${count(range.start - end)} before this window</b>`}
  </span>`;
}

function behind(replica, state) {
  if (state === "leads") return replica.approximate ? "high watermark" : "log end";
  if (replica.lag == null) return "";
  const records = replica.lag ? `−${count(replica.lag)}` : "caught up";
  return !replica.lag_ms ? records : `${records} · ${span(replica.lag_ms)}`;
}

/** Why it is in its state, unless that repeats the state. */
function reason(replica, held) {
  const why = ["leads", "in sync", "its broker is not alive"].includes(replica.why) ? "" : (replica.why ?? "");
  return [held ? "holds the high watermark" : "", why].filter(Boolean).join("; ");
}

function Row({ replica, partition, range, cuts, paused, held }) {
  const state = stateOf(replica, partition);
  const silent = isSilent(replica, paused);
  return html`<li class=${`xb-row xb-is-${state}${silent ? " xb-is-silent" : ""}${held ? " xb-holds" : ""}`}>
    <span class="xb-who">
      <b class="xb-sign" aria-hidden="true">${STATES[state].sign}</b>
      <span class="xb-id">broker ${replica.broker}</span>
      <span class="xb-state">${STATES[state].text}${silent ? " ‖" : ""}</span>
    </span>
    <${Track} range=${range} replica=${replica} partition=${partition} cuts=${cuts} />
    <span class="xb-numbers">
      <b>${replica.approximate ? "≈ " : ""}${count(replica.end_offset)}</b>
      <small>${behind(replica, state)}</small>
    </span>
    <span class="xb-why" title=${replica.why}>${reason(replica, held)}</span>
  </li>`;
}

function Line({ range, offset, kind, label, level }) {
  const at = offset == null || offset < 0 ? null : place(range, offset);
  const side = at != null && at > 0.8 ? "left" : "right";
  const hidden = at == null || offset < range.start || offset > range.end;
  return html`<span
    class=${`xb-line xb-line-${kind} xb-level-${level}`}
    style=${`${edgeAt(at ?? 0)};${hidden ? "visibility:hidden" : ""}`}
    ><b class=${`xb-flag xb-flag-${side}`}>${label} <span>${count(offset)}</span></b></span
  >`;
}

function Axis({ range }) {
  return html`<div class="xb-axis" aria-hidden="true">
    ${ticks(range).map((at) => html`<span key=${at} style=${edgeAt(place(range, at))}><b>${count(at)}</b></span>`)}
  </div>`;
}

/** Bars of a partition; `cuts` are the truncations that may be shown: {broker, from, to}. */
export function Bars({ partition, range, cuts, paused, holders }) {
  const stable = partition.last_stable_offset;
  const watermark = partition.high_watermark;
  const hasStable = stable != null && stable >= 0 && stable !== watermark;
  return html`<div class="xb">
    <div class="xb-lines" aria-hidden="true">
      ${hasStable && html`<${Line} range=${range} offset=${stable} kind="lso" label="LSO" level="2" />`}
      <${Line} range=${range} offset=${watermark} kind="hw" label="HW" level="1" />
    </div>
    <ol class="xb-rows">
      ${byId(partition.replicas).map(
        (replica) => html`<${Row}
          key=${replica.broker}
          replica=${replica}
          partition=${partition}
          range=${range}
          paused=${paused}
          held=${holders.some((holder) => holder.broker === replica.broker)}
          cuts=${cuts.filter((cut) => cut.broker === replica.broker)}
        />`,
      )}
    </ol>
    <${Axis} range=${range} />
  </div>`;
}

export function Legend({ foreign, hasStable, hasCuts, hasDeleted }) {
  return html`<ul class="xb-legend" aria-hidden="true">
    ${foreign
      ? html`<li><i class="xb-key xb-key-about"></i>≈ about how far</li>`
      : html`<li><i class="xb-key xb-key-committed"></i>committed: consumers see it</li>
          <li><i class="xb-key xb-key-open"></i>not committed yet</li>`}
    <li><i class="xb-key xb-key-hw"></i>HW: high watermark</li>
    ${hasStable && html`<li><i class="xb-key xb-key-lso"></i>LSO: end for read_committed</li>`}
    ${hasDeleted && html`<li><i class="xb-key xb-key-deleted"></i>deleted by retention</li>`}
    ${hasCuts && html`<li><i class="xb-key xb-key-cut"></i>╳ cut off after a failover</li>`}
    ${!foreign && html`<li><i class="xb-key xb-key-own"></i>HW as this replica knows it</li>`}
    ${!foreign && html`<li><b>‖</b>does not answer</li>`}
    <li><b>░</b>eligible to lead (ELR)</li>
  </ul>`;
}

/** The same numbers for a screen reader. */
export function Numbers({ topic, partition, paused }) {
  return html`<div class="hidden-text"><table>
    <caption>
      Replicas of ${topic}/${partition.partition}
    </caption>
    <thead>
      <tr>
        <th>Broker</th>
        <th>State</th>
        <th>Log start</th>
        <th>High watermark</th>
        <th>Log end</th>
        <th>Records behind</th>
        <th>Time behind</th>
        <th>Why</th>
      </tr>
    </thead>
    <tbody>
      ${byId(partition.replicas).map(
        (replica) => html`<tr key=${replica.broker}>
          <th scope="row">${replica.broker}</th>
          <td>${STATES[stateOf(replica, partition)].text}${isSilent(replica, paused) ? ", silent" : ""}</td>
          <td>${count(replica.start_offset)}</td>
          <td>${count(replica.high_watermark)}</td>
          <td>${count(replica.end_offset)}</td>
          <td>${count(replica.lag)}</td>
          <td>${span(replica.lag_ms)}</td>
          <td>${replica.why}</td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}
