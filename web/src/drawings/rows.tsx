// Intervals as dots with whiskers, and bars: one row for each name on a common axis, the figures beside it as text.
import { number } from "../format";
import { axis } from "./axis";

interface Row {
  name: string;
  value: number | null;
  low: number | null;
  high: number | null;
  n?: number | null;
  note?: string;
}

const percent = (part: number) => `${(part * 100).toFixed(3)}%`;
const figures = ({ value, low, high, n }: Row) =>
  [
    value === null ? "not known" : number(value),
    low !== null && high !== null && low !== undefined && high !== undefined ? `(${number(low)} to ${number(high)})` : "",
    n ? `n = ${n}` : "",
  ]
    .filter(Boolean)
    .join(" ");

interface Scaled {
  unit: string;
  rows: Row[];
  low?: number | null;
  high?: number | null;
  zero?: boolean;
}

/** `zero`: the axis shows 0, as differences need it. */
export function Intervals({ unit, rows, low, high, zero }: Scaled) {
  return <Rows unit={unit} rows={rows} low={low} high={high} zero={zero} bars={false} />;
}

export function Bars({ unit, bars }: { unit: string; bars: Row[] }) {
  return <Rows unit={unit} rows={bars} zero bars />;
}

function Rows({ unit, rows, low = null, high = null, zero = false, bars }: Scaled & { bars: boolean }) {
  const scale = axis([...rows.flatMap((row) => [row.value, row.low, row.high]), ...(zero ? [0] : [])], low, high);
  const x = (value: number) => percent(scale.at(value));
  return (
    <div class="rows">
      <ul>
        {rows.map((row) => (
          <li key={row.name}>
            <span class="row-name">{row.name}</span>
            <svg height="22" aria-hidden="true">
              {scale.ticks.map((tick) => (
                <line key={tick} class={zero && tick === 0 ? "rule zero" : "rule"} x1={x(tick)} x2={x(tick)} y1="0" y2="22" />
              ))}
              {bars && row.value !== null && (
                <rect
                  class="bar"
                  x={percent(Math.min(scale.at(0), scale.at(row.value)))}
                  width={percent(Math.abs(scale.at(row.value) - scale.at(0)))}
                  y="5"
                  height="12"
                  rx="2"
                />
              )}
              {typeof row.low === "number" && typeof row.high === "number" && (
                <g class="whisker">
                  <line x1={x(row.low)} x2={x(row.high)} y1="11" y2="11" />
                  <line x1={x(row.low)} x2={x(row.low)} y1="7" y2="15" />
                  <line x1={x(row.high)} x2={x(row.high)} y1="7" y2="15" />
                </g>
              )}
              {!bars && row.value !== null && <circle class="dot" cx={x(row.value)} cy="11" r="5" />}
            </svg>
            <span class="row-figures">
              {figures(row)}
              {row.note && <small> {row.note}</small>}
            </span>
          </li>
        ))}
        <li class="row-axis" aria-hidden="true">
          <svg height="34">
            {scale.ticks.map((tick) => (
              <text key={tick} x={x(tick)} y="13" text-anchor="middle">
                {number(tick)}
              </text>
            ))}
            <text class="axis-title" x="50%" y="30" text-anchor="middle">
              {unit}
            </text>
          </svg>
        </li>
      </ul>
    </div>
  );
}
