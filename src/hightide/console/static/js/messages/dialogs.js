// The dialogs that write: one record, or a selection of records to another topic.

import { html, useState } from "../lib.js";
import { get, post, useData } from "../api.js";
import { Button, Dialog, Failed, Field, Notice, format } from "../parts.js";
import { Link } from "../router.js";
import { SameInTerminal, useDryRun } from "../topics/dry_run.js";

const FORMS = [["text", "text"], ["json", "JSON"], ["hex", "hex"], ["base64", "base64"], ["null", "null"]];

const Form = ({ label, value, onChange }) => html`<select aria-label=${label} value=${value} onChange=${(event) => onChange(event.target.value)}>
  ${FORMS.map(([form, title]) => html`<option key=${form} value=${form}>${title}</option>`)}
</select>`;

export function Produce({ topic, onClose }) {
  const [key, setKey] = useState({ as: "null", text: "" });
  const [value, setValue] = useState({ as: "text", text: "" });
  const [headers, setHeaders] = useState([]);
  const [partition, setPartition] = useState("");
  const [written, setWritten] = useState(null);
  const [error, setError] = useState(null);
  const path = `topics/${encodeURIComponent(topic)}`;
  const { data } = useData(() => get(path), [topic]);
  const body = { key, value, headers: headers.filter((one) => one.name), partition: partition === "" ? null : Number(partition) };
  const dry = useDryRun(() => post(`${path}/messages?dry_run=1`, body), [JSON.stringify(body)]);
  const send = async () => {
    setError(null);
    setWritten(null);
    try {
      setWritten(await post(`${path}/messages`, body));
    } catch (failure) {
      setError(failure);
    }
  };
  const update = (at, change) => setHeaders(headers.map((one, n) => (n === at ? { ...one, ...change } : one)));
  return html`<${Dialog} title=${`Write a record to ${topic}`} open=${true} onClose=${onClose}>
    <form onSubmit=${(event) => (event.preventDefault(), send())}>
      <fieldset class="plain"><legend>Key</legend><div class="row bytes">
        <${Form} label="Key is" value=${key.as} onChange=${(form) => setKey({ ...key, as: form })} />
        ${key.as !== "null" && html`<input aria-label="Key" value=${key.text} spellcheck=${false} onInput=${(event) => setKey({ ...key, text: event.target.value })} />`}
      </div></fieldset>
      <fieldset class="plain"><legend>Value</legend><div class="row bytes">
        <${Form} label="Value is" value=${value.as} onChange=${(form) => setValue({ ...value, as: form })} />
        ${value.as === "null"
          ? html`<span class="muted">A record without a value is a tombstone: in a compacted topic it deletes its key.</span>`
          : html`<textarea aria-label="Value" rows="5" value=${value.text} autofocus spellcheck=${false} onInput=${(event) => setValue({ ...value, text: event.target.value })}></textarea>`}
      </div></fieldset>
      <fieldset class="plain"><legend>Headers</legend>
        ${headers.map((one, at) => html`<div class="row bytes" key=${at}>
          <input aria-label="Header name" placeholder="name" value=${one.name} spellcheck=${false} onInput=${(event) => update(at, { name: event.target.value })} />
          <${Form} label="Header is" value=${one.as} onChange=${(form) => update(at, { as: form })} />
          ${one.as !== "null" && html`<input aria-label="Header value" value=${one.text} spellcheck=${false} onInput=${(event) => update(at, { text: event.target.value })} />`}
          <${Button} onClick=${() => setHeaders(headers.filter((_, n) => n !== at))} label="Leave this header out">×</${Button}>
        </div>`)}
        <${Button} onClick=${() => setHeaders([...headers, { name: "", as: "text", text: "" }])}>Add a header</${Button}>
      </fieldset>
      <${Field} label="Partition">
        <select value=${partition} onChange=${(event) => setPartition(event.target.value)}>
          <option value="">chosen by the key</option>
          ${(data?.partition_rows ?? []).map((row) => html`<option key=${row.partition} value=${row.partition}>${row.partition}</option>`)}
        </select>
      </${Field}>
      <${SameInTerminal} state=${dry} />
      <${Failed} error=${error} />
      ${written && html`<${Notice} level="ok">Written to partition ${written.partition} at offset ${format.count(written.offset)}.</${Notice}>`}
      <footer>
        <${Button} onClick=${onClose}>Close</${Button}>
        <${Button} kind="primary" change onClick=${send} disabled=${!dry.answer}>Write</${Button}>
      </footer>
    </form>
  </${Dialog}>`;
}

// Replays records to another topic: first what would be done, with counts, then the writing.
export function Replay({ topic, records, onClose }) {
  const [target, setTarget] = useState("");
  const [placement, setPlacement] = useState("same");
  const [done, setDone] = useState(null);
  const [error, setError] = useState(null);
  const { data } = useData(() => get("topics"), []);
  const path = `topics/${encodeURIComponent(topic)}/replay`;
  const body = { target, placement, records: records.map((one) => [one.partition, one.offset]) };
  const known = (data?.topics ?? []).map((one) => one.name);
  const dry = useDryRun(() => (known.includes(target) ? post(`${path}?dry_run=1`, body) : null), [target, placement, known.length]);
  const run = async () => {
    setError(null);
    try {
      setDone(await post(path, body));
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title=${`Replay ${format.counted(records.length, "record")} of ${topic}`} open=${true} onClose=${onClose}>
    <p>Key, value, headers and time of each record are written again. The records of ${topic} stay.</p>
    <${Field} label="To the topic">
      <select value=${target} onChange=${(event) => { setTarget(event.target.value); setDone(null); }} autofocus>
        <option value="">Choose a topic …</option>
        ${known.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
    </${Field}>
    <${Field} label="Partitions">
      <select value=${placement} onChange=${(event) => setPlacement(event.target.value)}>
        <option value="same">each record to the partition with the same number</option>
        <option value="key">chosen by the key</option>
      </select>
    </${Field}>
    ${target === topic && html`<${Notice} level="warn">This is the topic that the records come from: its readers get them a second time.</${Notice}>`}
    <${Counts} answer=${done ?? dry.answer} />
    <${SameInTerminal} state=${dry} />
    ${dry.answer?.commands > 20 && html`<p class="hint">The first 20 of ${format.count(dry.answer.commands)} commands, one for each run of offsets.</p>`}
    <${Failed} error=${error} />
    ${done && html`<${Notice} level="ok">${format.counted(done.written, "record")} written to <${Link} to=${`/t/${encodeURIComponent(target)}/m`}>${target}</${Link}>.</${Notice}>`}
    <footer>
      <${Button} onClick=${onClose}>${done ? "Close" : "Cancel"}</${Button}>
      <${Button} kind="primary" change onClick=${run} disabled=${!dry.answer || done !== null}>Write ${dry.answer ? format.counted(dry.answer.read, "record") : ""}</${Button}>
    </footer>
  </${Dialog}>`;
}

function Counts({ answer }) {
  if (!answer) return html`<p class="counts muted">–</p>`;
  const parts = Object.entries(answer.by_partition).map(([partition, count]) => `${format.count(count)} to partition ${partition}`);
  return html`<p class="counts">
    ${format.counted(answer.read, "record")} of ${format.count(answer.wanted)} read, ${format.bytes(answer.bytes)}: ${parts.slice(0, 8).join(", ")}${parts.length > 8 ? " …" : ""}.
    ${answer.missing_count > 0 && html` <strong>${format.count(answer.missing_count)} missing:</strong> deleted, compacted away or of an aborted transaction.`}
  </p>`;
}
