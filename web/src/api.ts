// The server's payloads, and how they are read: from the server, or from the data inside a saved page.

import { signal } from "@preact/signals";

export type Num = number | null;
export type State = "running" | "finished" | "stopped" | "failed" | "interrupted";

export interface Curve { name: string; points: [number, number][]; low: number[]; high: number[] }
export interface Drawing { kind: string; data: any }
export interface Section {
  title: string; text: string; columns: string[]; rows: (string | number | null)[][]; curves: Curve[];
  across: string; up: string; drawings: Drawing[];
}
export interface RunRow {
  ledger: number; name: string; study: string; state: State; reason: string; headline: string; best: Num; best_text: string;
  low: Num; high: Num; cost: Num; cost_text: string; trials: number; evaluations: number; failures: number; created: number;
  updated: number; elapsed: number; elapsed_text: string; spark: number[]; helpers: RunRow[];
}
export interface Runs {
  ledgers: { id: number; name: string; path: string }[]; runs: RunRow[]; next: string | null; saved: boolean;
}
export interface TrialBrief {
  trial: number; order: Num; score: Num; score_text: string; dropped: string | null; cost: Num; evaluations: Num;
  failures: number; brief: string; by: string; parents: number[];
}
export interface Comment { id: number; trial: Num; at: number; text: string }
export interface Metric { key: string; label: string; text: string; value: any }
export interface History {
  order: number[]; trial: number[]; score: Num[]; best: Num[]; complete: number[]; evaluations: number[]; seconds: number[];
  cost: number[]; quantiles: { order: number[]; low: number[]; mid: number[]; high: number[] };
}
export interface Progress {
  asked: number; told: number; cases: number; evaluations: number; failures: number; reused: number; goal: Num; goal_of: string;
}
export interface Can { stop: boolean; resume: boolean; retry: boolean; budget: boolean; note: boolean; feedback: boolean }
export interface Overview {
  ledger: number; name: string; study: string; unit: string; units: string; state: State; reason: string; headline: string;
  progress: Progress; eta: [number, number] | null; cost_text: string; elapsed_text: string; created: number;
  metrics: Metric[]; can: Can; limits: { [name: string]: Num }; next: { text: string; command: string }[]; pages: string[];
  mark: number; scale: [number, number] | null; history: History; best: TrialBrief | null; sections: Section[];
  notes: { at: number; text: string }[]; comments: Comment[]; settings: { [name: string]: any };
}
export interface Trials { rows: TrialBrief[]; next: string | null }
export interface MatrixHead {
  rows: number; columns: number; trials: number[]; briefs: string[]; scores: Num[]; cases: string[]; positions: number[];
  low: number; high: number; legend: string; tile: [number, number];
  levels: { factor: number; rows: number; columns: number }[]; mark: number;
}
export interface CellBrief {
  position: number; case: string; score: Num; score_text: string; failure: string | null; seconds: Num; cost: Num;
  reused: boolean; tries: Num;
}
export interface Feedback { query: string; answers: string[]; ask: "rating" | "thumbs" | "preference" | "score"; given: any }
export interface Candidate {
  trial: TrialBrief; candidate_text: string; sections: Section[]; cells: CellBrief[]; next: Num; parents: TrialBrief[];
  children: TrialBrief[]; comments: Comment[]; files: { name: string; href: string; size: number }[];
  calls: { count: number; cost_text: string }; previous: Num; following: Num; feedback: Feedback | null;
}
export interface Call {
  model: string; messages: { role: string; text: string }[]; settings: { [name: string]: any }; reply: string; finish: string;
  input_tokens: number; output_tokens: number; cached_tokens: number; cost_text: string; seconds: number; tries: number;
  cached: boolean; batch: string | null;
}
export interface Cell {
  trial: TrialBrief; cell: CellBrief; case: { id: string; text: string }; sections: Section[]; message: string | null;
  traceback: string | null; calls: Call[] | null; started: Num; previous: Num; following: Num; feedback: Feedback | null;
}
export interface LineageNode {
  trial: number; parents: number[]; by: string; score: Num; brief: string; generation: number; offspring: number; line: boolean;
}
export interface Lineage {
  nodes: LineageNode[]; ways: { by: string; made: number; better: number; best: Num }[]; thinned: number;
}
export interface Table { columns: string[]; rows: any[][] }
export interface Span {
  slot: number; start: number; end: number; trial: number; position: number; failed: boolean; tries: number;
}
export interface WorkPage {
  slots: { count: number; spans: Span[]; thinned: number };
  throughput: { seconds: number[]; evaluations: number[]; calls: number[] };
  latency: { name: string; p50: number; p90: number; p99: number; count: number }[];
  money: { seconds: number[]; cost: number[] }; models: Table; counts: { name: string; value: number }[]; batches: Table;
  waves: Table; sections: Section[];
}
export interface FailureGroup {
  kind: string; message: string; count: number; first: Num; last: Num; traceback: string;
  cells: { trial: number; position: number; case: string }[];
}
export interface Failures { groups: FailureGroup[]; command: string }
export interface Difference {
  run: string; against: string; cases: string; n: number; difference: number; low: number; high: number; better: number;
  worse: number; equal: number; p: Num; test: string;
}
export interface ComparedRun {
  ledger: number; name: string; study: string; metrics: Metric[]; history: History; best: TrialBrief | null; best_text: string;
  sections: Section[];
}
export interface Comparing {
  runs: ComparedRun[]; differences: Difference[]; settings: { name: string; values: any[] }[]; sections: Section[];
  costs: { score: number; costs: Num[] }[];
}
export interface Found { results: { path: string; text: string }[] }
export interface Change {
  mark: number; state: State; progress: Progress; eta: [number, number] | null; cost_text: string; elapsed_text: string;
  trials: TrialBrief[]; cells: [number, number, number][]; more: boolean; notes: { at: number; text: string }[];
  headline: string;
}

