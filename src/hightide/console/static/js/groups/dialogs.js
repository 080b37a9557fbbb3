// The changes of a group: reset its offsets, delete some, delete the group. Each is tried first, and
// shows the command that does the same.

import { html, useEffect, useState } from "../lib.js";
import { del, post } from "../api.js";
import { Button, Command, Confirm, Count, Dialog, Failed, Field, Loading, Table, format } from "../parts.js";
import { apiOf } from "./words.js";

const TRY_AFTER_MS = 300;

const TARGETS = [
  { to: "earliest", text: "The oldest records" },
  { to: "latest", text: "The end: only new records" },
  { to: "time", text: "The first record after a time", label: "Time (yours)", type: "datetime-local", step: "1" },
  { to: "duration", text: "Some time ago", label: "How long ago", type: "text", first: "15m", hint: "90s, 15m, 2h or 3d" },
  { to: "offset", text: "An offset", label: "Offset in each partition", type: "number", first: "0", min: "0" },
  { to: "shift", text: "Forward or back", label: "By how many offsets", type: "number", first: "-100", hint: "A negative number goes back." },
];

const MOVED = [
  { name: "partition", title: "Partition", value: (row) => `${row.topic}/${row.partition}` },
  { name: "before", title: "Now", align: "right", cell: (row) => html`<${Count} n=${row.before} />` },
  { name: "after", title: "Then", align: "right", cell: (row) => html`<${Count} n=${row.after} />` },
  { name: "moved", title: "Moves", align: "right", cell: (row) => html`<span class="number">${signed(row.moved)}</span>` },
  { name: "result", title: "Result", cell: (row) => (row.note ? `${row.result}. ${row.note}` : row.result) },
];

const signed = (n) => (n === null ? format.UNKNOWN : n > 0 ? `+${format.count(n)}` : n < 0 ? `−${format.count(-n)}` : "0");

// A local time of the input, as the server and the command line take it.
const timeOf = (text) => (text ? new Date(text).toISOString().replace(".000", "") : "");

const pad = (n) => String(n).padStart(2, "0");

function anHourAgo() {
  const at = new Date(Date.now() - 3600000);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}:00`;
}

export function ResetDialog({ group, partitions, onClose, onDone }) {
  const [to, setTo] = useState("earliest");
  const [value, setValue] = useState("");
  const [tried, setTried] = useState(null);
  const [error, setError] = useState(null);
  const [done, setDone] = useState(null);
  const target = TARGETS.find((one) => one.to === to);
  const body = { to, value: to === "time" ? timeOf(value) : value, ...(partitions.length && { partitions }) };

  useEffect(() => {
    let current = true;
    setTried(null);
    const timer = setTimeout(async () => {
      try {
        const found = await post(`${apiOf(group)}/reset?dry_run=1`, body);
        if (current) setTried(found), setError(null);
      } catch (failure) {
        if (current) setError(failure);
      }
    }, TRY_AFTER_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [group, to, value]);

  const choose = (name) => {
    const wanted = TARGETS.find((one) => one.to === name);
    setTo(name);
    setValue(name === "time" ? anHourAgo() : wanted.first ?? "");
  };
  const reset = async () => {
    try {
      setDone(await post(`${apiOf(group)}/reset`, body));
      setError(null);
      onDone();
    } catch (failure) {
      setError(failure);
    }
  };

  const where = partitions.length ? partitions.join(", ") : "all partitions with a commit";
  const command = (done ?? tried)?.command ?? error?.data?.command;
  return html`<${Dialog} title=${`Reset ${group}`} open=${true} onClose=${onClose}>
    <p>The consumers of the group continue from there. It changes ${where}.</p>
    ${!done && html`
      <${Field} label="Where to">
        <select value=${to} onChange=${(event) => choose(event.target.value)}>
          ${TARGETS.map((one) => html`<option key=${one.to} value=${one.to}>${one.text}</option>`)}
        </select>
      </${Field}>
      ${target.type && html`<${Field} label=${target.label} hint=${target.hint}>
        <input type=${target.type} value=${value} min=${target.min} step=${target.step} onInput=${(event) => setValue(event.target.value)} />
      </${Field}>`}`}
    <div class="gr-tried" aria-live="polite">
      <${Failed} error=${error} />
      ${!error && !tried && !done && html`<${Loading} what="Trying" />`}
      ${!error && (done ?? tried) && html`<${Table} label="What the reset changes" columns=${MOVED} rows=${(done ?? tried).rows} rowKey=${(row) => `${row.topic}/${row.partition}`} sort=${false} />`}
    </div>
    ${command && html`<p class="same">The same in a terminal: <${Command} text=${command} /></p>`}
    <footer>
      <${Button} onClick=${onClose}>${done ? "Close" : "Cancel"}</${Button}>
      ${!done && html`<${Button} kind="danger" change onClick=${reset} disabled=${!tried || error !== null}>
        Reset ${tried ? format.counted(tried.rows.length, "offset") : "offsets"}
      </${Button}>`}
    </footer>
  </${Dialog}>`;
}

// Try a change without doing it, for the command and the reason if it is refused.
function useTried(attempt) {
  const [state, setState] = useState({ tried: null, error: null });
  useEffect(() => {
    let current = true;
    attempt().then(
      (tried) => current && setState({ tried, error: null }),
      (error) => current && setState({ tried: error.data, error }),
    );
    return () => (current = false);
  }, []);
  return state;
}

// A question whose answer is known to be possible; or the reason why it is not.
function Tried({ title, attempt, confirm, onClose, typed, action, text }) {
  const { tried, error } = useTried(attempt);
  if (error) {
    return html`<${Dialog} title=${title} open=${true} onClose=${onClose}>
      <${Failed} error=${error} />
      ${tried?.command && html`<p class="same">In a terminal: <${Command} text=${tried.command} /></p>`}
      <footer><${Button} onClick=${onClose}>Close</${Button}></footer>
    </${Dialog}>`;
  }
  if (!tried) return html`<${Dialog} title=${title} open=${true} onClose=${onClose}><${Loading} what="Trying" /></${Dialog}>`;
  return html`<${Confirm} title=${title} text=${text(tried)} command=${tried.command} typed=${typed} action=${action} onConfirm=${confirm} onClose=${onClose} />`;
}

export function DeleteOffsetsDialog({ group, partitions, onClose, onDone }) {
  const path = `${apiOf(group)}/delete-offsets`;
  const confirm = async () => {
    const found = await post(path, { partitions });
    const kept = found.rows.filter((row) => row.result !== "deleted");
    onDone();
    if (kept.length) throw new Error(kept.map((row) => `${row.topic}/${row.partition}: ${row.result}.`).join(" "));
  };
  return html`<${Tried} title=${`Delete offsets of ${group}`} action="Delete the offsets" onClose=${onClose}
    attempt=${() => post(`${path}?dry_run=1`, { partitions })} confirm=${confirm}
    text=${(tried) => `${format.counted(tried.rows.length, "committed offset")} of ${partitions.join(", ")} will be deleted. Consumers of the group start there as if they had never committed.`} />`;
}

export function DeleteGroupDialog({ group, onClose, onDone }) {
  const confirm = async () => {
    await del(apiOf(group), { name: group });
    onDone();
  };
  return html`<${Tried} title=${`Delete ${group}`} action="Delete the group" typed=${group} onClose=${onClose}
    attempt=${() => del(`${apiOf(group)}?dry_run=1`)} confirm=${confirm}
    text=${(tried) => `The group and its ${format.counted(tried.offsets, "committed offset")} will be deleted.`} />`;
}
