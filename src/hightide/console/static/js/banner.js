// The sentence that another process publishes with --banner-file, above every page.

import { get, session } from "./api.js";
import { html, useEffect, useSignal } from "./lib.js";
import { Mark } from "./parts.js";

const EVERY_MS = 1000;

export function Banner() {
  const banner = useSignal(null);
  const wanted = Boolean(session.value?.banner);
  useEffect(() => {
    if (!wanted) return undefined;
    const load = async () => {
      if (document.hidden) return;
      try {
        banner.value = (await get("banner")).banner;
      } catch {
        // The connection's badge says so.
      }
    };
    load();
    const timer = setInterval(load, EVERY_MS);
    return () => clearInterval(timer);
  }, [wanted]);
  const found = banner.value;
  if (!wanted) return null;
  const level = found && !found.is_old ? found.level : "off";
  return html`<p class=${`banner ${level}`}>
    ${found && html`<${Mark} level=${level} /> <span>${found.text}</span>${found.is_old ? html` <small>(the process that writes this has stopped)</small>` : ""}`}
  </p>`;
}
