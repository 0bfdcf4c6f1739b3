// The view is in the address: #/run/0/name/matrix?order=best.
import { computed, signal } from "@preact/signals";

export interface Route {
  page: string; // "runs", "compare", or a page of a run: "overview", "matrix", "trial", ...
  ledger: number;
  run: string;
  args: string[]; // what follows the page: ["12", "3"] in .../cell/12/3
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  const route = { page: "runs", ledger: 0, run: "", args: [] as string[], query: new URLSearchParams(query) };
  if (parts[0] === "run" && parts.length > 2)
    return { ...route, page: parts[3] ?? "overview", ledger: Number(parts[1]), run: parts[2], args: parts.slice(4) };
  return { ...route, page: parts[0] ?? "runs" };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));
export const route = computed(() => parse(hash.value));

/** The address of a page of a run, e.g. `href(0, "tickets", "cell/12/3")`. */
export function href(ledger: number, run: string, page = "", query: Record<string, string | number | null> = {}): string {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== null && value !== "") asked.set(name, String(value));
  const text = asked.toString();
  const tail = page && page !== "overview" ? `/${page}` : "";
  return `#/run/${ledger}/${encodeURIComponent(run)}${tail}${text && `?${text}`}`;
}

export function go(address: string): void {
  location.hash = address;
}

/** Puts choices of the current view into its address, without a new entry in the browser's history. */
export function choose(choices: Record<string, string | number | null>): void {
  const [path, query = ""] = location.hash.split("?", 2);
  const asked = new URLSearchParams(query);
  for (const [name, value] of Object.entries(choices))
    if (value === null || value === "") asked.delete(name);
    else asked.set(name, String(value));
  const text = asked.toString();
  history.replaceState(null, "", (path || "#/") + (text && `?${text}`));
  hash.value = location.hash;
}
