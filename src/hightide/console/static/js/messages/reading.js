// What the page reads: the address bar holds it, the server gets it, and the records come back as a
// stream. The rows are bounded: a tail forgets the oldest.

import { signal } from "../lib.js";
import { stream } from "../api.js";

export const MOST_TAILED = 2000;
const LIMITS = ["100", "500", "2000", "10000"];
export { LIMITS };

export const DEFAULTS = {
  from: "last", count: "100", time: "", offset: "", partitions: "", text: "", places: "key,value,headers",
  match_case: "", key: "", limit: "500", isolation: "read_committed", key_as: "auto", value_as: "auto",
};

export const STARTS = [
  ["last", "the last records"],
  ["beginning", "the beginning"],
  ["time", "a time"],
  ["offset", "an offset"],
  ["end", "now on, live"],
];

// The reading in the address bar, complete.
export function readingOf(query) {
  const known = Object.keys(DEFAULTS).map((name) => [name, query[name] ?? DEFAULTS[name]]);
  return Object.fromEntries(known);
}

// What differs from the defaults, for the address bar.
export const changesOf = (reading) =>
  Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, reading[name] === DEFAULTS[name] ? null : reading[name]]));

// The parameters of a request: only what counts.
export function paramsOf(reading, schema) {
  const wanted = { ...reading, ...schema };
  if (wanted.from !== "time") delete wanted.time;
  else wanted.time = String(Date.parse(wanted.time) || 0);
  if (wanted.from !== "offset") delete wanted.offset;
  if (wanted.from !== "last") delete wanted.count;
  if (wanted.from === "end") wanted.follow = "1";
  return Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== "" && value !== undefined));
}

export const keyOf = (record) => `${record.partition}:${record.offset}`;

// A reading of a topic as signals: rows, status, paused.
export class Reader {
  constructor(topic) {
    this.path = `topics/${encodeURIComponent(topic)}/messages/stream`;
    this.rows = signal([]);
    this.status = signal({ state: "idle" });
    this.paused = signal(false);
    this.waiting = [];
    this.close = null;
    this.frame = 0;
    this.fresh = [];
  }

  // Begin anew; with `more`, keep the rows and go on from where the last reading has stopped.
  start(params, { more = false } = {}) {
    this.stop();
    const kept = more ? this.rows.value : [];
    const at = more ? this.status.value.at : null;
    this.rows.value = kept;
    this.waiting = [];
    this.paused.value = false;
    this.status.value = { state: "reading", looked: 0, found: 0 };
    const asked = more ? { ...params, from: "at", at } : params;
    this.close = stream(this.path, asked, (message) => this.receive(message, kept));
  }

  receive(message, kept) {
    const status = this.status.value;
    switch (message.type) {
      case "begin": {
        // The stream has connected again: a scan begins anew, a tail goes on.
        const again = status.begun && message.following;
        if (!again) {
          this.fresh = [];
          this.rows.value = kept;
        }
        this.status.value = { ...message, state: message.following ? "live" : "reading", begun: true, again, looked: 0, found: 0, skipped: 0, dropped: 0 };
        break;
      }
      case "records":
        this.add(message.records);
        break;
      case "progress":
        this.status.value = { ...status, ...message };
        break;
      case "done":
      case "failed":
        this.flush();
        this.end();
        this.status.value = { ...this.status.value, ...message, state: message.type };
        break;
    }
  }

  // Rows are shown once a frame, however many messages come.
  add(records) {
    if (this.paused.value) {
      this.waiting = [...this.waiting, ...records].slice(-MOST_TAILED);
      this.status.value = { ...this.status.value, waiting: this.waiting.length };
      return;
    }
    this.fresh.push(...records);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.fresh.length === 0) return;
    const all = this.rows.value.concat(this.fresh);
    this.fresh = [];
    const most = this.status.value.following ? MOST_TAILED : Infinity;
    if (all.length > most) this.status.value = { ...this.status.value, dropped: (this.status.value.dropped ?? 0) + all.length - most };
    this.rows.value = all.length > most ? all.slice(-most) : all;
  }

  pause() {
    this.flush();
    this.paused.value = true;
  }

  resume() {
    const waiting = this.waiting;
    this.waiting = [];
    this.paused.value = false;
    this.status.value = { ...this.status.value, waiting: 0 };
    this.add(waiting);
  }

  end() {
    this.close?.();
    this.close = null;
  }

  stop() {
    this.flush();
    this.end();
    if (["reading", "live"].includes(this.status.value.state)) this.status.value = { ...this.status.value, state: "stopped" };
  }
}
