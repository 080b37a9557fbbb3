// The overview: one sentence, the brokers, a cell for each partition, throughput, and the newest events.

import { effect, html, signal, useMemo, useRef, useSignal } from "../lib.js";
import { Bytes, Command, Sentence } from "../parts.js";
import { Sparkline } from "../xray/sparkline.js";
import { Link, navigate } from "../router.js";
import { events, overview, session } from "../store.js";
import { Announced } from "../xray/announced.js";
import { Feed, LevelFilter, chosen } from "../xray/feed.js";
import { commandFor, count, list } from "../xray/words.js";

const KEPT_MS = 900_000;
const FEW = 48;

const LEVELS = {
  ok: { sign: "✓", text: "in sync" },
  warn: { sign: "▲", text: "under-replicated" },
  bad: { sign: "✕", text: "under min ISR" },
  off: { sign: "◼", text: "offline" },
};

// The rates since this page was opened: the history of the rates is the browser's.
const rates = signal([]);
effect(() => {
  const look = overview.value;
  if (!look) return;
  const before = rates.peek().filter((point) => point.time_ms > look.time_ms - KEPT_MS);
  const { messages_in_s, bytes_in_s } = look.totals;
  if (before.at(-1)?.time_ms !== look.time_ms) rates.value = [...before, { time_ms: look.time_ms, messages_in_s, bytes_in_s }];
});

// -- brokers ---------------------------------------------------------------------------------

function brokerState(broker) {
  if (!broker.alive) return { level: "off", sign: "◼", text: "not alive" };
  if (broker.paused) return { level: "warn", sign: "⏸", text: "silent" };
  return { level: "ok", sign: "✓", text: "alive" };
}

function Disk({ broker }) {
  const { disk_bytes: used, free_bytes: free } = broker;
  if (used == null) return html`<dd>–</dd>`;
  const share = free == null ? null : used / Math.max(1, used + free);
  return html`<dd title=${free == null ? "" : "used by topics, of what is used and free"}>
    <${Bytes} n=${used} />
    ${share != null && html`<i class="ov-disk" aria-hidden="true"><i style=${`transform:translateX(${(share - 1) * 100}%)`}></i></i>`}
  </dd>`;
}

function BrokerCard({ broker }) {
  const state = brokerState(broker);
  return html`<li class=${`ov-broker ov-level-${state.level}`}>
    <header>
      <h3>Broker ${broker.id}</h3>
      ${broker.controller && html`<span class="ov-tag" title="The controller elects leaders">controller</span>`}
      <span class="ov-state"><b aria-hidden="true">${state.sign}</b> ${state.text}</span>
    </header>
    <p class="ov-where">${broker.address || "address not known"}${broker.rack ? ` · rack ${broker.rack}` : ""}</p>
    <dl>
      <div><dt>Leads</dt><dd>${count(broker.leads)}</dd></div>
      <div><dt>In sync</dt><dd>${count(broker.in_sync)}<small> / ${count(broker.replicas)}</small></dd></div>
      <div><dt>Disk</dt><${Disk} broker=${broker} /></div>
      <div><dt>Version</dt><dd>${broker.version || "–"}</dd></div>
    </dl>
  </li>`;
}

// -- partitions --------------------------------------------------------------------------------

function byTopic(partitions) {
  const groups = new Map();
  for (const partition of partitions) {
    if (!groups.has(partition.topic)) groups.set(partition.topic, []);
    groups.get(partition.topic).push(partition);
  }
  return [...groups].sort(([a], [b]) => a.localeCompare(b));
}

function described(found) {
  const leader = found.leader == null || found.leader < 0 ? "no leader" : `leader ${found.leader}`;
  return (
    `${found.topic}/${found.partition}: ${LEVELS[found.level].text}, ${leader}, in sync ${list(found.isr)}` +
    ` of ${list(found.replicas)}, high watermark ${count(found.high_watermark)}`
  );
}

