// The lag of the last minutes as a small line. It is decoration: the column has the number too.

import { html } from "../lib.js";

const WIDTH = 90;
const HEIGHT = 20;

function linesOf(values) {
  const most = Math.max(1, ...values.map((value) => value ?? 0));
  const step = WIDTH / Math.max(1, values.length - 1);
  const lines = [];
  let line = null;
  values.forEach((value, n) => {
    if (value === null) {
      line = null;
      return;
    }
    if (!line) lines.push((line = []));
    line.push(`${(n * step).toFixed(1)},${(HEIGHT - 1 - (value / most) * (HEIGHT - 2)).toFixed(1)}`);
  });
  return lines;
}

export function Sparkline({ values }) {
  return html`<svg class="gr-spark" width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
    ${linesOf(values).map((line, n) => html`<polyline key=${n} points=${line.join(" ")} />`)}
  </svg>`;
}
