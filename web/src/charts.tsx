// Line charts on uPlot: titled axes with round ticks, a legend beside the plot, a tooltip, and a PNG to keep.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Num } from "./api";
import { lineColour, palette, token } from "./colours";
import { duration, money, number } from "./format";
import { route } from "./router";

export interface Line {
  name: string;
  x: number[];
  y: Num[];
  kind?: "line" | "step" | "dots";
  low?: Num[]; // a band around the line
  high?: Num[];
  colour?: string; // a token such as "--accent"; by default the chart's own colours
  quiet?: boolean; // thin and pale
  fill?: boolean; // the area below
  plain?: boolean; // no points on the line
}
export type Unit = "" | "seconds" | "money" | "count";
export interface ChartProps {
  name: string; // names the PNG; `?chart=NAME` in the address shows this chart alone
  title: string;
  lines: Line[];
  across: string;
  up: string;
  acrossUnit?: Unit;
  upUnit?: Unit;
  scale?: [number, number] | null; // of the y axis, where it is fixed
  height?: number;
  note?: string;
  onPoint?: (line: number, index: number) => void; // index into the line's x
}

const write: Record<Unit, (value: number) => string> = {
  "": (value) => number(value, 4), seconds: duration, money, count: (value) => number(Math.round(value)),
};
const times = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 8640000];
const whole = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const gaps: Partial<Record<Unit, number[]>> = { seconds: times, count: whole };

export function Chart(props: ChartProps) {
  const { title, lines, note, name } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const shown = lines.filter((line) => !hidden.has(line.name));
  const shape = JSON.stringify([palette.value, props.across, props.up, props.scale, shown.map((line) => [line.name, line.kind, !!line.low])]);

  useEffect(() => {
    plot.current = new Plot(place.current!, { ...props, lines: shown }, lines);
    return () => plot.current?.destroy();
  }, [shape]);
  useEffect(() => plot.current?.update(shown, props.onPoint));

  const toggle = (line: string) => {
    const next = new Set(hidden);
    if (!next.delete(line)) next.add(line);
    setHidden(next);
  };
  const alone = route.value.query.get("chart") === name;
  return (
    <figure class={alone ? "chart alone" : "chart"} data-chart={name}>
      <figcaption>
        <span class="title">{title}</span>
        {lines.length > 1 && (
          <span class="legend">
            {lines.map((line, at) => (
              <button key={line.name} type="button" aria-pressed={!hidden.has(line.name)} onClick={() => toggle(line.name)}>
                <Swatch line={line} at={at} />
                {line.name}
              </button>
            ))}
          </span>
        )}
        <button type="button" class="save" aria-label={`Save ${title} as PNG`} onClick={() => plot.current?.save(title, lines)}>PNG</button>
      </figcaption>
      <div class="plot" ref={place} role="img" aria-label={described(props)} />
      {note && <p class="quiet">{note}</p>}
    </figure>
  );
}

function described({ title, lines, across, up }: ChartProps): string {
  const ends = lines.filter((line) => line.y.length).map((line) => `${line.name} ends at ${number(line.y.findLast((y) => y !== null) ?? null)}`);
  return `${title}: ${up} over ${across}. ${ends.join("; ")}`;
}

function Swatch({ line, at }: { line: Line; at: number }) {
  const box = useRef<HTMLElement>(null);
  palette.value;
  useEffect(() => void (box.current!.style.background = colourOf(line, at)));
  return <i ref={box} class={line.kind === "dots" ? "dot" : "dash"} />;
}

const colourOf = (line: Line, at: number) => (line.colour ? token(line.colour) : lineColour(at));

/** One uPlot instance with what Fanfold adds: joined lines, bands, tooltip, resizing. */
class Plot {
  private plot: uPlot;
  private tip = document.createElement("div");
  private watch: ResizeObserver;
  private onPoint: ChartProps["onPoint"];

  constructor(private place: HTMLElement, private props: ChartProps, private all: Line[]) {
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.plot = new uPlot(this.options(), this.data(props.lines), place);
    this.plot.over.append(this.tip);
    this.plot.over.addEventListener("click", () => this.pick());
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(place);
    this.resize();
  }

