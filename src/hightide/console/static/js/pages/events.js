// All events that the console has seen, newest first, with a filter by level and by text.

import { html, useSignal } from "../lib.js";
import { Command } from "../parts.js";
import { events, overview, session } from "../store.js";
import { commandFor } from "../xray/words.js";
import { Feed, LevelFilter, chosen } from "../xray/feed.js";

export default function Events() {
  const level = useSignal("info");
  const text = useSignal("");
  const found = chosen(events.value, { level: level.value, text: text.value });
  const foreign = Boolean(overview.value?.is_foreign);
  return html`<div class="xp">
    <header class="xp-head">
      <div>
        <h1>Events</h1>
        <p class="xp-quiet">What happened on the brokers: elections, ISR changes, failovers, rebalances, damage.</p>
      </div>
    </header>
    <section class="panel xp-card">
      <header>
        <${LevelFilter} level=${level.value} onLevel=${(name) => (level.value = name)} />
        <input
          class="ef-search"
          type="search"
          placeholder="Filter: a topic, a kind, broker 2 …"
          aria-label="Filter events by text"
          value=${text.value}
          onInput=${(event) => (text.value = event.currentTarget.value)}
        />
        <span class="xp-quiet ef-count">${found.length} of ${events.value.length}</span>
      </header>
      <${Feed}
        events=${found}
        most=${500}
        empty=${foreign ? "These brokers are not Hightide's: they keep no events." : "No event matches."}
      />
      <${Command} text=${commandFor("hightide events --follow -o json", session.value?.bootstrap)} />
    </section>
  </div>`;
}
