import type { Route } from "../router";

export function TrialsPage(_: { route: Route }) {
  return <p class="quiet">Trials</p>;
}
