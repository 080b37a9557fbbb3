// The address bar: which path is shown, and links that change it without loading the page again.

import { batch, html, signal } from "./lib.js";

export const path = signal(location.pathname);
export const query = signal(queryOf(location.search));

function queryOf(search) {
  return Object.fromEntries(new URLSearchParams(search));
}

function read() {
  batch(() => {
    path.value = location.pathname;
    query.value = queryOf(location.search);
  });
}

addEventListener("popstate", read);

// Go to a path. With `replace` the step back skips the page that is left.
export function navigate(to, { replace = false } = {}) {
  if (to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  const before = path.value;
  read();
  if (before !== path.value) scrollTo(0, 0);
}

// Change some parameters of the address, and keep the others; null removes one.
export function setQuery(changes) {
  const wanted = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") wanted.delete(name);
    else wanted.set(name, value);
  }
  const text = wanted.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), { replace: true });
}

// The parameters of a path by a pattern such as "/t/:topic", or null if it does not match.
export function match(pattern, actual) {
  const wanted = pattern.split("/");
  const given = actual.replace(/(.)\/$/, "$1").split("/");
  if (wanted.length !== given.length) return null;
  const params = {};
  for (let n = 0; n < wanted.length; n++) {
    if (!wanted[n].startsWith(":")) {
      if (wanted[n] !== given[n]) return null;
      continue;
    }
    try {
      params[wanted[n].slice(1)] = decodeURIComponent(given[n]);
    } catch {
      return null;
    }
  }
  return params;
}

export function Link({ to, children, ...rest }) {
  const onClick = (click) => {
    if (click.defaultPrevented || click.button !== 0) return;
    if (click.metaKey || click.ctrlKey || click.shiftKey || click.altKey) return;
    click.preventDefault();
    navigate(to);
  };
  return html`<a href=${to} onClick=${onClick} ...${rest}>${children}</a>`;
}
