// What a person can do from the page: stop, resume, raise the budget, retry failures, add a note, give feedback.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { act, type Comment, type Feedback, type Overview, runPath, saved } from "./api";
import { ago, moment } from "./format";
import { Card } from "./parts";
import { overview, refreshRun } from "./store";

type Stage = { at: "ready" | "asking" | "sending" } | { at: "done" | "refused"; said: string };

/** Sends one request and says what came back: the server's words, whether it did it or refused. */
function useAction(path: string, after?: () => void) {
  const [stage, setStage] = useState<Stage>({ at: "ready" });
  const send = async (body: object) => {
    setStage({ at: "sending" });
    try {
      setStage({ at: "done", said: (await act(path, body)) || "Done." });
      void refreshRun();
      after?.();
      return true;
    } catch (error) {
      setStage({ at: "refused", said: (error as Error).message });
      return false;
    }
  };
  return { stage, send, ask: () => setStage({ at: "asking" }), reset: () => setStage({ at: "ready" }), busy: stage.at === "sending" };
}

function Said({ stage }: { stage: Stage }) {
  const words = stage.at === "sending" ? "Sending…" : "said" in stage ? stage.said : "";
  return (
    <span class={`said ${stage.at}`} role={stage.at === "refused" ? "alert" : "status"}>
      {words}
    </span>
  );
}

const pathOf = () => {
  const run = overview.value!;
  return runPath(run.ledger, run.name);
};

/** The buttons of the run's frame.  A saved page has none: nobody is there to obey. */
export function RunActions({ overview: run }: { overview: Overview }) {
  const { stop, resume, budget } = run.can;
  return (
    <div class="actions">
      {stop && <Stop />}
      {resume && run.state !== "finished" && <Resume />}
      {budget && <Budget running={run.state === "running"} />}
    </div>
  );
}

function Stop() {
  const { stage, send, ask, reset, busy } = useAction(`${pathOf()}/stop`);
  if (stage.at !== "asking")
    return (
      <span class="action">
        <button type="button" class="danger" disabled={busy || stage.at === "done"} onClick={ask}>
          Stop
        </button>
        <Said stage={stage} />
      </span>
    );
  return (
    <span class="action" role="group" aria-label="Stop this run?">
      <span>Stop this run? What is under way is finished or given up; nothing recorded is lost, and you can resume it.</span>
      <button type="button" class="danger" onClick={() => send({})} ref={(button) => button?.focus()}>
        Stop the run
      </button>
      <button type="button" onClick={reset}>
        Let it run
      </button>
    </span>
  );
}

function Resume() {
  const { stage, send, busy } = useAction(`${pathOf()}/resume`);
  return (
    <span class="action">
      <button type="button" disabled={busy || stage.at === "done"} onClick={() => send({})}>
        Resume
      </button>
      <Said stage={stage} />
    </span>
  );
}

/** Evaluates the failed cells again. */
export function Retry() {
  const run = overview.value;
  const { stage, send, busy } = useAction(run ? `${pathOf()}/resume` : "");
  if (saved || !run?.can.retry) return null;
  return (
    <span class="action">
      <button type="button" disabled={busy || stage.at === "done"} onClick={() => send({ retry_failed: true })}>
        Retry failed evaluations
      </button>
      <Said stage={stage} />
    </span>
  );
}

const LIMITS: [string, string, string][] = [
  ["max_cost", "Most dollars", "0.01"],
  ["max_trials", "Most candidates", "1"],
  ["max_evaluations", "Most evaluations", "1"],
  ["max_time", "Most seconds", "1"],
];

/** Higher limits: told to a running run, or used to resume one that stopped at them. */
function Budget({ running }: { running: boolean }) {
  const run = overview.value!;
  const [open, setOpen] = useState(false);
  const [values, setValues] = useState<{ [name: string]: string }>({});
  const { stage, send, busy } = useAction(`${pathOf()}/${running ? "budget" : "resume"}`, () => setOpen(false));
  if (!open)
    return (
      <span class="action">
        <button type="button" onClick={() => setOpen(true)}>
          Raise the budget
        </button>
        <Said stage={stage} />
      </span>
    );
  const limits = LIMITS.filter(([name]) => name in run.limits);
  const offered = limits.length ? limits : LIMITS;
  const filled = Object.entries(values).filter(([, value]) => value.trim() !== "");
  const submit = (event: Event) => {
    event.preventDefault();
    void send(Object.fromEntries(filled.map(([name, value]) => [name, Number(value)])));
  };
  return (
    <form class="action budget" onSubmit={submit} aria-label="Raise the budget">
      {offered.map(([name, label, step]) => (
        <label key={name}>
          {label}
          <input
            type="number"
            min="0"
            step={step}
            placeholder={run.limits[name] == null ? "no limit" : String(run.limits[name])}
            value={values[name] ?? ""}
            onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
          />
        </label>
      ))}
      <button type="submit" disabled={busy || !filled.length}>
        {running ? "Raise" : "Raise and resume"}
      </button>
      <button type="button" onClick={() => setOpen(false)}>
        Cancel
      </button>
      <Said stage={stage} />
    </form>
  );
}

