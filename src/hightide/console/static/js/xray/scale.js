// The window of offsets that the bars show: pure functions, no page.
//
//   start ─────────────── end        an offset's place in it is a fraction from 0 to 1
//
// The tail's window holds everything near the end of the log.  It stands still while the ends move
// through it, and jumps when they reach its edge, so an end is seen to move.

const SMALLEST = 24;
const ROOM = 0.92;

/** A round number that is at least n: 1, 2 or 5 times a power of ten. */
export function roundUp(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, n)));
  return [1, 2, 5, 10].map((times) => times * power).find((round) => round >= n);
}

/** The replicas whose ends are known. */
function known(partition) {
  return partition.replicas.filter((replica) => replica.end_offset != null);
}

/** The offsets that a window must show, or null while nothing is known. */
export function facts(partition) {
  const replicas = known(partition);
  if (!replicas.length) return null;
  const ends = replicas.map((replica) => replica.end_offset);
  const top = Math.max(...ends, partition.high_watermark ?? 0);
  const near = replicas.filter((replica) => replica.in_sync).map((replica) => replica.end_offset);
  const watermark = partition.high_watermark;
  const marks = [...near, watermark, partition.last_stable_offset].filter((at) => at != null && at >= 0);
  const starts = replicas.map((replica) => replica.start_offset ?? 0);
  return { top, bottom: Math.min(top, ...marks), start: Math.min(...starts) };
}

function tail(before, { top, bottom, start }) {
  const spread = top - bottom;
  const needed = Math.max(SMALLEST, spread * 2.2);
  if (before) {
    const span = before.end - before.start;
    const holds = bottom >= before.start + span * 0.04 || before.start <= start;
    const fits = top <= before.start + span * ROOM && top >= before.start;
    if (holds && fits && span <= needed * 40) return before;
  }
  const span = roundUp(before && top > before.end ? Math.max(needed, (top - before.end) * 4) : needed);
  const step = span / 4;
  const end = Math.ceil((top + span * 0.3) / step) * step;
  return { start: Math.max(end - span, Math.min(0, start)), end: Math.max(end, span) };
}

function whole({ top, start }) {
  const span = Math.max(1, top - start);
  return { start, end: start + Math.max(SMALLEST, span * 1.06) };
}

/** The next window from the one before (or null), for "tail" or "whole". */
export function nextWindow(before, partition, zoom) {
  const found = facts(partition);
  if (!found) return before ?? { start: 0, end: SMALLEST };
  return zoom === "whole" ? whole(found) : tail(before, found);
}

/** The place of an offset in a window, from 0 to 1; outside it is cut off. */
export function place(range, offset) {
  const at = (offset - range.start) / (range.end - range.start);
  return Math.min(1, Math.max(0, at));
}

/** About `count` round offsets for the axis. */
export function ticks(range, count = 5) {
  const step = Math.max(1, roundUp((range.end - range.start) / count));
  const found = [];
  for (let at = Math.ceil(range.start / step) * step; at < range.end; at += step) found.push(at);
  return found;
}

/** A transform that moves a full-width element so that its right end stands at a fraction. */
export function endAt(fraction) {
  return `transform:translateX(${((fraction - 1) * 100).toFixed(3)}%)`;
}

/** A transform that moves a full-width element so that its left edge stands at a fraction. */
export function edgeAt(fraction) {
  return `transform:translateX(${(fraction * 100).toFixed(3)}%)`;
}
