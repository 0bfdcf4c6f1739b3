"""How queries, responses, feedback and the result of a run look to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fanfold import drawings
from fanfold.errors import ConfigError
from fanfold.ledger import EvaluationRow, RunView, TrialRow, add_request
from fanfold.plugins import FeedbackForm, Presentation
from fanfold.stats import mean
from fanfold.studies.critic.bank import system_prompt
from fanfold.studies.critic.evaluator import Generate, Show, Write, step_of
from fanfold.studies.critic.feedback import read
from fanfold.summary import Curve, Section
from fanfold.texts import shortened

#: Points of the curve of satisfaction, and answers that a page looks back on.
WINDOWS, REMEMBERED = 20, 1000
#: What the figure for pairs means.
PAIRS = "A is the answer that the actor chose first; half of the pairs prefer it if both are equally good."
#: Open questions that are listed, and characters of a text in a table.
OPEN, CUT = 20, 200


class Guess(NamedTuple):
    """What the critic expected of a response, and how sure it was."""

    mean: float
    deviation: float


class Answered(NamedTuple):
    """What people said of one show, from 0 to 1, and what the critic had expected of it."""

    feedback: float
    expected: float | None


def headline(figures: Mapping[str, Any]) -> str | None:
    """How satisfied people are now, and how that began; of pairs, how often the actor's first choice was preferred."""
    windows = figures.get("satisfaction")
    if not windows:
        return None
    first, last = windows[0]["estimate"], windows[-1]["estimate"]
    if figures.get("ask") == "pair":
        often = f"in {100 * first:.0f} % of pairs at first, in {100 * last:.0f} % at the end"
        return f"the actor's first choice was preferred {often}, over {figures['answered']} pairs"
    return f"satisfaction {first:.3f} at first, {last:.3f} at the end, over {figures['answered']} answers"


def candidate(value: Any) -> Section:
    """The query, and the prompts that answer it or the responses that are judged."""
    step = step_of(value)
    if isinstance(step, Generate):
        prompts = zip(step.temperatures, step.prompts)
        return Section("Query", step.query, ("temperature", "prompt"), tuple((t, prompt.text) for t, prompt in prompts))
    if isinstance(step, Write):
        asked = f"a new version, from {len(step.failures)} responses that were not liked"
        return Section("To be written", asked, ("prompt",), tuple((prompt.text,) for prompt in step.prompts))
    return Section("Shown", step.query, ("response",), tuple((each.response,) for each in step.shown))


def text(value: Any) -> str:
    """The query, and the prompts or responses below it."""
    section = candidate(value)
    return "\n\n".join([section.text, *(str(row[-1]) for row in section.rows)])


def brief(value: Any) -> str:
    """What happens to a query, and the query."""
    step = step_of(value)
    if isinstance(step, Write):
        return f"rewrite: {step.prompts[0].text}"
    return f"{'ask' if isinstance(step, Generate) else 'show'}: {step.query}"


def cell(data: Any) -> Section:
    """A response, or the feedback on one."""
    if "text" in data:
        return Section("Response", data["text"])
    return Section("Feedback", f"{data['kind']}: {data['raw']} (score {data['score']:.3g})")


def overview(view: RunView) -> Iterator[Section]:
    """How satisfied people were so far, and which answers wait for feedback; the conclusion of a study says more."""
    online, progress = bool(view.info.meta.get("online")), view.progress()
    if waiting := _open_shows(view, progress.asked - progress.told) if online else _questions(view):
        text = "These answers are not judged yet; open a trial to judge its answer."
        yield Section("Waiting for feedback", text, ("trial", "query", "answer"), tuple(waiting))
    if online or view.summary() is None:
        told = view.trials(order="told", which="told", first=max(0, progress.told - REMEMBERED), blobs=False)
        for answers, pairs in zip(_answers(told), (False, True)):
            yield from satisfaction(answers, pairs=pairs)


def _open_shows(view: RunView, many: int) -> list[tuple[int, str, str]]:
    rows = view.trials(which="open", first=max(0, many - OPEN), blobs=False)
    steps = [(row.number, step_of(row.candidate)) for row in rows]
    return [(at, step.query, shortened(step.shown[0].response, CUT)) for at, step in steps if isinstance(step, Show)]


def _questions(view: RunView) -> list[tuple[int, str, str]]:
    asked = [question.value for question in view.questions()]
    return [(each["trial"], each["query"], shortened(each["answers"][0], CUT)) for each in asked]


