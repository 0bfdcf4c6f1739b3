// Two to six runs beside each other: their curves, differences on equal cases, settings, winners and costs.
import { useState } from "preact/hooks";
import { type Comparing, type Difference, type History } from "../api";
import { Chart, type Line, type Unit } from "../charts";
import { WordDiff } from "../drawings/diff";
import { Intervals } from "../drawings/rows";
import { money, number, plural } from "../format";
import { Card, Choice, Select, Wait } from "../parts";
import { choose, href, type Route } from "../router";
import { Sections, Sortable } from "../sections";
import { useLoad } from "../store";
import { scoreText } from "../trial_parts";

export function ComparePage({ route }: { route: Route }) {
  const runs = route.query.getAll("run");
  const loaded = useLoad<Comparing>(
    runs.length > 1 ? `/api/compare?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}` : null,
  );
  if (runs.length < 2)
    return (
      <Card title="Compare">
        <p>
          Tick two to six runs in the <a href="#/">list of runs</a>.
        </p>
      </Card>
    );
  return <Wait of={loaded}>{(data) => <Comparison data={data} route={route} />}</Wait>;
}

type Run = Comparing["runs"][number];

function Comparison({ data, route }: { data: Comparing; route: Route }) {
  const names = data.runs.map((run) =>
    data.runs.filter((other) => other.name === run.name).length > 1 ? `${run.name} (${run.ledger})` : run.name,
  );
  return (
    <>
      <Figures runs={data.runs} names={names} />
      <Curves runs={data.runs} names={names} route={route} />
      <Differences differences={data.differences} />
      {data.costs.length > 0 && (
        <Card title="Cost for equal score">
          <Sortable
            label="Cost for equal score"
            columns={["Best score of at least", ...names]}
            rows={data.costs.map((row) => [
              { value: row.score },
              ...row.costs.map((cost) => ({ value: cost, shown: cost === null ? "not reached" : money(cost) })),
            ])}
          />
        </Card>
      )}
      <Texts runs={data.runs} names={names} />
      <Settings settings={data.settings} names={names} />
      <Sections sections={data.sections} base="" />
      {data.runs.map(
        (run, at) =>
          run.sections.length > 0 && (
            <details key={names[at]} class="card">
              <summary>
                <h2>{names[at]} in its own words</h2>
              </summary>
              <Sections sections={run.sections} base={href(run.ledger, run.name)} />
            </details>
          ),
      )}
    </>
  );
}

