// Numbers, times and money as a person writes them.
import type { Num } from "./api";

const none = "–";

/** 0.8125 as "0.813", 12345.6 as "12,346", 1e-9 as "1e-9". */
export function number(value: Num | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return none;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value) || size >= 10 ** digits) return Math.round(value).toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export const count = (value: Num | undefined): string =>
  value === null || value === undefined ? none : Math.round(value).toLocaleString("en-US");

/** 1234567 as "1.23M": for places where the whole number does not fit. */
export function short(value: number): string {
  if (value < 10_000) return count(value);
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]] as const)
    if (value >= size) return number(value / size) + letter;
  return count(value);
}

/** "3 candidates", "1 candidate". */
export const plural = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`;

/** A text without what it adds in parentheses: "$0.04 (simulated)" as "$0.04". */
export const brief = (text: string): string => text.split(" (")[0];

export function money(value: Num | undefined): string {
  if (value === null || value === undefined) return none;
  if (value === 0) return "$0";
  const size = Math.abs(value);
  if (size >= 100) return "$" + Math.round(value).toLocaleString("en-US");
  if (size >= 1) return "$" + value.toFixed(2);
  return "$" + (size < 1e-6 ? value.toExponential(1) : value.toLocaleString("en-US", { maximumSignificantDigits: 3, useGrouping: false }));
}

/** 0.0123 as "12 ms", 1.94 as "1.9 s", 75 as "1 min 15 s", 7300 as "2 h 2 min". */
export function duration(seconds: Num | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return none;
  if (seconds < 0.00095) return seconds === 0 ? "0 s" : `${number(seconds * 1e6, 2)} µs`;
  if (seconds < 1) return `${number(seconds * 1000, 2)} ms`;
  if (seconds < 10) return `${number(seconds, 2)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  if (seconds < 3599.5) return pair(seconds, 60, "min", "s");
  if (seconds < 86370) return pair(seconds / 60, 60, "h", "min");
  return pair(seconds / 3600, 24, "d", "h");
}

function pair(value: number, size: number, large: string, small: string): string {
  const rest = Math.round(value) % size;
  const text = `${Math.floor(Math.round(value) / size)} ${large}`;
  return rest ? `${text} ${rest} ${small}` : text;
}

/** [163, 250] as "2 to 5 min": a range is not known to the second. */
export function range(low: number, high: number): string {
  const [size, unit] = high < 90 ? [1, "s"] : high < 5400 ? [60, "min"] : high < 129600 ? [3600, "h"] : [86400, "d"];
  const [first, second] = [Math.floor(low / size), Math.ceil(high / size)];
  return first === second ? `${second} ${unit}` : `${first} to ${second} ${unit}`;
}

export function bytes(size: number): string {
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]] as const) if (size >= unit) return `${number(size / unit)} ${name}`;
  return `${size} B`;
}

/** A moment (seconds since 1970) as "12 min ago", and as a date when it is long past. */
export function ago(at: number, now = Date.now() / 1000): string {
  const past = now - at;
  if (past < 5) return "just now";
  if (past < 60) return `${Math.round(past)} s ago`;
  if (past < 3600) return `${Math.round(past / 60)} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return past < 14 * 86400 ? plural(Math.round(past / 86400), "day") + " ago" : moment(at).slice(0, 10);
}

/** A moment as "2026-11-16 14:03:22", in the reader's time zone. */
export function moment(at: number): string {
  const date = new Date(at * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19).replace("T", " ");
}
