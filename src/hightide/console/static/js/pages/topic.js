// One topic: its partitions, its settings with source and meaning, the groups that read it.

import { html, useState } from "../lib.js";
import { get } from "../api.js";
import { Badge, Button, Bytes, Count, Duration, Failed, Loading, Notice, Table, format } from "../parts.js";
import { Link, navigate } from "../router.js";
import { AddPartitions, DeleteTopic, EditSetting, ResetSetting, readable, topicPath } from "../topics/dialogs.js";
import { useLooks } from "../topics/looks.js";
import { retention } from "./topics.js";

const LOOK_MS = 2000;
const GROUPS_MS = 5000;

export default function Topic({ params }) {
  const { topic } = params;
  const [dialog, setDialog] = useState(null);
  const { data, error, reload } = useLooks(() => get(topicPath(topic)), [topic], LOOK_MS);
  const close = () => setDialog(null);
  return html`
    <p class="crumbs"><${Link} to="/t">Topics</${Link}></p>
    <div class="row spread page-head">
      <h1>${topic} ${data?.internal && html`<${Badge} text="internal" />`}</h1>
      <div class="row">
        <${Link} to=${`/t/${encodeURIComponent(topic)}/m`} class="button primary">Messages</${Link}>
        <${Button} change disabled=${!data} onClick=${() => setDialog("grow")}>Add partitions</${Button}>
        <${Button} kind="danger" change disabled=${!data} onClick=${() => setDialog("delete")}>Delete</${Button}>
      </div>
    </div>
    <${Failed} error=${error} />
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    ${!data && !error && html`<${Loading} what="Loading the topic" />`}
    ${data && html`
      <${Facts} data=${data} />
      <${Partitions} topic=${topic} rows=${data.partition_rows} />
      <${Settings} topic=${topic} settings=${data.settings} onChange=${reload} />
      <${Consumers} topic=${topic} />`}
    ${dialog === "grow" && html`<${AddPartitions} topic=${topic} count=${data.partitions} onDone=${reload} onClose=${close} />`}
    ${dialog === "delete" && html`<${DeleteTopic} topic=${topic} offsets=${data?.offsets} onDone=${() => navigate("/t")} onClose=${close} />`}
  `;
}

function Facts({ data }) {
  const facts = [
    ["Health", html`<${Badge} level=${data.level} text=${data.text} />`],
    ["Partitions", format.count(data.partitions)],
    ["Replicas", format.count(data.replication)],
    ["Needed in sync", format.count(data.min_isr)],
    ["Offsets", html`<${Count} n=${data.offsets} />`],
    ["Size", html`<${Bytes} n=${data.size_bytes} /> <span class="muted">(${format.bytes(data.disk_bytes)} with all replicas)</span>`],
    ["Written", html`<span class="number">${format.rate(data.messages_in_s)}${data.bytes_in_s === null ? "" : `, ${format.bytes(data.bytes_in_s)}/s`}</span>`],
    ["Kept for", retention(data)],
    ["Id", html`<code>${data.topic_id}</code>`],
  ];
  return html`<section class="panel" aria-label="Facts">
    <dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  </section>`;
}

function Partitions({ topic, rows }) {
  const link = (row) => `/x/${encodeURIComponent(topic)}/${row.partition}`;
  const columns = [
    { name: "partition", title: "Partition", cell: (row) => html`<${Link} to=${link(row)} aria-label=${`X-ray of partition ${row.partition}`}>${row.partition}</${Link}>` },
    { name: "level", title: "Health", cell: (row) => html`<${Badge} level=${row.level} text=${row.text} />` },
    { name: "leader", title: "Leader", align: "right", cell: (row) => (row.leader < 0 ? "none" : row.leader) },
    { name: "leader_epoch", title: "Epoch", align: "right" },
    { name: "replicas", title: "Replicas", value: (row) => row.replicas.join(", ") },
    { name: "isr", title: "In sync", value: (row) => row.isr.join(", ") },
    { name: "start_offset", title: "From", align: "right", cell: (row) => html`<${Count} n=${row.start_offset} />` },
    { name: "end_offset", title: "To", align: "right", cell: (row) => html`<${Count} n=${row.end_offset} />` },
    { name: "size_bytes", title: "Size", align: "right", cell: (row) => html`<${Bytes} n=${row.size_bytes} />` },
    { name: "messages_in_s", title: "Written", align: "right", cell: (row) => html`<span class="rate number">${format.rate(row.messages_in_s)}</span>` },
    { name: "messages", title: "", value: () => 0, cell: (row) => html`<${Link} to=${`/t/${encodeURIComponent(topic)}/m?partitions=${row.partition}`} aria-label=${`Messages of partition ${row.partition}`}>Messages</${Link}>` },
  ];
  return html`<section class="panel">
    <h2>Partitions</h2>
    <p class="hint">A partition's number leads to its X-ray: every replica's log, live.</p>
    <${Table} columns=${columns} rows=${rows} rowKey=${(row) => row.partition} sort=${{ name: "partition" }} label="Partitions" />
  </section>`;
}

