// The graph of pipelines as plain SVG: a column for each layer, boxes, and curves between them. The
// server has placed the nodes in layers and rows.

import { html } from "../lib.js";
import { format } from "../parts.js";
import { navigate } from "../router.js";

const BOX = { width: 178, height: 62 };
const GAP = { x: 62, y: 20 };
const MOST_LETTERS = 22;

const SIGNS = { topic: "▤", query: "ƒ", table: "▦", print: "❯" };
const KINDS = { topic: "topic", query: "query", table: "table", print: "terminal" };
const MARKS = { running: "✓", finished: "✓", starting: "▲", stopping: "▲", stopped: "◼", failed: "✕", died: "✕" };
const LEVELS = { running: "ok", finished: "ok", starting: "warn", stopping: "warn", failed: "bad", died: "bad" };

const short = (text) => (text.length > MOST_LETTERS ? `…${text.slice(1 - MOST_LETTERS)}` : text);

const leftOf = (node) => 2 + node.layer * (BOX.width + GAP.x);
const topOf = (node) => 2 + node.row * (BOX.height + GAP.y);

// What a box says under its name.
function linesOf(node, query) {
  if (node.kind !== "query") return [KINDS[node.kind] ?? node.kind];
  if (!query) return [node.app];
  const rate = `${format.rate(query.rows_in_per_s, "rows")}`;
  return [`${node.app} · ${MARKS[query.state] ?? ""} ${query.state}`, `${rate} · lag ${format.count(query.lag)}`];
}

function Edge({ from, to }) {
  const back = to.layer <= from.layer;
  const x1 = leftOf(from) + BOX.width;
  const y1 = topOf(from) + BOX.height / 2;
  const x2 = leftOf(to) - 6;
  const y2 = topOf(to) + BOX.height / 2;
  const bend = back ? GAP.x * 1.5 : GAP.x / 2;
  return html`<path class=${`pl-edge${back ? " pl-backward" : ""}`} d=${`M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`} marker-end="url(#pl-arrow)" />`;
}

function Box({ node, query }) {
  const [first, second] = linesOf(node, query);
  const level = query ? LEVELS[query.state] ?? "off" : "";
  const to = node.kind === "topic" ? `/t/${encodeURIComponent(node.name)}` : null;
  const open = to && ((click) => (click.preventDefault(), navigate(to)));
  const content = html`
    <rect width=${BOX.width} height=${BOX.height} rx="8" />
    <text class="pl-name" x="12" y="22">${SIGNS[node.kind] ?? ""} ${short(node.name)}</text>
    <text class="pl-line" x="12" y="39">${first}</text>
    ${second && html`<text class="pl-line" x="12" y="54">${second}</text>`}
    <title>${node.to && node.kind === "table" ? node.to : node.name}</title>`;
  return html`<g class=${`pl-node pl-${node.kind} ${level}`} transform=${`translate(${leftOf(node)},${topOf(node)})`}>
    ${to ? html`<a href=${to} onClick=${open}>${content}</a>` : content}
  </g>`;
}

export function Graph({ graph, apps }) {
  const nodes = new Map(graph.nodes.map((node) => [node.id, node]));
  const queries = new Map(apps.flatMap((app) => app.queries.map((query) => [`query:${app.app}/${query.name}`, query])));
  const width = Math.max(...graph.nodes.map((node) => leftOf(node) + BOX.width)) + 2;
  const height = Math.max(...graph.nodes.map((node) => topOf(node) + BOX.height)) + 2;
  const words = graph.edges.map(({ from, to }) => `${nodes.get(from).name} to ${nodes.get(to).name}`).join(", ");
  return html`<div class="pl-graph" tabindex="0" role="region" aria-label="Graph of the pipelines">
    <p class="hidden-text">${words || "No query has read anything yet."}</p>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
      <defs><marker id="pl-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" /></marker></defs>
      ${graph.edges.map((edge) => html`<${Edge} key=${`${edge.from}>${edge.to}`} from=${nodes.get(edge.from)} to=${nodes.get(edge.to)} />`)}
      ${graph.nodes.map((node) => html`<${Box} key=${node.id} node=${node} query=${queries.get(node.id)} />`)}
    </svg>
  </div>`;
}
