// Numbers, sizes and times as people read them. Pure functions: text in, text out; "–" for what is unknown.

export const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en");
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const isUnknown = (n) => n === null || n === undefined || Number.isNaN(n);

const round = (n) => (n < 10 ? n.toFixed(1).replace(/\.0$/, "") : whole.format(Math.round(n)));

export const count = (n) => (isUnknown(n) ? UNKNOWN : whole.format(Number.isInteger(n) ? n : Number(round(Math.abs(n)).replaceAll(",", "")) * Math.sign(n)));

export function bytes(n) {
  if (isUnknown(n)) return UNKNOWN;
  let unit = 0;
  let size = Math.abs(n);
  while (size >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${n < 0 ? "−" : ""}${unit ? round(size) : whole.format(Math.round(size))} ${BYTE_UNITS[unit]}`;
}

export const rate = (n, what = "") => (isUnknown(n) ? UNKNOWN : `${count(n)}${what && ` ${what}`}/s`);

export function duration(ms) {
  if (isUnknown(ms)) return UNKNOWN;
  const size = Math.abs(ms);
  const sign = ms < 0 ? "−" : "";
  if (size < 1000) return `${sign}${size < 10 ? round(size) : Math.round(size)} ms`;
  if (size < 60000) return `${sign}${(size / 1000).toFixed(1)} s`;
  const minutes = Math.floor(size / 60000);
  if (minutes < 60) return `${sign}${minutes} min ${Math.floor((size % 60000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${sign}${hours} h ${minutes % 60} min`;
  return `${sign}${Math.floor(hours / 24)} days`;
}

const pad = (n, digits = 2) => String(n).padStart(digits, "0");

const dayOf = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;

// The time of day, with the date if it is not today; `millis: false` leaves the milliseconds out.
export function time(ms, { millis = true, now = Date.now() } = {}) {
  if (isUnknown(ms) || ms < 0) return UNKNOWN;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return UNKNOWN;
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const text = millis ? `${clock}.${pad(at.getMilliseconds(), 3)}` : clock;
  const day = dayOf(at);
  return day === dayOf(new Date(now)) ? text : `${day} ${text}`;
}

// "1 record", "2 records".
export const counted = (n, what, many = `${what}s`) => `${count(n)} ${n === 1 ? what : many}`;
