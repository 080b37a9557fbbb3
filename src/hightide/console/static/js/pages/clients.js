// Who is connected: software and versions, the connections of each broker, and client metrics.

import { html, useMemo, useState } from "../lib.js";
import { get, useData } from "../api.js";
import { Command, Count, Duration, Failed, Field, Loading, Notice, Table, format } from "../parts.js";
import { Link } from "../router.js";
import { pathOf } from "../groups/words.js";

const EVERY_MS = 3000;
const METRICS_EVERY_MS = 5000;

const clientOf = (row) => (row.peer_broker === null ? row.client_id || "no name" : `broker ${row.peer_broker}`);

const CONNECTIONS = [
  { name: "client_id", title: "Client", value: clientOf, cell: (row) => html`<b>${clientOf(row)}</b>` },
  { name: "software", title: "Software", value: (row) => `${row.software} ${row.version}` },
  { name: "address", title: "Address", value: (row) => `${row.address}:${row.port}` },
  { name: "broker", title: "Broker", align: "right" },
  { name: "listener", title: "Listener" },
  { name: "connected_ms", title: "Connected for", align: "right", value: (row) => -row.connected_ms, cell: (row) => html`<${Duration} ms=${Math.max(0, Date.now() - row.connected_ms)} />` },
  { name: "requests", title: "Requests", align: "right", cell: (row) => html`<${Count} n=${row.requests} />` },
  { name: "last_api", title: "Last request", value: (row) => row.last_api ?? format.UNKNOWN },
  { name: "idle_ms", title: "Silent for", align: "right", cell: (row) => html`<${Duration} ms=${row.idle_ms} />` },
];

const MEMBERS = [
  { name: "client_id", title: "Client" },
  { name: "host", title: "Host" },
  { name: "group", title: "Group", cell: (row) => html`<${Link} to=${pathOf(row.group)}>${row.group}</${Link}>` },
];

const matches = (row, text) =>
  [clientOf(row), row.software, row.version, row.address, row.listener, row.last_api ?? "", `broker ${row.broker}`].some((part) => part.toLowerCase().includes(text));

function Software({ rows }) {
  if (rows.length === 0) return html`<p class="empty">No client is connected.</p>`;
  return html`<ul class="cl-software">
    ${rows.map((row) => html`<li key=${`${row.software} ${row.version}`}>
      <b>${row.software} ${row.version}</b>
      ${format.counted(row.clients, "client")}, ${format.counted(row.connections, "connection")}, ${format.counted(row.requests, "request")}
    </li>`)}
  </ul>`;
}

function Connections({ data }) {
  const [wanted, setWanted] = useState("");
  const [brokers, setBrokers] = useState(false);
  const text = wanted.trim().toLowerCase();
  const shown = useMemo(
    () => data.connections.filter((row) => (brokers || row.peer_broker === null) && (!text || matches(row, text))),
    [data, text, brokers],
  );
  const open = Object.entries(data.open_connections);
  return html`<section class="panel cl-connections">
    <div class="row spread end">
      <h2>Connections</h2>
      <span class="row end">
        <label class="check"><input type="checkbox" checked=${brokers} onChange=${() => setBrokers(!brokers)} /> between brokers</label>
        <${Field} label="Filter"><input type="search" value=${wanted} placeholder="client, software, address" onInput=${(event) => setWanted(event.target.value)} /></${Field}>
      </span>
    </div>
    <p>${open.map(([broker, count]) => `Broker ${broker} has ${format.counted(count, "open connection")}.`).join(" ")}</p>
    <${Table} label="Connections" columns=${CONNECTIONS} rows=${shown} rowKey=${(row) => `${row.broker} ${row.number}`}
      sort=${{ name: "requests", descending: true }} empty=${data.connections.length ? "No connection matches." : "No connection is listed."} />
    <p class="same">The same in a terminal: <${Command} text=${data.command} /></p>
  </section>`;
}

function Foreign({ data }) {
  if (data.foreign.length === 0) return null;
  return html`<${Notice}>
      ${data.foreign.length === 1 ? "Broker" : "Brokers"} ${data.foreign.join(", ")} ${data.foreign.length === 1 ? "does" : "do"} not list connections:
      Kafka's protocol has no request for that, and only Hightide's brokers answer one. Members of groups are what it shows.
    </${Notice}>
    <section class="panel">
      <h2>Members of groups</h2>
      <${Table} label="Members of groups" columns=${MEMBERS} rows=${data.members} rowKey=${(row) => `${row.group} ${row.id}`} empty="No group has members." />
    </section>`;
}

function Metrics() {
  const { data, error } = useData(() => get("client-metrics"), [], METRICS_EVERY_MS);
  return html`<section class="panel cl-metrics">
    <h2>Client metrics</h2>
    <p>A subscription says which clients push which of their metrics to the brokers (KIP-714).</p>
    <${Failed} error=${error} />
    ${data?.subscriptions === null && html`<${Notice}>This cluster does not list subscriptions: ${data.why}</${Notice}>`}
    ${data?.subscriptions?.length === 0 && html`<p class="empty">There is no subscription. One for all metrics of all clients:</p>
      <${Command} text="hightide config set client-metrics/all metrics=* interval.ms=10000" />`}
    ${data?.subscriptions?.map((one) => html`<div key=${one.name}>
      <h3>${one.name}</h3>
      <dl class="gr-facts">${Object.entries(one.settings).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value || "all"}</dd></div>`)}</dl>
      <p class="same"><${Command} text=${one.command} /></p>
    </div>`)}
  </section>`;
}

export default function Clients() {
  const { data, error, loading } = useData(() => get("clients"), [], EVERY_MS);
  const lists = data && Object.keys(data.open_connections).length > 0;
  return html`
    <h1>Clients</h1>
    <${Failed} error=${error} />
    ${!data && loading && html`<${Loading} />`}
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    ${data && html`<${Foreign} data=${data} />`}
    ${lists && html`<${Software} rows=${data.software} /><${Connections} data=${data} />`}
    <${Metrics} />
  `;
}
