"""The X-ray of a partition as one HTML file that opens from disk, without a server or a network.

The file has the frames as JSON, and a script that draws the bars of the moment that its slider
stands at.  Everything from the cluster is escaped: the script sets texts, never HTML.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hightide.client.xray.timeline import Event, Timeline

MOST_EVENTS = 300
_WIDTH, _ROW, _LEFT = 960, 26, 90

_STATES = {
    "leads": ("leads", "#2563eb"),
    "in_sync": ("in sync", "#93c5fd"),
    "out": ("out of sync", "#fbbf24"),
    "eligible": ("eligible to lead (ELR)", "url(#eligible)"),
    "silent": ("does not answer", "url(#silent)"),
    "gone": ("not alive", "none"),
}


def page(timeline: Timeline, from_ms: int, to_ms: int, cluster: Mapping[str, Any]) -> str:
    """`cluster` has what is known besides: title, cluster_id, sentence, brokers, is_foreign."""
    if timeline.frames:
        from_ms = max(from_ms, min(timeline.frames[0].time_ms, to_ms - 1))
    found = timeline.to_json(from_ms, to_ms)
    name = f"{timeline.topic}/{timeline.partition}"
    sentence = cluster.get("sentence") or {}
    events = [one for one in timeline.events if from_ms <= one["time_ms"] <= to_ms]
    data = {"frames": found["frames"], "truncations": found["truncations"]}
    parts = (
        f"<h1>{_text(name)}</h1>",
        f"<p class=about>{_text(_about(cluster, from_ms, to_ms))}</p>",
        f"<p class='sentence {_text(sentence.get('level', 'ok'))}'>"
        f"{_text(sentence.get('text', ''))}</p>",
        _FOREIGN if cluster.get("is_foreign") else "",
        _BARS,
        "<h2>In-sync replicas over time</h2>",
        ribbons_svg(found["ribbons"], found["failovers"], from_ms, to_ms),
        _failovers(found["failovers"]),
        _truncations(found["truncations"]),
        _events(events[-MOST_EVENTS:]),
    )
    return _PAGE.format(
        title=_text(f"X-ray of {name}"),
        style=_STYLE,
        body="\n".join(filter(None, parts)),
        data=_json(data),
        script=_SCRIPT,
    )


def _about(cluster: Mapping[str, Any], from_ms: int, to_ms: int) -> str:
    title = cluster.get("title") or cluster.get("cluster_id") or "a cluster"
    return f"{title}, from {_time(from_ms, date=True)} to {_time(to_ms, date=True)} (UTC)"


def ribbons_svg(
    ribbons: Sequence[Mapping[str, Any]],
    failovers: Sequence[Mapping[str, Any]],
    from_ms: int,
    to_ms: int,
) -> str:
    """A row for each broker, a mark for each new leader."""
    scale = (_WIDTH - _LEFT) / max(1, to_ms - from_ms)

    def place(time_ms: int) -> float:
        return round(_LEFT + (min(max(time_ms, from_ms), to_ms) - from_ms) * scale, 2)

    rows = []
    for nth, ribbon in enumerate(ribbons):
        top = nth * _ROW + 4
        rows.append(f"<text x=0 y={top + 13}>broker {int(ribbon['broker'])}</text>")
        for span in ribbon["spans"]:
            label, fill = _STATES[span["state"]]
            left, right = place(span["from_ms"]), place(span["to_ms"])
            title = f"{label}, {_time(span['from_ms'])} to {_time(span['to_ms'])}"
            rows.append(
                f"<rect x={left} y={top} width={max(0.5, round(right - left, 2))} height=18"
                f" fill='{fill}' class='{span['state']}'><title>{_text(title)}</title></rect>"
            )
    height = len(ribbons) * _ROW + 40
    for one in failovers:
        for phase in one["phases"]:
            if phase["name"] == "elected" and from_ms <= phase["time_ms"] <= to_ms:
                left = place(phase["time_ms"])
                rows.append(
                    f"<line x1={left} x2={left} y1=0 y2={height - 34} class=mark />"
                    f"<text x={left} y={height - 22} class=epoch>▲ epoch {int(one['epoch_to'])}"
                    "</text>"
                )
    for time_ms, anchor in ((from_ms, "start"), (to_ms, "end")):
        rows.append(
            f"<text x={place(time_ms)} y={height - 6} text-anchor={anchor} class=epoch>"
            f"{_time(time_ms)}</text>"
        )
    legend = "".join(
        f"<li><svg width=14 height=14><rect width=14 height=14 fill='{fill}' class='{state}'/>"
        f"</svg> {_text(label)}</li>"
        for state, (label, fill) in _STATES.items()
    )
    return (
        f"<svg viewBox='0 0 {_WIDTH} {height}' role=img aria-label='In-sync replicas over time'>"
        f"{_PATTERNS}{''.join(rows)}</svg><ul class=legend>{legend}</ul>"
    )


def _failovers(failovers: Sequence[Mapping[str, Any]]) -> str:
    if not failovers:
        return "<h2>Failovers</h2><p>The leader did not change.</p>"
    parts = ["<h2>Failovers</h2>"]
    for one in failovers:
        head = f"Epoch {one['epoch_from']} → {one['epoch_to']}: leader {one['from']} → {one['to']}"
        if one["no_writes_ms"] is not None:
            head += f", no writes for {one['no_writes_ms']} ms"
        elif one["leaderless_ms"] is not None:
            head += f", no leader for {one['leaderless_ms']} ms"
        rows = "".join(
            f"<tr><td>{_time(phase['time_ms'])}<td>{_text(phase['name'].replace('_', ' '))}"
            f"<td>{_text(phase['text'])}</tr>"
            for phase in one["phases"]
        )
        parts.append(f"<h3>{_text(head)}</h3><table>{rows}</table>")
    return "".join(parts)


def _truncations(truncations: Sequence[Mapping[str, Any]]) -> str:
    if not truncations:
        return ""
    rows = "".join(
        f"<tr><td>{_time(one['time_ms'])}<td>broker {int(one['broker'])}"
        f"<td>╳ {int(one['count'])} records, offsets {int(one['to'])} to {int(one['from']) - 1},"
        f" epoch {int(one['epoch'])}<td>{int(one['committed_lost'])} committed<td>"
        f"{_text(one['why'])}</tr>"
        for one in truncations
    )
    return f"<h2>Cut off</h2><table>{rows}</table>"


def _events(events: Sequence[Event]) -> str:
    rows = "".join(
        f"<tr class='{_text(str(one['level']).lower())}'><td>{_time(one['time_ms'])}"
        f"<td>{_text(one['level'])}<td>broker {int(one['broker_id'])}<td>{_text(one['kind'])}"
        f"<td>{_text(one['message'])}</tr>"
        for one in reversed(events)
    )
    return f"<h2>Events</h2><div class=scroll><table>{rows}</table></div>" if rows else ""


def _time(time_ms: int, *, date: bool = False) -> str:
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    text = at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03}"
    return at.strftime("%Y-%m-%d ") + text if date else text


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_FOREIGN = (
    "<p class=about>These brokers are not Hightide's. Kafka's protocol has no log end of a replica:"
    " ends are approximate, and there are no events.</p>"
)

_PATTERNS = (
    "<defs><pattern id=eligible width=6 height=6 patternUnits=userSpaceOnUse>"
    "<rect width=6 height=6 fill='#e5e7eb'/><path d='M0 6 6 0' stroke='#6b7280'/></pattern>"
    "<pattern id=silent width=6 height=6 patternUnits=userSpaceOnUse>"
    "<rect width=6 height=6 fill='#d1d5db'/><path d='M1 0v6M4 0v6' stroke='#374151'/></pattern>"
    "</defs>"
)

_BARS = """<h2>Replicas at <output id=at></output></h2>
<p><input id=slider type=range min=0 value=0 step=1 aria-label="Moment">
<button id=back type=button>◀</button> <button id=on type=button>▶</button>
<button id=play type=button>play</button></p>
<p id=about class=about></p><div id=bars></div>"""

_STYLE = """
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif}
body{margin:1.5rem auto;max-width:64rem;padding:0 1rem}
h1{margin:0}h2{margin:1.6rem 0 .4rem;font-size:1.1rem}h3{margin:1rem 0 .2rem;font-size:1rem}
svg{width:100%;height:auto;font-size:12px;fill:currentColor}
svg text{fill:currentColor}.legend svg{width:14px;height:14px;vertical-align:-2px}
rect.gone{stroke:#9ca3af;stroke-dasharray:3}.mark{stroke:#dc2626}.epoch{font-size:11px}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1rem;list-style:none;padding:0;font-size:.85rem}
.about{color:#6b7280;margin:.2rem 0}.sentence{padding:.5rem .8rem;border-left:4px solid #16a34a}
.sentence.warn{border-color:#d97706}.sentence.bad,.sentence.off{border-color:#dc2626}
table{border-collapse:collapse;font-size:.85rem}td{padding:.15rem .7rem .15rem 0;vertical-align:top}
td:not(:last-child){white-space:nowrap}td:first-child{font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;max-height:28rem}tr.warning td:nth-child(2){color:#b45309}
tr.error td:nth-child(2){color:#dc2626}#slider{width:min(40rem,60vw);vertical-align:middle}
.row{display:grid;grid-template-columns:10rem 1fr 14rem;gap:.6rem;align-items:center;margin:.2rem 0}
.bar{position:relative;height:20px;background:#8881}
.bar i{position:absolute;inset:0 auto 0 0;width:0}
.bar .open{background:#f59e0b}.bar .done{background:#2563eb}.bar .hw{width:2px;background:#dc2626}
.num{font-variant-numeric:tabular-nums;font-size:.85rem}
@media(max-width:600px){.row{grid-template-columns:1fr}td,td:not(:last-child){display:block;
white-space:normal;padding:0}tr{display:block;padding:.3rem 0;border-bottom:1px solid #8884}}
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const frames = data.frames;
const byId = (id) => document.getElementById(id);
const slider = byId("slider");
slider.max = Math.max(0, frames.length - 1);
slider.value = slider.max;
function add(parent, tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
function range(frame) {
  const ends = frame.replicas.map((one) => one.end_offset).filter((end) => end !== null);
  const high = Math.max(frame.high_watermark ?? 0, ...ends, 1);
  const low = Math.min(high, frame.high_watermark ?? high, ...ends);
  return [Math.max(0, low - Math.max(10, (high - low) * 2)), high];
}
function standing(frame, one) {
  if (!one.alive) return one.eligible ? "\\u2591 not alive, eligible" : "\\u25fc not alive";
  if (one.silent) return "\\u23f8 does not answer";
  if (one.broker === frame.leader) return "\\u2605 leads";
  if (one.in_sync) return "\\u2713 in sync";
  return one.eligible ? "\\u2591 eligible" : "\\u25b2 out of sync";
}
function draw() {
  const frame = frames[Number(slider.value)];
  const bars = byId("bars");
  bars.replaceChildren();
  if (!frame) { byId("about").textContent = "There are no frames in this range."; return; }
  byId("at").textContent = new Date(frame.time_ms).toISOString().slice(11, 23);
  const name = (broker) => (broker < 0 ? "none" : broker);
  byId("about").textContent =
    `leader ${name(frame.leader)} \\u00b7 epoch ${frame.leader_epoch}` +
    ` \\u00b7 ISR ${frame.isr.join(",")}` +
    ` \\u00b7 high watermark ${frame.high_watermark ?? "unknown"}` +
    ` \\u00b7 last stable ${frame.last_stable_offset ?? "unknown"}. ${frame.held_why}`;
  const [low, high] = range(frame);
  const part = (offset) => `${(100 * Math.max(0, offset - low)) / Math.max(1, high - low)}%`;
  for (const one of frame.replicas) {
    const row = add(bars, "div", "row");
    add(row, "span", "", `${one.broker}  ${standing(frame, one)}`);
    const bar = add(row, "div", "bar");
    if (one.end_offset !== null) {
      add(bar, "i", "open").style.width = part(one.end_offset);
      const done = Math.min(one.end_offset, frame.high_watermark ?? one.end_offset);
      add(bar, "i", "done").style.width = part(done);
    }
    if (frame.high_watermark !== null) add(bar, "i", "hw").style.left = part(frame.high_watermark);
    const cuts = data.truncations.filter(
      (cut) => cut.broker === one.broker && cut.time_ms <= frame.time_ms,
    );
    const cut = cuts.length ? `  \\u2573 ${cuts.at(-1).count} cut` : "";
    const about = one.approximate ? "\\u2248 " : "";
    const end = one.end_offset === null ? "unknown" : about + one.end_offset;
    const lag = one.lag === null ? "" : `, ${one.lag} behind`;
    add(row, "span", "num", `end ${end}${lag}${cut}`).title = one.why;
  }
}
function step(by) { slider.value = Number(slider.value) + by; draw(); }
let timer = null;
function play() {
  if (timer) { clearInterval(timer); timer = null; byId("play").textContent = "play"; return; }
  if (slider.value === slider.max) slider.value = 0;
  byId("play").textContent = "pause";
  timer = setInterval(() => (slider.value === slider.max ? play() : step(1)), 60);
}
slider.addEventListener("input", draw);
byId("back").addEventListener("click", () => step(-1));
byId("on").addEventListener("click", () => step(1));
byId("play").addEventListener("click", play);
draw();
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body></html>
"""
