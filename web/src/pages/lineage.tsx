import type { Route } from "../router";

export function LineagePage(_: { route: Route }) {
  return <p class="quiet">Lineage</p>;
}
