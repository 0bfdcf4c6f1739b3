// The run at a glance: what came out, how the best grew, what to do next.
import type { History, Overview, Section } from "../api";
import { Chart, type Line, type Unit } from "../charts";
import { ago, brief, moment, plural } from "../format";
import { Card, Choice, Command, Masonry } from "../parts";
import { choose, go, href, type Route } from "../router";
import { Notes } from "../actions";
import { Sections } from "../sections";
import { overview } from "../store";
import { saved } from "../api";

type Axis = "order" | "evaluations" | "seconds" | "cost";
const units: Record<Axis, Unit> = { order: "count", evaluations: "count", seconds: "seconds", cost: "money" };

export function OverviewPage({ route }: { route: Route }) {
  const run = overview.value!;
  const headline = run.headline || (run.state === "failed" && run.reason) || inShort(run);
  return (
    <>
      <div class="headline-box">
        <p class={headline.length > 140 ? "big long" : "big"}>{headline}</p>
        {run.reason && run.reason !== headline && <p class="quiet">{run.reason}</p>}
        <dl class="metrics">
          {run.metrics.filter(({ text }) => text && text !== "-" && text !== "0").map((metric) => (
            <div key={metric.key} title={metric.text}><dt>{metric.label}</dt><dd>{brief(metric.text)}</dd></div>
          ))}
        </dl>
      </div>
      {searched(run) && <Growth run={run} axis={(route.query.get("x") as Axis) || "order"} />}
      {run.best && searched(run) && (
        <p>
          Best: <a href={href(run.ledger, run.name, `trial/${run.best.trial}`)}>{run.unit} {run.best.trial}</a>
          {run.best.brief && <span class="quiet"> {run.best.brief}</span>}
        </p>
      )}
      <Masonry items={[
        ...run.sections.map((section, at) => ({ weight: weight(section), wide: isWide(section), card: <Sections key={at} sections={[section]} /> })),
        ...(run.next.length ? [{ weight: 70 + run.next.length * 70, card: <Next key="next" steps={run.next} /> }] : []),
        ...(run.comments.length || (!saved && run.can.note) ? [{ weight: 150, card: <Notes key="notes" comments={run.comments} /> }] : []),
        ...(run.notes.length ? [{ weight: 60 + run.notes.length * 30, card: <Said key="said" notes={run.notes} /> }] : []),
      ]} />
    </>
  );
}

/** Whether scores tell candidates apart: where each is only right or wrong, as in a list of questions, no best grows. */
const searched = ({ history: { score } }: Overview) => score.length < 3 || ![1, 2].includes(new Set(score.filter((one) => one !== null)).size);

/** What can be said of a run whose study has no headline, or not yet. */
function inShort({ best, unit, units, progress, state }: Overview): string {
  if (!best && progress.told) return `${plural(progress.told, unit, units)} finished.`;
  if (!best) return progress.evaluations ? `No ${unit} has finished yet.` : "Nothing has been evaluated yet.";
  return `Best of ${plural(progress.told, unit, units)}${state === "running" ? " so far" : ""}: ${best.score_text}`;
}

/** Commands that work when they are pasted. */
export function Next({ steps }: { steps: Overview["next"] }) {
  return (
    <Card title="What to do next">
      <div class="steps">
        {steps.map((step) => <div key={step.command}><p>{step.text}</p><Command text={step.command} /></div>)}
      </div>
    </Card>
  );
}

function Said({ notes }: { notes: Overview["notes"] }) {
  return (
    <Card title="What the run said">
      <ul class="log">
        {notes.map((note, at) => <li key={at}><time title={moment(note.at)}>{ago(note.at)}</time><span class="text">{note.text}</span></li>)}
      </ul>
    </Card>
  );
}

/** About how many pixels the table of a section needs; longer texts are broken into lines. */
const tableWidth = ({ columns, rows }: Section) =>
  columns.reduce((sum, name, at) => sum + 24 + 7.2 * Math.max(name.length, ...rows.slice(0, 12).map((row) => (typeof row[at] === "number" ? 7 : Math.min(24, String(row[at] ?? "").length)))), 0);

const isWide = (section: Section) => tableWidth(section) > 520 || section.drawings.some(({ kind, data }) => kind === "replay" || (kind === "grid" && data.columns?.length > 8));

/** About how tall a section is. */
const weight = ({ text, rows, curves, drawings }: Section) =>
  70 + Math.min(300, (text.length / 70 + text.split("\n").length) * 20) + rows.slice(0, 12).reduce((sum, row) => sum + 34 + 20 * Math.floor(Math.max(...row.map((value) => String(value).length)) / 45), 0) + (curves.length ? 320 : 0) + drawings.length * 240;

/** How the best score grew, over what it took. */
function Growth({ run, axis }: { run: Overview; axis: Axis }) {
  const { history } = run;
  const titles: Record<Axis, string> = {
    order: `${run.units} finished`, evaluations: "evaluations", seconds: "time since the start", cost: "cost in $",
  };
  const axes = (Object.keys(units) as Axis[]).filter((name) => name !== "cost" || history.cost.at(-1));
  const names: Record<Axis, string> = { order: capital(run.units), evaluations: "Evaluations", seconds: "Time", cost: "Cost" };
  if (!history.order.length) return <Card title="Best so far"><p class="quiet">No {run.unit} has finished yet.</p></Card>;
  const shown = axes.includes(axis) ? axis : "order";
  return (
    <Card title="Best so far" tools={<Choice label="Horizontal axis" value={shown} options={axes.map((name) => [name, names[name]] as const)} onChoose={(x) => choose({ x: x === "order" ? null : x })} />}>
      <Chart name="best" title={plural(run.progress.told, run.unit, run.units)} lines={linesOf(history, shown, run)} across={titles[shown]} acrossUnit={units[shown]}
        up="score" scale={run.scale} height={300}
        note={history.order.length < run.progress.told ? `${plural(history.order.length, run.unit, run.units)} are drawn: every new best, and an even sample of the rest.` : ""}
        onPoint={(line, index) => line === 0 && go(href(run.ledger, run.name, `trial/${scored(history).map((at) => history.trial[at])[index]}`))} />
    </Card>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
/** Places of the history that have a score, in the order of the x axes. */
const scored = (history: History) => history.score.flatMap((score, at) => (score === null ? [] : [at]));

function linesOf(history: History, axis: Axis, run: Overview): Line[] {
  const x = axis === "order" ? history.order.map((place) => place + 1) : history[axis];
  const dots = scored(history);
  const lines: Line[] = [
    { name: `each ${run.unit}`, kind: "dots", quiet: true, colour: "--line-7", x: dots.map((at) => x[at]), y: dots.map((at) => history.score[at]) },
  ];
  const { order, low, mid, high } = history.quantiles;
  // Quantiles of a handful say nothing that the dots do not.
  if (order.length > 2 && history.order.length >= 4 * order.length) {
    const place = order.map((asked) => Math.max(0, history.order.findLastIndex((one) => one <= asked)));
    lines.push({ name: "median and middle half", colour: "--line-1", quiet: true, x: place.map((at) => x[at]), y: mid, low, high });
  }
  lines.push({ name: "best so far", kind: "step", colour: "--accent", x, y: history.best });
  return lines;
}
