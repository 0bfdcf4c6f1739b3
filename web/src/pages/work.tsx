import type { Route } from "../router";

export function WorkPage(_: { route: Route }) {
  return <p class="quiet">Work</p>;
}
