// The frame: top bar with the run's state, pages at the side, search and keys.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { RunActions } from "./actions";
import { type Found, load, type Overview, pending, saved } from "./api";
import { brief, count, duration, money, plural, range } from "./format";
import { useKeys } from "./keys";
import { StateMark, Study } from "./parts";
import { go, href, type Route } from "./router";
import { connection, overview, theme } from "./store";

const names: Record<string, string> = {
  overview: "Overview", matrix: "Matrix", trials: "Candidates", lineage: "Lineage", work: "Work", failures: "Failures", settings: "Settings",
};
const partOf: Record<string, string> = { trial: "trials", cell: "matrix" };
const help = signal(false);

export function Frame({ route, children }: { route: Route; children: ComponentChildren }) {
  const run = route.run && overview.value?.name === route.run && overview.value.ledger === route.ledger ? overview.value : null;
  useEffect(() => {
    document.title = route.run ? `${route.run} · ${names[partOf[route.page] ?? route.page] ?? ""} · Fanfold` : "Fanfold";
  }, [route.run, route.page]);
  useKeys({
    "?": () => (help.value = !help.value),
    "/": () => document.getElementById("search")?.focus(),
    Escape: () => ((help.value = false), (document.activeElement as HTMLElement)?.blur()),
  });
  return (
    <div class={route.run ? "frame" : "frame plain"}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to the page</a>
      <header class="top">
        <a class="brand" href="#/"><Mark />Fanfold</a>
        {route.run && <h1 title={route.run}>{route.run}</h1>}
        {run && <Status run={run} />}
        <span class="grow" />
        {run && !saved && <RunActions overview={run} />}
        {!saved && <Search />}
        <Theme />
      </header>
      {connection.value === "lost" && <div class="lost" role="alert">Connection lost. Trying again; what is shown may be old.</div>}
      {route.run && <Side route={route} run={run} />}
      <main id="main" tabIndex={-1} aria-busy={pending.value > 0}>{children}</main>
      {help.value && <Help />}
    </div>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <path d="M4 6l8 3v17l-8-3z" /><path class="pale" d="M12 9l8-3v17l-8 3z" /><path d="M20 6l8 3v17l-8-3z" />
    </svg>
  );
}

/** "Running 34 of 64 candidates, 2 to 3 min left, $0.12, 1 failure". */
function Status({ run }: { run: Overview }) {
  const { progress, eta, state } = run;
  return (
    <div class="status">
      <Study name={run.study} />
      <StateMark state={state} />
      <span>{howFar(run)}</span>
      {state === "running" && eta && <span>{range(eta[0], eta[1])} left</span>}
      {run.cost_text && <span title={run.cost_text}>{brief(run.cost_text).replace(/^unknown/, "cost unknown")}</span>}
      <span>{run.elapsed_text}</span>
      {progress.failures > 0 && <a class="bad" href={href(run.ledger, run.name, "failures")}>{plural(progress.failures, "failure")}</a>}
    </div>
  );
}

/** "34 of 64 prompts", "34 prompts, at most $5". */
function howFar({ progress, unit, units }: Overview): string {
  const { told, goal, goal_of } = progress;
  if (goal && goal_of === "trials") return `${count(told)} of ${plural(goal, unit, units)}`;
  if (goal && goal_of === "evaluations") return `${count(progress.evaluations)} of ${plural(goal, "evaluation")}`;
  const most = { calls: () => plural(goal!, "call"), cost: () => money(goal), time: () => duration(goal) }[goal_of];
  return plural(told, unit, units) + (goal && most ? `, at most ${most()}` : "");
}

function Side({ route, run }: { route: Route; run: Overview | null }) {
  const offered = run?.pages.length ? run.pages : Object.keys(names);
  const list = Object.keys(names).filter((name) => offered.includes(name) || name === "overview" || name === "settings");
  const now = partOf[route.page] ?? route.page;
  return (
    <nav class="side" aria-label="Pages of this run">
      {list.map((name) => (
        <a key={name} href={href(route.ledger, route.run, name)} aria-current={name === now ? "page" : undefined}>
          {name === "trials" && run ? capital(run.units) : names[name]}
          {name === "failures" && run && run.progress.failures > 0 && <span class="count">{count(run.progress.failures)}</span>}
        </a>
      ))}
    </nav>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

function Search() {
  const [found, setFound] = useState<Found["results"] | null>(null);
  const [at, setAt] = useState(0);
  const wait = useRef(0);
  const look = (text: string) => {
    clearTimeout(wait.current);
    if (!text.trim()) return setFound(null);
    wait.current = window.setTimeout(async () => {
      const answer = await load<Found>(`/api/search?q=${encodeURIComponent(text)}`).catch(() => ({ results: [] }));
      setFound(answer.results);
      setAt(0);
    }, 150);
  };
  const open = (path: string) => (setFound(null), go(path.replace(/^#?/, "#")));
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Escape") return setFound(null);
    if (!found?.length) return;
    if (event.key === "ArrowDown") setAt((at + 1) % found.length);
    else if (event.key === "ArrowUp") setAt((at + found.length - 1) % found.length);
    else if (event.key === "Enter") open(found[at].path);
    else return;
    event.preventDefault();
  };
  return (
    <div class="search">
      <input id="search" type="search" placeholder="Search  /" aria-label="Search runs and candidates" role="combobox" autocomplete="off" list={undefined}
        aria-expanded={!!found} aria-controls="results" onInput={(event) => look(event.currentTarget.value)} onKeyDown={keys}
        onBlur={() => setTimeout(() => setFound(null), 150)} />
      {found && (
        <ul id="results" role="listbox" aria-label="Results">
          {found.map((result, index) => (
            <li key={result.path} role="option" aria-selected={index === at} onMouseDown={() => open(result.path)}>{result.text}</li>
          ))}
          {!found.length && <li role="option" aria-selected="false" class="quiet">Nothing found</li>}
        </ul>
      )}
    </div>
  );
}

function Theme() {
  const dark = theme.value === "dark" || (theme.value === "" && matchMedia("(prefers-color-scheme: dark)").matches);
  return (
    <button type="button" class="theme" aria-label={dark ? "Use light colours" : "Use dark colours"} onClick={() => (theme.value = dark ? "light" : "dark")}>
      <svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="6.5" /><path d="M10 3.5a6.5 6.5 0 0 1 0 13z" /></svg>
    </button>
  );
}

const keysHelp: [string, string][] = [
  ["/", "Search, or filter the list of runs"], ["j  k", "Next and previous"], ["Enter", "Open what is marked"], ["x  c", "Runs: tick, compare"],
  ["+  -  0", "Matrix: zoom in, out, all"], ["Esc", "Close"], ["?", "These keys"],
];

function Help() {
  const close = useRef<HTMLButtonElement>(null);
  useEffect(() => close.current?.focus(), []);
  return (
    <div class="help" role="dialog" aria-modal="true" aria-label="Keys">
      <h2>Keys</h2>
      <dl>{keysHelp.map(([key, text]) => [<dt key={key}>{key}</dt>, <dd key={text}>{text}</dd>])}</dl>
      <button type="button" ref={close} onClick={() => (help.value = false)}>Close</button>
    </div>
  );
}
