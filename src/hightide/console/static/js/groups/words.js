// What the pages of groups share: levels, paths and names. Pure functions.

const WARN_MS = 10000;
const BAD_MS = 60000;

const STATES = {
  Stable: "ok",
  Empty: "off",
  Dead: "off",
  PreparingRebalance: "warn",
  CompletingRebalance: "warn",
  Assigning: "warn",
  Reconciling: "warn",
};

export const levelOfState = (state) => STATES[state] ?? "off";

// A group that is further behind than a person would wait for, if it has members to catch up.
export function levelOfLag({ lag_ms: lag, members }) {
  const count = Array.isArray(members) ? members.length : members;
  if (lag === null || lag === undefined || lag < WARN_MS) return "ok";
  if (!count) return "off";
  return lag < BAD_MS ? "warn" : "bad";
}

export const pathOf = (group) => `/g/${encodeURIComponent(group)}`;

export const apiOf = (group) => `groups/${encodeURIComponent(group)}`;

export const nameOf = (member) => member.instance_id || member.client_id || member.id;

// 0, 1, 2, 5 as "0–2, 5".
export function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const parts = [];
  for (let at = 0; at < sorted.length; ) {
    let end = at;
    while (sorted[end + 1] === sorted[end] + 1) end++;
    parts.push(end === at ? `${sorted[at]}` : end === at + 1 ? `${sorted[at]}, ${sorted[end]}` : `${sorted[at]}–${sorted[end]}`);
    at = end + 1;
  }
  return parts.join(", ");
}
