// A line of the last minutes, from zero up, that moves in from the right.

import { colour, dark } from "../appearance.js";
import { html, uPlot, useEffect, useRef } from "../lib.js";
import { clock, count, plural } from "./words.js";
import { roundUp } from "./scale.js";

const SHORTEST_S = 60;
const LONGEST_S = 300;

/** At first a minute, and more as more is known. */
function shown(first, last) {
  const now = last ?? Date.now() / 1000;
  return [now - Math.min(LONGEST_S, Math.max(SHORTEST_S, now - (first ?? now))), now];
}

function axis(values, size) {
  return {
    stroke: () => colour("muted"),
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
    values,
    size,
  };
}

function optionsFor(width, height) {
  return {
    width,
    height,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      x: { time: true, range: (_, least, most) => shown(least, most) },
      y: { range: (_, __, most) => [0, roundUp(Math.max(5, (most ?? 0) * 1.05))] },
    },
    axes: [
      { ...axis((_, splits) => splits.map((at) => clock(at * 1000)), 28), incrs: [15, 30, 60, 120, 300], space: 90 },
      axis((_, splits) => splits.map((n) => count(n)), 58),
    ],
    series: [
      {},
      {
        stroke: () => colour("series-1"),
        fill: () => `${colour("series-1")}26`,
        width: 2,
        points: { show: false },
      },
    ],
  };
}

/** `data` is [times in s, values]. */
export function Sparkline({ data, height, label }) {
  const place = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    const width = () => Math.max(160, place.current?.clientWidth ?? 0);
    chart.current = new uPlot(optionsFor(width(), height), data, place.current);
    const watcher = new ResizeObserver(() => chart.current?.setSize({ width: width(), height }));
    watcher.observe(place.current);
    return () => {
      watcher.disconnect();
      chart.current.destroy();
      chart.current = null;
    };
  }, [height]);
  useEffect(() => chart.current?.setData(data), [data[0].at(-1)]);
  useEffect(() => chart.current?.redraw(false), [dark.value]);
  const values = data[1].filter((value) => value != null);
  const told = values.length ? `: from ${count(Math.round(Math.min(...values)))} to ${plural(Math.round(Math.max(...values)), "record")}` : "";
  return html`<div class="ov-spark" role="img" aria-label=${label + told} ref=${place} style=${`min-height:${height}px`}></div>`;
}
