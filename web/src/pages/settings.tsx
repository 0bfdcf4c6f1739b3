import type { Route } from "../router";

export function SettingsPage(_: { route: Route }) {
  return <p class="quiet">Settings</p>;
}
