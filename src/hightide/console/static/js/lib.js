// The vendored libraries in one place. Everything else imports them from here.

import { h, render, Component, Fragment } from "../vendor/preact.js";
import { useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "../vendor/signals.js";
import htm from "../vendor/htm.js";
import uPlot from "../vendor/uplot.js";

export const html = htm.bind(h);

export {
  h, render, Component, Fragment,
  useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState,
  batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect,
  uPlot,
};
export default uPlot;
