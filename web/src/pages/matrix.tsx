// Candidates by cases: every score of the run on one canvas.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { available, type Change, type MatrixHead, runPath } from "../api";
import { heatColour, palette } from "../colours";
import { duration, money, number, plural } from "../format";
import { useKeys } from "../keys";
import { type At, Matrix } from "../matrix";
import { Notice, Select, Wait } from "../parts";
import { choose, go, href, type Route } from "../router";
import { overview, reload, useChanges, useLoad } from "../store";

const orders = [["best", "best first"], ["number", "by number"], ["told", "as they finished"], ["similar", "similar together"]] as const;
const sorts = [["position", "as given"], ["difficulty", "hardest first"]] as const;
const colourings = [["score", "score"], ["seconds", "seconds"], ["cost", "cost"], ["failure", "failures"]] as const;
const filters = [["", "all cases"], ["wrong", "cases the best gets wrong"], ["disputed", "disputed cases"], ["changed", "changed since the parent"]] as const;
const choices = { order: "best", cases: "position", colour: "score", only: "" } as const;

export function MatrixPage({ route }: { route: Route }) {
  const run = overview.value!;
  const value = (name: keyof typeof choices) => route.query.get(name) ?? choices[name];
  // The defaults are left out, so that the first view of a saved page is the plain path.
  const query = new URLSearchParams();
  for (const name of Object.keys(choices) as (keyof typeof choices)[]) if (value(name) !== choices[name]) query.set(name, value(name));
  const base = runPath(run.ledger, run.name);
  const path = `${base}/matrix${query.size ? `?${query}` : ""}`;
  const head = useLoad<MatrixHead>(path);
  const offered = <T extends string>(name: keyof typeof choices, options: readonly (readonly [T, string])[]) =>
    options.filter(([key]) => key === value(name) || available(`${base}/matrix?${new URLSearchParams({ ...Object.fromEntries(query), [name]: key })}`));
  const pick = (name: string) => (key: string) => choose({ [name]: key === choices[name as keyof typeof choices] ? null : key, at: null });
  return (
    <>
      <div class="tools">
        <Select label={sentence(run.units)} value={value("order")} options={offered("order", orders)} onChoose={pick("order")} />
        <Select label="Cases" value={value("cases")} options={offered("cases", sorts)} onChoose={pick("cases")} />
        <Select label="Show" value={value("only")} options={offered("only", filters)} onChoose={pick("only")} />
        <Select label="Colour" value={value("colour")} options={offered("colour", colourings)} onChoose={pick("colour")} />
      </div>
      <Wait of={head}>
        {(data) =>
          data.rows && data.columns ? (
            <Sheet key={path} head={data} path={path} query={query} colour={value("colour")} order={value("order")} view={route.query.get("at") ?? ""} />
          ) : (
            <Notice>{value("only") ? "No case matches this filter." : "Nothing has been evaluated yet."}</Notice>
          )}
      </Wait>
    </>
  );
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

function Sheet({ head, path, query, colour, order, view }: {
  head: MatrixHead; path: string; query: URLSearchParams; colour: string; order: string; view: string;
}) {
  const run = overview.value!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const matrix = useRef<Matrix | null>(null);
  const place = useRef(view);
  const stale = useRef(0);
  const [selected, setSelected] = useState<At | null>(null);

  const open = (at: At) => go(href(run.ledger, run.name, `cell/${head.trials[at.row]}/${head.positions[at.column]}`));
  const words = (at: At) => {
    const text = matrix.current!.text(at);
    const plain = Number(text.replace(/,/g, ""));
    const value = colour === "seconds" && !Number.isNaN(plain) ? duration(plain) : colour === "cost" && !Number.isNaN(plain) ? money(plain) : text;
    return [`${sentence(run.unit)} ${head.trials[at.row]}, score ${number(head.scores[at.row])}`, head.briefs[at.row] ?? "", head.cases[at.column], `${head.legend || sentence(colour)}: ${value}`];
  };
  useEffect(() => {
    let wait = 0;
    // As tall as its rows need to be named, within reason.
    canvas.current!.parentElement!.style.height = `${Math.max(190, Math.min(head.rows > 60 ? Math.max(innerHeight - 240, 560) : 1200, head.rows * 17 + 100))}px`;
    const hover = (at: At | null, x: number, y: number) => {
      const box = tip.current!;
      box.hidden = !at;
      if (!at) return;
      box.replaceChildren(...words(at).filter(Boolean).map((text, line) => {
        const row = document.createElement(line ? "div" : "b");
        row.textContent = text;
        return row;
      }));
      const [width, height] = [canvas.current!.clientWidth, canvas.current!.clientHeight];
      box.style.left = `${x + 16 + box.offsetWidth > width ? Math.max(0, x - box.offsetWidth - 12) : x + 16}px`;
      box.style.top = `${Math.min(y + 16, height - box.offsetHeight)}px`;
    };
    const moved = (text: string) => {
      place.current = text;
      clearTimeout(wait);
      wait = window.setTimeout(() => choose({ at: text }), 400);
    };
    const tile = (level: number, row: number, column: number) => {
      const asked = new URLSearchParams(query);
      for (const [name, number] of Object.entries({ level, row, column })) asked.set(name, String(number));
      return `${runPath(run.ledger, run.name)}/tile?${asked}`;
    };
    const down = `${sentence(run.units)}, ${orders.find(([key]) => key === order)?.[1] ?? order}`;
    matrix.current = new Matrix(canvas.current!, head, tile, { unit: run.unit, units: run.units, down, across: "Cases", scale: run.scale },
      { hover, open, openRow: (row) => go(href(run.ledger, run.name, `trial/${head.trials[row]}`)), moved }, place.current);
    (canvas.current as any).matrix = matrix.current; // for benchmarks
    return () => (clearTimeout(wait), matrix.current!.end());
  }, [head]);
  useEffect(() => matrix.current?.recolour(), [palette.value]);
  useChanges(useCallback((change: Change) => {
    const complete = colour === "score" && !change.more && matrix.current!.patch(change.cells);
    if (!complete && Date.now() - stale.current > 5000) {
      stale.current = Date.now();
      void reload(path);
    }
  }, [path]));

  const move = (rows: number, columns: number) => setSelected({ ...matrix.current!.select(rows, columns) });
  useKeys({
    "+": () => matrix.current!.zoom(1.4), "=": () => matrix.current!.zoom(1.4), "-": () => matrix.current!.zoom(1 / 1.4),
    "0": () => matrix.current!.fit(true), j: () => move(1, 0), k: () => move(-1, 0), Enter: () => selected && open(selected),
    ArrowDown: () => move(1, 0), ArrowUp: () => move(-1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
  });
  return (
    <div class="card matrix">
      <div class="tools">
        <Scale head={head} colour={colour} />
        <span class="grow" />
        <button type="button" aria-label="Zoom in" onClick={() => matrix.current!.zoom(1.6)}>+</button>
        <button type="button" aria-label="Zoom out" onClick={() => matrix.current!.zoom(1 / 1.6)}>−</button>
        <button type="button" onClick={() => matrix.current!.fit(true)}>All</button>
        <button type="button" onClick={() => matrix.current!.fit()}>Fit</button>
      </div>
      <div class="sheet">
        <canvas ref={canvas} tabIndex={0} role="application"
          aria-label={`${number(head.rows)} ${run.units} by ${number(head.columns)} cases. Arrow keys move, Enter opens.`} />
        <div class="tip" ref={tip} hidden />
      </div>
      <p class="hidden" role="status">{selected && matrix.current ? words(selected).join(". ") : ""}</p>
      <p class="quiet small">
        {plural(head.rows, run.unit, run.units)} × {plural(head.columns, "case")}. Wheel to zoom, drag to move, click a cell to open it.
      </p>
    </div>
  );
}

/** What the colours mean. */
function Scale({ head, colour }: { head: MatrixHead; colour: string }) {
  const bar = useRef<HTMLElement>(null);
  useEffect(() => {
    bar.current!.style.background = `linear-gradient(to right, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(heatColour).join(", ")})`;
  });
  const text = (value: number) => (colour === "seconds" ? duration(value) : colour === "cost" ? money(value) : number(value));
  return (
    <div class="scale">
      <span>{head.legend || sentence(colour)}</span>
      <span class="number">{text(head.low)}</span>
      <i ref={bar} class="bar" />
      <span class="number">{text(head.high)}</span>
      <i class="box failed" /><span>failed</span>
      <i class="box none" /><span>not evaluated</span>
    </div>
  );
}
