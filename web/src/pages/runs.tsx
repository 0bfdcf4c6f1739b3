// All runs of the ledgers: filtered, marked with j and k, ticked to be compared.
import { useState } from "preact/hooks";
import { load, type RunRow, type Runs, saved } from "../api";
import { filter } from "../filter";
import { ago, brief, count, moment, money, number } from "../format";
import { useKeys } from "../keys";
import { Card, Notice, Spark, StateMark, Study, Wait } from "../parts";
import { choose, go, href, type Route } from "../router";
import { changedRuns, useLoad } from "../store";

const keyOf = (row: RunRow) => `${row.ledger}/${row.name}`;

export function RunsPage({ route }: { route: Route }) {
  const loaded = useLoad<Runs>("/api/runs");
  return <Wait of={loaded}>{(runs) => <RunsTable runs={runs} text={route.query.get("q") ?? ""} />}</Wait>;
}

function RunsTable({ runs, text }: { runs: Runs; text: string }) {
  const [more, setMore] = useState<{ rows: RunRow[]; next: string | null } | null>(null);
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  const [unfolded, setUnfolded] = useState<ReadonlySet<string>>(new Set());
  const [marked, setMarked] = useState(-1);
  const next = more ? more.next : runs.next;
  const { passes, error } = filter(text);
  const all = merged([...runs.runs, ...(more?.rows ?? [])]);
  const rows = all.filter(passes).flatMap((row) => (unfolded.has(keyOf(row)) ? [row, ...row.helpers] : [row]));
  const helpers = new Set(all.flatMap((row) => row.helpers.map(keyOf)));

  const flip = (set: ReadonlySet<string>, key: string) => {
    const changed = new Set(set);
    if (!changed.delete(key)) changed.add(key);
    return changed;
  };
  const move = (step: number) => {
    const at = Math.max(0, Math.min(rows.length - 1, marked + step));
    setMarked(at);
    document.getElementById(`row-${at}`)?.scrollIntoView({ block: "nearest" });
  };
  const compare = () => go(`#/compare?${[...ticked].map((key) => `run=${encodeURIComponent(key)}`).join("&")}`);
  useKeys({
    j: () => move(1), k: () => move(-1),
    "/": () => document.getElementById("filter")?.focus(),
    Enter: () => rows[marked] && go(href(rows[marked].ledger, rows[marked].name)),
    x: () => rows[marked] && setTicked(flip(ticked, keyOf(rows[marked]))),
    c: () => ticked.size > 1 && compare(),
  });
  const loadMore = async () => {
    const page = await load<Runs>(`/api/runs?before=${encodeURIComponent(next!)}`);
    setMore({ rows: [...(more?.rows ?? []), ...page.runs], next: page.next });
  };

  return (
    <>
      <div class="runs-head">
        <h1>Runs</h1>
        <span class="quiet">{runs.ledgers.map((ledger) => ledger.name).join(", ")}</span>
        <span class="grow" />
        <input id="filter" class="filter" value={text} placeholder="Filter: score>0.8 study:prompts" aria-label="Filter runs" spellcheck={false}
          onInput={(event) => choose({ q: event.currentTarget.value })} />
        <button type="button" class={ticked.size > 1 ? "first" : ""} disabled={ticked.size < 2 || ticked.size > 6} onClick={compare}
          title={ticked.size > 6 ? "At most six" : "Tick two to six runs"}>
          Compare{ticked.size > 1 ? ` ${ticked.size}` : ""}
        </button>
      </div>
      {error && <Notice kind="bad">{error}</Notice>}
      <Card>
        {!rows.length ? (
          <p class="quiet">{all.length ? "No run matches the filter." : "No run yet. Start one: fanfold run"}</p>
        ) : (
          <table class="runs">
            <thead>
              <tr>
                <th scope="col"><span class="hidden">Compare</span></th>
                <th scope="col">Run</th>
                <th scope="col">Result</th>
                <th scope="col" class="number">Best</th>
                <th scope="col">Best so far</th>
                <th scope="col" class="number">Evaluations</th>
                <th scope="col" class="number">Cost</th>
                <th scope="col" class="number">Time</th>
                <th scope="col" class="number">Started</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row, at) => (
                <Row key={keyOf(row)} row={row} at={at} marked={at === marked} helper={helpers.has(keyOf(row))} ledgers={runs.ledgers}
                  ticked={ticked.has(keyOf(row))} onTick={() => setTicked(flip(ticked, keyOf(row)))}
                  unfolded={unfolded.has(keyOf(row))} onUnfold={() => setUnfolded(flip(unfolded, keyOf(row)))} />
              ))}
            </tbody>
          </table>
        )}
      </Card>
      {next && <button type="button" onClick={loadMore}>Show earlier runs</button>}
    </>
  );
}

/** The rows with what the stream changed; new runs come first. */
function merged(rows: RunRow[]): RunRow[] {
  const changed = new Map(changedRuns.value);
  const known = rows.map((row) => {
    const fresh = changed.get(keyOf(row));
    changed.delete(keyOf(row));
    return fresh ? { ...row, ...fresh, helpers: fresh.helpers.length ? fresh.helpers : row.helpers } : row;
  });
  for (const row of known) for (const helper of row.helpers) changed.delete(keyOf(helper));
  return [...[...changed.values()].sort((a, b) => b.created - a.created), ...known];
}

function Row({ row, at, marked, helper, ledgers, ticked, onTick, unfolded, onUnfold }: {
  row: RunRow; at: number; marked: boolean; helper: boolean; ledgers: Runs["ledgers"]; ticked: boolean; onTick: () => void;
  unfolded: boolean; onUnfold: () => void;
}) {
  const interval = row.low !== null && row.high !== null ? `${number(row.low)} to ${number(row.high)}` : "";
  return (
    <tr id={`row-${at}`} class={`${marked ? "marked" : ""} ${helper ? "helper" : ""}`}>
      <td class="tick">
        {!helper && !saved && <input type="checkbox" checked={ticked} onChange={onTick} aria-label={`Compare ${row.name}`} />}
      </td>
      <td class="name">
        <a href={href(row.ledger, row.name)}>{row.name}</a>
        <div class="under">
          <Study name={row.study} />
          <StateMark state={row.state} />
          {ledgers.length > 1 && <span class="quiet">{ledgers.find((ledger) => ledger.id === row.ledger)?.name}</span>}
          {row.helpers.length > 0 && (
            <button type="button" class="unfold" aria-expanded={unfolded} onClick={onUnfold}>
              {unfolded ? "Hide" : "Show"} {row.helpers.length === 1 ? "its helper run" : `its ${row.helpers.length} helper runs`}
            </button>
          )}
        </div>
      </td>
      <td class="headline"><p title={row.headline || row.reason}>{row.headline || row.reason}</p></td>
      <td class="number" data-label="Best">
        {row.best_text || number(row.best)}
        {interval && <div class="quiet small">{interval}</div>}
      </td>
      <td data-label="Best so far"><Spark values={row.spark} low={null} high={null} /></td>
      <td class="number" data-label="Evaluations">
        {count(row.evaluations)}
        {row.failures > 0 && <div class="bad small">{count(row.failures)} failed</div>}
      </td>
      <td class="number" data-label="Cost" title={row.cost_text}>{brief(row.cost_text || money(row.cost))}</td>
      <td class="number" data-label="Time">{row.elapsed_text}</td>
      <td class="number" data-label="Started" title={moment(row.created)}>{ago(row.created)}</td>
    </tr>
  );
}
