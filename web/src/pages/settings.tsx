// What the run was asked to do.
import { Card } from "../parts";
import { number } from "../format";
import { Next } from "./overview";
import type { Route } from "../router";
import { overview } from "../store";

export function SettingsPage(_: { route: Route }) {
  const run = overview.value!;
  const limits = Object.entries(run.limits).filter(([, value]) => value !== null);
  return (
    <div class="columns">
      <Card title="Settings"><Pairs of={run.settings} /></Card>
      <Card title="Limits">
        {limits.length ? <Pairs of={Object.fromEntries(limits.map(([name, value]) => [name, number(value, 6)]))} /> : <p class="quiet">None: it ends when the search does.</p>}
        {run.reason && <p class="text">{run.reason}</p>}
      </Card>
      {run.next.length > 0 && <Next steps={run.next} />}
    </div>
  );
}

/** Nested settings as one table: `strategy.population`. */
function Pairs({ of }: { of: object }) {
  const rows = flat(of);
  if (!rows.length) return <p class="quiet">None recorded.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Settings">
      <table class="pairs">
        <tbody>{rows.map(([name, value]) => <tr key={name}><th scope="row">{name}</th><td class="text">{value}</td></tr>)}</tbody>
      </table>
    </div>
  );
}

function flat(value: object, prefix = ""): [string, string][] {
  return Object.entries(value).flatMap(([name, inner]): [string, string][] => {
    const path = prefix + name;
    if (inner !== null && typeof inner === "object" && !Array.isArray(inner) && Object.keys(inner).length) return flat(inner, `${path}.`);
    return [[path, typeof inner === "string" ? inner : JSON.stringify(inner)]];
  });
}
