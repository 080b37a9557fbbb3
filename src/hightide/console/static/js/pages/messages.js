// The records of a topic: read from anywhere, filter, follow live, look into one, write, replay.

import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { get, useData } from "../api.js";
import { Button, Field, Notice, Virtual, format } from "../parts.js";
import { Link, setQuery } from "../router.js";
import { Produce, Replay } from "../messages/dialogs.js";
import { CopyAs, RecordDetail } from "../messages/detail.js";
import { LIMITS, Reader, STARTS, changesOf, keyOf, paramsOf, readingOf } from "../messages/reading.js";
import { oneLine, preview } from "../messages/values.js";

const PLACES = ["key", "value", "headers"];
const DECODED = ["avro", "protobuf"];
const WIDE = matchMedia("(min-width: 800px)");
const ROW_PX = { wide: 32, narrow: 58 };

export default function Messages({ params, query }) {
  const { topic } = params;
  const [reading, setReading] = useState(() => readingOf(query));
  const [schema, setSchema] = useState({});
  const [selected, setSelected] = useState(new Set());
  const [dialog, setDialog] = useState(null);
  const { data: formats } = useData(() => get("message-formats"), []);
  const reader = useMemo(() => new Reader(topic), [topic]);
  const start = (changes = {}, options = {}) => {
    const wanted = { ...reading, ...changes };
    setReading(wanted);
    setQuery(changesOf(wanted));
    if (!options.more) setSelected(new Set());
    reader.start(paramsOf(wanted, schema), options);
  };
  useEffect(() => {
    reader.start(paramsOf(reading, schema));
    return () => reader.stop();
  }, [reader]);
  const rows = useOrdered(reader.rows.value, reading);
  const chosen = rows.filter((row) => selected.has(keyOf(row)));
  return html`
    <p class="crumbs"><${Link} to="/t">Topics</${Link}> ▸ <${Link} to=${`/t/${encodeURIComponent(topic)}`}>${topic}</${Link}></p>
    <div class="row spread page-head">
      <h1>Messages of ${topic}</h1>
      <div class="row">
        <${Button} change onClick=${() => setDialog({ kind: "produce" })}>Write a record</${Button}>
        <${Button} change disabled=${chosen.length === 0} onClick=${() => setDialog({ kind: "replay", records: chosen })}>
          Replay ${chosen.length > 0 ? format.count(chosen.length) : ""} …
        </${Button}>
      </div>
    </div>
    <${Questions} reading=${reading} onChange=${(changes) => setReading({ ...reading, ...changes })} formats=${formats} schema=${schema} onSchema=${setSchema} onRead=${() => start()} onLive=${() => start({ from: "end" })} />
    <${Status} reader=${reader} onStop=${() => reader.stop()} onMore=${() => start({}, { more: true })} />
    <${Rows} rows=${rows} reader=${reader} selected=${selected} onSelect=${setSelected} onOpen=${(record) => setDialog({ kind: "record", record })} />
    <${CopyAs} topic=${topic} params=${paramsOf(reading, {})} />
    ${dialog?.kind === "produce" && html`<${Produce} topic=${topic} onClose=${() => setDialog(null)} />`}
    ${dialog?.kind === "replay" && html`<${Replay} topic=${topic} records=${dialog.records} onClose=${() => setDialog(null)} />`}
    ${dialog?.kind === "record" && html`<${RecordDetail} topic=${topic} record=${dialog.record} schema=${decodingOf(reading, schema)} isolation=${reading.isolation}
      forms=${formats?.formats.filter((form) => !DECODED.includes(form) || [reading.key_as, reading.value_as].includes(form))} onClose=${() => setDialog(null)} />`}
  `;
}

const decodingOf = (reading, schema) => ({ key_as: reading.key_as, value_as: reading.value_as, ...schema });

// Records come partition by partition; people read them by time. A tail has the newest at the end.
function useOrdered(rows, reading) {
  return useMemo(() => {
    const sign = reading.from === "last" ? -1 : 1;
    const compare = (a, b) => a.time_ms - b.time_ms || a.partition - b.partition || a.offset - b.offset;
    return [...rows].sort((a, b) => sign * compare(a, b));
  }, [rows, reading.from]);
}