def satisfaction(answers: Sequence[Answered], text: str = "", pairs: bool = False) -> Iterator[Section]:
    """The mean feedback with its interval, and what the critic expected, from the first answer to the last.

    Feedback on pairs is how often the first is preferred, which says nothing about how satisfied people are.
    """
    if not answers:
        return
    size = max(5, -(-len(answers) // WINDOWS))
    windows = [answers[start : start + size] for start in range(0, len(answers), size)]
    ends = [min(len(answers), (at + 1) * size) for at in range(len(windows))]
    means = [mean([answer.feedback for answer in window]) for window in windows]
    guesses = [[answer.expected for answer in window if answer.expected is not None] for window in windows]
    band = [(max(0.0, each.low), min(1.0, each.high)) for each in means]
    curves = [
        Curve(
            f"A preferred, {size} pairs a point" if pairs else f"feedback, {size} answers a point",
            tuple((float(end), each.estimate or 0.0) for end, each in zip(ends, means)),
            tuple(low for low, _ in band),
            tuple(high for _, high in band),
        )
    ]
    if any(guesses):
        points = tuple((float(end), sum(own) / len(own)) for end, own in zip(ends, guesses) if own)
        curves.append(Curve("what the critic expected", points))
    rows = tuple((end, each.estimate, low, high) for end, each, (low, high) in zip(ends, means, band))
    columns = ("answers", "feedback", "low", "high")
    if pairs:
        text = " ".join(filter(None, [text, PAIRS]))
        columns = ("pairs", "A preferred", "low", "high")
        yield Section("Preferred", text, columns, rows, tuple(curves), "pairs", up="share of pairs")
        return
    yield Section("Satisfaction", text, columns, rows, tuple(curves), "answers", up="feedback, 0 to 1")


def compare(views: Sequence[RunView]) -> Iterator[Section]:
    """The feedback of several runs, from the first answer to the last."""
    curves = []
    for view in views:
        told = view.trials(order="told", which="told", count=REMEMBERED, blobs=False)
        answers, _ = _answers(told)
        curves += [replace(section.curves[0], name=view.name) for section in satisfaction(answers)]
    if not curves:
        return
    yield Section("Satisfaction", "", curves=tuple(curves), across="answers", up="feedback, 0 to 1")


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """A query with the responses to it, or the response that was shown with the feedback on it."""
    step = step_of(row.candidate)
    if isinstance(step, Show):
        yield from _show(step, row)
        return
    responses = {each.position: each for each in view.evaluations(trials=[row.number], failed=False, blobs=False)}
    if isinstance(step, Write):
        yield candidate(row.candidate)
        yield from (cell(each.data) for each in responses.values())
        return
    rows = tuple(
        (slot, temperature, prompt.text, responses[slot].data.get("text") if slot in responses else None)
        for slot, (temperature, prompt) in enumerate(zip(step.temperatures, step.prompts))
    )
    yield Section("Query", step.query, ("slot", "temperature", "prompt", "response"), rows)


def _show(step: Show, row: TrialRow) -> Iterator[Section]:
    names = ["Answer"] if len(step.shown) == 1 else ["Answer A", "Answer B"]
    messages = [{"who": 0, "text": step.query}]
    messages += [
        {"who": at, "text": shown.response, "note": f"temperature {shown.temperature:g}"}
        for at, shown in enumerate(step.shown, 1)
    ]
    rows = tuple((name, shown.prompt.text, shown.temperature) for name, shown in zip(names, step.shown))
    drawn = drawings.conversation(["Question", *names], messages)
    yield Section("What was shown", "", ("answer", "prompt", "temperature"), rows, drawings=(drawn,))
    guess, score = guess_of(row), row.score
    dots = [] if guess is None else [_dot("critic's guess", guess.mean, guess.deviation)]
    dots += [] if score is None else [_dot("feedback", score)]
    if len(dots) == 2 and guess is not None and score is not None:
        of = "that answer A is better" if len(step.shown) == 2 else "of this answer"
        text = f"The critic expected {guess.mean:.2f} {of}; the feedback was {score:.2f} ({score - guess.mean:+.2f})."
    else:
        text = "Not judged yet." if score is None else f"The feedback was {score:.2f}."
    table = tuple((dot["name"], dot["value"], dot["low"], dot["high"]) for dot in dots)
    drawn = drawings.intervals(dots, unit="feedback, 0 to 1", low=0.0, high=1.0)
    yield Section("Feedback", text, ("", "value", "low", "high"), table, drawings=(drawn,) if dots else ())


def _dot(name: str, value: float, deviation: float = 0.0) -> dict[str, Any]:
    limits = (max(0.0, value - 1.96 * deviation), min(1.0, value + 1.96 * deviation)) if deviation else (None, None)
    return {"name": name, "value": min(1.0, max(0.0, value)), "low": limits[0], "high": limits[1], "n": None}


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """The query and the prompt of a response, or what the feedback is about."""
    asked = view.trial(row.trial)
    step = step_of(asked.candidate)
    if isinstance(step, Generate) and row.position < len(step.prompts):
        prompt = (("query", step.query), ("system prompt", step.prompts[row.position].text))
        yield Section("Request", "", ("", "text"), (*prompt, ("temperature", step.temperatures[row.position])))
    if not isinstance(step, Show):
        yield cell(row.data)
        return
    answers, judged = _show(step, asked)
    yield answers
    yield replace(judged, text=f"{cell(row.data).text}. {judged.text}")


def guess_of(row: TrialRow) -> Guess | None:
    """What the critic expected of the answer that was shown, or of two that the first is preferred."""
    guesses = _guesses(row)
    if not guesses:
        return None
    if len(guesses) == 1:
        return guesses[0]
    a, b = guesses
    return Guess(0.5 + (a.mean - b.mean) / 2, (a.deviation**2 + b.deviation**2) ** 0.5 / 2)


def _guesses(row: TrialRow) -> list[Guess]:
    """What the critic expected of each answer that was shown; nothing where that was not written down."""
    origin, shown = row.origin or {}, row.candidate.get("shown") if isinstance(row.candidate, Mapping) else None
    if not shown or not isinstance(origin, Mapping):
        return []
    if choice := origin.get("choice"):
        every = choice["candidates"]
        return [Guess(every[at]["expected"], every[at]["sd"]) for at in choice["chosen"]]
    # Earlier runs have no places; where every response came, the slots are these.
    places = origin.get("chosen") or [each["slot"] for each in shown]
    if "expected" in origin and all(place < len(origin["expected"]) for place in places):
        return [Guess(origin["expected"][place], origin["sd"][place]) for place in places]
    return []


def _answers(told: Iterable[TrialRow]) -> tuple[list[Answered], list[Answered]]:
    """What was said of answers that were shown alone, and of pairs."""
    found: tuple[list[Answered], list[Answered]] = ([], [])
    for row in told:
        if row.score is not None and "shown" in row.candidate:
            guess = guess_of(row)
            answer = Answered(row.score, None if guess is None else guess.mean)
            found[len(row.candidate["shown"]) == 2].append(answer)
    return found


def answers(view: RunView) -> Iterator[dict[str, Any]]:
    """Every answer that was shown, with its prompt, what was said of it, and what the critic had expected.

    Of a pair there are two rows, and the score of each is the share of the preference that it got.
    """
    pinned = view.info.meta.get("fields", {}).get("pinned", "")
    said = {
        row.trial: row.data
        for row in view.evaluations(failed=False, blobs=False)
        if isinstance(row.data, Mapping) and "kind" in row.data
    }
    for row in view.trials(blobs=False):
        step = step_of(row.candidate)
        if not isinstance(step, Show):
            continue
        told, guesses = said.get(row.number, {}), _guesses(row)
        for at, shown in enumerate(step.shown):
            yield {
                "trial": row.number,
                "query": step.query,
                "answer": "AB"[at] if len(step.shown) == 2 else "",
                "text": shown.response,
                "prompt": system_prompt(shown.prompt, pinned),
                "temperature": shown.temperature,
                "feedback": told.get("kind"),
                "said": _in_words(told.get("raw")),
                "score": row.score if row.score is None or at == 0 else 1.0 - row.score,
                "expected": guesses[at].mean if guesses else None,
            }


def _in_words(raw: Any) -> Any:
    """What was said; of several kinds of feedback each with its name."""
    return raw if not isinstance(raw, list) else "; ".join(f"{each['kind']}: {each['raw']}" for each in raw)


def feedback(view: RunView, number: int) -> FeedbackForm | None:
    """What a person may be asked about a trial: of an application always, of a study while an answer is waited for."""
    if not view.info.meta.get("online"):
        asked = next((each.value for each in view.questions() if each.value["trial"] == number), None)
        return None if asked is None else FeedbackForm(asked["query"], tuple(asked["answers"]), asked["ask"])
    step = step_of(view.trial(number).candidate)
    if not isinstance(step, Show):
        return None
    answers = tuple(each.response for each in step.shown)
    return FeedbackForm(step.query, answers, "preference" if len(answers) == 2 else "rating")


def tell(path: Path, run: str, number: int, value: Any) -> None:
    """Record what a person said of a trial: at once in an application, through the running process in a study."""
    with RunView.open(path, run) as view:
        form, row, online = feedback(view, number), view.trial(number), view.info.meta.get("online")
    if form is None:
        raise ConfigError(f"trial {number} of run {run!r} does not wait for feedback")
    read(form.ask, value)  # what cannot be used is refused here
    if not online:
        add_request(path, run, "feedback", {"trial": number, "position": 0, "value": value})
        return
    from fanfold.studies.critic.application import ALIASES, Critic  # needs numpy

    names = {kind: name for name, kind in ALIASES.items()}
    with Critic.open(path, name=run) as critic:
        critic.tell_sync(f"{number}-{row.origin['key']}", **{names.get(form.ask, form.ask): value})


shown = Presentation(
    headline,
    candidate,
    cell,
    {"answers": answers},
    unit="step",
    chooses=True,
    text=text,
    brief=brief,
    scale=(0.0, 1.0),
    overview=overview,
    trial=trial,
    evaluation=evaluation,
    compare=compare,
    feedback=feedback,
    tell=tell,
)
