// All topics: partitions, replicas, size, rate, retention and health; create one.

import { html, useState } from "../lib.js";
import { get } from "../api.js";
import { Badge, Button, Bytes, Count, Failed, Loading, Notice, Table, format } from "../parts.js";
import { Link, navigate, setQuery } from "../router.js";
import { CreateTopic } from "../topics/dialogs.js";
import { useLooks } from "../topics/looks.js";

const LOOK_MS = 3000;
const WORST_FIRST = { off: 0, bad: 1, warn: 2, ok: 3 };

export default function Topics({ query }) {
  const internal = query.internal === "1";
  const wanted = query.q ?? "";
  const [creating, setCreating] = useState(false);
  const { data, error, reload } = useLooks(() => get("topics", { internal: internal ? 1 : null }), [internal], LOOK_MS);
  const all = data?.topics ?? [];
  const rows = all.filter((topic) => topic.name.toLowerCase().includes(wanted.toLowerCase()));
  const hidden = data && !internal ? data.internal : 0;
  return html`
    <div class="row spread page-head">
      <h1>Topics</h1>
      <${Button} kind="primary" change onClick=${() => setCreating(true)}>Create a topic</${Button}>
    </div>
    <${Failed} error=${error} />
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    <div class="row topic-filter">
      <input type="search" aria-label="Filter by name" placeholder="Filter by name" value=${wanted} onInput=${(event) => setQuery({ q: event.target.value })} />
      <label class="check">
        <input type="checkbox" checked=${internal} onChange=${(event) => setQuery({ internal: event.target.checked ? "1" : null })} />
        Internal topics${hidden ? ` (${hidden})` : ""}
      </label>
      <span class="muted" role="status">${data ? `${format.count(rows.length)} of ${format.counted(all.length, "topic")}` : ""}</span>
    </div>
    <section class="panel">
      ${!data && !error ? html`<${Loading} what="Loading the topics" />` : html`<${TopicTable} rows=${rows} isFiltered=${wanted !== ""} />`}
    </section>
    ${creating && html`<${CreateTopic} brokers=${data?.brokers} onClose=${() => setCreating(false)}
      onDone=${(name) => { reload(); navigate(`/t/${encodeURIComponent(name)}`); }} />`}
  `;
}

function TopicTable({ rows, isFiltered }) {
  const columns = [
    { name: "name", title: "Topic", cell: (row) => html`<${Link} to=${`/t/${encodeURIComponent(row.name)}`}>${row.name}</${Link}> ${row.internal && html`<${Badge} text="internal" />`}` },
    { name: "level", title: "Health", value: (row) => WORST_FIRST[row.level], cell: (row) => html`<${Badge} level=${row.level} text=${row.text} />` },
    { name: "partitions", title: "Partitions", align: "right" },
    { name: "replication", title: "Replicas", align: "right" },
    { name: "offsets", title: "Offsets", align: "right", cell: (row) => html`<${Count} n=${row.offsets} />` },
    { name: "size_bytes", title: "Size", align: "right", cell: (row) => html`<${Bytes} n=${row.size_bytes} />` },
    { name: "messages_in_s", title: "Written", align: "right", cell: (row) => html`<span class="rate number">${format.rate(row.messages_in_s)}</span>` },
    { name: "retention_ms", title: "Kept for", cell: (row) => retention(row) },
    { name: "messages", title: "", value: () => 0, cell: (row) => html`<${Link} to=${`/t/${encodeURIComponent(row.name)}/m`} aria-label=${`Messages of ${row.name}`}>Messages</${Link}>` },
  ];
  return html`<${Table} columns=${columns} rows=${rows} rowKey=${(row) => row.name} sort=${{ name: "name" }} label="Topics"
    empty=${isFiltered ? "No topic has such a name." : "There are no topics yet."} />`;
}

// How long records stay: by compaction, time and size.
export function retention(row) {
  if (row.cleanup_policy === null) return format.UNKNOWN;
  const parts = [];
  if (row.cleanup_policy.includes("compact")) parts.push("the latest of each key");
  if (row.cleanup_policy.includes("delete")) {
    parts.push(row.retention_ms === null || row.retention_ms < 0 ? "ever" : format.duration(row.retention_ms));
    if (row.retention_bytes > 0) parts.push(`${format.bytes(row.retention_bytes)} a partition`);
  }
  return parts.join(", ");
}
