// The dialogs that change topics: create, alter a setting, add partitions, delete.

import { html, useState } from "../lib.js";
import { del, get, post, useData } from "../api.js";
import { Button, Confirm, Dialog, Failed, Field, format } from "../parts.js";
import { SameInTerminal, useDryRun } from "./dry_run.js";

const NAME = /^[A-Za-z0-9._-]{1,249}$/;

export const topicPath = (topic) => `topics/${encodeURIComponent(topic)}`;

// A form in a dialog whose change is tried first; `ready` says whether there is something to try.
function Change({ title, action, ready, ask, inputs, onDone, onClose, children }) {
  const dry = useDryRun(() => (ready ? ask(true) : null), inputs);
  const [error, setError] = useState(null);
  const change = async () => {
    setError(null);
    try {
      const answer = await ask(false);
      onClose();
      onDone?.(answer);
    } catch (failure) {
      setError(failure);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    if (dry.answer) change();
  };
  return html`<${Dialog} title=${title} open=${true} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${children}
      <${SameInTerminal} state=${dry} />
      <${Failed} error=${error} />
      <footer>
        <${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" change onClick=${change} disabled=${!dry.answer}>${action}</${Button}>
      </footer>
    </form>
  </${Dialog}>`;
}

const trial = (path, isDry) => (isDry ? `${path}?dry_run=1` : path);

// -- create ------------------------------------------------------------------------------------

export function CreateTopic({ brokers, onDone, onClose }) {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("");
  const [replicas, setReplicas] = useState("");
  const [settings, setSettings] = useState([]);
  const configs = Object.fromEntries(settings.filter((one) => one.name && one.value !== "").map((one) => [one.name, one.value]));
  const body = { name, partitions, replication_factor: replicas, configs };
  const ask = (isDry) => post(trial("topics", isDry), body);
  const wrong = name !== "" && !NAME.test(name);
  return html`<${Change} title="Create a topic" action="Create" ready=${NAME.test(name)} ask=${ask}
    inputs=${[JSON.stringify(body)]} onDone=${() => onDone(name)} onClose=${onClose}>
    <${Field} label="Name" hint=${wrong ? "Letters, digits, dots, underscores and dashes; at most 249." : null}>
      <input value=${name} onInput=${(event) => setName(event.target.value.trim())} autofocus required autocomplete="off" spellcheck=${false} aria-invalid=${wrong ? "true" : undefined} />
    </${Field}>
    <div class="columns tight">
      <${Field} label="Partitions" hint="Empty: the broker's default. They can be added later, not taken away.">
        <input type="number" min="1" value=${partitions} onInput=${(event) => setPartitions(event.target.value)} />
      </${Field}>
      <${Field} label="Replicas" hint=${`Empty: the broker's default. At most ${brokers || "the number of"} brokers.`}>
        <input type="number" min="1" max=${brokers || undefined} value=${replicas} onInput=${(event) => setReplicas(event.target.value)} />
      </${Field}>
    </div>
    <${NewSettings} settings=${settings} onChange=${setSettings} />
  </${Change}>`;
}

function NewSettings({ settings, onChange }) {
  const { data } = useData(() => get("topic-settings"), []);
  const known = data?.settings ?? [];
  const update = (at, change) => onChange(settings.map((one, n) => (n === at ? { ...one, ...change } : one)));
  return html`<fieldset class="plain">
    <legend>Settings</legend>
    ${settings.map((one, at) => {
      const about = known.find((setting) => setting.name === one.name);
      return html`<div class="setting" key=${at}>
        <div class="row end">
          <select aria-label="Setting" value=${one.name} onChange=${(event) => update(at, { name: event.target.value, value: "" })}>
            <option value="">Choose a setting …</option>
            ${known.map((setting) => html`<option key=${setting.name} value=${setting.name}>${setting.name}</option>`)}
          </select>
          <${ValueInput} about=${about} value=${one.value} onInput=${(value) => update(at, { value })} label=${`Value of ${one.name || "the setting"}`} />
          <${Button} onClick=${() => onChange(settings.filter((_, n) => n !== at))} label="Leave this setting out">×</${Button}>
        </div>
        <p class="hint">${about ? `${about.meaning} Default: ${about.default ?? "none"}.` : ""}</p>
      </div>`;
    })}
    <${Button} onClick=${() => onChange([...settings, { name: "", value: "" }])}>Add a setting</${Button}>
  </fieldset>`;
}

// An input for the type of a setting: a choice where there are few values.
function ValueInput({ about, value, onInput, label, autofocus }) {
  const choices = about?.type === "boolean" ? ["true", "false"] : about?.type === "list" ? [] : about?.choices ?? [];
  if (choices.length > 0) {
    return html`<select aria-label=${label} value=${value} onChange=${(event) => onInput(event.target.value)}>
      ${choices.includes(value) ? null : html`<option value=${value}>${value || "Choose …"}</option>`}
      ${choices.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select>`;
  }
  return html`<input aria-label=${label} value=${value} autofocus=${autofocus} placeholder=${about?.default ?? ""} spellcheck=${false}
    onInput=${(event) => onInput(event.target.value)} />`;
}

// -- alter -------------------------------------------------------------------------------------

const UNITS = { ms: (n) => format.duration(n), bytes: (n) => format.bytes(n) };

// "604800000" of a setting in milliseconds as "7 days".
export function readable(name, value) {
  const unit = UNITS[name.split(".").at(-1)];
  const number = Number(value);
  if (!unit || value === null || value === "" || !Number.isFinite(number) || number < 1000) return "";
  return number >= 2 ** 53 ? "no limit" : unit(number);
}

export function EditSetting({ topic, setting, onDone, onClose }) {
  const [value, setValue] = useState(setting.value ?? "");
  const path = `${topicPath(topic)}/configs`;
  const ask = (isDry) => post(trial(path, isDry), { set: { [setting.name]: value } });
  return html`<${Change} title=${setting.name} action="Set" ready=${value !== setting.value} ask=${ask} inputs=${[value]} onDone=${onDone} onClose=${onClose}>
    <p>${setting.meaning}</p>
    <${Field} label="Value" hint=${readable(setting.name, value)}>
      <${ValueInput} about=${setting} value=${value} onInput=${setValue} label=${`Value of ${setting.name}`} autofocus />
    </${Field}>
    <p class="hint">
      Now ${setting.value ?? "none"}, from ${setting.source}. Default: ${setting.default ?? "none"}.
      ${setting.type === "list" && setting.choices.length > 0 ? `Of ${setting.choices.join(", ")}; several with commas.` : ""}
    </p>
  </${Change}>`;
}

export function ResetSetting({ topic, setting, onDone, onClose }) {
  const ask = (isDry) => post(trial(`${topicPath(topic)}/configs`, isDry), { unset: [setting.name] });
  return html`<${Change} title=${`Reset ${setting.name}`} action="Reset" ready=${true} ask=${ask} inputs=${[]} onDone=${onDone} onClose=${onClose}>
    <p>The topic's own value, ${setting.value}, is removed. The value of the broker counts then, or the default.</p>
  </${Change}>`;
}

// -- grow and delete ---------------------------------------------------------------------------

export function AddPartitions({ topic, count, onDone, onClose }) {
  const [wanted, setWanted] = useState(String(count + 1));
  const ask = (isDry) => post(trial(`${topicPath(topic)}/partitions`, isDry), { count: Number(wanted) });
  return html`<${Change} title=${`Add partitions to ${topic}`} action="Add" ready=${Number(wanted) > count} ask=${ask} inputs=${[wanted]} onDone=${onDone} onClose=${onClose}>
    <p>The topic has ${format.counted(count, "partition")}. New records with the same key may go to another partition than the old ones.</p>
    <${Field} label="New number of partitions">
      <input type="number" min=${count + 1} value=${wanted} autofocus onInput=${(event) => setWanted(event.target.value)} />
    </${Field}>
  </${Change}>`;
}

export function DeleteTopic({ topic, offsets, onDone, onClose }) {
  const dry = useDryRun(() => del(`${topicPath(topic)}?dry_run=1`, {}), [topic]);
  const confirm = async () => {
    await del(topicPath(topic), { name: topic });
    onDone();
  };
  const text = `All records of ${topic} are deleted${offsets ? `, about ${format.count(offsets)} of them` : ""}. This cannot be undone.`;
  return html`<${Confirm} title=${`Delete ${topic}`} text=${text} typed=${topic} action="Delete"
    command=${dry.answer?.command} onConfirm=${confirm} onClose=${onClose}>
    <${Failed} error=${dry.error} />
  </${Confirm}>`;
}
