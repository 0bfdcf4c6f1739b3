// Colours for canvases: the theme's tokens, one colour for each line, and the scale of scores.
import { effect, signal } from "@preact/signals";
import { theme } from "./store";

/** Changes whenever the colours do, so that canvases are drawn again. */
export const palette = signal(0);
const known = new Map<string, string>();
const changed = () => {
  known.clear();
  palette.value++;
};
effect(() => {
  theme.value;
  queueMicrotask(changed);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);

let probe: HTMLElement | null = null;
/** A token of app.css, e.g. `token("--ink")`, as a colour that a canvas takes. */
export function token(name: string): string {
  const colour = known.get(name) ?? resolved(name);
  known.set(name, colour);
  return colour;
}

function resolved(name: string): string {
  if (!probe) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** The colour of the n-th line of a chart. */
export const lineColour = (n: number): string => token(`--line-${n % 8}`);

const stops = [
  [0x44, 0x1b, 0x5e], [0x41, 0x44, 0x87], [0x2a, 0x78, 0x8e], [0x22, 0xa8, 0x84], [0x7a, 0xd1, 0x51], [0xfd, 0xe7, 0x25],
];
/** Red, green and blue of a value between 0 and 1 on the scale of scores: dark is low, light is high. */
export function heat(value: number): [number, number, number] {
  const at = Math.max(0, Math.min(1, value)) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const rest = at - low;
  return [0, 1, 2].map((part) => Math.round(stops[low][part] * (1 - rest) + stops[low + 1][part] * rest)) as [number, number, number];
}
export const heatColour = (value: number): string => `rgb(${heat(value).join(" ")})`;
/** Black or white: which of them is readable on a colour of the scale. */
export function inkOn(value: number): string {
  const [red, green, blue] = heat(value).map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}
