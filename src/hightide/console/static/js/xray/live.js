// The data of the X-ray page: live frames of a topic, and the history of one partition.

import { get, stream } from "../api.js";
import { signal, useEffect, useRef, useSignal } from "../lib.js";

const REFRESH_MS = 2000;
const SOON_MS = 250;
const NEAR_MS = 4000;

/** A signal with the newest frame of a topic; null until the first. */
export function useTopic(topic) {
  const frame = useSignal(null);
  useEffect(() => {
    frame.value = null;
    return stream("live", { topic }, (message) => {
      if (message.type === "topic" && message.topic === topic) frame.value = message;
    });
  }, [topic]);
  return frame;
}

/** What changes the ribbons: a new epoch, leader, ISR, or a broker that comes or goes. */
export function shapeOf(partition) {
  if (!partition) return "";
  const alive = partition.replicas.filter((replica) => replica.alive).map((replica) => replica.broker);
  return [partition.leader, partition.leader_epoch, partition.isr, partition.elr, alive].join("|");
}

/** The history of a partition, fetched again every two seconds and soon after a change of `shape`. */
export function useHistory(topic, partition, rangeMs, shape) {
  const history = useSignal(null);
  const error = useSignal(null);
  const load = useRef(async () => {});
  const asked = useRef(0);
  load.current = async () => {
    const mine = ++asked.current;
    const to = Date.now();
    try {
      const found = await get(`xray/${encodeURIComponent(topic)}/${partition}`, { from_ms: to - rangeMs, to_ms: to });
      if (mine !== asked.current) return;
      history.value = found;
      error.value = null;
    } catch (failure) {
      error.value = failure;
    }
  };
  useEffect(() => {
    history.value = null;
    load.current();
    const timer = setInterval(() => document.hidden || load.current(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [topic, partition, rangeMs]);
  useEffect(() => {
    const timer = setTimeout(() => load.current(), SOON_MS);
    return () => clearTimeout(timer);
  }, [shape]);
  return { history, error };
}

function nearest(frames, ms) {
  let best = null;
  for (const frame of frames) {
    if (!best || Math.abs(frame.time_ms - ms) < Math.abs(best.time_ms - ms)) best = frame;
  }
  return best;
}

/** Frames near the time that the scrubber stands at: finer than those of the whole history. */
export function usePast(topic, partition, at, history) {
  const finer = useRef(signal([])).current;
  useEffect(() => {
    if (at == null) {
      finer.value = [];
      return undefined;
    }
    const covers = finer.value.length && finer.value[0].time_ms < at && finer.value.at(-1).time_ms > at;
    if (covers) return undefined;
    const timer = setTimeout(async () => {
      const params = { from_ms: Math.round(at - NEAR_MS), to_ms: Math.round(at + NEAR_MS) };
      try {
        finer.value = (await get(`xray/${encodeURIComponent(topic)}/${partition}`, params)).frames ?? [];
      } catch {
        finer.value = [];
      }
    }, 80);
    return () => clearTimeout(timer);
  }, [topic, partition, at]);
  return at == null ? null : nearest([...(history?.frames ?? []), ...finer.value], at);
}

/** The partition of a frame, whether the frame is of a topic or of one partition. */
export function partitionOf(frame, partition) {
  if (!frame) return null;
  if (!frame.partitions) return frame.replicas ? frame : null;
  return frame.partitions.find((found) => found.partition === partition) ?? null;
}