// -- what to read ------------------------------------------------------------------------------

function Questions({ reading, onChange, formats, schema, onSchema, onRead, onLive }) {
  const input = (name, rest = {}) => html`<input value=${reading[name]} spellcheck=${false} onInput=${(event) => onChange({ [name]: event.target.value })} ...${rest} />`;
  const submit = (event) => {
    event.preventDefault();
    onRead();
  };
  return html`<form class="panel questions" onSubmit=${submit}>
    <div class="row end">
      <${Field} label="From">
        <select value=${reading.from} onChange=${(event) => onChange({ from: event.target.value })}>
          ${STARTS.map(([value, title]) => html`<option key=${value} value=${value}>${title}</option>`)}
        </select>
      </${Field}>
      ${reading.from === "last" && html`<${Field} label="Of each partition">${input("count", { type: "number", min: 1, max: 10000 })}</${Field}>`}
      ${reading.from === "time" && html`<${Field} label="Time">${input("time", { type: "datetime-local", step: 1 })}</${Field}>`}
      ${reading.from === "offset" && html`<${Field} label="Offset">${input("offset", { type: "number", min: 0 })}</${Field}>`}
      <${Field} label="Partitions">${input("partitions", { placeholder: "all; or 0, 3", class: "short" })}</${Field}>
      <${Field} label="Containing">${input("text", { type: "search", placeholder: "text" })}</${Field}>
      <${Field} label="With the key">${input("key", { type: "search", placeholder: "the whole key" })}</${Field}>
      ${reading.from !== "end" && html`<${Field} label="At most">
        <select value=${reading.limit} onChange=${(event) => onChange({ limit: event.target.value })}>
          ${LIMITS.map((limit) => html`<option key=${limit} value=${limit}>${format.count(Number(limit))}</option>`)}
        </select>
      </${Field}>`}
      <${Button} kind="primary" type="submit">${reading.from === "end" ? "Follow" : "Read"}</${Button}>
      ${reading.from !== "end" && html`<${Button} onClick=${onLive} title="Follow what is written from now on">Live</${Button}>`}
    </div>
    <details class="more-questions" open=${DECODED.includes(reading.value_as) || DECODED.includes(reading.key_as)}>
      <summary>Formats, case, transactions</summary>
      <div class="row end">
        <fieldset class="plain"><legend>Look for the text in</legend><div class="row">
          ${PLACES.map((place) => html`<${Place} key=${place} place=${place} reading=${reading} onChange=${onChange} />`)}
          <label class="check"><input type="checkbox" checked=${reading.match_case === "1"} onChange=${(event) => onChange({ match_case: event.target.checked ? "1" : "" })} /> Match case</label>
        </div></fieldset>
        <${FormatChoice} label="Keys as" name="key_as" reading=${reading} formats=${formats} onChange=${onChange} />
        <${FormatChoice} label="Values as" name="value_as" reading=${reading} formats=${formats} onChange=${onChange} />
        <label class="check"><input type="checkbox" checked=${reading.isolation === "read_uncommitted"} onChange=${(event) => onChange({ isolation: event.target.checked ? "read_uncommitted" : "read_committed" })} />
          Also records of open and aborted transactions</label>
      </div>
      <${Schema} reading=${reading} formats=${formats} schema=${schema} onSchema=${onSchema} />
    </details>
  </form>`;
}

function Place({ place, reading, onChange }) {
  const places = reading.places.split(",");
  const change = (event) => {
    const wanted = PLACES.filter((one) => (one === place ? event.target.checked : places.includes(one)));
    if (wanted.length > 0) onChange({ places: wanted.join(",") });
    else event.target.checked = true;
  };
  return html`<label class="check"><input type="checkbox" checked=${places.includes(place)} onChange=${change} /> ${place}</label>`;
}

