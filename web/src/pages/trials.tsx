// All candidates of a run as a list that loads as it is scrolled, 200 at a time.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { load, runPath, saved, type TrialBrief, type Trials } from "../api";
import { count, money } from "../format";
import { useKeys } from "../keys";
import { Card, Notice, Select } from "../parts";
import { choose, href, type Route } from "../router";
import { overview, useChanges } from "../store";
import { styled } from "../styled";
import { scaleOf, ScoreBar, scoreText, unitName, wayText } from "../trial_parts";

const DEFAULTS: Record<string, string> = { order: "best", which: "all" };
const TALL = 34; // pixels of a row, as drawings.css has it
const ORDERS = [
  ["best", "best first"],
  ["number", "as asked"],
  ["told", "as finished"],
] as const;
const WHICH = [
  ["all", "all"],
  ["complete", "complete"],
  ["dropped", "dropped"],
  ["failed", "with failures"],
  ["open", "under way"],
] as const;

export function TrialsPage({ route: { ledger, run, query } }: { route: Route }) {
  const [order, which, text] = [query.get("order") ?? "best", query.get("which") ?? "all", query.get("q") ?? ""];
  const base = href(ledger, run);
  const { rows, next, error, more, stale, again } = usePages(listPath(runPath(ledger, run), { order, which, q: text }));
  const [at, setAt] = useState(-1);
  const [top, setTop] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const height = box.current?.clientHeight || 600;
  const [from, to] = [Math.max(0, Math.floor(top / TALL) - 10), Math.min(rows.length, Math.ceil((top + height) / TALL) + 10)];
  useEffect(() => {
    if (next !== null && to > rows.length - 40) more();
  }, [next, to, rows.length]);
  const move = (by: number) => setAt((now) => Math.max(0, Math.min(rows.length - 1, now + by)));
  useKeys({ j: () => move(1), k: () => move(-1) });
  const moved = useRef(false);
  useEffect(() => {
    const list = box.current;
    moved.current = at >= 0;
    if (list && at >= 0 && (at * TALL < list.scrollTop || (at + 2) * TALL > list.scrollTop + height))
      list.scrollTop = at * TALL - height / 3;
  }, [at]);
  useEffect(() => {
    const link = moved.current ? box.current?.querySelector<HTMLElement>(".chosen a") : null;
    link?.focus({ preventScroll: true });
    if (link) moved.current = false; // the list may have to be drawn further down first
  }, [at, from]);
  const scale = scaleOf(rows.map((row) => row.score));
  const units = overview.value?.units || "candidates";
  return (
    <Card title={units[0].toUpperCase() + units.slice(1)}>
      {!saved && (
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <Select label="Order" value={order} options={ORDERS} onChoose={(value) => choose({ order: value === "best" ? null : value })} />
          <Select label="Show" value={which} options={WHICH} onChoose={(value) => choose({ which: value === "all" ? null : value })} />
          <label>
            Text{" "}
            <input type="search" value={text} placeholder="words in it" onChange={(event) => choose({ q: event.currentTarget.value })} />
          </label>
          {stale > 0 && (
            <button type="button" class="link" onClick={again}>
              {count(stale)} newer: load again
            </button>
          )}
        </form>
      )}
      {error && <Notice kind="bad">{error}</Notice>}
      <div
        class="virtual scroll"
        ref={box}
        tabIndex={0}
        role="region"
        aria-label={`List of ${units}`}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
        <table class="fixed">
          <thead>
            <tr>
              <th scope="col" class="number slim">
                {unitName()}
              </th>
              <th scope="col" class="score">
                Score
              </th>
              <th scope="col" class="wide">
                What it is
              </th>
              <th scope="col" class="by">
                Made by
              </th>
              <th scope="col" class="number slim">
                Evaluations
              </th>
              <th scope="col" class="number slim">
                Failures
              </th>
              <th scope="col" class="number slim">
                Cost
              </th>
            </tr>
          </thead>
          <tbody>
            {from > 0 && (
              <tr aria-hidden="true">
                <td colSpan={7} class="gap" ref={styled({ height: `${from * TALL}px` })} />
              </tr>
            )}
            {rows.slice(from, to).map((row, index) => (
              <Row key={row.trial} row={row} base={base} scale={scale} chosen={from + index === at} />
            ))}
            {to < rows.length && (
              <tr aria-hidden="true">
                <td colSpan={7} class="gap" ref={styled({ height: `${(rows.length - to) * TALL}px` })} />
              </tr>
            )}
          </tbody>
        </table>
        {rows.length === 0 && !error && (
          <p class="quiet" role="status">
            {next === undefined ? "Loading…" : `No ${units} match.`}
          </p>
        )}
      </div>
      <p class="quiet">
        {count(rows.length)} loaded{next ? ", more as you scroll" : ""}. Keys: <kbd>j</kbd> and <kbd>k</kbd> move, <kbd>Enter</kbd> opens.
      </p>
    </Card>
  );
}

