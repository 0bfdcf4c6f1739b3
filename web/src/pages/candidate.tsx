// One candidate: what it is in the study's terms, how it differs from others, and what it scored on each case.
import type { ComponentChildren } from "preact";
import { useCallback, useState } from "preact/hooks";
import { FeedbackForm, Notes } from "../actions";
import { type Candidate, type CellBrief, load, type Num, runPath, type TrialBrief } from "../api";
import { WordDiff } from "../drawings/diff";
import { bytes, duration, money, plural } from "../format";
import { Card, Wait } from "../parts";
import { choose, href, type Route } from "../router";
import { type Field, Sections, Sortable } from "../sections";
import { overview, reload, useChanges, useLoad } from "../store";
import { Block, Long } from "../texts";
import { scaleOf, ScoreBar, scoreText, Steps, TrialLink, unitName, useTexts, wayText } from "../trial_parts";

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
            <dd>{wayText(trial.by)}</dd>
          </div>
        )}
      </dl>
      {data.parents.length > 0 && (
        <div class="parents">
          {data.parents.length === 1 ? "Parent" : "Parents"}:{" "}
          {data.parents.map((parent) => (
            <TrialLink key={parent.trial} base={base} trial={parent} />
          ))}
        </div>
      )}
    </header>
  );
}

/** What the text card shows: "text", the number of another candidate to compare with, or nothing until asked. */
function shownText(data: Candidate, chosen: string | null): "text" | number | null {
  if (chosen !== null) return chosen === "text" ? "text" : Number(chosen);
  const drawn = data.sections.some((section) => section.drawings.some((drawing) => drawing.kind === "diff"));
  if (data.parents.length && !drawn) return data.parents[0].trial;
  return data.sections.length ? null : "text";
}

/** The candidate as text, or its word diff against its parent, the first, the best, or any other. */
function Text({ data, route }: { data: Candidate; route: Route }) {
  const trial = data.trial.trial;
  const shown = shownText(data, route.query.get("against"));
  const other = typeof shown === "number" ? shown : null;
  const { data: texts, error } = useTexts(route, other === null ? null : [other, trial]);
  if (!data.candidate_text) return null;
  const parents = data.parents.map((parent) => parent.trial);
  const best = overview.value?.best?.trial;
  const name = (place: number) =>
    `${parents.includes(place) ? "parent" : place === best ? "best" : place === 0 ? "first" : unitName(false)} ${place}`;
  const options = [...new Set([...parents, 0, best ?? 0, other ?? 0])].filter((place) => place !== trial);
  const missing = error || (texts && texts.texts[other!] === undefined && `${unitName()} ${other} is not here.`);
  return (
    <Card title={other === null ? "As text" : `Changes since ${name(other)}`}>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <span class="choice" role="group" aria-label="Show">
          <button type="button" aria-pressed={shown === "text"} onClick={() => choose({ against: "text" })}>
            Text
          </button>
          {options.map((place) => (
            <button key={place} type="button" aria-pressed={place === other} onClick={() => choose({ against: place })}>
              Since {name(place)}
            </button>
          ))}
        </span>
        <label>
          Since number{" "}
          <input
            type="number"
            min="0"
            class="slim"
            onChange={(event) => event.currentTarget.value && choose({ against: event.currentTarget.value })}
          />
        </label>
      </form>
      {shown === "text" && <Block text={data.candidate_text} label={`${unitName()} ${trial} as text`} />}
      {other !== null &&
        (missing || !texts ? (
          <p class={missing ? "bad" : "quiet"} role="status">
            {missing || "Loading …"}
          </p>
        ) : (
          <WordDiff
            before={texts.texts[other]}
            after={texts.texts[trial] ?? data.candidate_text}
            beforeName={name(other)}
            afterName={`${unitName(false)} ${trial}`}
          />
        ))}
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
  const [paid, noted] = [cells.some((cell) => cell.cost), cells.some((cell) => cell.reused || (cell.tries ?? 0) > 1)];
  const field = (value: Num, shown: ComponentChildren, left = false): Field => ({ value, shown, left });
  const columns: [string, boolean, (cell: CellBrief) => Field][] = [
    [
      "Case",
      true,
      (cell) => field(cell.position, <a href={`${base}/cell/${data.trial.trial}/${cell.position}`}>{cell.case || cell.position}</a>, true),
    ],
    [
      "Score",
      true,
      (cell) =>
        cell.failure
          ? field(
              -Infinity,
              <span class="bad">
                <Long text={cell.failure} most={80} />
              </span>,
              true,
            )
          : field(
              cell.score,
              <span class="nowrap">
                <ScoreBar score={cell.score} scale={scale} /> {cell.score_text}
              </span>,
              true,
            ),
    ],
    ["Time", true, (cell) => field(cell.seconds, duration(cell.seconds))],
    ["Cost", paid, (cell) => field(cell.cost, money(cell.cost))],
    [
      "Note",
      noted,
      (cell) => field(cell.tries, cell.reused ? "reused" : (cell.tries ?? 0) > 1 ? plural(cell.tries!, "try", "tries") : "", true),
    ],
  ];
  const kept = columns.filter(([, needed]) => needed);
  return (
    <Card title="Scores by case">
      <Sortable
        label="Scores by case"
        columns={kept.map(([name]) => name)}
        rows={cells.map((cell) => kept.map(([, , make]) => make(cell)))}
      />
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
