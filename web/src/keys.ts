// Keys of the page: each page adds its own, the last one added wins.
import { useEffect } from "preact/hooks";

type Keys = Record<string, () => void>;
const stack: Keys[] = [];

/** Binds keys while a component is shown, e.g. `useKeys({ j: next, k: previous })`. */
export function useKeys(keys: Keys): void {
  useEffect(() => {
    stack.push(keys);
    return () => void stack.splice(stack.indexOf(keys), 1);
  });
}

addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && event.key !== "Escape") return;
  for (let at = stack.length - 1; at >= 0; at--) {
    const action = stack[at][event.key];
    if (!action) continue;
    event.preventDefault();
    action();
    return;
  }
});
