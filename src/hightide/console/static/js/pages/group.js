// One group: its lag over the last 15 minutes, its members, why it rebalanced, and its offsets.

import { html, useMemo, useState } from "../lib.js";
import { get, useData } from "../api.js";
import { Badge, Button, Chart, Count, Duration, Failed, Loading, Notice, Table, Time, format } from "../parts.js";
import { Link, navigate } from "../router.js";
import { DeleteGroupDialog, DeleteOffsetsDialog, ResetDialog } from "../groups/dialogs.js";
import { Matrix } from "../groups/matrix.js";
import { apiOf, levelOfLag, levelOfState, nameOf } from "../groups/words.js";

const EVERY_MS = 2000;

const SECONDS = [{ label: "behind", colour: "series-1", width: 2 }];
const RECORDS = [{ label: "records", colour: "series-2", width: 2 }];

// -- what it is ----------------------------------------------------------------------------------

function Facts({ group }) {
  const last = group.last_rebalance;
  const unread = group.partitions.filter((row) => row.committed === null).length;
  const since = group.since_ms ? html` for <${Duration} ms=${Math.max(0, group.time_ms - group.since_ms)} />` : "";
  return html`<dl class="gr-facts">
    <div><dt>Behind</dt><dd class="gr-lag"><${Badge} level=${levelOfLag(group)} text=${format.duration(group.lag_ms)} /></dd></div>
    <div><dt>Records</dt><dd><span class="gr-lag"><${Count} n=${group.lag_records} /></span>
      ${unread > 0 && html`<br /><span class="hint">and ${format.counted(unread, "partition")} without a commit</span>`}</dd></div>
    <div><dt>State</dt><dd><${Badge} level=${levelOfState(group.state)} text=${group.state} />${since}</dd></div>
    <div><dt>Members</dt><dd><${Count} n=${group.members.length} /></dd></div>
    <div><dt>Protocol</dt><dd>${[group.type, group.protocol, group.assignor].filter(Boolean).join(", ") || format.UNKNOWN}</dd></div>
    <div><dt>${group.type === "Consumer" ? "Epoch" : "Generation"}</dt><dd><${Count} n=${group.generation} /></dd></div>
    <div><dt>Coordinator</dt><dd>broker ${group.coordinator}</dd></div>
    <div class="gr-wide"><dt>Last rebalance</dt><dd>${last ? html`<${Time} ms=${last.time_ms} />: ${last.reason}` : "not known"}</dd></div>
  </dl>`;
}

function Lag({ history }) {
  const times = useMemo(() => history.time_ms.map((ms) => ms / 1000), [history]);
  const seconds = useMemo(() => [times, history.lag_ms.map((ms) => (ms === null ? null : ms / 1000))], [history]);
  const records = useMemo(() => [times, history.lag_records], [history]);
  return html`<section class="panel">
    <h2>Lag</h2>
    <div class="columns">
      <${Chart} title="Behind, in seconds" data=${seconds} series=${SECONDS} height=${170} text=${(n) => format.duration(n * 1000)} />
      <${Chart} title="Behind, in records" data=${records} series=${RECORDS} height=${170} />
    </div>
    <p class="hint">${times.length < 2 ? "The history begins when the console first sees the group." : "A point every five seconds; at most 15 minutes."}</p>
  </section>`;
}

// -- rebalances ----------------------------------------------------------------------------------

const REBALANCES = [
  { name: "time_ms", title: "Time", cell: (row) => html`<${Time} ms=${row.time_ms} />` },
  { name: "kind", title: "What", cell: (row) => (row.kind === "group_rebalanced" ? html`<${Badge} level="ok" text="rebalanced" />` : html`<${Badge} level="warn" text="rebalances" />`) },
  { name: "generation", title: "Generation", align: "right", cell: (row) => html`<${Count} n=${row.generation} />` },
  { name: "members", title: "Members", align: "right", cell: (row) => html`<${Count} n=${row.members} />` },
  { name: "why", title: "Reason or time", cell: (row) => (row.why ? row.why : html`after <${Duration} ms=${row.took_ms} />`) },
];

