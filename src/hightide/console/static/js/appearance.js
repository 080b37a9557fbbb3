// Light or dark: the system's choice until the user makes one. theme.js sets the choice at the start.

import { signal } from "./lib.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

export const dark = signal(isDark());
export const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

system.addEventListener("change", () => (dark.value = isDark()));

export function toggleTheme() {
  const theme = dark.value ? "light" : "dark";
  root.dataset.theme = theme;
  dark.value = isDark();
  try {
    localStorage.setItem("hightide.theme", theme);
  } catch {
    // Without storage the choice holds until the page is closed.
  }
}

// The colour of a variable of app.css now, for what is drawn on a canvas.
export const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