function Cell({ found, isLarge, tabIndex }) {
  const leads = found.leader == null || found.leader < 0 ? "–" : found.leader;
  return html`<a
    class=${`ov-cell ov-level-${found.level}`}
    href=${`/x/${encodeURIComponent(found.topic)}/${found.partition}`}
    data-name=${`${found.topic}/${found.partition}`}
    aria-label=${described(found)}
    tabindex=${tabIndex}
    >${isLarge && html`<b data-text=${found.partition}></b>`}<i>${LEVELS[found.level].sign}</i>${isLarge && html`<small data-text=${`★ ${leads}`}></small>`}</a
  >`;
}

function TopicCells({ topic, partitions, isLarge, current }) {
  const worst = ["off", "bad", "warn"].find((level) => partitions.some((found) => found.level === level));
  return html`<div class="ov-topic">
    <${Link} class="ov-name" to=${`/t/${encodeURIComponent(topic)}`} title=${topic}>${topic}<//>
    <div class="ov-cells">
      ${partitions.map(
        (found) => html`<${Cell}
          key=${found.partition}
          found=${found}
          isLarge=${isLarge}
          tabIndex=${`${found.topic}/${found.partition}` === current ? 0 : -1}
        />`,
      )}
    </div>
    ${worst && html`<span class="hidden-text">${LEVELS[worst].text}</span>`}
  </div>`;
}

/** The cell that an arrow key leads to: left and right by order, up and down by place. */
function neighbour(cells, from, key) {
  const at = cells.indexOf(from);
  if (key === "Home") return cells[0];
  if (key === "End") return cells.at(-1);
  if (key === "ArrowRight") return cells[at + 1];
  if (key === "ArrowLeft") return cells[at - 1];
  const box = from.getBoundingClientRect();
  const down = key === "ArrowDown";
  let best = null;
  for (const cell of down ? cells.slice(at + 1) : cells.slice(0, at).reverse()) {
    const other = cell.getBoundingClientRect();
    const rows = down ? other.top - box.top : box.top - other.top;
    if (rows < 2) continue;
    if (best && rows > best.rows + 2) break;
    const aside = Math.abs(other.left - box.left);
    if (!best || aside < best.aside) best = { cell, rows, aside };
  }
  return best?.cell;
}

const KEYS = ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"];