function Settings({ topic, settings, onChange }) {
  const [wanted, setWanted] = useState("");
  const [changedOnly, setChangedOnly] = useState(false);
  const [dialog, setDialog] = useState(null);
  const changed = settings.filter((one) => one.changed).length;
  const matches = (one) => `${one.name} ${one.meaning}`.toLowerCase().includes(wanted.toLowerCase());
  const rows = settings.filter((one) => (one.changed || !changedOnly) && matches(one));
  const columns = [
    { name: "name", title: "Setting", cell: (row) => html`<code class="name">${row.name}</code>` },
    { name: "value", title: "Value", cell: (row) => html`<${Value} setting=${row} />` },
    { name: "source", title: "From", value: (row) => (row.changed ? "" : row.source), cell: (row) => (row.changed ? html`<${Badge} text="this topic" />` : row.source) },
    { name: "meaning", title: "Meaning", cell: (row) => html`<span class="meaning">${row.meaning}</span>` },
    { name: "actions", title: "", value: () => 0, cell: (row) => html`<span class="actions">
      <${Button} change disabled=${row.read_only} onClick=${() => setDialog({ kind: "edit", setting: row })} label=${`Edit ${row.name}`}>Edit</${Button}>
      ${row.changed && html`<${Button} change onClick=${() => setDialog({ kind: "reset", setting: row })} label=${`Reset ${row.name}`}>Reset</${Button}>`}
    </span>` },
  ];
  const close = () => setDialog(null);
  return html`<section class="panel">
    <h2>Settings</h2>
    <div class="row topic-filter">
      <input type="search" aria-label="Filter the settings" placeholder="Filter by name or meaning" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <label class="check">
        <input type="checkbox" checked=${changedOnly} onChange=${(event) => setChangedOnly(event.target.checked)} />
        Only the ${changed} of this topic
      </label>
    </div>
    <${Table} columns=${columns} rows=${rows} rowKey=${(row) => row.name} sort=${{ name: "source" }} label="Settings"
      empty=${changedOnly && changed === 0 ? "The topic has no settings of its own." : "No setting matches."} />
    ${dialog?.kind === "edit" && html`<${EditSetting} topic=${topic} setting=${dialog.setting} onDone=${onChange} onClose=${close} />`}
    ${dialog?.kind === "reset" && html`<${ResetSetting} topic=${topic} setting=${dialog.setting} onDone=${onChange} onClose=${close} />`}
  </section>`;
}

function Value({ setting }) {
  if (setting.sensitive) return html`<span class="muted">hidden</span>`;
  if (setting.value === null || setting.value === "") return html`<span class="muted">none</span>`;
  const text = readable(setting.name, setting.value);
  return html`<code>${setting.value}</code> ${text && html`<span class="muted">${text}</span>`}`;
}

function Consumers({ topic }) {
  const { data, error } = useLooks(() => get(`${topicPath(topic)}/consumers`), [topic], GROUPS_MS);
  const columns = [
    { name: "group", title: "Group", cell: (row) => html`<${Link} to=${`/g/${encodeURIComponent(row.group)}`}>${row.group}</${Link}>` },
    { name: "state", title: "State" },
    { name: "members", title: "Members here", align: "right" },
    { name: "lag_ms", title: "Behind", align: "right", cell: (row) => html`<${Duration} ms=${row.lag_ms} />` },
    { name: "lag_records", title: "Records", align: "right", cell: (row) => html`<${Count} n=${row.lag_records} />` },
    { name: "worst", title: "Furthest behind", value: (row) => worst(row)?.lag_records ?? 0, cell: (row) => behind(worst(row)) },
  ];
  return html`<section class="panel">
    <h2>Groups that read it</h2>
    <${Failed} error=${error} />
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    ${!data && !error ? html`<${Loading} what="Loading the groups" />` : data && html`<${Table} columns=${columns} rows=${data.groups} rowKey=${(row) => row.group}
      sort=${{ name: "lag_ms", descending: true }} label="Groups" empty="No group has committed offsets of this topic or reads it now." />`}
  </section>`;
}

const worst = (row) => [...row.partitions].sort((a, b) => (b.lag_records ?? -1) - (a.lag_records ?? -1))[0];

const behind = (partition) =>
  partition?.lag_records ? `partition ${partition.partition}: ${format.counted(partition.lag_records, "record")}` : "–";
