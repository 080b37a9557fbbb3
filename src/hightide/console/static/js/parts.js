// The parts that pages are made of. Text from the cluster is only ever a child or a property: preact
// escapes it.

import { html, uPlot, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "./lib.js";
import { session } from "./api.js";
import { colour, dark } from "./appearance.js";
import * as format from "./format.js";

export { format };

const SIGNS = { ok: "✓", warn: "▲", bad: "✕", off: "◼" };
const SPOKEN = { ok: "good", warn: "warning", bad: "bad", off: "off" };
const ROWS_AT_FIRST = 200;

// -- levels ------------------------------------------------------------------------------------

// The sign of a level; a colour alone says nothing to many people.
export function Mark({ level, label }) {
  const name = SIGNS[level] ? level : "off";
  return html`<span class=${`mark ${name}`} role="img" aria-label=${label ?? SPOKEN[name]}>${SIGNS[name]}</span>`;
}

export function Badge({ level, text, title }) {
  if (!level) return html`<span class="badge plain" title=${title}>${text}</span>`;
  return html`<span class=${`badge ${level}`} title=${title}><${Mark} level=${level} /> ${text}</span>`;
}

// What is wrong now, or that all is well, and the command of the next step.
export function Sentence({ level, text, next }) {
  return html`<div class=${`sentence ${level ?? "off"}`}>
    <p><${Mark} level=${level} /> <span>${text}</span></p>
    ${next && html`<${Command} text=${next} />`}
  </div>`;
}

export function Notice({ level = "off", children }) {
  return html`<div class=${`notice ${level}`} role=${level === "bad" ? "alert" : "note"}>
    <${Mark} level=${level} /><div>${children}</div>
  </div>`;
}

export function Failed({ error }) {
  if (!error) return null;
  return html`<${Notice} level="bad">${error.message ?? String(error)}</${Notice}>`;
}

export const Loading = ({ what = "" }) => html`<p class="loading" role="status">${what || "Loading"} …</p>`;

// -- values ------------------------------------------------------------------------------------

export const Count = ({ n }) => html`<span class="number">${format.count(n)}</span>`;

export const Bytes = ({ n }) =>
  html`<span class="number" title=${n > 1023 ? `${format.count(n)} bytes` : undefined}>${format.bytes(n)}</span>`;

export const Duration = ({ ms }) => html`<span class="number">${format.duration(ms)}</span>`;

export function Time({ ms, millis = true }) {
  const text = format.time(ms, { millis });
  if (text === format.UNKNOWN) return html`<span>${text}</span>`;
  const iso = new Date(ms).toISOString();
  return html`<time class="number" datetime=${iso} title=${iso}>${text}</time>`;
}

// -- actions -----------------------------------------------------------------------------------

// `change` marks a button that changes the cluster: it is disabled in read-only mode. A promise that
// onClick returns disables it until it is settled.
export function Button({ onClick, kind = "plain", disabled, change, children, title, type = "button", label }) {
  const [busy, setBusy] = useState(false);
  const alive = useRef(true);
  useEffect(() => () => (alive.current = false), []);
  const refused = change && session.value?.read_only;
  const press = async (click) => {
    const result = onClick?.(click);
    if (!result?.then) return;
    setBusy(true);
    try {
      await result;
    } finally {
      if (alive.current) setBusy(false);
    }
  };
  return html`<button type=${type} class=${`button ${kind}`} onClick=${press} aria-label=${label}
    disabled=${disabled || busy || refused} aria-busy=${busy ? "true" : undefined}
    title=${refused ? "The console is read-only." : title}>${children}</button>`;
}

// A command of the command line, with a button that copies it.
export function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const code = useRef(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    } catch {
      // A page that is not from this host may not write to the clipboard: select the text instead.
      getSelection().selectAllChildren(code.current);
    }
  };
  return html`<span class="command">
    <code ref=${code}>${text}</code>
    <button type="button" class="copy" onClick=${copy} aria-label=${copied ? "Copied" : `Copy: ${text}`}>
      ${copied ? "✓" : html`<i class="copy-icon" aria-hidden="true"></i>`}
    </button>
  </span>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field">
    <span class="label">${label}</span>
    ${children}
    ${hint && html`<span class="hint">${hint}</span>`}
  </label>`;
}