/** Figures of all runs, one row for each figure, so that six runs fit beside each other. */
function Figures({ runs, names }: { runs: Run[]; names: string[] }) {
  const labels = [...new Map(runs.flatMap((run) => run.metrics.map((metric) => [metric.key, metric.label] as const)))];
  const text = (run: Run, key: string) => run.metrics.find((metric) => metric.key === key)?.text ?? "–";
  return (
    <Card title={`${runs.length} runs`}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Runs">
        <table class="figures">
          <thead>
            <tr>
              <td />
              {runs.map((run, at) => (
                <th key={at} scope="col">
                  <a href={href(run.ledger, run.name)}>{names[at]}</a>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">study</th>
              {runs.map((run, at) => (
                <td key={at}>{run.study}</td>
              ))}
            </tr>
            <tr>
              <th scope="row">winner</th>
              {runs.map((run, at) => (
                <td key={at}>
                  {run.best ? (
                    <a href={`${href(run.ledger, run.name)}/trial/${run.best.trial}`}>
                      {run.best.trial}, score {scoreText(run.best)}
                    </a>
                  ) : (
                    "–"
                  )}
                </td>
              ))}
            </tr>
            {labels.map(([key, label]) => (
              <tr key={key}>
                <th scope="row">{label}</th>
                {runs.map((run, at) => (
                  <td key={at}>{text(run, key)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

const ACROSS: [keyof History & ("order" | "evaluations" | "seconds" | "cost"), string, string, Unit][] = [
  ["order", "Candidates", "candidates finished", "count"],
  ["evaluations", "Evaluations", "evaluations", "count"],
  ["seconds", "Time", "time since the start", "seconds"],
  ["cost", "Money", "cost", "money"],
];

function Curves({ runs, names, route }: { runs: Run[]; names: string[]; route: Route }) {
  const offered = ACROSS.filter(([key]) => runs.some((run) => run.history[key].some((value) => value > 0)));
  const [key, , across, unit] = offered.find(([name]) => name === route.query.get("x")) ?? offered[0] ?? ACROSS[0];
  const lines: Line[] = runs.map((run, at) => ({
    name: names[at],
    x: key === "order" ? run.history.order.map((place) => place + 1) : run.history[key],
    y: run.history.best,
    kind: "step",
  }));
  const tools = offered.length > 1 && (
    <Choice
      label="Over"
      value={key}
      options={offered.map(([name, label]) => [name, label] as const)}
      onChoose={(name) => choose({ x: name })}
    />
  );
  return (
    <Card title="Curves" tools={tools}>
      <Chart name="compare" title="Best score so far" lines={lines} across={across} acrossUnit={unit} up="best score" height={320} />
    </Card>
  );
}

/** What a difference means, in a sentence. The interval and the test must agree before it is called more than chance. */
export function verdict({ run, against, n, difference, low, high, p, test }: Difference): string {
  const clear = low !== null && high !== null && (low > 0 || high < 0) && (p === null || p < 0.05);
  const side = difference
    ? `${run} scores ${number(Math.abs(difference))} ${difference > 0 ? "higher" : "lower"} than ${against}`
    : `${run} and ${against} score the same`;
  const tested = p === null ? "" : ` (${test}, p ${p < 0.001 ? "< 0.001" : `= ${number(p, 2)}`})`;
  const word = clear ? "more than chance" : n < 10 ? "too few cases to tell it from chance" : "may be chance";
  return `${side} on ${plural(n, "equal case")}, 95 % interval ${number(low)} to ${number(high)}: ${word}${tested}.`;
}

function Differences({ differences }: { differences: Difference[] }) {
  if (!differences.length)
    return (
      <Card title="Differences on equal cases">
        <p class="quiet">These runs have no cases in common, so their scores cannot be paired.</p>
      </Card>
    );
  const name = (row: Difference) => `${row.run} minus ${row.against}${row.cases ? `, ${row.cases}` : ""}`;
  return (
    <Card title="Differences on equal cases">
      <ul class="plain-list">
        {differences.map((row) => (
          <li key={name(row)} class="text">
            {row.cases ? `${row.cases}: ` : ""}
            {verdict(row)}
          </li>
        ))}
      </ul>
      <Intervals
        unit="difference of scores"
        zero
        rows={differences.map((row) => ({ name: name(row), value: row.difference, low: row.low, high: row.high, n: row.n }))}
      />
      <Sortable
        label="Paired cases"
        columns={["Runs", "Cases", "Better", "Worse", "Equal", "p", "Test"]}
        rows={differences.map((row) => [
          { value: `${row.run} against ${row.against}` },
          { value: row.cases },
          { value: row.better },
          { value: row.worse },
          { value: row.equal },
          { value: row.p },
          { value: row.test },
        ])}
      />
    </Card>
  );
}

function Texts({ runs, names }: { runs: Run[]; names: string[] }) {
  const with_text = runs.map((run, at) => ({ text: run.best_text, name: names[at], at: String(at) })).filter((run) => run.text);
  const [left, setLeft] = useState("");
  const [right, setRight] = useState("");
  if (with_text.length < 2) return null;
  const a = with_text.find((run) => run.at === left) ?? with_text[0];
  const b = with_text.find((run) => run.at === right) ?? with_text.find((run) => run !== a)!;
  const options = with_text.map((run) => [run.at, run.name] as const);
  const tools = with_text.length > 2 && (
    <>
      <Select label="from" value={a.at} options={options} onChoose={setLeft} />
      <Select label="to" value={b.at} options={options} onChoose={setRight} />
    </>
  );
  return (
    <Card title="The winners, word by word" tools={tools}>
      <WordDiff before={a.text} after={b.text} beforeName={a.name} afterName={b.name} />
    </Card>
  );
}

/** Settings as a person gave them; what they were made into inside is a choice away. */
function Settings({ settings, names }: { settings: Comparing["settings"]; names: string[] }) {
  const [which, setWhich] = useState<"different" | "all" | "internal">("different");
  const inner = (row: { name: string }) => row.name.startsWith("parts.");
  const given = settings.filter((row) => !inner(row));
  const lists = {
    different: given.filter((row) => new Set(row.values.map((value) => JSON.stringify(value ?? null))).size > 1),
    all: given,
    internal: settings.filter(inner),
  };
  const offered = (
    [
      ["different", "different"],
      ["all", "all"],
      ["internal", "internal differences"],
    ] as const
  ).filter(([name]) => name === "different" || lists[name].length > (name === "all" ? lists.different.length : 0));
  const tools = offered.length > 1 && (
    <Choice
      label="Settings"
      value={which}
      options={offered.map(([name, words]) => [name, `${words} (${lists[name].length})`] as const)}
      onChoose={setWhich}
    />
  );
  const text = (value: unknown): string =>
    value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
  const rows = lists[which].map((row) => [
    { value: row.name.replace(/^(fields|parts)\./, "") },
    ...row.values.map((value: unknown) => ({ value: text(value) })),
  ]);
  return (
    <Card title="Settings" tools={tools}>
      {rows.length ? (
        <Sortable label="Settings" columns={["Setting", ...names]} rows={rows} />
      ) : (
        <p class="quiet">All settings are equal.</p>
      )}
    </Card>
  );
}
