// Small parts that many pages share.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Num, State, Table } from "./api";
import { number } from "./format";
import type { Loaded } from "./store";
import { useCopy } from "./texts";

const words: Record<State, string> = {
  running: "Running", finished: "Finished", stopped: "Stopped", failed: "Failed", interrupted: "Interrupted",
};

/** The state of a run: a mark and a word, so that colour is never the only sign. */
export function StateMark({ state }: { state: State }) {
  return <span class={`state ${state}`}>{words[state] ?? state}</span>;
}

/** The study of a run; an evaluator in a file by the file's name. */
export function Study({ name }: { name: string }) {
  return <span class="study" title={name}>{name.split("/").pop()}</span>;
}

/** Shows a payload, or that it is on its way, or why it is not here. */
export function Wait<T>({ of, children }: { of: Loaded<T>; children: (data: T) => ComponentChildren }) {
  if (of.data !== null)
    return (
      <>
        {of.error && <Notice kind="bad">{of.error}</Notice>}
        {children(of.data)}
      </>
    );
  if (of.error) return <Notice kind="bad">{of.error}</Notice>;
  return <p class="quiet" role="status">Loading …</p>;
}

export function Notice({ kind = "", children }: { kind?: "" | "bad" | "good"; children: ComponentChildren }) {
  return <div class={`notice ${kind}`} role={kind === "bad" ? "alert" : "status"}>{children}</div>;
}

export function Card({ title, children, tools, wide }: { title?: string; children: ComponentChildren; tools?: ComponentChildren; wide?: boolean }) {
  return (
    <section class={wide ? "card wide" : "card"}>
      {(title || tools) && (
        <div class="head">
          {title && <h2>{title}</h2>}
          {tools && <div class="tools">{tools}</div>}
        </div>
      )}
      {children}
    </section>
  );
}

interface Item { weight: number; card: ComponentChildren; wide?: boolean }

/** Cards side by side, each under the shorter column; one below the other where there is no room. */
export function Masonry({ items }: { items: Item[] }) {
  const room = useMedia("(min-width: 1100px)");
  const wide = items.findIndex((item) => item.wide);
  if (!room || !items.length) return <>{items.map(({ card }) => card)}</>;
  if (wide >= 0) return <><Masonry items={items.slice(0, wide)} />{items[wide].card}<Masonry items={items.slice(wide + 1)} /></>;
  const columns: [ComponentChildren[], ComponentChildren[]] = [[], []];
  const heights = [0, 0];
  for (const { weight, card } of items) {
    const shorter = heights[0] <= heights[1] ? 0 : 1;
    columns[shorter].push(card);
    heights[shorter] += weight;
  }
  if (!columns[1].length) return <>{columns[0]}</>;
  return <div class="masonry">{columns.map((cards, at) => <div key={at}>{cards}</div>)}</div>;
}

function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const changed = () => setMatches(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, [query]);
  return matches;
}

/** A choice among a few: buttons in a row, one of them pressed. */
export function Choice<T extends string>({ label, value, options, onChoose }: {
  label: string; value: T; options: readonly (readonly [T, string])[]; onChoose: (value: T) => void;
}) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map(([key, text]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onChoose(key)}>{text}</button>
      ))}
    </div>
  );
}

export function Select<T extends string>({ label, value, options, onChoose }: {
  label: string; value: T; options: readonly (readonly [T, string])[]; onChoose: (value: T) => void;
}) {
  if (options.length < 2) return null; // a saved page may have only one
  return (
    <label class="select">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChoose(event.currentTarget.value as T)}>
        {options.map(([key, text]) => <option key={key} value={key} selected={key === value}>{text}</option>)}
      </select>
    </label>
  );
}

/** A command to paste into a shell, with a button that copies it. */
export function Command({ text }: { text: string }) {
  const { copied, copy } = useCopy(text);
  return (
    <div class="command">
      <code tabIndex={0} role="region" aria-label="Command">{text}</code>
      <button type="button" onClick={copy} aria-label={`Copy: ${text}`}>{copied ? "Copied" : "Copy"}</button>
    </div>
  );
}

/** A line without axes: how the best score grew. */
export function Spark({ values, low, high }: { values: number[]; low: Num; high: Num }) {
  if (values.length < 2) return <span class="quiet">–</span>;
  const [floor, top] = [low ?? Math.min(...values), high ?? Math.max(...values)];
  const size = top - floor || 1;
  const points = values.map((value, at) => {
    const height = Math.max(0, Math.min(1, top === floor ? 0.5 : (value - floor) / size));
    return `${((at / (values.length - 1)) * 96 + 2).toFixed(1)},${(22 - height * 20).toFixed(1)}`;
  });
  return (
    <svg class="spark" viewBox="0 0 100 24" role="img" aria-label={`Best score from ${number(values[0])} to ${number(values.at(-1))}`}>
      <polyline points={points.join(" ")} />
      <circle cx={points.at(-1)!.split(",")[0]} cy={points.at(-1)!.split(",")[1]} r="2" />
    </svg>
  );
}

/** A plain table that scrolls inside itself. */
export function Rows({ table, label }: { table: Table; label: string }) {
  const kind = (column: number) => (table.rows.some((row) => typeof row[column] === "number") ? "number" : "");
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>{table.columns.map((name, column) => <th key={name} scope="col" class={kind(column)}>{name}</th>)}</tr>
        </thead>
        <tbody>
          {table.rows.map((row, at) => (
            <tr key={at}>
              {row.map((value, column) => (
                <td key={column} class={kind(column)}>
                  {typeof value === "number" ? number(value, 4) : String(value ?? "–")}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