  update(lines: Line[], onPoint: ChartProps["onPoint"]): void {
    this.onPoint = onPoint;
    this.plot.over.classList.toggle("pickable", !!onPoint);
    if (lines === this.props.lines) return;
    this.props = { ...this.props, lines };
    this.plot.setData(this.data(lines));
  }

  destroy(): void {
    this.watch.disconnect();
    this.plot.destroy();
  }

  private resize(): void {
    const width = Math.floor(this.place.clientWidth);
    const alone = this.place.closest(".alone");
    const height = alone ? Math.max(200, this.place.clientHeight) : this.props.height ?? 260;
    if (width && (width !== this.plot.width || height !== this.plot.height)) this.plot.setSize({ width, height });
  }

  /** All lines on one x axis; a band is two more series. */
  private data(lines: Line[]): uPlot.AlignedData {
    const tables = lines.map(({ x, y, low, high }) => (low && high ? [x, y, low, high] : [x, y]) as uPlot.AlignedData);
    if (!tables.length || tables.every(([x]) => !x.length)) return [[], ...tables.flatMap((table) => table.slice(1).map(() => []))] as any;
    return tables.length === 1 ? tables[0] : uPlot.join(tables, tables.map((table) => table.slice(0).map(() => 2)) as any);
  }

  private options(): uPlot.Options {
    const { lines, scale, acrossUnit = unitOf(lines), upUnit = "" } = this.props;
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    for (const line of lines) {
      const colour = colourOf(line, this.all.indexOf(line));
      series.push(drawn(line, colour));
      if (!line.low || !line.high) continue;
      const edge = { stroke: "transparent", points: { show: false }, spanGaps: true, paths: pathsOf(line) };
      series.push({ ...edge }, { ...edge });
      bands.push({ series: [series.length - 1, series.length - 2], fill: faint(colour, 0.16) });
    }
    const padding = scale ? (scale[1] - scale[0]) * 0.03 : 0;
    return {
      width: 300, height: this.props.height ?? 260, series, bands, legend: { show: false }, padding: [8, 24, 0, 0],
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false, setScale: true }, focus: { prox: 24 } },
      focus: { alpha: 1 },
      scales: {
        x: { time: false, range: (_, low, high) => (low === null ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high]) },
        y: scale ? { range: [scale[0] - padding, scale[1] + padding] } : { range: (_, low, high) => around(low, high) },
      },
      axes: [this.axis(this.props.across, acrossUnit, 2), this.axis(this.props.up, upUnit, 3)],
      hooks: { setCursor: [() => this.point()] },
    };
  }

  private axis(label: string, unit: Unit, side: number): uPlot.Axis {
    const font = "12px system-ui, sans-serif";
    const common = {
      label, font, labelFont: font, stroke: token("--soft"), labelSize: 20, labelGap: 2, ticks: { stroke: token("--edge"), size: 4 },
      grid: { stroke: token("--grid"), width: 1 }, ...(gaps[unit] ? { incrs: gaps[unit] } : {}),
      values: (_: uPlot, splits: number[]) => splits.map((value) => (unit === "" ? number(value, 6) : write[unit](value))),
    };
    if (side === 2) return { ...common, side, size: 30, space: unit === "seconds" ? 68 : 52 };
    return { ...common, side, space: 34, size: (_: uPlot, values: string[] | null) => 14 + 7 * Math.max(2, ...(values ?? []).map((text) => text.length)) };
  }

  /** Which point of which line is nearest to the cursor's column. */
  private nearest(): { line: number; index: number }[] {
    const { idx } = this.plot.cursor;
    if (idx === null || idx === undefined) return [];
    const x = this.plot.data[0][idx];
    return this.props.lines.flatMap((line, at) => {
      const index = line.x.lastIndexOf(x);
      return index < 0 || line.y[index] === null ? [] : [{ line: at, index }];
    });
  }

  private point(): void {
    const rows = this.nearest();
    const { left = 0 } = this.plot.cursor;
    this.tip.hidden = !rows.length || left < 0;
    if (this.tip.hidden) return;
    const { lines, across, acrossUnit = unitOf(this.props.lines), upUnit = "" } = this.props;
    const first = document.createElement("b");
    first.textContent = `${across}: ${write[acrossUnit](lines[rows[0].line].x[rows[0].index])}`;
    const texts = rows.map(({ line, index }) => {
      const { name, y, low, high } = lines[line];
      const row = document.createElement("div");
      const band = low?.[index] != null && high?.[index] != null ? ` (${write[upUnit](low[index]!)} to ${write[upUnit](high[index]!)})` : "";
      row.textContent = `${name}: ${write[upUnit](y[index]!)}${band}`;
      return row;
    });
    this.tip.replaceChildren(first, ...texts);
    const room = this.plot.over.clientWidth - this.tip.offsetWidth - 12;
    this.tip.style.left = `${left + 12 > room ? Math.max(0, left - this.tip.offsetWidth - 12) : left + 12}px`;
  }

  private pick(): void {
    const dots = this.nearest().find(({ line }) => this.props.lines[line].kind === "dots") ?? this.nearest()[0];
    if (dots) this.onPoint?.(dots.line, dots.index);
  }

  save(title: string, lines: Line[]): void {
    const source = this.plot.ctx.canvas;
    const ratio = devicePixelRatio;
    const sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [source.width, source.height + 56 * ratio];
    const pen = sheet.getContext("2d")!;
    pen.fillStyle = token("--card");
    pen.fillRect(0, 0, sheet.width, sheet.height);
    pen.drawImage(source, 0, 56 * ratio);
    pen.scale(ratio, ratio);
    pen.fillStyle = token("--ink");
    pen.font = "600 14px system-ui, sans-serif";
    pen.fillText(title, 12, 22);
    pen.font = "12px system-ui, sans-serif";
    let left = 12;
    for (const [at, line] of lines.entries()) {
      pen.fillStyle = colourOf(line, at);
      pen.fillRect(left, 38, 14, 3);
      pen.fillStyle = token("--soft");
      pen.fillText(line.name, left + 20, 44);
      left += 36 + pen.measureText(line.name).width;
    }
    download(sheet, `${this.props.name}.png`);
  }
}

