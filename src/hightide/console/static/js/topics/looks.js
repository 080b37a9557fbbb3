// Data that a page loads again and again: every few seconds, and less often where an answer takes
// long, so that a page on a large cluster costs a tenth of the time at most.

import { useEffect } from "../lib.js";
import { useData } from "../api.js";

const SHARE = 10;

export function useLooks(load, inputs, everyMs) {
  const state = useData(load, inputs);
  useEffect(() => {
    let timer = 0;
    let current = true;
    const look = async () => {
      const began = performance.now();
      if (!document.hidden) await state.reload();
      if (current) timer = setTimeout(look, Math.max(everyMs, SHARE * (performance.now() - began)));
    };
    timer = setTimeout(look, everyMs);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [state.reload, everyMs]);
  return state;
}
