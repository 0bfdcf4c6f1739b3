// One evaluation: the case, what the candidate made of it, its score and why, and every model call.
import { useCallback } from "preact/hooks";
import { FeedbackForm } from "../actions";
import { type Call, type Cell, runPath } from "../api";
import { count, duration, moment, money, plural } from "../format";
import { Card, Wait } from "../parts";
import { href, type Route } from "../router";
import { Sections } from "../sections";
import { reload, useLoad } from "../store";
import { Block } from "../texts";
import { Steps, TrialLink, unitName } from "../trial_parts";

export function CellPage({ route: { ledger, run, args } }: { route: Route }) {
  const [trial, position] = args.map(Number);
  const [base, path] = [href(ledger, run), `${runPath(ledger, run)}/cell/${trial}/${position}`];
  const loaded = useLoad<Cell>(path);
  const again = useCallback(() => void reload(path), [path]);
  return <Wait of={loaded}>{(data) => <Evaluation data={data} trial={trial} position={position} base={base} again={again} />}</Wait>;
}

function Evaluation({
  data,
  trial,
  position,
  base,
  again,
}: {
  data: Cell;
  trial: number;
  position: number;
  base: string;
  again: () => void;
}) {
  const { cell } = data;
  return (
    <>
      <header class="page-head">
        <h2>
          {unitName()} {trial} on {cell.case || `case ${position}`}
        </h2>
        <Steps previous={data.previous} following={data.following} address={(place) => `${base}/cell/${trial}/${place}`} />
        <dl class="facts">
          <div>
            <dt>Score</dt>
            <dd class={cell.failure ? "bad" : ""}>{cell.failure ? "failed" : cell.score_text || "–"}</dd>
          </div>
          <div>
            <dt>Took</dt>
            <dd>
              {duration(cell.seconds)}
              {data.started !== null && <small> {moment(data.started)}</small>}
            </dd>
          </div>
          {cell.cost !== null && (
            <div>
              <dt>Cost</dt>
              <dd>{money(cell.cost)}</dd>
            </div>
          )}
          {cell.tries !== null && cell.tries > 1 && (
            <div>
              <dt>Tries</dt>
              <dd>{cell.tries}</dd>
            </div>
          )}
          {cell.reused && (
            <div>
              <dt>Origin</dt>
              <dd>reused from an equal evaluation</dd>
            </div>
          )}
        </dl>
        <p class="parents">
          <TrialLink base={base} trial={data.trial} />
        </p>
      </header>
      {cell.failure && (
        <Card title={`Failure: ${cell.failure}`}>
          {data.message && <p class="text">{data.message}</p>}
          {data.traceback && <Block text={data.traceback} label="Traceback" />}
        </Card>
      )}
      {data.feedback && <FeedbackForm feedback={data.feedback} trial={trial} position={position} after={again} />}
      {data.case.text && !data.sections.length && (
        <Card title="Case">
          <Block text={data.case.text} label="Case" />
        </Card>
      )}
      <Sections sections={data.sections} base={base} />
      {data.case.text && data.sections.length > 0 && (
        <details class="card">
          <summary>The case as it is recorded</summary>
          <Block text={data.case.text} label="Case" />
        </details>
      )}
      <Calls calls={data.calls} />
    </>
  );
}

function Calls({ calls }: { calls: Call[] | null }) {
  if (calls === null)
    return (
      <Card title="Model calls">
        <p class="quiet">Not recorded: an earlier version of Fanfold wrote this evaluation.</p>
      </Card>
    );
  if (!calls.length) return null;
  return (
    <Card title={plural(calls.length, "model call")}>
      {calls.map((call, index) => (
        <article key={index} class="call">
          <header>
            <b>
              {index + 1}. {call.model}
            </b>
            <span>
              {count(call.input_tokens)} tokens in{call.cached_tokens ? ` (${count(call.cached_tokens)} cached)` : ""},{" "}
              {count(call.output_tokens)} out
            </span>
            <span>{duration(call.seconds)}</span>
            {call.cost_text && <span>{call.cost_text}</span>}
            {call.tries > 1 && <span>{plural(call.tries, "try", "tries")}</span>}
            {call.cached && <span class="badge">from the ledger</span>}
            {call.batch && <span class="badge">batch {call.batch}</span>}
          </header>
          <ol class="talk">
            {call.messages.map((message, at) => (
              <li key={at} class={`turn ${message.role === "assistant" ? "side-1" : "side-0"} ${message.role}`}>
                <b class="who">{message.role}</b>
                <div class="bubble">{message.text}</div>
              </li>
            ))}
            <li class="turn side-1 reply">
              <b class="who">reply{call.finish && call.finish !== "stop" ? ` (ended: ${call.finish})` : ""}</b>
              <div class="bubble">{call.reply || "(empty)"}</div>
            </li>
          </ol>
          {Object.keys(call.settings).length > 0 && (
            <details>
              <summary>Settings of the call</summary>
              <Block text={JSON.stringify(call.settings, null, 2)} label="Settings of the call" />
            </details>
          )}
        </article>
      ))}
    </Card>
  );
}
