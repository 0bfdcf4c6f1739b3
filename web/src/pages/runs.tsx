import type { Route } from "../router";

export function RunsPage(_: { route: Route }) {
  return <p class="quiet">Runs</p>;
}
