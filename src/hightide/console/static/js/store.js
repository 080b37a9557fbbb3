// What every page shares: the newest overview, the newest events, and the session.
//
// session: {token, read_only, owner, foreign, bootstrap, title, login}; `login` is true while a
// password is needed.

import { batch, signal } from "./lib.js";
import { connection, refreshSession, session, stream } from "./api.js";

const MOST_EVENTS = 500;
const RETRY_MS = 2000;

export const overview = signal(null);
export const events = signal([]);
export { connection, session };

let close = null;

// Learn the session, then follow the cluster. Without a login yet, nothing is followed.
export async function start() {
  try {
    const found = await refreshSession();
    if (!found.login) follow();
  } catch {
    connection.value = "lost";
    setTimeout(start, RETRY_MS);
  }
}

function follow() {
  if (close) return;
  close = stream("live", {}, receive);
}

export function stop() {
  close?.();
  close = null;
}

function receive(message) {
  if (message.type === "overview") overview.value = message;
  if (message.type === "events") addEvents(message.events);
}

function addEvents(found) {
  batch(() => {
    const known = new Set(events.value.map(keyOf));
    const fresh = found.filter((event) => !known.has(keyOf(event)));
    if (fresh.length === 0) return;
    const all = [...fresh, ...events.value].sort((a, b) => (b.time_ms ?? 0) - (a.time_ms ?? 0));
    events.value = all.slice(0, MOST_EVENTS);
  });
}

const keyOf = (event) => [event.broker_id, event.sequence ?? "", event.time_ms, event.kind, event.message].join("|");
