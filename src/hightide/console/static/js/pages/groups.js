// All groups: how far each is behind, in seconds first, then in records.

import { html, useMemo, useState } from "../lib.js";
import { get, useData } from "../api.js";
import { Badge, Count, Duration, Failed, Field, Loading, Notice, Table, format } from "../parts.js";
import { Link } from "../router.js";
import { Sparkline } from "../groups/sparkline.js";
import { levelOfLag, levelOfState, pathOf } from "../groups/words.js";

const EVERY_MS = 2000;
const MOST_TOPICS = 3;

const COLUMNS = [
  { name: "group", title: "Group", cell: (row) => html`<${Link} to=${pathOf(row.group)}>${row.group}</${Link}>` },
  { name: "lag_ms", title: "Behind", align: "right", cell: (row) => html`<${Lag} row=${row} />` },
  { name: "recent", title: "15 min", value: (row) => Math.max(0, ...row.recent), cell: (row) => html`<${Sparkline} values=${row.recent} />` },
  { name: "lag_records", title: "Records", align: "right", cell: (row) => html`<${Count} n=${row.lag_records} />` },
  { name: "trend", title: "In a minute", align: "right", cell: (row) => html`<${Trend} n=${row.trend} />` },
  { name: "state", title: "State", cell: (row) => html`<${Badge} level=${levelOfState(row.state)} text=${row.state} />` },
  { name: "members", title: "Members", align: "right", cell: (row) => html`<${Count} n=${row.members} />` },
  { name: "topics", title: "Topics", value: (row) => row.topics.join(" "), cell: (row) => topicsOf(row.topics) },
  { name: "type", title: "Protocol", value: protocolOf, cell: protocolOf },
  { name: "coordinator", title: "Coordinator", align: "right" },
];

function Lag({ row }) {
  const level = levelOfLag(row);
  if (row.lag_ms === null) return html`<span title="not known now">${format.UNKNOWN}</span>`;
  return level === "ok" ? html`<${Duration} ms=${row.lag_ms} />` : html`<${Badge} level=${level} text=${format.duration(row.lag_ms)} />`;
}

function Trend({ n }) {
  if (n === null || n === undefined) return format.UNKNOWN;
  if (n === 0) return html`<span class="number">0</span>`;
  return html`<span class="number">${n > 0 ? "▲ +" : "▼ −"}${format.count(Math.abs(n))}</span>`;
}

function protocolOf(row) {
  return [row.type, row.protocol && row.protocol !== "consumer" ? `(${row.protocol})` : ""].filter(Boolean).join(" ") || format.UNKNOWN;
}

function topicsOf(topics) {
  if (topics.length <= MOST_TOPICS) return topics.join(", ") || format.UNKNOWN;
  const rest = topics.slice(MOST_TOPICS);
  return html`<span title=${rest.join(", ")}>${topics.slice(0, MOST_TOPICS).join(", ")} and ${rest.length} more</span>`;
}

const matches = (row, text) => [row.group, row.state, ...row.topics].some((part) => part.toLowerCase().includes(text));

function summaryOf(groups) {
  const behind = groups.filter((row) => row.lag_records > 0);
  if (groups.length === 0) return "There are no groups.";
  if (behind.length === 0) return `${format.counted(groups.length, "group")}; none is behind.`;
  const worst = behind.reduce((a, b) => ((b.lag_ms ?? -1) > (a.lag_ms ?? -1) ? b : a));
  const most = worst.lag_ms === null ? "" : `; ${worst.group} is furthest behind, by ${format.duration(worst.lag_ms)}`;
  return `${format.counted(groups.length, "group")}, ${format.count(behind.length)} behind${most}.`;
}

export default function Groups() {
  const { data, error, loading } = useData(() => get("groups"), [], EVERY_MS);
  const [wanted, setWanted] = useState("");
  const groups = data?.groups ?? [];
  const text = wanted.trim().toLowerCase();
  const shown = useMemo(() => (text ? groups.filter((row) => matches(row, text)) : groups), [groups, text]);
  return html`
    <div class="row spread end gr-head">
      <div><h1>Groups</h1><p class="gr-summary">${data ? summaryOf(groups) : ""}</p></div>
      <${Field} label="Filter">
        <input type="search" value=${wanted} placeholder="group, topic or state" onInput=${(event) => setWanted(event.target.value)} />
      </${Field}>
    </div>
    <${Failed} error=${error} />
    ${!data && loading && html`<${Loading} />`}
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    ${data && html`
      <div class="panel gr-groups">
        <${Table} label="Groups" columns=${COLUMNS} rows=${shown} rowKey=${(row) => row.group} sort=${{ name: "lag_ms", descending: true }}
          empty=${groups.length ? "No group matches." : "No group has committed offsets or has members yet."} />
      </div>
      <p class="hint">Behind is the age of the oldest record that the group has not consumed, in its slowest partition.</p>`}
  `;
}
