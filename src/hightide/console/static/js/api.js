// Requests to the console's own server: JSON, and one stream of server-sent events.
//
//   await get("topics", { internal: 1 })          GET /api/v1/topics?internal=1
//   await post("topics", { name: "orders" })      POST with the session's token
//   const close = stream("live", { topic }, onMessage)
//   const { data, error, loading, reload } = useData(() => get("topics"), [], 5000)
//
// A failure is a RequestFailed: its message is a sentence for people.

import { signal, useCallback, useEffect, useRef, useState } from "./lib.js";

const ROOT = "/api/v1/";
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10000;
const HIDDEN_MS = 5000;

// "connecting", "live", "lost" (tries again), "paused" (the tab is hidden).
export const connection = signal("connecting");

// What GET session says; see store.js. Null until it is known.
export const session = signal(null);

export class RequestFailed extends Error {
  constructor(sentence, status = 0, data = null) {
    super(sentence);
    this.name = "RequestFailed";
    this.status = status;
    this.data = data;
  }
}

export function address(path, params = {}) {
  const given = Object.entries(params ?? {}).filter(([, value]) => value !== undefined && value !== null);
  const query = new URLSearchParams(given).toString();
  const whole = path.startsWith("/") ? path : ROOT + path;
  if (!query) return whole;
  return whole + (whole.includes("?") ? "&" : "?") + query;
}

export async function refreshSession() {
  session.value = await request("GET", "session");
  return session.value;
}

export const get = (path, params, options = {}) => request("GET", address(path, params), undefined, options);
export const post = (path, body = {}) => change("POST", path, body);
export const put = (path, body = {}) => change("PUT", path, body);
export const del = (path, body) => change("DELETE", path, body);

async function change(method, path, body) {
  if (!session.value) await refreshSession();
  try {
    return await request(method, address(path), body);
  } catch (error) {
    // A console that was restarted has another token.
    if (error.data?.code !== "token") throw error;
    await refreshSession();
    return request(method, address(path), body);
  }
}

async function request(method, path, body, { signal: aborts } = {}) {
  const headers = { Accept: "application/json" };
  if (method !== "GET" && session.value?.token) headers["X-Hightide-Token"] = session.value.token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    const options = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
    response = await fetch(address(path), { ...options, signal: aborts, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestFailed("The console's server does not answer. It may have been stopped.");
  }
  return answer(response, path);
}

async function answer(response, path) {
  const text = await response.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : {};
  } catch {
    if (response.ok) throw new RequestFailed(`The answer to ${path} is not JSON.`, response.status);
  }
  if (response.ok) return data;
  if (response.status === 401 && session.value && !session.value.login) {
    session.value = { ...session.value, login: true };
  }
  throw new RequestFailed(data?.error ?? `The server answered ${response.status}.`, response.status, data);
}

// Open a stream of events until the returned function is called. It reconnects by itself, and pauses
// while the tab is hidden: a browser allows six connections to a server, for all of its tabs.
export function stream(path, params, onMessage) {
  let source = null;
  let timer = 0;
  let hiding = 0;
  let pause = FIRST_PAUSE_MS;
  let closed = false;

  function open() {
    clearTimeout(timer);
    if (closed || source) return;
    source = new EventSource(address(path, params));
    source.onopen = () => {
      pause = FIRST_PAUSE_MS;
      connection.value = "live";
    };
    source.onmessage = (message) => {
      connection.value = "live";
      onMessage(JSON.parse(message.data));
    };
    source.onerror = () => {
      stop();
      connection.value = "lost";
      timer = setTimeout(open, pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    };
  }

  function stop() {
    source?.close();
    source = null;
  }

  function onVisibility() {
    clearTimeout(hiding);
    if (!document.hidden) {
      open();
      return;
    }
    hiding = setTimeout(() => {
      clearTimeout(timer);
      stop();
      connection.value = "paused";
    }, HIDDEN_MS);
  }

  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    closed = true;
    clearTimeout(timer);
    clearTimeout(hiding);
    document.removeEventListener("visibilitychange", onVisibility);
    stop();
  };
}

// Load data for a component, again every so many ms while the tab is visible. Data stays while it is
// loaded again, also when that fails.
export function useData(load, inputs = [], everyMs = 0) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const round = useRef(0);
  const reload = useCallback(async () => {
    const mine = ++round.current;
    try {
      const data = await load();
      if (mine === round.current) setState({ data, error: null, loading: false });
    } catch (error) {
      if (mine === round.current && error.name !== "AbortError") {
        setState((old) => ({ data: old.data, error, loading: false }));
      }
    }
  }, inputs);
  useEffect(() => {
    setState((old) => ({ ...old, data: round.current ? null : old.data, loading: true }));
    reload();
    const timer = everyMs ? setInterval(() => document.hidden || reload(), everyMs) : 0;
    return () => {
      round.current++;
      clearInterval(timer);
    };
  }, [reload, everyMs]);
  return { ...state, reload };
}
