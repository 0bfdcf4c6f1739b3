import type { Route } from "../router";

export function FailuresPage(_: { route: Route }) {
  return <p class="quiet">Failures</p>;
}