/** Notes on a run or one candidate, and a line to add another. */
export function Notes({ comments, trial = null, after }: { comments: Comment[]; trial?: number | null; after?: () => void }) {
  const run = overview.value;
  const [text, setText] = useState("");
  const { stage, send, busy } = useAction(run ? `${pathOf()}/note` : "", () => {
    setText("");
    after?.();
  });
  const may = !saved && run?.can.note;
  if (!may && !comments.length) return null;
  const submit = (event: Event) => {
    event.preventDefault();
    if (text.trim()) void send(trial === null ? { text: text.trim() } : { text: text.trim(), trial });
  };
  return (
    <Card title="Notes">
      <ul class="notes">
        {comments.map((comment) => (
          <li key={comment.id}>
            <time title={moment(comment.at)}>{ago(comment.at)}</time>{" "}
            {trial === null && comment.trial !== null && (
              <small>
                on {run?.unit || "candidate"} {comment.trial}{" "}
              </small>
            )}
            <span>{comment.text}</span>
          </li>
        ))}
      </ul>
      {may && (
        <form class="note-form" onSubmit={submit}>
          <label>
            Add a note
            <textarea rows={2} maxLength={10000} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
          <button type="submit" disabled={busy || !text.trim()}>
            Add
          </button>
          <Said stage={stage} />
        </form>
      )}
    </Card>
  );
}

/** A person's judgement of a shown answer: a rating, thumbs, a preference between two, or a share. */
export function FeedbackForm({
  feedback,
  trial,
  position = null,
  after,
}: {
  feedback: Feedback;
  trial: number;
  position?: number | null;
  after?: () => void;
}) {
  const run = overview.value;
  const { stage, send, busy } = useAction(run ? `${pathOf()}/feedback` : "", after);
  const may = !saved && run?.can.feedback;
  const pair = feedback.ask === "preference";
  const tell = (value: unknown) => void send(position === null ? { trial, value } : { trial, position, value });
  const known = feedback.given !== null && feedback.given !== undefined;
  return (
    <Card title={pair ? "Which answer is better?" : "How good is this answer?"}>
      <blockquote>{feedback.query}</blockquote>
      <div class={pair ? "answers pair" : "answers"}>
        {feedback.answers.map((answer, index) => (
          <article key={index}>
            {pair && <b>{"AB"[index]}</b>}
            <p>{answer}</p>
          </article>
        ))}
      </div>
      {known && (
        <p class="quiet">Feedback so far: {typeof feedback.given === "object" ? JSON.stringify(feedback.given) : String(feedback.given)}</p>
      )}
      {may && (
        <div class="choices" role="group" aria-label="Your feedback">
          <Choices ask={feedback.ask} busy={busy || stage.at === "done"} tell={tell} />
        </div>
      )}
      <Said stage={stage} />
    </Card>
  );
}

const RATINGS = ["useless", "weak", "fair", "good", "excellent"];

function Choices({ ask, busy, tell }: { ask: Feedback["ask"]; busy: boolean; tell: (value: unknown) => void }) {
  const [share, setShare] = useState(0.5);
  const button = (value: unknown, words: ComponentChildren) => (
    <button type="button" disabled={busy} onClick={() => tell(value)}>
      {words}
    </button>
  );
  if (ask === "rating")
    return (
      <>
        {RATINGS.map((word, index) =>
          button(
            index + 1,
            <>
              <b>{index + 1}</b> {word}
            </>,
          ),
        )}
      </>
    );
  if (ask === "thumbs")
    return (
      <>
        {button(true, "Good")}
        {button(false, "Not good")}
      </>
    );
  if (ask === "preference")
    return (
      <>
        {button("A", "A is better")}
        {button("tie", "Neither")}
        {button("B", "B is better")}
      </>
    );
  return (
    <>
      <label>
        Score, 0 to 1{" "}
        <input type="range" min="0" max="1" step="0.05" value={share} onInput={(event) => setShare(Number(event.currentTarget.value))} />{" "}
        <output>{share.toFixed(2)}</output>
      </label>
      {button(share, "Give this score")}
    </>
  );
}
