// Points of two objectives; those on the Pareto front are joined, and each names itself below the drawing.
import { useState } from "preact/hooks";
import { number, short } from "../format";
import { axis, useWidth } from "./axis";

interface Point {
  x: number;
  y: number;
  name: string;
  front?: boolean;
  trial?: number | null;
}

const tickText = (value: number) => (Math.abs(value) < 10_000 ? number(value) : short(value));
const LEFT = 58,
  RIGHT = 16,
  TOP = 12,
  BOTTOM = 46,
  HEIGHT = 300;

export function Scatter({ x, y, points, base }: { x: string; y: string; points: Point[]; base: string }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const [shown, setShown] = useState<Point | null>(null);
  const shownPoints = points.filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y));
  const across = axis(
    shownPoints.map((point) => point.x),
    null,
    null,
    width < 500 ? 3 : 6,
  );
  const up = axis(shownPoints.map((point) => point.y));
  const left = (value: number) => LEFT + across.at(value) * Math.max(0, width - LEFT - RIGHT);
  const top = (value: number) => TOP + (1 - up.at(value)) * (HEIGHT - TOP - BOTTOM);
  const front = shownPoints.filter((point) => point.front).sort((a, b) => a.x - b.x);
  const says = (point: Point) => `${point.name}: ${x} ${number(point.x)}, ${y} ${number(point.y)}${point.front ? ", on the front" : ""}`;
  const mark = (point: Point, index: number) => {
    const dot = (
      <circle
        class={point.front ? "dot front" : "dot"}
        cx={left(point.x)}
        cy={top(point.y)}
        r={point.front ? 6 : 4}
        onPointerEnter={() => setShown(point)}
      />
    );
    if (typeof point.trial !== "number")
      return (
        <g key={index} role="img" aria-label={says(point)}>
          {dot}
        </g>
      );
    return (
      <a
        key={index}
        href={`${base}/trial/${point.trial}`}
        aria-label={says(point)}
        tabIndex={point.front ? 0 : -1}
        onFocus={() => setShown(point)}>
        {dot}
      </a>
    );
  };
  return (
    <figure class="scatter">
      <div ref={ref}>
        {width > 0 && (
          <svg width={width} height={HEIGHT} role="group" aria-label={`${y} against ${x}, ${points.length} points`}>
            {up.ticks.map((tick) => (
              <g key={tick}>
                <line class="rule" x1={LEFT} x2={width - RIGHT} y1={top(tick)} y2={top(tick)} />
                <text x={LEFT - 8} y={top(tick) + 4} text-anchor="end">
                  {tickText(tick)}
                </text>
              </g>
            ))}
            {across.ticks.map((tick) => (
              <g key={tick}>
                <line class="rule" x1={left(tick)} x2={left(tick)} y1={TOP} y2={HEIGHT - BOTTOM} />
                <text x={left(tick)} y={HEIGHT - BOTTOM + 17} text-anchor="middle">
                  {tickText(tick)}
                </text>
              </g>
            ))}
            <text class="axis-title" x={(LEFT + width - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">
              {x}
            </text>
            <text
              class="axis-title"
              x={0}
              y={0}
              transform={`translate(13 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`}
              text-anchor="middle">
              {y}
            </text>
            {front.length > 1 && (
              <polyline class="front-line" points={front.map((point) => `${left(point.x)},${top(point.y)}`).join(" ")} />
            )}
            {shownPoints.filter((point) => !point.front).map(mark)}
            {front.map(mark)}
          </svg>
        )}
      </div>
      <figcaption>
        <span class="key">
          <i class="front" /> on the front ({front.length})
        </span>
        <span class="key">
          <i /> others ({shownPoints.length - front.length})
        </span>
        <span class="quiet">{shown ? says(shown) : "Point at a dot to read it."}</span>
      </figcaption>
    </figure>
  );
}
