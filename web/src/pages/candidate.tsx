import type { Route } from "../router";

export function CandidatePage(_: { route: Route }) {
  return <p class="quiet">Candidate</p>;
}
