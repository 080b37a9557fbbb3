// The shell around every page: title, the cluster's sentence, navigation, theme, connection.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./lib.js";
import { dark, toggleTheme } from "./appearance.js";
import { Banner } from "./banner.js";
import { post } from "./api.js";
import { pages } from "./pages.js";
import { Badge, Button, Command, Failed, Field, Loading, Mark, Notice } from "./parts.js";
import { Link, match, path, query } from "./router.js";
import { connection, overview, session, start } from "./store.js";

const CONNECTIONS = {
  connecting: ["off", "connecting"],
  live: ["ok", "live"],
  lost: ["bad", "no connection"],
  paused: ["off", "paused"],
};

const modules = new Map();

function find(actual) {
  for (const page of pages) {
    const params = match(page.path, actual);
    if (params) return { page, params };
  }
  return null;
}

function Header() {
  const summary = overview.value;
  const title = summary?.title || session.value?.title || "";
  return html`<header class="top">
    <${Link} to="/" class="brand"><img src="/static/icon.svg" alt="" width="22" height="22" /> Hightide</${Link}>
    ${title && html`<span class="cluster" title=${session.value?.bootstrap}>${title}</span>`}
    <${Problems} sentence=${summary?.sentence} />
    <span class="tools">
      ${session.value?.read_only && html`<${Badge} text="read-only" title="The console changes nothing." />`}
      <${Connection} />
      <button type="button" class="theme" onClick=${toggleTheme} aria-pressed=${dark.value ? "true" : "false"}
        aria-label="Dark theme" title=${dark.value ? "Light theme" : "Dark theme"}>${dark.value ? "☀" : "☾"}</button>
    </span>
  </header>`;
}

// The sentence in short, on every page; the overview has all of it.
function Problems({ sentence }) {
  if (!sentence) return html`<span class="problems"></span>`;
  return html`<${Link} to="/" class=${`problems ${sentence.level}`} title=${sentence.text}>
    <${Mark} level=${sentence.level} /> <span>${sentence.text}</span>
  </${Link}>`;
}

function Connection() {
  const [level, text] = CONNECTIONS[connection.value];
  return html`<span class="connection" role="status"><${Badge} level=${level} text=${text} /></span>`;
}

function Navigation() {
  const here = path.value;
  const isHere = (page) => (page.path === "/" ? here === "/" : here === page.path || here.startsWith(`${page.path}/`));
  const shown = pages.filter((page) => page.nav && (!page.when || page.when(session.value)));
  const bar = useRef(null);
  useEffect(() => {
    // On a narrow screen the bar scrolls: the current page is in view.
    const current = bar.current.querySelector("[aria-current]");
    if (current) bar.current.scrollLeft = current.offsetLeft - (bar.current.clientWidth - current.offsetWidth) / 2;
  }, [here]);
  return html`<nav class="pages" aria-label="Pages" ref=${bar}>
    ${shown.map((page) => html`<${Link} key=${page.path} to=${page.path} aria-current=${isHere(page) ? "page" : undefined}>${page.nav}</${Link}>`)}
  </nav>`;
}

// Loads the page's module when it is first shown.
function Page({ page, params }) {
  const [state, setState] = useState({});
  const [broken, reset] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    let current = true;
    if (modules.has(page.path)) return () => (current = false);
    page.load().then(
      (module) => {
        modules.set(page.path, module.default);
        if (current) setState({});
      },
      (error) => current && setState({ error }),
    );
    return () => (current = false);
  }, [page]);
  if (broken) {
    return html`<${Notice} level="bad">
      <p>This page has failed: ${broken.message}</p>
      <${Button} onClick=${reset}>Try again</${Button}>
    </${Notice}>`;
  }
  if (state.error) return html`<${Failed} error=${new Error(`This page cannot be loaded: ${state.error.message}`)} />`;
  const component = modules.get(page.path);
  if (!component) return html`<${Loading} />`;
  return html`<${component} params=${params} query=${query.value} />`;
}

function Missing() {
  return html`<h1>No such page</h1>
    <p>The console has no page ${path.value}. <${Link} to="/">Go to the overview.</${Link}></p>`;
}

function Login() {
  const [password, setPassword] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      await post("login", { password });
      await start();
    } catch (failure) {
      setError(failure);
    }
    setPassword("");
  };
  return html`<form class="login" onSubmit=${submit}>
    <h1>Log in</h1>
    <${Field} label="Password">
      <input type="password" value=${password} autofocus autocomplete="current-password" onInput=${(event) => setPassword(event.target.value)} />
    </${Field}>
    <${Failed} error=${error} />
    <${Button} kind="primary" type="submit" disabled=${!password}>Log in</${Button}>
    <p class="hint">The password is in the file that the console was started with: <${Command} text="hightide console --password-file FILE" /></p>
  </form>`;
}

function Content() {
  if (session.value?.login) return html`<${Login} />`;
  if (!session.value) return connection.value === "lost" ? html`<${Unreachable} />` : html`<${Loading} />`;
  const found = find(path.value);
  if (!found) return html`<${Missing} />`;
  return html`<${Page} key=${found.page.path} ...${found} />`;
}

const Unreachable = () =>
  html`<${Notice} level="bad">The console's server does not answer. This page tries again by itself.</${Notice}>`;

function titleOf(found) {
  if (!found) return "Hightide";
  const { title } = found.page;
  return `${typeof title === "function" ? title(found.params) : title} · Hightide`;
}

function App() {
  const main = useRef(null);
  const first = useRef(true);
  const here = path.value;
  useEffect(() => {
    document.title = titleOf(find(here));
    // After a step to another page, the next Tab starts in it.
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [here]);
  return html`
    <a class="skip" href="#main" onClick=${(click) => (click.preventDefault(), main.current.focus())}>Skip to the page</a>
    <${Header} />
    ${session.value && !session.value.login && html`<${Navigation} />`}
    ${session.value && !session.value.login && html`<${Banner} />`}
    <main id="main" tabindex="-1" ref=${main}><${Content} /></main>`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
start();
