// What the page knows: payloads by path, and the live stream that keeps the run's frame fresh.
import { batch, effect, type Signal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { type Change, load, type Overview, runPath, type RunRow, saved } from "./api";

export interface Loaded<T> { data: T | null; error: string; loading: boolean }
export type Connection = "saved" | "live" | "lost" | "idle";

const payloads = new Map<string, Signal<Loaded<any>>>();
const most = 60; // payloads kept, oldest given up first

function payload<T>(path: string): Signal<Loaded<T>> {
  const known = payloads.get(path) ?? signal<Loaded<T>>({ data: null, error: "", loading: false });
  payloads.delete(path);
  payloads.set(path, known);
  for (const old of payloads.keys()) {
    if (payloads.size <= most) break;
    payloads.delete(old);
  }
  return known;
}

/** Loads a path again, keeping what is shown until the answer is here. */
export async function reload<T>(path: string): Promise<void> {
  const target = payload<T>(path);
  target.value = { ...target.value, loading: true };
  try {
    target.value = { data: await load<T>(path), error: "", loading: false };
  } catch (error) {
    target.value = { ...target.value, error: (error as Error).message, loading: false };
  }
}

/** The payload of a path: loaded when a component first needs it, shown from memory when it is known. */
export function useLoad<T>(path: string | null): Loaded<T> {
  useEffect(() => {
    if (path !== null) void reload<T>(path);
  }, [path]);
  const target = useMemo(() => (path === null ? null : payload<T>(path)), [path]);
  return target ? target.value : { data: null, error: "", loading: false };
}

export const connection = signal<Connection>(saved ? "saved" : "idle");
/** The run whose pages are open: its Overview, patched by the stream. */
export const overview = signal<Overview | null>(null);
export const overviewError = signal("");
/** Rows of the Runs page that changed since it was loaded, by "ledger/name". */
export const changedRuns = signal<ReadonlyMap<string, RunRow>>(new Map());

type Listener = (change: Change) => void;
const listeners = new Set<Listener>();
/** Calls back with each change of the open run, at most four times a second. */
export function useChanges(listener: Listener): void {
  useEffect(() => {
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, [listener]);
}

const beat = 250; // ms between redraws
const share = 20; // a whole Overview of a running run is loaded when it would take at most 1/20 of the time
let stream: EventSource | null = null;
let open = "";
let waiting: Change[] = [];
let timer = 0;
let refreshed = 0;
let took = 100; // ms to load the last Overview

/** Opens a run: loads its Overview and follows it until another page is opened. */
export async function openRun(ledger: number, run: string): Promise<void> {
  const key = `${ledger}/${run}`;
  if (open === key) return;
  shut();
  open = key;
  if (overview.value && `${overview.value.ledger}/${overview.value.name}` !== key) overview.value = null;
  await refreshRun();
  if (open === key && !saved) follow(ledger, run);
}

/** Loads the open run's Overview again. */
export async function refreshRun(): Promise<void> {
  const key = open;
  const slash = key.indexOf("/");
  refreshed = Date.now();
  try {
    const fresh = await load<Overview>(runPath(key.slice(0, slash), key.slice(slash + 1)));
    took = Date.now() - refreshed;
    if (open === key) batch(() => ((overview.value = fresh), (overviewError.value = "")));
  } catch (error) {
    if (open === key) overviewError.value = (error as Error).message;
  }
}

/** Closes the stream; with `runs`, follows the list of runs instead. */
export function closeRun(): void {
  shut();
  if (saved) return;
  open = "runs";
  listen("/api/events", "runs", (data) => {
    const rows = new Map(changedRuns.value);
    for (const row of data.rows as RunRow[]) rows.set(`${row.ledger}/${row.name}`, row);
    changedRuns.value = rows;
  });
}

function shut(): void {
  stream?.close();
  stream = null;
  open = "";
  waiting = [];
  clearTimeout(timer);
  timer = 0;
}

function follow(ledger: number, run: string): void {
  const path = () => `/api/events?run=${encodeURIComponent(`${ledger}/${run}`)}&mark=${overview.value?.mark ?? 0}`;
  listen(path, "change", (data) => {
    waiting.push(data as Change);
    timer ||= window.setTimeout(apply, beat);
  });
}

function listen(path: string | (() => string), event: string, take: (data: any) => void): void {
  const source = new EventSource(typeof path === "string" ? path : path());
  stream = source;
  source.onopen = () => (connection.value = "live");
  source.onerror = () => {
    if (stream !== source) return;
    connection.value = "lost";
    if (source.readyState === EventSource.CLOSED) window.setTimeout(() => stream === source && listen(path, event, take), 2000);
  };
  source.addEventListener(event, (message) => {
    connection.value = "live";
    take(JSON.parse((message as MessageEvent).data));
  });
}

function apply(): void {
  timer = 0;
  const changes = waiting;
  waiting = [];
  const shown = overview.value;
  if (!shown || !changes.length) return;
  const last = changes[changes.length - 1];
  const trials = changes.flatMap((change) => change.trials);
  const { mark, state, progress, eta, cost_text, elapsed_text, headline } = last;
  batch(() => {
    overview.value = {
      ...shown, mark, state, progress, eta, cost_text, elapsed_text, headline: headline || shown.headline,
      history: trials.length ? extended(shown, trials) : shown.history,
    };
    const merged = { ...last, trials, cells: changes.flatMap((change) => change.cells), more: changes.some((one) => one.more) };
    for (const listener of listeners) listener(merged);
  });
  const due = refreshed + Math.max(2000, share * took) - Date.now();
  if (state !== shown.state || (due <= 0 && trials.length)) void refreshRun();
}

/** The history with newly finished candidates at its end; a whole Overview replaces it soon. */
function extended({ history, created }: Overview, trials: Change["trials"]): Overview["history"] {
  const next = { ...history };
  for (const name of ["order", "trial", "score", "best", "complete", "evaluations", "seconds", "cost"] as const)
    (next as any)[name] = [...history[name]];
  const falls = (history.best[0] ?? 0) > (history.best.at(-1) ?? 0);
  const last = (values: number[]) => values.at(-1) ?? 0;
  for (const { trial, order, score, dropped, evaluations, cost } of trials) {
    if (order === null || order <= last(next.order)) continue;
    const best = next.best.at(-1) ?? null;
    const counts = score !== null && dropped === null;
    next.order.push(order);
    next.trial.push(trial);
    next.score.push(score);
    next.complete.push(counts ? 1 : 0);
    next.best.push(!counts ? best : best === null ? score : falls ? Math.min(best, score!) : Math.max(best, score!));
    next.evaluations.push(last(next.evaluations) + (evaluations ?? 0));
    next.seconds.push(Math.max(last(next.seconds), Date.now() / 1000 - created));
    next.cost.push(last(next.cost) + (cost ?? 0));
  }
  return next;
}

/** Light, dark, or as the system has it. */
export const theme = signal<"" | "light" | "dark">(remembered("theme") as "" | "light" | "dark");
effect(() => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("theme", theme.value);
  } catch {
    // A page opened from disk may have no storage.
  }
});

function remembered(name: string): string {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}