export function Dialog({ title, open, onClose, children }) {
  const element = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = element.current;
    if (open && !dialog.open) dialog.showModal();
    if (!open && dialog.open) dialog.close();
  }, [open]);
  const onCancel = (event) => {
    event.preventDefault();
    onClose?.();
  };
  const onClick = (click) => click.target === element.current && onClose?.();
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${onCancel} onMouseDown=${onClick}>
    ${open && html`<div class="dialog">
      <header>
        <h2 id=${id}>${title}</h2>
        <button type="button" class="close" onClick=${() => onClose?.()} aria-label="Close">×</button>
      </header>
      ${children}
    </div>`}
  </dialog>`;
}

// A question before a change. `typed` is a name that must be typed first; `command` does the same.
export function Confirm({ title, text, command, typed, action = "Do it", kind = "danger", onConfirm, onClose, children }) {
  const [given, setGiven] = useState("");
  const [error, setError] = useState(null);
  const confirm = async () => {
    setError(null);
    try {
      await onConfirm();
      onClose();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title=${title} open=${true} onClose=${onClose}>
    ${text && html`<p>${text}</p>`}
    ${children}
    ${typed && html`<${Field} label=${`Type ${typed} to confirm`}>
      <input value=${given} onInput=${(event) => setGiven(event.target.value)} autocomplete="off" spellcheck=${false} />
    </${Field}>`}
    ${command && html`<p class="same">The same in a terminal: <${Command} text=${command} /></p>`}
    <${Failed} error=${error} />
    <footer>
      <${Button} onClick=${onClose}>Cancel</${Button}>
      <${Button} kind=${kind} change onClick=${confirm} disabled=${typed && given !== typed}>${action}</${Button}>
    </footer>
  </${Dialog}>`;
}

// -- tables ------------------------------------------------------------------------------------

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

