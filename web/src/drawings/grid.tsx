// A heat map with a fixed scale: as a table with figures where it is small, as a canvas where it is large.
import { useEffect, useRef, useState } from "preact/hooks";
import { number } from "../format";
import { styled } from "../styled";
import { heatColour, inkOn } from "../colours";

interface Heat {
  rows: string[];
  columns: string[];
  values: (number | null)[][];
  low?: number | null;
  high?: number | null;
  across: string;
  down: string;
  trials?: number[] | null;
}

const TABLE = 1500; // cells that a table shows; a larger grid is a canvas

export function Grid(props: Heat & { base: string }) {
  const { rows, columns, values } = props;
  const known = values.flat().filter((value): value is number => value !== null);
  const low = props.low ?? Math.min(...known, 0);
  const high = Math.max(props.high ?? Math.max(...known, 0), low + 1e-12);
  const part = (value: number) => (value - low) / (high - low);
  return (
    <figure class="grid">
      {rows.length * columns.length <= TABLE && columns.length <= 40 ? (
        <Table {...props} part={part} />
      ) : (
        <Picture {...props} part={part} />
      )}
      <figcaption>
        <span class="scale">
          <span>{number(low)}</span>
          <Ramp />
          <span>{number(high)}</span>
        </span>
        <span>
          rows: {props.down}; columns: {props.across}
        </span>
      </figcaption>
    </figure>
  );
}

export function Ramp() {
  const ref = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = ref.current?.getContext("2d");
    for (let x = 0; context && x < 120; x++) {
      context.fillStyle = heatColour(x / 119);
      context.fillRect(x, 0, 1, 10);
    }
  }, []);
  return <canvas ref={ref} class="ramp" width={120} height={10} role="img" aria-label="colour scale from low to high" />;
}

type Drawn = Heat & { base: string; part: (value: number) => number };

function Table({ rows, columns, values, trials, base, down, across, part }: Drawn) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${down} by ${across}`}>
      <table class="heat">
        <thead>
          <tr>
            <td />
            {columns.map((column, index) => (
              <th key={index} scope="col">
                <span>{column}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              <th scope="row">{trials ? <a href={`${base}/trial/${trials[index]}`}>{row}</a> : row}</th>
              {columns.map((column, at) => {
                const value = values[index]?.[at] ?? null;
                if (value === null)
                  return (
                    <td key={at} class="none" title={`${row}, ${column}: no value`}>
                      –
                    </td>
                  );
                return (
                  <td
                    key={at}
                    ref={styled({ background: heatColour(part(value)), color: inkOn(part(value)) })}
                    title={`${row}, ${column}: ${number(value)}`}>
                    {number(value)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Picture({ rows, columns, values, trials, base, down, across, part }: Drawn) {
  const ref = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<[number, number] | null>(null);
  const scale = Math.max(1, Math.floor(Math.min(16, 900 / columns.length, 640 / rows.length)));
  useEffect(() => {
    const context = ref.current?.getContext("2d");
    if (!context) return;
    styled({ width: `${columns.length * scale}px` })(ref.current);
    context.clearRect(0, 0, columns.length, rows.length);
    values.forEach((line, y) =>
      line.forEach((value, x) => {
        if (value === null) return;
        context.fillStyle = heatColour(part(value));
        context.fillRect(x, y, 1, 1);
      }),
    );
  }, [values]);
  const place = (event: PointerEvent): [number, number] => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const share = (offset: number, length: number, count: number) =>
      Math.max(0, Math.min(count - 1, Math.floor((offset / length) * count)));
    return [share(event.clientY - box.top, box.height, rows.length), share(event.clientX - box.left, box.width, columns.length)];
  };
  const value = at && values[at[0]]?.[at[1]];
  return (
    <>
      <canvas
        ref={ref}
        class="heat-picture"
        width={columns.length}
        height={rows.length}
        role="img"
        aria-label={`${down} by ${across}: ${rows.length} by ${columns.length} values`}
        onPointerMove={(event) => setAt(place(event))}
        onPointerLeave={() => setAt(null)}
        onClick={(event) => {
          if (trials) location.hash = `${base}/trial/${trials[place(event as unknown as PointerEvent)[0]]}`;
        }}
      />
      <p class="quiet">
        {at
          ? `${rows[at[0]]}, ${columns[at[1]]}: ${value === null || value === undefined ? "no value" : number(value)}`
          : "Point at the picture to read a value."}
      </p>
    </>
  );
}
