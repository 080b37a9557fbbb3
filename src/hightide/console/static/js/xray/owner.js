// Buttons that act on the brokers of a running `hightide up`, with the command that does the same.

import { post } from "../api.js";
import { Button, Command } from "../parts.js";
import { html, useState } from "../lib.js";
import { STATES } from "./words.js";

const ACTIONS = {
  kill: { text: "Kill", title: "End the process at once, as a crash does", kind: "danger" },
  stop: { text: "Stop", title: "Hand its leaderships over, then end" },
  pause: { text: "Pause", title: "Suspend the process: it hangs and does not answer" },
  resume: { text: "Resume", title: "Let it run again" },
  restart: { text: "Restart", title: "Start it again; a running one is stopped first" },
};

/** The actions that make sense for a broker in this state. */
export function actionsFor({ alive, paused }) {
  if (paused) return ["resume", "kill"];
  return alive ? ["kill", "pause", "restart"] : ["restart"];
}

function Broker({ broker, busy, onAct }) {
  const state = broker.paused ? "silent" : broker.alive ? "in_sync" : "gone";
  return html`<li class="xo-broker">
    <span class="xo-name">
      <b aria-hidden="true">${broker.leads ? "★" : STATES[state].sign}</b> broker ${broker.id}
      <small>${broker.paused ? "paused" : !broker.alive ? "not alive" : broker.leads ? "leader" : "runs"}</small>
    </span>
    <span class="xo-buttons">
      ${actionsFor(broker).map(
        (name) => html`<${Button}
          key=${name}
          kind=${ACTIONS[name].kind}
          change
          disabled=${busy}
          label=${`${ACTIONS[name].text} broker ${broker.id}`}
          title=${ACTIONS[name].title}
          onClick=${() => onAct(name, broker.id)}
          >${ACTIONS[name].text}<//
        >`,
      )}
    </span>
  </li>`;
}

/** `brokers`: [{id, alive, paused, leads}], those with a replica first. */
export function Owner({ brokers }) {
  const [done, setDone] = useState(null);
  const [busy, setBusy] = useState(false);
  const act = async (command, id) => {
    setBusy(true);
    setDone({ text: `${ACTIONS[command].text}: broker ${id} …`, command: `hightide broker ${command} ${id}` });
    try {
      setDone(await post(`brokers/${id}/${command}`, {}));
    } catch (failure) {
      setDone({ error: failure.message, command: `hightide broker ${command} ${id}` });
    }
    setBusy(false);
  };
  return html`<section class="panel xp-card xo">
    <header>
      <h2>Try it: act on a broker</h2>
      <div class="xo-done" role="status">
        ${done
          ? html`<span class=${done.error ? "xp-error" : ""}>${done.error ? `✕ ${done.error}` : done.text}</span>
              <${Command} text=${done.command} />`
          : html`<span class="xp-quiet">Each button says which command does the same.</span>`}
      </div>
    </header>
    <ul>
      ${brokers.map((broker) => html`<${Broker} key=${broker.id} broker=${broker} busy=${busy} onAct=${act} />`)}
    </ul>
  </section>`;
}
