import type { Route } from "../router";

export function MatrixPage(_: { route: Route }) {
  return <p class="quiet">Matrix</p>;
}