/** Steps that are counted have no ticks between them. */
const unitOf = (lines: Line[]): Unit => (lines.every((line) => line.x.every(Number.isInteger)) ? "count" : "");

const pathsOf = ({ kind }: Line) => (kind === "step" ? uPlot.paths.stepped!({ align: 1 }) : uPlot.paths.linear!());

function drawn(line: Line, colour: string): uPlot.Series {
  if (line.kind === "dots")
    return { stroke: faint(colour, 0.65), paths: () => null, points: { show: true, size: line.x.length > 500 ? 5 : 6, width: 0, fill: faint(colour, line.quiet ? 0.5 : 0.7) } };
  const few = line.x.length < 40;
  return {
    stroke: colour, width: line.quiet ? 1 : 2, spanGaps: true, paths: pathsOf(line), fill: line.fill ? faint(colour, 0.12) : undefined,
    points: { show: line.x.length === 1 || (few && line.kind !== "step" && !line.quiet && !line.plain), size: 5, fill: colour },
  };
}

/** A range with a little room; a flat line is not at the edge. */
function around(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.5, high + Math.abs(high) * 0.5];
  const room = (high - low) * 0.06;
  return [low >= 0 && low < (high - low) * 0.5 ? Math.min(0, low) : low - room, high + room];
}

function faint(colour: string, alpha: number): string {
  const parts = colour.match(/[\d.]+/g) ?? ["0", "0", "0"];
  return `rgb(${parts.slice(0, 3).join(" ")} / ${alpha})`;
}

/** Keeps a canvas as a PNG file. */
export function download(canvas: HTMLCanvasElement, name: string): void {
  canvas.toBlob((blob) => {
    if (!blob) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  });
}
