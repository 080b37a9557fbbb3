// Pipelines: topics → queries → topics and tables as a graph, and the figures of each query.

import { html } from "../lib.js";
import { get, useData } from "../api.js";
import { Badge, Bytes, Command, Count, Duration, Failed, Loading, Notice, Table, Time, format } from "../parts.js";
import { Graph } from "../pipelines/graph.js";

const EVERY_MS = 2000;

const LEVELS = { running: "ok", finished: "ok", starting: "warn", stopping: "warn", stopped: "off", failed: "bad", died: "bad" };
export const levelOf = (state) => LEVELS[state] ?? "off";

const number = (value) => html`<span class="number">${value === null ? format.UNKNOWN : format.count(value)}</span>`;

const QUERIES = [
  { name: "name", title: "Query", cell: (row) => html`<b>${row.name}</b>` },
  { name: "state", title: "State", cell: (row) => html`<${Badge} level=${levelOf(row.state)} text=${row.state} />` },
  { name: "reads", title: "Reads", value: (row) => row.reads.join(", "), cell: (row) => row.reads.join(", ") || html`<span class="muted">nothing yet</span>` },
  { name: "to", title: "Writes", value: (row) => row.to || format.UNKNOWN },
  { name: "rows_in_per_s", title: "Rows/s in", align: "right", cell: (row) => number(row.rows_in_per_s) },
  { name: "rows_out_per_s", title: "Rows/s out", align: "right", cell: (row) => number(row.rows_out_per_s) },
  { name: "lag", title: "Lag", align: "right", cell: (row) => html`<span class="number" title=${row.lag_is_current ? "now" : "of the last micro-batch"}>${row.lag_is_current ? "" : "≈ "}${format.count(row.lag)}</span>` },
  { name: "batch_ms", title: "Batch time", align: "right", cell: (row) => html`<${Duration} ms=${row.batch_ms} />` },
  { name: "batch", title: "Batch", align: "right", cell: (row) => html`<${Count} n=${row.batch} />` },
  { name: "watermark", title: "Watermark", cell: (row) => (row.watermark ? html`<${Time} ms=${Date.parse(row.watermark)} millis=${false} />` : format.UNKNOWN) },
  { name: "state_rows", title: "State rows", align: "right", cell: (row) => html`<${Count} n=${row.state_rows} />` },
  { name: "state_bytes", title: "State", align: "right", cell: (row) => html`<${Bytes} n=${row.state_bytes} />` },
  { name: "late_rows", title: "Late rows", align: "right", cell: (row) => html`<${Count} n=${row.late_rows} />` },
];

function App({ app }) {
  const errors = app.queries.filter((query) => query.error && query.error !== app.error);
  return html`<section class="panel pl-app">
    <div class="row spread">
      <h2>${app.app}</h2>
      <${Badge} level=${app.level} text=${app.state} />
    </div>
    <p class="muted">${app.file} on ${app.master}, brokers ${app.brokers}; process ${app.pid}, seen <${Duration} ms=${app.seen_ms} /> ago.</p>
    ${!app.is_here && html`<${Notice}>It reads from another cluster, as far as its addresses say; its lag is that of its last micro-batch.</${Notice}>`}
    ${app.error && html`<${Notice} level="bad"><pre class="pl-error">${app.error}</pre></${Notice}>`}
    ${errors.map((query) => html`<${Notice} key=${query.name} level="bad"><b>${query.name}</b><pre class="pl-error">${query.error}</pre></${Notice}>`)}
    <${Table} label=${`Queries of ${app.app}`} columns=${QUERIES} rows=${app.queries} rowKey=${(row) => row.name} empty="It has no query yet." />
  </section>`;
}

function None({ data }) {
  return html`<section class="panel pl-none">
    <p>${data.exists ? "No app has run with its state in" : "There is no folder"} <code>${data.folder}</code>.</p>
    <p>An app that runs with this state folder is shown here:</p>
    <p><${Command} text=${data.is_given ? `hightide pipeline run shop.py --state ${data.folder}` : "hightide pipeline run shop.py"} /></p>
    <p>The console looks into another folder with <code>hightide console --pipelines DIR</code>.</p>
  </section>`;
}

export default function Pipelines() {
  const { data, error, loading } = useData(() => get("pipelines"), [], EVERY_MS);
  return html`
    <h1>Pipelines</h1>
    <${Failed} error=${error} />
    ${!data && loading && html`<${Loading} />`}
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    ${data && (data.apps.length === 0
      ? html`<${None} data=${data} />`
      : html`<section class="panel"><${Graph} graph=${data.graph} apps=${data.apps} /></section>
          ${data.apps.map((app) => html`<${App} key=${app.app} app=${app} />`)}
          <p class="same">The same in a terminal: <${Command} text=${data.is_given ? `hightide pipeline status --state ${data.folder}` : "hightide pipeline status"} /></p>`)}
  `;
}
