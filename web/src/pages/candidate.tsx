// One candidate: what it is in the study's terms, how it differs from others, and what it scored on each case.
import { useCallback, useState } from "preact/hooks";
import { FeedbackForm, Notes } from "../actions";
import { type Candidate, type CellBrief, load, runPath, type TrialBrief } from "../api";
import { WordDiff } from "../drawings/diff";
import { bytes, duration, money, plural } from "../format";
import { Card, Wait } from "../parts";
import { choose, href, type Route } from "../router";
import { Sections, Sortable } from "../sections";
import { overview, reload, useChanges, useLoad } from "../store";
import { Block, Long } from "../texts";
import { scaleOf, ScoreBar, scoreText, Steps, TrialLink, unitName, useTexts } from "../trial_parts";

export function CandidatePage({ route }: { route: Route }) {
  const { ledger, run, args } = route;
  const trial = Number(args[0]);
  const [base, path] = [href(ledger, run), `${runPath(ledger, run)}/trial/${trial}`];
  const loaded = useLoad<Candidate>(path);
  const again = useCallback(() => void reload(path), [path]);
  useChanges(
    useCallback(
      (change) => {
        if (change.trials.some((row) => row.trial === trial) || change.cells.some(([row]) => row === trial)) again();
      },
      [trial, again],
    ),
  );
  return (
    <Wait of={loaded}>
      {(data) => (
        <>
          <Head data={data} base={base} />
          {data.feedback && <FeedbackForm key={trial} feedback={data.feedback} trial={trial} after={again} />}
          <Sections sections={data.sections} base={base} />
          <Text data={data} route={route} />
          <Cells key={trial} data={data} base={base} path={path} />
          <Children kin={data.children} base={base} />
          <Files files={data.files} />
          <Notes comments={data.comments} trial={trial} after={again} />
        </>
      )}
    </Wait>
  );
}

function Head({ data, base }: { data: Candidate; base: string }) {
  const { trial } = data;
  const state = trial.dropped ? `dropped: ${trial.dropped}` : trial.order === null ? "under way" : "";
  const best = overview.value?.best?.trial === trial.trial;
  return (
    <header class="page-head">
      <h2>
        {unitName()} {trial.trial}
        {best && <span class="badge">best</span>}
      </h2>
      <Steps previous={data.previous} following={data.following} address={(place) => `${base}/trial/${place}`} />
      <dl class="facts">
        <div>
          <dt>Score</dt>
          <dd>
            {scoreText(trial)}
            {state && <small> {state}</small>}
          </dd>
        </div>
        <div>
          <dt>Evaluations</dt>
          <dd>
            {trial.evaluations ?? 0}
            {trial.failures > 0 && <small class="bad"> {plural(trial.failures, "failure")}</small>}
          </dd>
        </div>
        {data.calls.count > 0 && (
          <div>
            <dt>Model calls</dt>
            <dd>
              {data.calls.count.toLocaleString("en-US")} <small>{data.calls.cost_text}</small>
            </dd>
          </div>
        )}
        {trial.by && (
          <div>
            <dt>Made by</dt>
            <dd>{trial.by}</dd>
          </div>
        )}
      </dl>
      {data.parents.length > 0 && (
        <p class="parents">
          {data.parents.length === 1 ? "Parent" : "Parents"}:{" "}
          {data.parents.map((parent) => (
            <TrialLink key={parent.trial} base={base} trial={parent} />
          ))}
        </p>
      )}
    </header>
  );
}

