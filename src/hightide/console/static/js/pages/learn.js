// Learn: guided scenes on the real brokers. The steps on one side, the X-ray of the partition beside them.
//
//   GET learn every 0.4 s while a scene runs ──▶ steps, what each has seen, the commands
//   live frames of the scene's topic         ──▶ bars and ribbons, the same as on the page of a partition

import { del, get, post } from "../api.js";
import { html, signal, useEffect, useRef, useSignal } from "../lib.js";
import { Button, Command, Failed, Loading, Notice } from "../parts.js";
import { Link, navigate } from "../router.js";
import { events, overview, session } from "../store.js";
import { Bars, Legend, Numbers } from "../xray/bars.js";
import { Feed, chosen } from "../xray/feed.js";
import { partitionOf, shapeOf, useHistory, useTopic } from "../xray/live.js";
import { Ribbons } from "../xray/ribbons.js";
import { nextWindow } from "../xray/scale.js";
import { heldBy } from "../xray/words.js";

const SOON_MS = 400;
const LATER_MS = 3000;
const SHOWN_MS = 60_000;

const SIGNS = { todo: "○", doing: "◐", done: "✓", failed: "✕", skipped: "–" };
const SPOKEN = { todo: "to do", doing: "being done", done: "done", failed: "failed", skipped: "left out" };

// The topic of the scene that the reader has just ended: the next answer says so.
const ending = signal("");

const isOver = (run) => ["done", "failed", "cancelled"].includes(run.state);

/** What the server says about the scenes; asked again soon while one of them runs. */
function useLearn() {
  const data = useSignal(null);
  const error = useSignal(null);
  const load = useRef(async () => {});
  load.current = async () => {
    try {
      data.value = await get("learn");
      error.value = null;
    } catch (failure) {
      error.value = failure;
    }
  };
  useEffect(() => {
    let timer = 0;
    let closed = false;
    const again = async () => {
      await load.current();
      const run = data.value?.run;
      if (!closed) timer = setTimeout(again, run && !isOver(run) ? SOON_MS : LATER_MS);
    };
    again();
    return () => {
      closed = true;
      clearTimeout(timer);
    };
  }, []);
  return { data, error, load: () => load.current() };
}

// -- the X-ray ---------------------------------------------------------------------------------

function pausedBrokers() {
  return (overview.value?.brokers ?? []).filter((broker) => broker.paused).map((broker) => broker.id);
}

function Picture({ topic, partition, range, isOld }) {
  const paused = isOld ? [] : pausedBrokers();
  const hasDeleted = partition.replicas.some((replica) => replica.start_offset > range.start);
  return html`<div class=${isOld ? "le-old" : ""}>
    <dl class="xp-facts">
      <div class="xp-fact"><dt>Leader</dt><dd>${partition.leader < 0 ? "◼ none" : `★ broker ${partition.leader}`}</dd></div>
      <div class="xp-fact"><dt>Epoch</dt><dd>${partition.leader_epoch}</dd></div>
      <div class="xp-fact"><dt>In sync (ISR)</dt><dd>${partition.isr.join(", ") || "none"}</dd></div>
      <div class="xp-fact"><dt>Eligible (ELR)</dt><dd>${(partition.elr ?? []).join(", ") || "none"}</dd></div>
      <div class="xp-fact"><dt>acks=all</dt><dd>${partition.accepts_all === false ? "✕ refused" : "✓ accepted"}</dd></div>
    </dl>
    <${Bars} partition=${partition} range=${range} cuts=${[]} paused=${paused} holders=${heldBy(partition, paused)} />
    <${Legend} foreign=${false} hasStable=${false} hasCuts=${false} hasDeleted=${hasDeleted} />
    <${Numbers} topic=${topic} partition=${partition} paused=${paused} />
  </div>`;
}

function Past({ topic, frame, shape }) {
  const { history } = useHistory(topic, 0, shape);
  const found = history.value;
  if (!found?.ribbons?.length) return null;
  const to = frame.time_ms;
  const partition = partitionOf(frame, 0);
  return html`<h3>The last minute</h3>
    <${Ribbons}
      ribbons=${found.ribbons}
      failovers=${found.failovers}
      epoch=${partition?.leader_epoch}
      leader=${partition?.leader}
      window=${{ from: to - SHOWN_MS, to }}
      at=${null}
      onScrub=${() => {}}
    />`;
}