/** The path of the list; a saved page has one list only, the default one. */
function listPath(base: string, choices: Record<string, string>): string {
  const query = new URLSearchParams(Object.entries(choices).filter(([name, value]) => value && value !== DEFAULTS[name])).toString();
  return `${base}/trials${query && !saved ? `?${query}` : ""}`;
}

function Row({ row, base, scale, chosen }: { row: TrialBrief; base: string; scale: [number, number] | null; chosen: boolean }) {
  return (
    <tr class={chosen ? "chosen" : ""} aria-selected={chosen}>
      <td class="number">
        <a href={`${base}/trial/${row.trial}`}>{row.trial}</a>
      </td>
      <td class="score">
        <ScoreBar score={row.dropped ? null : row.score} scale={scale} />{" "}
        {row.dropped ? (
          <span title={row.dropped}>dropped</span>
        ) : row.order === null ? (
          "under way"
        ) : row.score === null ? (
          "no score"
        ) : (
          scoreText(row)
        )}
      </td>
      <td class="wide" title={row.brief}>
        {row.brief}
      </td>
      <td class="by">
        {wayText(row.by)}
        {row.parents.length > 0 && <small> of {row.parents.join(", ")}</small>}
      </td>
      <td class="number">{count(row.evaluations)}</td>
      <td class={row.failures ? "number bad" : "number"}>{count(row.failures)}</td>
      <td class="number">{money(row.cost)}</td>
    </tr>
  );
}

/** Pages of a list by key: the first at once, others when asked for; `stale` counts what finished since. */
function usePages(path: string) {
  const [list, setList] = useState<{ path: string; rows: TrialBrief[]; next: string | null | undefined; error: string }>({
    path: "",
    rows: [],
    next: undefined,
    error: "",
  });
  const [stale, setStale] = useState(0);
  const busy = useRef("");
  const fetchPage = useCallback(
    async (known: TrialBrief[], after: string | null) => {
      const target = after === null ? path : `${path}${path.includes("?") ? "&" : "?"}after=${encodeURIComponent(after)}`;
      if (busy.current === target) return;
      busy.current = target;
      try {
        const page = await load<Trials>(target);
        if (busy.current === target) setList({ path, rows: [...known, ...page.rows], next: page.next, error: "" });
      } catch (error) {
        setList({ path, rows: known, next: null, error: (error as Error).message });
      } finally {
        if (busy.current === target) busy.current = "";
      }
    },
    [path],
  );
  const again = () => {
    setStale(0);
    void fetchPage([], null);
  };
  useEffect(again, [path]);
  useChanges(useCallback((change) => setStale((before) => before + change.trials.length), []));
  const here = list.path === path;
  return {
    rows: here ? list.rows : [],
    next: here ? list.next : undefined,
    error: list.error,
    more: () => {
      if (list.next) void fetchPage(list.rows, list.next);
    },
    stale,
    again,
  };
}
