// Round ticks and positions along an axis, shared by the drawings that are not uPlot charts.
import { useEffect, useRef, useState } from "preact/hooks";
import type { RefObject } from "preact";

export interface Axis {
  low: number;
  high: number;
  ticks: number[];
  at: (value: number) => number;
}

/** An axis that holds all values, with ticks at 1, 2 or 5 times a power of ten; `at` gives 0 to 1. */
export function axis(values: (number | null | undefined)[], low: number | null = null, high: number | null = null, wanted = 5): Axis {
  const known = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  let start = low ?? (known.length ? Math.min(...known) : 0);
  let end = high ?? (known.length ? Math.max(...known) : 1);
  if (!(end > start)) [start, end] = [start - Math.max(Math.abs(start) * 0.1, 0.5), start + Math.max(Math.abs(start) * 0.1, 0.5)];
  const step = roundStep((end - start) / wanted);
  if (low === null) start = Math.floor(start / step + 1e-9) * step;
  if (high === null) end = Math.ceil(end / step - 1e-9) * step;
  const ticks: number[] = [];
  for (let index = Math.ceil(start / step - 1e-9); index * step <= end + step * 1e-9; index++)
    ticks.push(Number((index * step).toPrecision(12)));
  return { low: start, high: end, ticks, at: (value) => Math.min(1, Math.max(0, (value - start) / (end - start))) };
}

function roundStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = rough / power;
  return (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10) * power;
}

/** The width of an element in pixels, followed as it changes. */
export function useWidth<T extends HTMLElement>(): [RefObject<T | null>, number] {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!ref.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}
