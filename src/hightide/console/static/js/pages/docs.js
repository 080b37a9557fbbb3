// The documentation: a page of the files in docs/, which the console's own server makes from Markdown.
//
// Its HTML comes from the project's files and never from the cluster, so it may be set as it is.

import { html, useEffect, useRef } from "../lib.js";
import { useData, get } from "../api.js";
import { Failed } from "../parts.js";
import { Link, navigate } from "../router.js";

const FIRST = "index";

export default function Docs({ params }) {
  const name = [params.folder, params.page].filter(Boolean).join("/") || FIRST;
  const { data, error } = useData(() => get(`docs/${name}`), [name]);
  const text = useRef(null);
  useEffect(() => {
    if (!data || data.name !== name) return;
    document.title = `${data.title} · Hightide`;
    const id = decodeURIComponent(location.hash.slice(1));
    if (id) document.getElementById(id)?.scrollIntoView();
  }, [data, name]);
  // Links between pages change the page without loading the console again.
  const onClick = (click) => {
    const link = click.target.closest("a[href^='/docs']");
    if (!link || click.button !== 0 || click.metaKey || click.ctrlKey || click.shiftKey || click.altKey) return;
    const url = new URL(link.href);
    if (url.pathname === location.pathname) return;
    click.preventDefault();
    navigate(url.pathname + url.hash);
  };
  if (error) return html`<${Failed} error=${error} />`;
  const isShown = data?.name === name;
  return html`<div class="do">
    ${name === FIRST ? null : html`<p class="do-back"><${Link} to="/docs">Documentation<//></p>`}
    <article class="do-page" ref=${text} onClick=${onClick} aria-busy=${!isShown} dangerouslySetInnerHTML=${{ __html: isShown ? data.html : "" }}></article>
  </div>`;
}