function Rebalances({ group }) {
  const { rebalances, has_events: known } = group;
  return html`<section class="panel gr-rebalances">
    <h2>Rebalances</h2>
    ${!known && html`<${Notice}>These brokers report no rebalances; only Hightide's do.</${Notice}>`}
    ${known && html`<${Table} label="Rebalances" columns=${REBALANCES} rows=${rebalances} sort=${false}
      rowKey=${(row) => `${row.broker} ${row.time_ms} ${row.kind} ${row.generation}`} empty="The brokers have no rebalance of this group in their memory." />`}
  </section>`;
}

// -- offsets -------------------------------------------------------------------------------------

const keyOf = (row) => `${row.topic}/${row.partition}`;

function offsetColumns(group, chosen, choose) {
  const members = new Map(group.members.map((member) => [member.id, member]));
  const ownerOf = (row) => (row.owner ? nameOf(members.get(row.owner) ?? { id: row.owner }) : "");
  return [
    { name: "chosen", title: "✓", value: (row) => (chosen.has(keyOf(row)) ? 1 : 0), cell: (row) => html`<input type="checkbox" checked=${chosen.has(keyOf(row))} aria-label=${`Choose ${keyOf(row)}`} onChange=${() => choose(keyOf(row))} />` },
    { name: "partition", title: "Partition", value: keyOf, cell: (row) => html`<${Link} to=${`/x/${encodeURIComponent(row.topic)}/${row.partition}`}>${keyOf(row)}</${Link}>` },
    { name: "lag_ms", title: "Behind", align: "right", cell: (row) => html`<${Duration} ms=${row.lag_ms} />` },
    { name: "lag_records", title: "Records", align: "right", cell: (row) => html`<${Count} n=${row.lag_records} />` },
    { name: "committed", title: "Committed", align: "right", cell: (row) => html`<${Count} n=${row.committed} />` },
    { name: "end_offset", title: "End", align: "right", cell: (row) => html`<${Count} n=${row.end_offset} />` },
    { name: "start_offset", title: "Start", align: "right", cell: (row) => html`<${Count} n=${row.start_offset} />` },
    { name: "committed_ms", title: "Last commit", cell: (row) => html`<${Time} ms=${row.committed_ms} millis=${false} />` },
    { name: "owner", title: "Member", value: ownerOf, cell: (row) => ownerOf(row) || html`<span class="muted">none</span>` },
  ];
}

// Who reads committed records waits at an open transaction: that is not the group's fault.
function Held({ rows }) {
  const held = rows.filter((row) => row.held).map(keyOf);
  if (held.length === 0) return null;
  return html`<${Notice} level="warn">
    An open transaction begins at the group's position in ${held.slice(0, 5).join(", ")}${held.length > 5 && ` and ${held.length - 5} more`}.
    Consumers that read committed records wait until it ends. <${Link} to="/txns">Which transaction?</${Link}>
  </${Notice}>`;
}

function Offsets({ group, chosen, setChosen, ask }) {
  const choose = (key) => {
    const next = new Set(chosen);
    if (!next.delete(key)) next.add(key);
    setChosen(next);
  };
  const all = group.partitions.length > 0 && group.partitions.every((row) => chosen.has(keyOf(row)));
  const chooseAll = () => setChosen(all ? new Set() : new Set(group.partitions.map(keyOf)));
  return html`<section class="panel gr-offsets">
    <div class="row spread">
      <h2>Offsets</h2>
      <span class="row">
        <label class="check"><input type="checkbox" checked=${all} onChange=${chooseAll} /> all</label>
        <${Button} change onClick=${() => ask("reset")}>Reset${chosen.size ? ` ${chosen.size}` : ""} …</${Button}>
        <${Button} kind="danger" change disabled=${chosen.size === 0} title="Choose partitions first" onClick=${() => ask("offsets")}>Delete offsets …</${Button}>
      </span>
    </div>
    <${Table} label="Offsets" columns=${offsetColumns(group, chosen, choose)} rows=${group.partitions} rowKey=${keyOf}
      sort=${{ name: "lag_ms", descending: true }} empty="The group has no commits, and its members have no partitions." />
  </section>`;
}

// -- the page ------------------------------------------------------------------------------------

function Asked({ asked, name, chosen, close, reload }) {
  const partitions = [...chosen].sort();
  if (asked === "reset") return html`<${ResetDialog} group=${name} partitions=${partitions} onClose=${close} onDone=${reload} />`;
  if (asked === "offsets") return html`<${DeleteOffsetsDialog} group=${name} partitions=${partitions} onClose=${close} onDone=${reload} />`;
  if (asked === "delete") return html`<${DeleteGroupDialog} group=${name} onClose=${close} onDone=${() => navigate("/g")} />`;
  return null;
}

export default function Group({ params }) {
  const name = params.group;
  const { data, error, loading, reload } = useData(() => get(apiOf(name)), [name], EVERY_MS);
  const [chosen, setChosen] = useState(new Set());
  const [asked, setAsked] = useState(null);
  return html`
    <p class="gr-back"><${Link} to="/g">Groups</${Link}></p>
    <div class="row spread">
      <h1>${name}</h1>
      ${data && html`<${Button} kind="danger" change onClick=${() => setAsked("delete")}>Delete …</${Button}>`}
    </div>
    <${Failed} error=${error} />
    ${!data && loading && html`<${Loading} />`}
    ${data && html`
      ${data.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
      <${Held} rows=${data.partitions} />
      <section class="panel"><${Facts} group=${data} /></section>
      <${Lag} history=${data.history} />
      <${Offsets} group=${data} chosen=${chosen} setChosen=${setChosen} ask=${setAsked} />
      <section class="panel gr-members"><h2>Members and partitions</h2><${Matrix} group=${data} /></section>
      <${Rebalances} group=${data} />`}
    <${Asked} asked=${asked} name=${name} chosen=${chosen} close=${() => setAsked(null)} reload=${reload} />
  `;
}
