// Keys of the page: each page adds its own, the last one added wins.
import { useLayoutEffect, useState } from "preact/hooks";

type Keys = Record<string, () => void>;
const stack: { keys: Keys }[] = [];

/** Binds keys while a component is shown, e.g. `useKeys({ j: next, k: previous })`.
 *
 * They are added when it is first drawn, so a page comes after its frame, whichever of the two is drawn again. */
export function useKeys(keys: Keys): void {
  const [bound] = useState(() => stack[stack.push({ keys }) - 1]);
  bound.keys = keys;
  useLayoutEffect(() => () => void stack.splice(stack.indexOf(bound), 1), []);
}

addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && event.key !== "Escape") return;
  for (let at = stack.length - 1; at >= 0; at--) {
    const action = stack[at].keys[event.key];
    if (!action) continue;
    event.preventDefault();
    action();
    return;
  }
});
