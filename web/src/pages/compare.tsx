import type { Route } from "../router";

export function ComparePage(_: { route: Route }) {
  return <p class="quiet">Compare</p>;
}