function PartitionMap({ partitions }) {
  const current = useSignal(null);
  const told = useSignal("");
  const root = useRef(null);
  const showInternal = useSignal(false);
  const users = useMemo(() => byTopic(partitions.filter((found) => !found.internal)), [partitions]);
  const internal = useMemo(() => byTopic(partitions.filter((found) => found.internal)), [partitions]);
  const isLarge = partitions.filter((found) => !found.internal).length <= FEW;
  const first = users[0]?.[1][0] ?? (showInternal.value ? internal[0]?.[1][0] : null);
  const isKnown = current.value && partitions.some((found) => `${found.topic}/${found.partition}` === current.value);
  const entry = isKnown ? current.value : first && `${first.topic}/${first.partition}`;
  const onKey = (event) => {
    const cell = event.target.closest(".ov-cell");
    if (!cell || !KEYS.includes(event.key)) return;
    event.preventDefault();
    neighbour([...root.current.querySelectorAll(".ov-cell")], cell, event.key)?.focus();
  };
  const onOver = (event) => {
    const cell = event.target.closest?.(".ov-cell");
    told.value = cell ? cell.getAttribute("aria-label") : "";
    if (cell && event.type === "focusin") current.value = cell.dataset.name;
  };
  const onClick = (event) => {
    const cell = event.target.closest(".ov-cell");
    if (!cell || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    navigate(cell.getAttribute("href"));
  };
  const cells = (groups, large) =>
    groups.map(
      ([topic, found]) => html`<${TopicCells} key=${topic} topic=${topic} partitions=${found} isLarge=${large} current=${entry} />`,
    );
  return html`<div
    class=${`ov-map${isLarge ? " ov-map-large" : ""}`}
    ref=${root}
    onKeyDown=${onKey}
    onMouseOver=${onOver}
    onMouseLeave=${() => (told.value = "")}
    onFocusIn=${onOver}
    onClick=${onClick}
  >
    ${users.length ? cells(users, isLarge) : html`<p class="xp-quiet">No topic yet. Create one: <code>hightide topic create orders --partitions 3</code></p>`}
    ${internal.length > 0 &&
    html`<details class="ov-internal" open=${showInternal.value} onToggle=${(event) => (showInternal.value = event.currentTarget.open)}>
      <summary>${internal.length} internal ${internal.length === 1 ? "topic" : "topics"} <${Summary} partitions=${internal.flatMap(([, found]) => found)} /></summary>
      ${showInternal.value && cells(internal, false)}
    </details>`}
    <p class="ov-told" aria-hidden="true">${told.value || "Point at a cell, or walk with the arrow keys; Enter opens its X-ray."}</p>
  </div>`;
}

function Summary({ partitions }) {
  return html`<span class="ov-summary">
    ${Object.entries(LEVELS).map(([level, { sign, text }]) => {
      const n = partitions.filter((found) => found.level === level).length;
      if (!n && level !== "ok") return null;
      return html`<span key=${level} class=${`ov-count ov-level-${level}`}><b aria-hidden="true">${sign}</b> ${count(n)} ${text}</span>`;
    })}
  </span>`;
}

// -- the page ----------------------------------------------------------------------------------

function Throughput() {
  const points = rates.value.filter((point) => point.messages_in_s != null);
  const now = points.at(-1);
  const data = [points.map((point) => point.time_ms / 1000), points.map((point) => point.messages_in_s)];
  return html`<section class="panel xp-card ov-rate" aria-label="Throughput">
    <header>
      <h2>Throughput</h2>
      <p class="ov-now"><b>${now ? count(Math.round(now.messages_in_s)) : "–"}</b> records/s<span> · </span><b>${now?.bytes_in_s == null ? "–" : html`<${Bytes} n=${Math.round(now.bytes_in_s)} />`}</b>/s</p>
    </header>
    <${Sparkline} data=${data} height=${270} label="Records written in a second, over the last minutes" />
  </section>`;
}

function NewestEvents() {
  const level = useSignal("info");
  return html`<section class="panel xp-card ov-events" aria-label="Events">
    <header>
      <h2>Events</h2>
      <${LevelFilter} level=${level.value} onLevel=${(name) => (level.value = name)} />
    </header>
    <${Feed} events=${chosen(events.value, { level: level.value })} most=${40} />
    <footer><${Link} to="/events">All events<//></footer>
  </section>`;
}

export default function Overview() {
  const look = overview.value;
  if (!look) return html`<div class="xp"><p class="xp-quiet" role="status">The first look at the cluster is on its way.</p></div>`;
  const { sentence } = look;
  return html`<div class="xp ov">
    <h1 class="hidden-text">Overview</h1>
    <${Sentence} level=${sentence.level} text=${sentence.text} next=${sentence.next} />
    <${Announced} text=${sentence.text} />
    ${sentence.count > 1 && html`<p class="ov-more">${count(sentence.count - 1)} more: <${Command} text=${commandFor("hightide cluster health", session.value?.bootstrap)} /></p>`}
    <ul class="ov-brokers">
      ${look.brokers.map((broker) => html`<${BrokerCard} key=${broker.id} broker=${broker} />`)}
    </ul>
    <section class="panel xp-card" aria-label="Partitions">
      <header>
        <h2>Partitions</h2>
        <${Summary} partitions=${look.partitions} />
      </header>
      <${PartitionMap} partitions=${look.partitions} />
    </section>
    <div class="xp-two ov-two">
      <${Throughput} />
      <${NewestEvents} />
    </div>
  </div>`;
}
