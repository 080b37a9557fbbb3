// Open transactions, what each of them blocks, and those that hang.

import { html, useState } from "../lib.js";
import { get, post, useData } from "../api.js";
import { Badge, Button, Command, Confirm, Count, Duration, Failed, Loading, Notice, Table, Time, format } from "../parts.js";
import { Link } from "../router.js";

const EVERY_MS = 2000;

const placeOf = (row) => `${row.topic}/${row.partition}`;

const place = (row) => html`<${Link} to=${`/x/${encodeURIComponent(row.topic)}/${row.partition}`}>${placeOf(row)}</${Link}>`;

function Holds({ row }) {
  if (row.last_stable_offset === null) return html`<span class="muted">not known: no leader answers</span>`;
  if (row.start_offset === null) return html`<span class="muted">nothing written yet</span>`;
  if (row.holds) return html`<${Badge} level="warn" text=${`holds ${format.counted(row.blocked, "record")}`} />`;
  return html`<span>behind another transaction</span>`;
}

const BLOCKS = [
  { name: "partition", title: "Partition", value: placeOf, cell: place },
  { name: "holds", title: "Last stable offset", value: (row) => row.blocked, cell: (row) => html`<${Holds} row=${row} />` },
  { name: "start_offset", title: "Begins at", align: "right", cell: (row) => html`<${Count} n=${row.start_offset} />` },
  { name: "last_stable_offset", title: "Stable to", align: "right", cell: (row) => html`<${Count} n=${row.last_stable_offset} />` },
  { name: "high_watermark", title: "High watermark", align: "right", cell: (row) => html`<${Count} n=${row.high_watermark} />` },
  { name: "last_written_ms", title: "Last write", cell: (row) => html`<${Time} ms=${row.last_written_ms} millis=${false} />` },
];

function stateOf(row) {
  if (row.is_late) return ["bad", "older than its timeout"];
  if (!row.can_abort) return ["off", row.state];
  return row.holds ? ["warn", row.state] : ["ok", row.state];
}

function Transaction({ row, ask }) {
  const [level, text] = stateOf(row);
  return html`<section class="panel tx">
    <div class="tx-head">
      <h2>${row.transactional_id}</h2>
      <span class="row">
        <${Badge} level=${level} text=${text} />
        <${Button} kind="danger" change disabled=${!row.can_abort} title=${row.can_abort ? undefined : "It is ending already."} onClick=${ask}>Abort …</${Button}>
      </span>
    </div>
    <p class="tx-facts">
      Open for <${Duration} ms=${row.age_ms} /> of at most <${Duration} ms=${row.timeout_ms} />,
      since <${Time} ms=${row.started_ms} millis=${false} />; producer ${row.producer_id}, epoch ${row.producer_epoch},
      coordinator: broker ${row.coordinator}.
    </p>
    <${Table} label=${`Partitions of ${row.transactional_id}`} columns=${BLOCKS} rows=${row.partitions} rowKey=${placeOf}
      sort=${{ name: "holds", descending: true }} empty="It has written to no partition yet." />
  </section>`;
}

function Hanging({ data, error, ask, look, looking }) {
  const columns = [
    { name: "partition", title: "Partition", value: placeOf, cell: place },
    { name: "producer_id", title: "Producer", align: "right" },
    { name: "start_offset", title: "Begins at", align: "right", cell: (row) => html`<${Count} n=${row.start_offset} />` },
    { name: "blocked", title: "Records held", align: "right", cell: (row) => html`<${Count} n=${row.blocked} />` },
    { name: "last_written_ms", title: "Last write", cell: (row) => html`<${Time} ms=${row.last_written_ms} millis=${false} />` },
    { name: "abort", title: "", value: () => 0, cell: (row) => html`<${Button} kind="danger" change onClick=${() => ask(row)}>Abort …</${Button}>` },
  ];
  return html`<section class="panel tx-hanging">
    <h2>Hanging transactions</h2>
    <p>A transaction hangs if it is open in a partition and no coordinator knows it: it never ends by itself.</p>
    <${Failed} error=${error} />
    ${data && html`<${Table} label="Hanging transactions" columns=${columns} rows=${data.hanging} rowKey=${(row) => `${placeOf(row)} ${row.producer_id}`} empty="✓ No transaction hangs." />`}
    <p class="row">
      <${Button} onClick=${look} disabled=${looking}>${data ? "Look again" : "Look for them"}</${Button}>
      ${data && html`<span class="same">The same in a terminal: <${Command} text=${data.command} /></span>`}
    </p>
  </section>`;
}

function Abort({ row, onClose, onDone }) {
  const hangs = row.transactional_id === undefined;
  const { topic, partition, producer_id, start_offset } = row;
  const body = hangs ? { topic, partition, producer_id, start_offset } : { transactional_id: row.transactional_id };
  const text = hangs
    ? `An abort marker is written to ${placeOf(row)}. Consumers that read committed records skip the records of producer ${producer_id} from offset ${format.count(start_offset)}.`
    : `The coordinator aborts it in ${format.counted(row.partitions.length, "partition")} and fences its producer, which must then be restarted. Its records are skipped by consumers that read committed records.`;
  const confirm = async () => {
    await post("transactions/abort", body);
    onDone();
  };
  return html`<${Confirm} title=${hangs ? "Abort a hanging transaction" : `Abort ${row.transactional_id}`} text=${text} command=${row.command}
    action="Abort the transaction" onConfirm=${confirm} onClose=${onClose} />`;
}

function summaryOf(rows) {
  if (rows.length === 0) return "No transaction is open.";
  const holding = rows.filter((row) => row.holds);
  const blocked = holding.reduce((sum, row) => sum + row.blocked, 0);
  const open = rows.length === 1 ? "1 transaction is open" : `${format.count(rows.length)} transactions are open`;
  return holding.length ? `${open}; consumers that read committed records wait for ${format.counted(blocked, "record")}.` : `${open}; none holds back a record.`;
}

export default function Transactions() {
  const { data, error, loading, reload } = useData(() => get("transactions"), [], EVERY_MS);
  const [asked, setAsked] = useState(null);
  const [hanging, setHanging] = useState({});
  const [looking, setLooking] = useState(false);
  const look = async () => {
    setLooking(true);
    try {
      setHanging({ data: await get("transactions/hanging") });
    } catch (failure) {
      setHanging({ error: failure });
    }
    setLooking(false);
  };
  const done = () => {
    reload();
    if (asked.transactional_id === undefined) look();
  };
  return html`
    <h1>Transactions</h1>
    <${Failed} error=${error} />
    ${!data && loading && html`<${Loading} />`}
    ${data?.notes.map((note) => html`<${Notice} key=${note} level="warn">${note}</${Notice}>`)}
    ${data && html`<p class="tx-summary">${summaryOf(data.transactions)}</p>`}
    ${data?.transactions.map((row) => html`<${Transaction} key=${row.transactional_id} row=${row} ask=${() => setAsked(row)} />`)}
    <${Hanging} ...${hanging} look=${look} looking=${looking} ask=${setAsked} />
    ${asked && html`<${Abort} row=${asked} onClose=${() => setAsked(null)} onDone=${done} />`}
  `;
}
