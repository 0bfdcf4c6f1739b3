// The filter of the Runs page: words, and comparisons such as `score>0.8 study:prompts -state:failed`.
import type { RunRow } from "./api";

const numbers: Record<string, (row: RunRow) => number | null> = {
  score: (row) => row.best, best: (row) => row.best, cost: (row) => row.cost, time: (row) => row.elapsed,
  trials: (row) => row.trials, candidates: (row) => row.trials, evaluations: (row) => row.evaluations, failures: (row) => row.failures,
  age: (row) => Date.now() / 1000 - row.created,
};
const texts: Record<string, (row: RunRow) => string> = {
  study: (row) => row.study, state: (row) => row.state, name: (row) => row.name, run: (row) => row.name, headline: (row) => row.headline,
};
export const fields = [...Object.keys(numbers), ...Object.keys(texts)];
const units: Record<string, number> = { "": 1, s: 1, m: 60, min: 60, h: 3600, d: 86400, k: 1e3 };
const term = /(-?)(?:([a-z]+)(>=|<=|!=|>|<|=|:))?(?:"([^"]*)"|(\S+))/gi;

export type Filter = { passes: (row: RunRow) => boolean; error: string };

export function filter(text: string): Filter {
  const tests: ((row: RunRow) => boolean)[] = [];
  for (const [whole, not, field, operator, quoted, bare] of text.matchAll(term)) {
    const test = one(field?.toLowerCase(), operator, quoted ?? bare);
    if (typeof test === "string") return { passes: () => true, error: test };
    tests.push(not ? (row) => !test(row) : test);
    void whole;
  }
  return { passes: (row) => tests.every((test) => test(row)), error: "" };
}

function one(field: string | undefined, operator: string, value: string): ((row: RunRow) => boolean) | string {
  const lower = value.toLowerCase();
  if (!field) return (row) => `${row.name} ${row.study} ${row.state} ${row.headline}`.toLowerCase().includes(lower);
  if (field in texts) {
    if (operator === ":") return (row) => texts[field](row).toLowerCase().includes(lower);
    if (operator === "=") return (row) => texts[field](row).toLowerCase() === lower;
    if (operator === "!=") return (row) => texts[field](row).toLowerCase() !== lower;
    return `${field} is a text: write ${field}:${value}`;
  }
  if (!(field in numbers)) return `There is no field “${field}”. Fields: ${fields.join(", ")}`;
  const parts = /^\$?(-?[\d.]+(?:e-?\d+)?)([a-z]*)$/.exec(lower);
  if (!parts || !(parts[2] in units)) return `${field} is a number: write ${field}>0.8`;
  const limit = Number(parts[1]) * units[parts[2]];
  return (row) => {
    const number = numbers[field](row);
    if (number === null) return false;
    if (operator === ">") return number > limit;
    if (operator === "<") return number < limit;
    if (operator === ">=") return number >= limit;
    if (operator === "<=") return number <= limit;
    return operator === "!=" ? number !== limit : number === limit;
  };
}
