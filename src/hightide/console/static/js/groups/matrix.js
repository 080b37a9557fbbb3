// Which member has which partition: a table for each topic, a row for each member.
//
//   ● has it   ○ gets it next (its target)   ◌ gives it away

import { html, useState } from "../lib.js";
import { Button, Notice, format } from "../parts.js";
import { nameOf, ranges } from "./words.js";

const MOST_COLUMNS = 64;
const MOST_TOPICS = 8;

const SIGNS = {
  has: ["●", "has it"],
  next: ["○", "gets it next"],
  leaves: ["◌", "gives it away"],
};

function stateOf(member, topic, partition) {
  const has = member.assignment?.[topic]?.includes(partition);
  const wants = member.target?.[topic]?.includes(partition);
  if (has) return member.target && !wants ? "leaves" : "has";
  return wants ? "next" : null;
}

// The partitions of each topic that the group has commits in or a member has.
function topicsOf(group) {
  const topics = new Map();
  const add = (topic, partition) => {
    if (!topics.has(topic)) topics.set(topic, new Set());
    topics.get(topic).add(partition);
  };
  for (const row of group.partitions) add(row.topic, row.partition);
  for (const member of group.members) {
    for (const part of [member.assignment, member.target]) {
      for (const [topic, partitions] of Object.entries(part ?? {})) partitions.forEach((partition) => add(topic, partition));
    }
  }
  return [...topics].sort(([a], [b]) => a.localeCompare(b)).map(([topic, all]) => [topic, [...all].sort((a, b) => a - b)]);
}

function Cell({ member, topic, partition }) {
  const state = stateOf(member, topic, partition);
  if (!state) return html`<td class="center"></td>`;
  const [sign, text] = SIGNS[state];
  return html`<td class=${`center gr-${state}`} title=${`${nameOf(member)} ${text}: ${topic}/${partition}`}>
    <span aria-hidden="true">${sign}</span><span class="hidden-text">${text}</span>
  </td>`;
}

function TopicMatrix({ topic, partitions, members }) {
  const [first, setFirst] = useState(0);
  const shown = partitions.slice(first, first + MOST_COLUMNS);
  const owned = new Set(members.flatMap((member) => member.assignment?.[topic] ?? []));
  const free = partitions.filter((partition) => !owned.has(partition));
  return html`
    <h3>${topic}</h3>
    <div class="table" tabindex="0" role="region" aria-label=${`Members and partitions of ${topic}`}>
      <table class="gr-matrix">
        <thead><tr><th scope="col">Member</th>${shown.map((partition) => html`<th key=${partition} scope="col" class="center">${partition}</th>`)}</tr></thead>
        <tbody>
          ${members.map((member) => html`<tr key=${member.id}>
            <th scope="row" title=${member.id}>${nameOf(member)} <span class="muted">${member.host}</span></th>
            ${shown.map((partition) => html`<${Cell} key=${partition} member=${member} topic=${topic} partition=${partition} />`)}
          </tr>`)}
        </tbody>
      </table>
    </div>
    ${partitions.length > MOST_COLUMNS && html`<p class="row">
      <${Button} disabled=${first === 0} onClick=${() => setFirst(first - MOST_COLUMNS)}>Earlier</${Button}>
      <span>partitions ${shown[0]} to ${shown.at(-1)} of ${format.count(partitions.length)}</span>
      <${Button} disabled=${first + MOST_COLUMNS >= partitions.length} onClick=${() => setFirst(first + MOST_COLUMNS)}>Later</${Button}>
    </p>`}
    ${free.length > 0 && html`<p class="muted">No member has ${free.length === 1 ? "partition" : "partitions"} ${ranges(free)}.</p>`}`;
}

export function Matrix({ group }) {
  const [most, setMost] = useState(MOST_TOPICS);
  if (group.members.length === 0) return html`<p class="empty">The group has no members.</p>`;
  if (group.members.every((member) => member.assignment === null)) {
    return html`<${Notice}>These members encode their assignments themselves, so they cannot be shown.</${Notice}>`;
  }
  const topics = topicsOf(group);
  const later = group.members.some((member) => member.target);
  return html`
    ${topics.slice(0, most).map(([topic, partitions]) => html`<${TopicMatrix} key=${topic} topic=${topic} partitions=${partitions} members=${group.members} />`)}
    ${topics.length > most && html`<p><${Button} onClick=${() => setMost(most * 4)}>Show more of ${topics.length} topics</${Button}></p>`}
    ${topics.length === 0 && html`<p class="empty">No member has a partition yet.</p>`}
    <p class="hint">● has it${later && html` · ○ gets it next · ◌ gives it away`}</p>`;
}
