// The data of the X-ray page: live frames of a topic, and the history of one partition.

import { get, stream } from "../api.js";
import { useEffect, useRef, useSignal } from "../lib.js";

const REFRESH_MS = 2000;
const SOON_MS = 250;
const NEAR_MS = 4000;
const KEPT_MS = 900_000;
const FEWEST_FRAMES = 2;
const COARSE_FRAMES = 300;

function historyOf(topic, partition, fromMs, toMs, most) {
  const range = { from_ms: Math.round(fromMs), to_ms: Math.round(toMs), most };
  return get(`xray/${encodeURIComponent(topic)}/${partition}`, range);
}

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

/** What happened in 15 minutes, fetched again every two seconds and soon after a change of `shape`.

    Nothing is fetched before a frame has shown that the partition is there. */
export function useHistory(topic, partition, shape) {
  const history = useSignal(null);
  const error = useSignal(null);
  const load = useRef(async () => {});
  const asked = useRef(0);
  load.current = async () => {
    if (!shape) return;
    const mine = ++asked.current;
    const to = Date.now();
    try {
      const found = await historyOf(topic, partition, to - KEPT_MS, to, FEWEST_FRAMES);
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
  }, [topic, partition]);
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

/** The frame of a time in the past, null when live: at first of a coarse history, then of a finer one. */
export function usePast(topic, partition, at) {
  const finer = useSignal([]);
  const coarse = useSignal([]);
  const isPast = at != null;
  useEffect(() => {
    coarse.value = [];
    if (!isPast) return;
    const now = Date.now();
    historyOf(topic, partition, now - KEPT_MS, now, COARSE_FRAMES).then(
      (found) => (coarse.value = found.frames),
      () => (coarse.value = []),
    );
  }, [topic, partition, isPast]);
  useEffect(() => {
    if (at == null) {
      finer.value = [];
      return undefined;
    }
    const covers = finer.value.length && finer.value[0].time_ms < at && finer.value.at(-1).time_ms > at;
    if (covers) return undefined;
    const timer = setTimeout(async () => {
      try {
        finer.value = (await historyOf(topic, partition, at - NEAR_MS, at + NEAR_MS, COARSE_FRAMES)).frames;
      } catch {
        finer.value = [];
      }
    }, 80);
    return () => clearTimeout(timer);
  }, [topic, partition, at]);
  return isPast ? nearest([...coarse.value, ...finer.value], at) : null;
}

/** The partition of a frame, whether the frame is of a topic or of one partition. */
export function partitionOf(frame, partition) {
  if (!frame) return null;
  if (!frame.partitions) return frame.replicas ? frame : null;
  return frame.partitions.find((found) => found.partition === partition) ?? null;
}