/** The candidate as text, or its word diff against its parent, the first, the best, or any other. */
function Text({ data, route }: { data: Candidate; route: Route }) {
  const trial = data.trial.trial;
  const against = route.query.get("against") ?? "";
  const other = against === "" ? null : Number(against);
  const { data: texts, error } = useTexts(route, other === null ? null : [other, trial]);
  const best = overview.value?.best?.trial;
  const options = [
    ...new Set([
      ...data.parents.map((parent) => parent.trial),
      ...(trial !== 0 ? [0] : []),
      ...(best !== undefined && best !== trial ? [best] : []),
      ...(other !== null ? [other] : []),
    ]),
  ];
  const name = (place: number) =>
    data.parents.some((parent) => parent.trial === place)
      ? `parent ${place}`
      : place === best
        ? `best ${place}`
        : place === 0
          ? "first 0"
          : `${unitName(false)} ${place}`;
  if (!data.candidate_text) return null;
  const theirs = other === null ? undefined : texts?.texts[other];
  return (
    <Card title={other === null ? "As text" : `Against ${name(other)}`}>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <span class="choice" role="group" aria-label="Compare with">
          <button type="button" aria-pressed={other === null} onClick={() => choose({ against: null })}>
            Text
          </button>
          {options.map((place) => (
            <button key={place} type="button" aria-pressed={place === other} onClick={() => choose({ against: place })}>
              Diff to {name(place)}
            </button>
          ))}
        </span>
        <label>
          Diff to number{" "}
          <input
            type="number"
            min="0"
            class="slim"
            onChange={(event) => event.currentTarget.value !== "" && choose({ against: event.currentTarget.value })}
          />
        </label>
      </form>
      {other === null ? (
        <Block text={data.candidate_text} label={`${unitName()} ${trial} as text`} />
      ) : theirs !== undefined ? (
        <WordDiff
          before={theirs}
          after={texts!.texts[trial] ?? data.candidate_text}
          beforeName={name(other)}
          afterName={`${unitName(false)} ${trial}`}
        />
      ) : (
        <p class={error || texts ? "bad" : "quiet"} role="status">
          {error || (texts ? `There is no ${unitName(false)} ${other}.` : "Loading …")}
        </p>
      )}
    </Card>
  );
}

function Cells({ data, base, path }: { data: Candidate; base: string; path: string }) {
  const [more, setMore] = useState<{ cells: CellBrief[]; next: number | null } | null>(null);
  const [error, setError] = useState("");
  const cells = more ? [...data.cells, ...more.cells] : data.cells;
  const next = more ? more.next : data.next;
  if (!cells.length) return null;
  const load200 = () =>
    load<Candidate>(`${path}?after=${next}`).then(
      (page) => setMore({ cells: [...(more?.cells ?? []), ...page.cells], next: page.next }),
      (problem) => setError(problem.message),
    );
  const scale = scaleOf(cells.map((cell) => cell.score));
  const rows = cells.map((cell) => [
    {
      value: cell.position,
      left: true,
      shown: <a href={`${base}/cell/${data.trial.trial}/${cell.position}`}>{cell.case || cell.position}</a>,
    },
    {
      value: cell.failure ? -Infinity : cell.score,
      left: true,
      shown: cell.failure ? (
        <span class="bad">
          <Long text={cell.failure} most={80} />
        </span>
      ) : (
        <>
          <ScoreBar score={cell.score} scale={scale} /> {cell.score_text}
        </>
      ),
    },
    { value: cell.seconds, shown: duration(cell.seconds) },
    { value: cell.cost, shown: money(cell.cost) },
    {
      value: cell.tries,
      left: true,
      shown: cell.reused ? "reused" : cell.tries && cell.tries > 1 ? plural(cell.tries, "try", "tries") : "",
    },
  ]);
  return (
    <Card title="Scores by case">
      <Sortable label="Scores by case" columns={["Case", "Score", "Time", "Cost", "Note"]} rows={rows} />
      {next !== null && (
        <p>
          <button type="button" class="link" onClick={load200}>
            Load more cases
          </button>{" "}
          {error && <span class="bad">{error}</span>}
        </p>
      )}
    </Card>
  );
}

function Children({ kin, base }: { kin: TrialBrief[]; base: string }) {
  if (!kin.length) return null;
  return (
    <Card title={`Made from it (${kin.length})`}>
      <ul class="plain-list">
        {kin.map((trial) => (
          <li key={trial.trial}>
            <TrialLink base={base} trial={trial} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Files({ files }: { files: Candidate["files"] }) {
  if (!files.length) return null;
  return (
    <Card title="Files">
      <ul class="plain-list">
        {files.map((file) => (
          <li key={file.href}>
            <a href={file.href} download={file.name}>
              {file.name}
            </a>{" "}
            <small class="quiet">{bytes(file.size)}</small>
          </li>
        ))}
      </ul>
    </Card>
  );
}
