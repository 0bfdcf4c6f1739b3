import type { Route } from "../router";

export function OverviewPage(_: { route: Route }) {
  return <p class="quiet">Overview</p>;
}
