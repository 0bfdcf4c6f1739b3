import type { Route } from "../router";

export function CellPage(_: { route: Route }) {
  return <p class="quiet">Cell</p>;
}