// A saved page carries {path: payload} as JSON in <script type="application/json" id="data">.
const inside = document.getElementById("data")?.textContent;
const embedded: { [path: string]: any } | null = inside ? JSON.parse(inside) : null;
export const saved = embedded !== null;

export class Refused extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

/** Whether a path can be loaded: a saved page has only what was put into it. */
export const available = (path: string): boolean => !embedded || path in embedded;

function kept(path: string): any {
  const payload = embedded![path];
  if (payload === undefined) throw new Refused("This saved page does not contain it. Open the ledger with fanfold view.", 404);
  return payload;
}

async function reply(path: string, options?: RequestInit): Promise<Response> {
  let response: Response;
  pending.value++;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is fanfold view still running?", 0);
  } finally {
    setTimeout(() => pending.value--); // after what waits for it has been drawn
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Refused(body?.error?.message ?? `The server answered ${response.status}.`, response.status);
  }
  return response;
}

/** How many payloads are on their way. */
export const pending = signal(0);

/** The payload of a path such as `/api/runs`. */
export async function load<T>(path: string, signal?: AbortSignal): Promise<T> {
  return saved ? kept(path) : (await reply(path, { signal })).json();
}

/** The bytes of a tile. */
export async function loadBytes(path: string, signal?: AbortSignal): Promise<Uint8Array> {
  if (!saved) return new Uint8Array(await (await reply(path, { signal })).arrayBuffer());
  return Uint8Array.from(atob(kept(path).b64), (letter) => letter.charCodeAt(0));
}

/** Asks the server to do something (stop, resume, budget, note, feedback); resolves with what it says. */
export async function act(path: string, body: object): Promise<string> {
  const headers = { "Content-Type": "application/json" };
  const answer = await reply(path, { method: "POST", headers, body: JSON.stringify(body) });
  return (await answer.json()).said ?? "";
}

/** `/api/run/L/N`, the prefix of all paths of a run. */
export const runPath = (ledger: number | string, name: string) => `/api/run/${ledger}/${encodeURIComponent(name)}`;

/** Swaps the token in the address for a cookie, once; a run behind it is the page that opens. */
export async function enter(): Promise<void> {
  const [, token, page = "/"] = /^#token=(.+?)(\/run\/\d+\/[^/]+)?$/.exec(location.hash) ?? [];
  if (saved || !token) return;
  history.replaceState(null, "", location.pathname + location.search + "#" + page);
  dispatchEvent(new Event("hashchange"));
  await act("/api/enter", { token });
}