const FormatChoice = ({ label, name, reading, formats, onChange }) => html`<${Field} label=${label}>
  <select value=${reading[name]} onChange=${(event) => onChange({ [name]: event.target.value })}>
    ${(formats?.formats ?? ["auto"]).map((form) => html`<option key=${form} value=${form}>${form}</option>`)}
  </select>
</${Field}>`;

// The schema of Avro or Protobuf, or why this console cannot decode it.
function Schema({ reading, formats, schema, onSchema }) {
  const forms = [reading.key_as, reading.value_as];
  if (!formats) return null;
  if (forms.includes("avro")) {
    if (!formats.avro) return html`<${Notice} level="warn">${formats.avro_note}</${Notice}>`;
    return html`<${Field} label="Avro schema"
      hint=${formats.registry ? `Empty: the registry ${formats.registry}, by the id in front of each value.` : "JSON, as in an .avsc file. This console has no schema registry."}>
      <textarea rows="4" value=${schema.schema ?? ""} spellcheck=${false} onInput=${(event) => onSchema({ schema: event.target.value })}></textarea>
    </${Field}>`;
  }
  if (!forms.includes("protobuf")) return null;
  if (!formats.protobuf) return html`<${Notice} level="warn">${formats.protobuf_note}</${Notice}>`;
  const choose = async (event) => {
    const file = event.target.files[0];
    if (file) onSchema({ ...schema, schema: await base64(file) });
  };
  return html`<div class="row end">
    <${Field} label="Descriptors" hint="protoc --include_imports --descriptor_set_out=FILE"><input type="file" onChange=${choose} /></${Field}>
    <${Field} label="Message" hint="Empty if there is only one."><input value=${schema.message ?? ""} placeholder="shop.Order" spellcheck=${false} onInput=${(event) => onSchema({ ...schema, message: event.target.value })} /></${Field}>
  </div>`;
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

// -- how far it is -----------------------------------------------------------------------------

const STOPPED = {
  end: "the end is reached",
  found: "the limit is reached",
  looked: "a million records are looked at",
  bytes: "the limit in bytes is reached",
  time: "a minute has passed",
};

function Status({ reader, onStop, onMore }) {
  const status = reader.status.value;
  const isRunning = ["reading", "live"].includes(status.state);
  const held = Object.values(status.held ?? {}).reduce((sum, n) => sum + n, 0);
  return html`<div class="reading-status">
    <p class="row" role="status"><span>${sentenceOf(status, reader.paused.value)}</span></p>
    <p class="row">
      ${status.state === "live" && (reader.paused.value
        ? html`<${Button} onClick=${() => reader.resume()}>Resume${status.waiting ? ` (${format.count(status.waiting)} new)` : ""}</${Button}>`
        : html`<${Button} onClick=${() => reader.pause()}>Pause</${Button}>`)}
      <${Button} onClick=${onStop} disabled=${!isRunning}>Stop</${Button}>
      ${status.state === "done" && status.more && html`<${Button} onClick=${onMore}>Go on</${Button}>`}
      <progress aria-label="How far the reading is" max=${status.of_offsets || 1} value=${status.state === "reading" ? status.offsets ?? 0 : status.of_offsets || 1} class=${status.state === "reading" ? "" : "still"}></progress>
    </p>
    ${status.state === "failed" && html`<${Notice} level="bad">${status.error}</${Notice}>`}
    ${held > 0 && html`<${Notice} level="warn">${format.counted(held, "offset")} behind an open transaction ${held === 1 ? "is" : "are"} hidden until it ends.</${Notice}>`}
    ${(status.damaged ?? []).map((text) => html`<${Notice} key=${text} level="bad">${text}</${Notice}>`)}
    ${status.again && html`<${Notice} level="warn">The connection was lost for a while; records in between may be missing here.</${Notice}>`}
  </div>`;
}

function sentenceOf(status, isPaused) {
  const looked = format.counted(status.looked ?? 0, "record");
  switch (status.state) {
    case "live": {
      const skipped = status.skipped ? ` ${format.count(status.skipped)} came too fast and are skipped.` : "";
      const dropped = status.dropped ? ` Only the newest are kept; ${format.count(status.dropped)} are dropped.` : "";
      return `${isPaused ? "Paused." : "Live."} ${looked} looked at.${skipped}${dropped}`;
    }
    case "done":
      return `${format.count(status.found)} found in ${looked} looked at, ${format.bytes(status.bytes)}: ${STOPPED[status.stopped]}.`;
    case "stopped":
      return `Stopped. ${looked} looked at.`;
    case "reading":
      return `Reading: ${format.count(status.found)} found in ${looked} looked at …`;
    case "failed":
      return "The reading has failed.";
    default:
      return "";
  }
}

// -- the records -------------------------------------------------------------------------------

function useWide() {
  const [wide, setWide] = useState(WIDE.matches);
  useEffect(() => {
    const change = () => setWide(WIDE.matches);
    WIDE.addEventListener("change", change);
    return () => WIDE.removeEventListener("change", change);
  }, []);
  return wide;
}

function Rows({ rows, reader, selected, onSelect, onOpen }) {
  const last = useRef(null);
  const wide = useWide();
  const { state, following } = reader.status.value;
  const toggle = (event, record) => {
    const wanted = new Set(selected);
    const key = keyOf(record);
    const at = rows.indexOf(record);
    // With Shift, all from the last one to this one.
    const from = event.shiftKey && last.current !== null ? rows.findIndex((row) => keyOf(row) === last.current) : -1;
    const range = from >= 0 ? rows.slice(Math.min(from, at), Math.max(from, at) + 1).map(keyOf) : [key];
    for (const one of range) {
      if (event.target.checked) wanted.add(one);
      else wanted.delete(one);
    }
    last.current = key;
    onSelect(wanted);
  };
  if (rows.length === 0) {
    const text = { reading: "Reading …", live: "Nothing new yet." }[state] ?? "No records here.";
    return html`<p class="empty message-list">${text}</p>`;
  }
  const all = rows.every((row) => selected.has(keyOf(row)));
  return html`<div class="message-list">
    <div class="message-head">
      <input type="checkbox" aria-label=${`Select all ${rows.length}`} checked=${all} onChange=${() => onSelect(all ? new Set() : new Set(rows.map(keyOf)))} />
      <span class="message-columns" aria-hidden="true"><span>Partition</span><span>Offset</span><span>Time</span><span>Key</span><span>Value</span><span>Headers</span></span>
    </div>
    <${Virtual} rows=${rows} rowHeight=${wide ? ROW_PX.wide : ROW_PX.narrow} height=${560} label=${`${format.count(rows.length)} records`} follow=${Boolean(following) && state === "live" && !reader.paused.value}
      rowKey=${keyOf} row=${(record) => html`<${Row} record=${record} isSelected=${selected.has(keyOf(record))} onSelect=${(event) => toggle(event, record)} onOpen=${() => onOpen(record)} />`} />
  </div>`;
}

function Row({ record, isSelected, onSelect, onOpen }) {
  const place = `partition ${record.partition}, offset ${record.offset}`;
  return html`<div class=${`message ${isSelected ? "selected" : ""}`}>
    <input type="checkbox" aria-label=${`Select ${place}`} checked=${isSelected} onClick=${onSelect} />
    <button type="button" class="message-columns" onClick=${onOpen} title=${`Open ${place}`}>
      <span class="number">${record.partition}</span>
      <span class="number">${format.count(record.offset)}</span>
      <span class="number">${format.time(record.time_ms)}</span>
      <${Cell} view=${record.key} />
      <${Cell} view=${record.value} />
      <span class="headers">${record.header_count ? headersOf(record) : ""}</span>
    </button>
  </div>`;
}

const Cell = ({ view }) => html`<span class=${`bytes ${view.as}`}><bdi>${preview(view)}</bdi>${view.cut && html`<span class="muted"> … ${format.bytes(view.size)}</span>`}</span>`;

const headersOf = (record) =>
  `${record.header_count}: ${record.headers.slice(0, 3).map(([name]) => oneLine(name)).join(", ")}`;
