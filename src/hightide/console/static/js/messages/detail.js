// One record: where it is, its key, its headers and its value, whole if a person asks for it.

import { html, useEffect, useState } from "../lib.js";
import { get } from "../api.js";
import { Badge, Button, Command, Dialog, Failed, Field, Time, Virtual, format } from "../parts.js";
import { Contents, FormBadge, oneLine, preview } from "./values.js";

const FORMS = ["auto", "text", "json", "hex", "base64"];
const HEADER_ROW = 30;

export function RecordDetail({ topic, record, schema, isolation, forms, onClose }) {
  const [whole, setWhole] = useState(null);
  const [error, setError] = useState(null);
  const [valueAs, setValueAs] = useState("");
  const [keyAs, setKeyAs] = useState("");
  const shown = whole ?? record;
  const path = `topics/${encodeURIComponent(topic)}/messages/${record.partition}/${record.offset}`;
  const load = async (value = valueAs, key = keyAs) => {
    setError(null);
    try {
      const params = { ...schema, isolation };
      if (value) params.value_as = value;
      if (key) params.key_as = key;
      setWhole((await get(path, params)).record);
    } catch (failure) {
      setError(failure);
    }
  };
  const isCut = shown.value.cut || shown.key.cut || shown.header_count > shown.headers.length || shown.headers.some(([, view]) => view.cut);
  const choose = (kind) => (event) => {
    const form = event.target.value;
    if (kind === "value") setValueAs(form);
    else setKeyAs(form);
    load(kind === "value" ? form : valueAs, kind === "key" ? form : keyAs);
  };
  return html`<${Dialog} title=${`${topic}/${record.partition}, offset ${format.count(record.offset)}`} open=${true} onClose=${onClose}>
    <p class="row">
      <${Time} ms=${record.time_ms} />
      ${record.transactional && html`<${Badge} text="transactional" />`}
      ${record.codec !== "none" && html`<${Badge} text=${record.codec} />`}
      ${record.producer_id !== null && html`<span class="muted">producer ${record.producer_id}</span>`}
    </p>
    <${Failed} error=${error} />
    ${isCut && !whole && html`<p><${Button} onClick=${() => load()}>Show all</${Button}> <span class="hint">Large contents are cut.</span></p>`}
    ${isCut && whole && html`<p class="hint">The console shows at most 4 MiB of a record.</p>`}
    <section aria-label="Key">
      <div class="row spread"><h3>Key <${FormBadge} view=${shown.key} /></h3><${Form} label="Key as" value=${keyAs} forms=${forms} onChange=${choose("key")} /></div>
      <${Contents} view=${shown.key} />
    </section>
    <section aria-label="Value">
      <div class="row spread"><h3>Value <${FormBadge} view=${shown.value} /></h3><${Form} label="Value as" value=${valueAs} forms=${forms} onChange=${choose("value")} /></div>
      <${Contents} view=${shown.value} />
    </section>
    <section aria-label="Headers"><h3>Headers <${Badge} text=${format.count(record.header_count)} /></h3>
      <${Headers} headers=${shown.headers} />
      ${record.header_count > shown.headers.length && html`<p class="hint">and ${format.count(record.header_count - shown.headers.length)} more</p>`}
    </section>
    <${CopyAs} topic=${topic} params=${{ from: "offset", offset: record.offset, partitions: record.partition, limit: 1, isolation }} />
  </${Dialog}>`;
}

const Form = ({ label, value, forms, onChange }) => html`<select aria-label=${label} value=${value} onChange=${onChange}>
  <option value="">${label} …</option>
  ${(forms ?? FORMS).map((form) => html`<option key=${form} value=${form}>${form}</option>`)}
</select>`;

function Headers({ headers }) {
  if (headers.length === 0) return html`<p class="muted">none</p>`;
  return html`<${Virtual} rows=${headers} rowHeight=${HEADER_ROW} height=${240} label="Headers"
    row=${([name, view]) => html`<div class="header-row"><code class="json-name">${oneLine(name)}</code><code title=${preview(view)}>${preview(view)}</code></div>`} />`;
}

// The same reading as a command and as programs that run.
export function CopyAs({ topic, params }) {
  const [open, setOpen] = useState(false);
  const [state, setState] = useState({});
  const [client, setClient] = useState("python");
  const asked = JSON.stringify(params);
  useEffect(() => {
    if (!open) return;
    get(`topics/${encodeURIComponent(topic)}/messages/code`, params).then((code) => setState({ code }), (error) => setState({ error }));
  }, [open, asked]);
  return html`<details class="copy-as" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Copy as a command or as Python</summary>
    <${Failed} error=${state.error} />
    ${state.code && html`
      <p class="same">In a terminal: <${Command} text=${state.code.command} /></p>
      <${Field} label="Python client">
        <select value=${client} onChange=${(event) => setClient(event.target.value)}>
          <option value="python">confluent-kafka</option>
          <option value="kafka_python">kafka-python</option>
        </select>
      </${Field}>
      <div class="program"><${Command} text=${state.code[client]} /></div>`}
  </details>`;
}