function Xray({ run }) {
  const frame = useTopic(run.topic);
  const last = useRef(null);
  const range = useRef(null);
  const found = partitionOf(frame.value, 0);
  if (found) {
    last.current = frame.value;
    range.current = nextWindow(range.current, found, run.scene === "reassignment" ? "whole" : "tail");
  }
  const shown = partitionOf(last.current, 0);
  // The topic goes away while the cluster is brought back to how it was.
  const isOld = isOver(run) || run.state === "cleaning" || ending.value === run.topic;
  return html`<section class="panel xp-card xp-bars" aria-label="X-ray of the scene's partition">
    <header>
      <h2>${run.topic}/0</h2>
      ${!isOver(run) && shown && html`<${Link} to=${`/x/${run.topic}/0`}>Open the whole X-ray<//>`}
    </header>
    ${shown
      ? html`<${Picture} topic=${run.topic} partition=${shown} range=${range.current} isOld=${isOld} />
          ${!isOld && html`<${Past} topic=${run.topic} frame=${last.current} shape=${shapeOf(shown)} />`}
          ${isOld && html`<p class="xp-quiet">The topic is deleted when the scene ends; this is its last picture.</p>`}`
      : html`<p class="xp-quiet">The replicas are shown here as soon as the topic exists.</p>`}
    <div class="le-later">
      <h3>Events</h3>
      <div class="ef-box"><${Feed} events=${chosen(events.value, { topic: run.topic, partition: 0 })} most=${30} empty="None yet." /></div>
    </div>
  </section>`;
}

// -- the steps ---------------------------------------------------------------------------------

function Step({ step, number, isNow }) {
  const isSeen = step.state === "done" || step.state === "failed";
  return html`<li class=${`le-step le-${step.state}${isNow ? " le-now" : ""}`} aria-current=${isNow ? "step" : null}>
    <b class="le-sign" aria-hidden="true">${SIGNS[step.state]}</b>
    <div>
      <h3>${number}. ${step.title} <span class="hidden-text">(${SPOKEN[step.state]})</span></h3>
      <p class="le-text">${step.text}</p>
      ${step.seen && html`<p class="le-seen">${step.seen}</p>`}
      ${isSeen && step.commands.length > 0 && html`<details class="le-commands">
        <summary>The same in a terminal</summary>
        ${step.commands.map((command) => html`<${Command} key=${command} text=${command} />`)}
      </details>`}
    </div>
  </li>`;
}

function Controls({ run, act }) {
  const isLast = run.step === run.steps.length - 1;
  return html`<div class="le-controls">
    ${run.state === "waiting" && html`<${Button} kind="primary" change onClick=${() => {
      if (isLast) ending.value = run.topic;
      return act(() => post("learn/next"));
    }}>${isLast ? "Finish" : "Next step"}</${Button}>`}
    ${!isOver(run) && run.state !== "cleaning" && html`<${Button} change onClick=${() => {
      ending.value = run.topic;
      return act(() => del("learn"));
    }}>Stop and clean up</${Button}>`}
    ${run.state === "running" && html`<span class="le-busy">◐ ${run.steps[run.step]?.title} …</span>`}
    ${run.state === "cleaning" && html`<span class="le-busy">◐ Bringing the cluster back to how it was …</span>`}
    ${isOver(run) && html`<${Button} kind="primary" change onClick=${() => act(() => begin(run.scene))}>Play it again</${Button}>
      <${Button} onClick=${() => navigate("/learn")}>All scenes</${Button}>`}
  </div>`;
}

function Ending({ run }) {
  if (run.state === "failed") {
    return html`<${Notice} level="bad">
      <p>The scene stopped: ${run.error}</p>
      <${Restored} run=${run} />
    </${Notice}>`;
  }
  if (!isOver(run)) return null;
  const text = run.state === "done" ? "That was it. The cluster is as it was before." : "The scene was stopped, and the cluster is as it was before.";
  const failed = run.restored.some((sentence) => sentence.startsWith("✕"));
  return html`<${Notice} level=${failed ? "bad" : "ok"}>
    <p>${failed ? "The scene is over, but not everything could be undone." : text}</p>
    <${Restored} run=${run} />
  </${Notice}>`;
}

const Restored = ({ run }) => html`<ul class="le-restored">${run.restored.map((sentence) => html`<li key=${sentence}>${sentence}</li>`)}</ul>`;

const begin = (scene) => post("learn", { scene, guided: true });

function Played({ run, intro, act }) {
  const now = run.steps[run.step];
  return html`<div class="le-played">
    <section class="panel" aria-label="Steps">
      <p>${intro}</p>
      <ol class="le-steps">
        ${run.steps.map((step, at) => html`<${Step} key=${at} step=${step} number=${at + 1} isNow=${at === run.step && !isOver(run)} />`)}
      </ol>
      <p class="hidden-text" role="status">${now?.state === "done" ? now.seen : (now?.title ?? "")}</p>
      <${Controls} run=${run} act=${act} />
      <${Ending} run=${run} />
    </section>
    <div class="xp"><${Xray} key=${run.topic} run=${run} /></div>
  </div>`;
}

// -- a scene before it is played, and the list of them -----------------------------------------

function Preview({ scene, found, act }) {
  const busy = found.run && !isOver(found.run) ? found.run : null;
  return html`<section class="panel">
    <p>${scene.intro}</p>
    <ol class="le-steps">
      ${scene.steps.map((step, at) => html`<${Step} key=${at} number=${at + 1} step=${{ ...step, state: "todo", commands: [] }} />`)}
    </ol>
    ${busy && html`<${Notice} level="warn">The scene “${busy.title}” is being played. <${Link} to=${`/learn/${busy.scene}`}>Show it</${Link}></${Notice}>`}
    ${!found.available && html`<${Unavailable} found=${found} />`}
    <div class="le-controls">
      <${Button} kind="primary" change disabled=${!found.available || Boolean(busy)} onClick=${() => act(() => begin(scene.id))}>Play the scene</${Button}>
      <span class="muted">about ${scene.about_s} s, plus the time to read; on a topic of its own that is deleted afterwards</span>
    </div>
  </section>`;
}

function Unavailable({ found }) {
  return html`<${Notice} level="warn">
    <p>${found.why}</p>
    <${Command} text="hightide up --brokers 3" />
  </${Notice}>`;
}

function List({ found }) {
  const running = found.run && !isOver(found.run) ? found.run.scene : null;
  return html`<h1>Learn</h1>
    <p class="le-lead">
      Seven scenes show how replication keeps records, on the real brokers of this cluster: they are paused, killed and
      started again while you watch. Each scene uses a topic of its own and leaves the cluster as it was. Other topics of
      the cluster feel it, as they would feel the real thing.
    </p>
    ${!found.available && html`<${Unavailable} found=${found} />`}
    <ol class="le-list">
      ${found.scenes.map((scene) => html`<li key=${scene.id} class="panel">
        <b class="le-number" aria-hidden="true">${scene.number}</b>
        <div>
          <h2><${Link} to=${`/learn/${scene.id}`}>${scene.title}</${Link}>${running === scene.id ? html` <span class="badge warn">◐ is being played</span>` : ""}</h2>
          <p>${scene.intro}</p>
        </div>
      </li>`)}
    </ol>`;
}

export default function Learn({ params }) {
  const { data, error, load } = useLearn();
  const refused = useSignal(null);
  const act = async (change) => {
    refused.value = null;
    try {
      await change();
    } catch (failure) {
      refused.value = failure;
    }
    await load();
  };
  useEffect(() => {
    refused.value = null;
  }, [params.scene]);
  const found = data.value;
  if (!found) return error.value ? html`<h1>Learn</h1><${Failed} error=${error.value} />` : html`<${Loading} what="The scenes are loading" />`;
  if (!params.scene) return html`<${List} found=${found} />`;
  const scene = found.scenes.find((one) => one.id === params.scene);
  if (!scene) return html`<h1>Learn</h1><${Notice} level="warn">There is no such scene. <${Link} to="/learn">All scenes</${Link}></${Notice}>`;
  const run = found.run?.scene === scene.id ? found.run : null;
  return html`<p class="le-back"><${Link} to="/learn">Learn</${Link}> ▸ ${scene.number} of ${found.scenes.length}</p>
    <h1>${scene.title}</h1>
    ${session.value?.read_only && html`<${Notice} level="warn">The console is read-only, so no scene can be played.</${Notice}>`}
    <${Failed} error=${refused.value} />
    ${error.value && html`<${Failed} error=${error.value} />`}
    ${run ? html`<${Played} run=${run} intro=${scene.intro} act=${act} />` : html`<${Preview} scene=${scene} found=${found} act=${act} />`}`;
}
