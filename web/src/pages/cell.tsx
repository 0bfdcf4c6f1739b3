// One evaluation: the case, what the candidate made of it, its score and why, and every model call.
import { useCallback } from "preact/hooks";
import { FeedbackForm } from "../actions";
import { type Call, type Cell, runPath } from "../api";
import { count, duration, moment, money, plural } from "../format";
import { Card, Wait } from "../parts";
import { href, type Route } from "../router";
import { Sections } from "../sections";
import { reload, useLoad } from "../store";
import { Block, Long } from "../texts";
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
          {cell.cost !== null && cell.cost > 0 && (
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
        <div class="parents">
          <TrialLink base={base} trial={data.trial} />
        </div>
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
      {calls.map((call, at) => (
        <CallView key={at} call={call} number={at + 1} open={calls.length <= 2} />
      ))}
    </Card>
  );
}

/** A call as a chat; where there are many, the summary says enough to find the one that matters. */
function CallView({ call, number, open }: { call: Call; number: number; open: boolean }) {
  const facts = [
    `${count(call.input_tokens)} tokens in${call.cached_tokens ? ` (${count(call.cached_tokens)} cached)` : ""}, ${count(call.output_tokens)} out`,
    duration(call.seconds),
    call.cost_text === "unknown" ? "cost unknown" : call.cost_text,
    call.tries > 1 && plural(call.tries, "try", "tries"),
  ];
  return (
    <details class="call" open={open}>
      <summary>
        <b>
          {number}. {call.model}
        </b>
        {facts.filter(Boolean).map((fact) => (
          <span key={fact}>{fact}</span>
        ))}
        {call.cached && <span class="badge">from the ledger</span>}
        {call.batch && <span class="badge">batch {call.batch}</span>}
        <span class="reply-line">{call.reply.slice(0, 120)}</span>
      </summary>
      <ol class="talk">
        {call.messages.map((message, at) => (
          <Turn key={at} role={message.role} text={message.text} />
        ))}
        <Turn
          role="reply"
          name={call.finish && call.finish !== "stop" ? `reply (ended: ${call.finish})` : "reply"}
          text={call.reply || "(empty)"}
        />
      </ol>
      {Object.keys(call.settings).length > 0 && (
        <details class="quiet">
          <summary>Settings of the call</summary>
          <Block text={JSON.stringify(call.settings, null, 2)} label="Settings of the call" />
        </details>
      )}
    </details>
  );
}

function Turn({ role, name = role, text }: { role: string; name?: string; text: string }) {
  return (
    <li class={`turn ${role === "assistant" || role === "reply" ? "side-1" : "side-0"} ${role}`}>
      <b class="who">{name}</b>
      <div class="bubble">
        <Long text={text} most={4000} />
      </div>
    </li>
  );
}