// columns: [{name, title, align: "right", value: row => for sorting, cell: row => what is shown}].
// sort: {name, descending}: the order at first, or false for rows that stay as they come.
export function Table({ columns, rows, rowKey, empty = "Nothing to show.", sort, label }) {
  const [order, setOrder] = useState(sort || null);
  const [most, setMost] = useState(ROWS_AT_FIRST);
  const valueOf = (column, row) => (column.value ? column.value(row) : row[column.name]);
  const column = order && columns.find((one) => one.name === order.name);
  const sorted = column
    ? [...rows].sort((a, b) => compare(valueOf(column, a), valueOf(column, b)) * (order.descending ? -1 : 1))
    : rows;
  const choose = (name) => setOrder({ name, descending: order?.name === name && !order.descending });
  const head = (one) => {
    const direction = order?.name !== one.name ? undefined : order.descending ? "descending" : "ascending";
    const arrow = { ascending: "↑", descending: "↓" }[direction] ?? "";
    return html`<th key=${one.name} scope="col" class=${one.align} aria-sort=${direction}>
      ${sort === false || !one.title
        ? one.title || html`<span class="hidden-text">Actions</span>`
        : html`<button type="button" onClick=${() => choose(one.name)}>${one.title}<span class="arrow" aria-hidden="true">${arrow}</span></button>`}
    </th>`;
  };
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<div class="table" tabindex="0" role="region" aria-label=${label ?? "Table"}>
    <table>
      <thead><tr>${columns.map(head)}</tr></thead>
      <tbody>
        ${sorted.slice(0, most).map((row, n) => html`<tr key=${rowKey ? rowKey(row) : n}>
          ${columns.map((one) => html`<td key=${one.name} class=${one.align}>${one.cell ? one.cell(row) : String(valueOf(one, row) ?? format.UNKNOWN)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
    ${sorted.length > most && html`<p class="more">
      <${Button} onClick=${() => setMost(most * 5)}>Show more of ${format.count(sorted.length)}</${Button}>
    </p>`}
  </div>`;
}

// A long list of which only the rows in view exist. All rows have the same height. `follow` keeps the
// end in view.
export function Virtual({ rows, rowHeight, row, rowKey, height = 480, label = "List", follow = false }) {
  const element = useRef(null);
  const [top, setTop] = useState(0);
  const [seen, setSeen] = useState(height);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setSeen(element.current?.clientHeight ?? height));
    watcher.observe(element.current);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (follow) element.current.scrollTop = rows.length * rowHeight;
  }, [rows.length, follow]);
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight) - 5, rows.length));
  const last = Math.min(rows.length, Math.ceil((top + seen) / rowHeight) + 5);
  return html`<div class="virtual" ref=${element} style=${{ maxHeight: `${height}px` }} tabindex="0" role="region" aria-label=${label}
    onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <div style=${{ height: `${rows.length * rowHeight}px`, position: "relative" }}>
      <div style=${{ position: "absolute", insetInline: 0, top: `${first * rowHeight}px` }}>
        ${rows.slice(first, last).map((one, n) => html`<div class="virtual-row" key=${rowKey ? rowKey(one) : first + n} style=${{ height: `${rowHeight}px` }}>
          ${row(one, first + n)}
        </div>`)}
      </div>
    </div>
  </div>`;
}

// -- charts ------------------------------------------------------------------------------------

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

const clock = (s) => format.time(s * 1000, { millis: false, now: s * 1000 });

const axisOf = (text) => ({
  stroke: () => colour("muted"),
  grid: { stroke: () => colour("line"), width: 1 },
  ticks: { show: false },
  size: 56,
  values: text && ((_, splits) => splits.map((n) => (n === null ? "" : text(n)))),
});

// data: [times in s, values, …]; series: [{label, colour: "series-2", text: n => label, width, dash, fill}].
export function Chart({ title, data, series, height = 160, text }) {
  const place = useRef(null);
  const chart = useRef(null);
  const shape = JSON.stringify([series.map((one) => [one.label, one.colour]), height]);
  useEffect(() => {
    const lines = series.map((one, n) => ({
      label: one.label,
      stroke: () => colour(one.colour ?? `series-${(n % 6) + 1}`),
      width: one.width ?? 1.5,
      dash: one.dash ?? (n > 0 ? [6 - (n % 3) * 2, 2 + (n % 3)] : undefined),
      fill: one.fill,
      points: { show: false },
      value: (_, value) => (value === null ? format.UNKNOWN : (one.text ?? text ?? format.count)(value)),
    }));
    const options = {
      width: Math.max(160, place.current.clientWidth),
      height,
      cursor: { drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { time: true } },
      axes: [{ ...axisOf(clock), size: 32, incrs: STEPS_S, space: 80 }, axisOf(text ?? format.count)],
      series: [{ value: (_, at) => (at === null ? format.UNKNOWN : format.time(at * 1000, { millis: false })) }, ...lines],
    };
    chart.current = new uPlot(options, data, place.current);
    const watcher = new ResizeObserver(() => {
      const width = Math.max(160, place.current?.clientWidth ?? 0);
      if (chart.current && width !== chart.current.width) chart.current.setSize({ width, height });
    });
    watcher.observe(place.current);
    return () => {
      watcher.disconnect();
      chart.current.destroy();
      chart.current = null;
    };
  }, [shape]);
  useEffect(() => chart.current?.setData(data), [data]);
  useEffect(() => {
    // uPlot cannot draw the axes of a chart that has never had data.
    if (data[0].length > 0) chart.current?.redraw(false);
  }, [dark.value]);
  return html`<figure class="chart">
    ${title && html`<figcaption>${title}</figcaption>`}
    <div ref=${place} style=${{ minHeight: `${height + 28}px` }}></div>
  </figure>`;
}

// The same as useMemo for what changes with the theme.
export const useThemed = (make, inputs) => useMemo(make, [...inputs, dark.value]);
