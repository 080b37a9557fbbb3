// What the X-ray says in words: the state of a replica, and the sentence about a partition.

const QUIET_MS = 1000;

const number = new Intl.NumberFormat("en-US");

export function count(n) {
  return n == null || n < 0 ? "–" : number.format(n);
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A duration for a narrow column: "2 ms", "8.0 s", "4 min". */
export function span(ms) {
  if (ms == null || ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 3_600_000 ? `${Math.floor(ms / 60_000)} min` : `${(ms / 3_600_000).toFixed(1)} h`;
}

/** A time of day; `digits` of its seconds' fraction. */
export function clock(ms, digits = 0) {
  const at = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return digits ? `${text}.${String(at.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : text;
}

/** A command with the address of the cluster, if it is not the default one. */
export function commandFor(text, bootstrap) {
  const first = (bootstrap ?? "").split(",")[0].trim();
  const isDefault = ["", "localhost:9092", "127.0.0.1:9092"].includes(first);
  return isDefault || text.includes(" --bootstrap ") ? text : `${text} --bootstrap ${first}`;
}

export function list(ids) {
  const texts = [...ids].sort((a, b) => a - b).map(String);
  return texts.length < 2 ? (texts[0] ?? "none") : `${texts.slice(0, -1).join(", ")} and ${texts.at(-1)}`;
}

export const STATES = {
  leads: { sign: "★", text: "leader" },
  in_sync: { sign: "✓", text: "in sync" },
  out: { sign: "✕", text: "out of sync" },
  eligible: { sign: "░", text: "eligible" },
  silent: { sign: "‖", text: "silent" },
  gone: { sign: "◼", text: "not alive" },
};

export function hasLeader(partition) {
  return partition.leader != null && partition.leader >= 0;
}

/** Whether a replica's broker is alive and does not answer. */
export function isSilent(replica, paused = []) {
  return replica.alive && (replica.silent || paused.includes(replica.broker));
}

/** The state of a replica, one of STATES; silence is told beside it. */
export function stateOf(replica, partition) {
  if (!replica.alive) return replica.eligible ? "eligible" : "gone";
  if (replica.broker === partition.leader) return "leads";
  if (replica.in_sync) return "in_sync";
  return replica.eligible ? "eligible" : "out";
}

/** Whether a replica in sync has kept the high watermark back for longer than a moment. */
export function heldBy(partition, paused = []) {
  return partition.replicas.filter(
    (replica) =>
      (partition.held_by ?? []).includes(replica.broker) &&
      replica.broker !== partition.leader &&
      ((replica.lag_ms ?? 0) >= QUIET_MS || isSilent(replica, paused)),
  );
}

function offline(name, partition) {
  const eligible = partition.elr ?? [];
  const who = eligible.length ? ` Replica ${list(eligible)} may lead as soon as its broker is back.` : "";
  return {
    level: "off",
    text: `${name} has no leader: it takes no reads and no writes.${who}`,
    next: `hightide partition show ${name}`,
  };
}

function mute(name, partition) {
  return {
    level: "bad",
    text:
      `Broker ${partition.leader} leads ${name} and does not answer: no reads and no writes until it` +
      " answers again, or its session ends and another broker leads.",
    next: `hightide partition show ${name}`,
  };
}

function refusing(name, partition, minIsr) {
  const inSync = partition.isr.length;
  return {
    level: "bad",
    text:
      `${name} refuses acks=all: ${plural(inSync, "replica is", "replicas are")} in sync,` +
      ` min ISR is ${minIsr}. What is committed stays safe and readable.`,
    next: `hightide partition show ${name}`,
  };
}

function held(name, holders) {
  const ids = list(holders.map((holder) => holder.broker));
  const many = holders.length > 1;
  return {
    level: "warn",
    text:
      `Replica${many ? "s" : ""} ${ids} hold${many ? "" : "s"} the high watermark back:` +
      ` in sync, but ${many ? "they do" : "it does"} not fetch. Newer records are on the leader` +
      " and consumers do not see them yet.",
    next: `hightide partition show ${name}`,
  };
}

function missing(name, partition) {
  const out = partition.replicas.filter(
    (replica) => !replica.in_sync && !(partition.adding ?? []).includes(replica.broker),
  );
  if (!out.length) return null;
  const away = out.filter((replica) => !replica.alive).map((replica) => replica.broker);
  const behind = out.filter((replica) => replica.alive).map((replica) => replica.broker);
  const parts = [];
  if (away.length) parts.push(`broker ${list(away)} is not alive`);
  if (behind.length) parts.push(`replica ${list(behind)} is out of sync`);
  const text = parts.join(", and ");
  const inSync = plural(partition.isr.length, "replica is", "replicas are");
  return {
    level: "warn",
    text: `${text[0].toUpperCase()}${text.slice(1)}. ${inSync} in sync, so records have fewer copies than wanted.`,
    next: away.length ? `hightide broker restart ${away[0]}` : `hightide partition show ${name}`,
  };
}

/** The sentence about a partition: {level, text, next}.  It has no number that moves. */
export function sentenceOf(topic, partition, minIsr, { paused = [], foreign = false } = {}) {
  const name = `${topic}/${partition.partition}`;
  if (!hasLeader(partition)) return offline(name, partition);
  const leader = partition.replicas.find((replica) => replica.broker === partition.leader);
  if (leader && isSilent(leader, paused)) return mute(name, partition);
  if (partition.accepts_all === false) return refusing(name, partition, minIsr);
  const holders = heldBy(partition, paused);
  if (holders.length) return held(name, holders);
  const found = missing(name, partition);
  if (found) return foreign ? { ...found, next: null } : found;
  const all = partition.replicas.length;
  const text =
    all === 1
      ? `${name} has one replica: nothing protects it if broker ${partition.leader} is lost.`
      : `All ${all} replicas are in sync.`;
  return { level: all === 1 ? "warn" : "ok", text, next: null };
}
