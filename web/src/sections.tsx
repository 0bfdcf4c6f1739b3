// Sections of a summary or of a study's own rendering: text, table, curves and drawings.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Section } from "./api";
import { Drawing } from "./drawings/index";
import { Chart } from "./charts";
import { number } from "./format";
import { Card } from "./parts";
import { href, route } from "./router";
import { Block, Long } from "./texts";

/** `base` is the address of the run the sections tell of, for links in drawings; the open run by default. */
export function Sections({ sections, base }: { sections: Section[]; base?: string }) {
  const run = base ?? href(route.value.ledger, route.value.run);
  return (
    <>
      {sections.map((section, at) => (
        <SectionView key={`${at} ${section.title}`} section={section} base={run} />
      ))}
    </>
  );
}

function SectionView({ section, base }: { section: Section; base: string }) {
  // A section of curves alone is titled by its chart.
  const chart = section.curves.length > 0 && !section.text && !section.rows.length && !section.drawings.length;
  return (
    <Card title={chart ? undefined : section.title}>
      {section.text && <Prose text={section.text} label={section.title} />}
      {section.curves.length > 0 && <Curves section={section} />}
      {section.drawings.map((drawing, index) => (
        <Drawing key={index} kind={drawing.kind} data={drawing.data} base={base} />
      ))}
      {section.columns.length > 0 && section.rows.length > 0 && (
        <Sortable
          most={12}
          label={section.title}
          columns={section.columns}
          rows={section.rows.map((row) => row.map((value) => ({ value })))}
        />
      )}
    </Card>
  );
}

function Curves({ section }: { section: Section }) {
  const lines = section.curves.map(({ name, points, low, high }) => ({
    name,
    x: points.map(([x]) => x),
    y: points.map(([, y]) => y),
    ...(low.length && high.length ? { low, high } : {}),
  }));
  const [across, up] = [section.across || "step", section.up || (lines.length === 1 && lines[0].name) || "value"];
  const name = section.title.toLowerCase().replace(/[^a-z0-9]+/g, "-") || "curves";
  return <Chart name={name} title={`${up[0].toUpperCase()}${up.slice(1)} over ${across}`} lines={lines} across={across} up={up} />;
}

/** Sentences as a paragraph, anything with lines or indents as it was written. */
function Prose({ text, label }: { text: string; label: string }) {
  return text.includes("\n") || text.length > 1200 ? <Block text={text} label={label || "text"} /> : <p class="text">{text}</p>;
}

/** A value to sort by, and how it is shown; `left` keeps a number from being set to the right. */
export interface Field {
  value: string | number | null;
  shown?: ComponentChildren;
  left?: boolean;
}

const PAGE = 100;

/** A table sorted by the column a person picks; it scrolls inside itself where the page is narrow. */
export function Sortable({ label, columns, rows, most = PAGE }: { label: string; columns: string[]; rows: Field[][]; most?: number }) {
  const [order, setOrder] = useState<{ column: number; down: boolean } | null>(null);
  const [shown, setShown] = useState(most);
  const numeric = useMemo(
    () =>
      columns.map(
        (_, at) =>
          at > 0 &&
          rows.every((row) => typeof row[at]?.value !== "string" && !row[at]?.left) &&
          rows.some((row) => row[at]?.value != null || row[at]?.shown),
      ),
    [columns, rows],
  );
  const sorted = useMemo(
    () => (order ? [...rows].sort((a, b) => compare(a[order.column], b[order.column], order.down ? -1 : 1)) : rows),
    [rows, order],
  );
  const pick = (column: number) =>
    setOrder(
      order?.column !== column ? { column, down: numeric[column] } : order.down === numeric[column] ? { column, down: !order.down } : null,
    );
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label={label || "table"}>
        <table class="sortable">
          <thead>
            <tr>
              {columns.map((column, at) => (
                <th
                  key={at}
                  scope="col"
                  class={numeric[at] ? "number" : ""}
                  aria-sort={order?.column === at ? (order.down ? "descending" : "ascending") : "none"}>
                  <button type="button" onClick={() => pick(at)}>
                    {column || <span class="hidden">column {at + 1}</span>}
                    <span class="arrow" aria-hidden="true">
                      {order?.column === at ? (order.down ? "↓" : "↑") : ""}
                    </span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.slice(0, shown).map((row, index) => (
              <tr key={index}>
                {columns.map((_, at) => (
                  <td key={at} class={numeric[at] ? "number" : widthOf(row[at])}>
                    {row[at]?.shown ?? <Value value={row[at]?.value ?? null} />}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > shown && (
        <p>
          <button type="button" class="link" onClick={() => setShown(shown + 500)}>
            Show more: {shown} of {rows.length} rows are shown
          </button>
        </p>
      )}
    </>
  );
}

function widthOf(field: Field | undefined): string {
  const size = typeof field?.value === "number" ? 0 : typeof field?.value === "string" ? field.value.length : 30;
  return size > 60 ? "long" : size <= 24 ? "short" : "";
}

/** What is not known comes last, whichever way the column is sorted. */
function compare(a: Field | undefined, b: Field | undefined, way: 1 | -1): number {
  const [x, y] = [a?.value ?? null, b?.value ?? null];
  if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
  const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
  return order * way;
}

function Value({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <>–</>;
  return typeof value === "number" ? <>{number(value, 4)}</> : <Long text={typeof value === "string" ? value : JSON.stringify(value)} />;
}
