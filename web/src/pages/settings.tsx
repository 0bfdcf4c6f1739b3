// What the run was asked to do.
import { number, plural } from "../format";
import { Card } from "../parts";
import type { Route } from "../router";
import { overview } from "../store";
import { Next } from "./overview";

export function SettingsPage(_: { route: Route }) {
  const run = overview.value!;
  const limits = Object.entries(run.limits).filter(([, value]) => value !== null);
  const { identity, ...started } = run.settings;
  return (
    <>
      {Object.entries(started).map(([name, value]) => (
        <Card key={name} title={capital(name)}><Pairs of={value} label={name} /></Card>
      ))}
      <Card title="Limits">
        {limits.length ? <Pairs of={Object.fromEntries(limits.map(([name, value]) => [name, number(value, 6)]))} label="Limits" /> : <p class="quiet">None: it ends when the search does.</p>}
        {run.reason && <p class="text">{run.reason}</p>}
      </Card>
      {run.next.length > 0 && <Next steps={run.next} />}
      {identity && (
        <Card>
          <details>
            <summary>What a resumed run is compared with</summary>
            <Pairs of={identity} label="Identity" />
          </details>
        </Card>
      )}
    </>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
const empty = (value: string) => value === "null" || value === "[]" || value === "{}" || value === "";

/** Nested settings as one table: `strategy.population`; those that are not set are left out. */
function Pairs({ of, label }: { of: unknown; label: string }) {
  const all = flat(of as object);
  const rows = all.filter(([, value]) => !empty(value));
  if (!rows.length) return <p class="quiet">None recorded.</p>;
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label={label}>
        <table class="pairs">
          <tbody>{rows.map(([name, value]) => <tr key={name}><th scope="row">{name}</th><td class="text">{value}</td></tr>)}</tbody>
        </table>
      </div>
      {rows.length < all.length && <p class="quiet small">{plural(all.length - rows.length, "setting")} not set.</p>}
    </>
  );
}

function flat(value: object, prefix = ""): [string, string][] {
  if (value === null || typeof value !== "object") return [["value", String(value)]];
  return Object.entries(value).flatMap(([name, inner]): [string, string][] => {
    const path = name === "fields" && !prefix ? "" : prefix + name;
    if (inner !== null && typeof inner === "object" && !Array.isArray(inner) && Object.keys(inner).length) return flat(inner, path && `${path}.`);
    return [[path, typeof inner === "string" ? inner : JSON.stringify(inner)]];
  });
}
