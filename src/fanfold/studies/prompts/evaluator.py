"""One cell of the search: a prompt and a problem make a request, a model answers, and the answer is graded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.calls import Reply, current_broker
from fanfold.encoding import encode
from fanfold.errors import CallFailed
from fanfold.events import Notice
from fanfold.flights import SIMULATED
from fanfold.identity import told
from fanfold.limits import Limits
from fanfold.models import Model, model
from fanfold.models.catalogue import defined
from fanfold.models.pricing import Price
from fanfold.models.providers import free_model
from fanfold.prompting.calibration import LISTED, OPENING, Calibration
from fanfold.prompting.genome import MARK, Candidate, Genome, render
from fanfold.prompting.material import Material, broken_rules, mend, rules_in_words
from fanfold.prompting.writing import Unwritten, realise
from fanfold.strategies.reflective import Written
from fanfold.tasks import Grade, Problem, Task
from fanfold.tasks.task import RAISED, Own
from fanfold.types import UNWRITTEN, Case, Failed, Ok, Outcome

#: How much of a reply is kept with the outcome; the whole of it is in the ledger's calls.
KEPT = 300
#: How much of it and of the grader's words a writer can be shown.
LONGEST_REPLY = 1500
#: A right reply that has so many characters more than the answer shows how it was found.
REASONED = 20
#: How providers say that a prompt is too long, or held back by a filter.
_NOT_TAKEN = re.compile(
    r"context[ _](?:length|window|size|limit)|(?:prompt|input|request|content)\b[^.]{0,40} too (?:long|large)|"
    r"prompt length|reduce the length|token count|maximum (?:model length|number of tokens)|"
    r"content[ _](?:filter|management)|flagged|usage policy",
    re.I,
)
#: The tokens of a prompt and those that a model has room for, where an error names both.
_USED = re.compile(r"(\d+) (?:input tokens|in the messages|in your prompt)|context limit: (\d+)")
_ROOM = re.compile(r"context length is (\d+)|> (\d+)")
#: What simulated models answer: they know the built-in tasks, and mind how they are asked.
SOLVER = "fanfold.studies.prompts.simulated:solver"


@told(
    shots="the problems that prompts may show as examples are others, or have other texts: rows of the file "
    "were changed, or are split in another way"
)
@dataclass(frozen=True)
class PromptsEvaluator:
    """Asks the case's model with the candidate's prompt and grades what it says.

    A candidate that a model has yet to write is written first: the request is the same in every cell of the row, so it
    is paid for once.  `shots` are the problems that may be shown as examples.
    """

    task: Task
    shots: Mapping[str, tuple[str, str]]
    models: tuple[str, ...]
    base_url: str | None = None
    writer: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    limits: str | Limits = "adaptive"
    most_words: int = 120
    #: Makes a model of its name; None: as `fanfold.models.model` does.
    make: Callable[[str], Model] | None = None
    effort: str | None = None
    #: The rules that every prompt keeps: one that breaks a rule is never sent.
    material: Material = field(default_factory=Material)
    #: What tokens cost where it is not what the model's provider asks.
    price: Price | None = None
    #: The room for long prompts, in tokens, of a model in this process.
    context: int | None = None
    #: Has replies say how likely they were to begin with each label; only how a search learns depends on that.
    calibration: Calibration | None = None
    #: Problems that are left out of a prompt together, when it is scored on one of them.
    folds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _asked: dict[str, Model] = field(default_factory=dict, init=False, repr=False, compare=False)
    _first: FirstReplies = field(default_factory=lambda: FirstReplies(), init=False, repr=False, compare=False)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a cell's answer depends on, besides the candidate and the case."""
        return {
            "task": self.task.name,
            "grader": grader.function if isinstance(grader := self.task.grader, Own) else grader,
            "shots": encode(self.shots),  # as one, so that other settings are listed by name
            "model": self.models[0] if len(self.models) == 1 else None,  # of several, the case names one
            "base_url": self.base_url,
            "writer": self.writer,
            "written": (self.task.description, self.most_words) if self.writer else None,
            "max_tokens": self.max_tokens or self.task.max_tokens,
            "temperature": self.temperature,
            "stop": self.task.stop,
            **({"reasoning_effort": self.effort} if self.effort else {}),
            **({"folds": encode({id: sorted(fold) for id, fold in self.folds.items()})} if self.folds else {}),
            **({"rules": self._rules} if self.material.ruled else {}),
            **({"defined": definitions} if (definitions := defined(*self.models, self.writer)) else {}),
        }

    def asked(self, name: str) -> Model:
        """The model of that name, made when it is first needed."""
        if name not in self._asked:
            self._asked[name] = self._made(name)
        return self._asked[name]

    def check_ready(self) -> None:
        """Refuse a model that cannot be asked: one that nobody knows, or without a key."""
        for name in {*self.models, *([] if self.writer is None else [self.writer])}:
            self._made(name)
        getattr(self.task.grader, "check_ready", lambda: None)()

    def _made(self, name: str) -> Model:
        if self.make is not None:
            return self.make(name)
        wanted = {"reasoning_effort": self.effort}
        hints = {"answer": SOLVER, **({"context": self.context} if self.context else {})}
        return model(name, base_url=self.base_url, limits=self.limits, parameters=wanted, hints=hints)

    async def __call__(self, candidate: Candidate, case: Case) -> Outcome:
        writer = None if self.writer is None else self.asked(self.writer)
        try:
            rules = rules_in_words(self.material)
            genome = await realise(candidate, writer, self.task.description, most_words=self.most_words, rules=rules)
        except Unwritten as error:
            return Failed(UNWRITTEN, str(error))
        if self.material.ruled:
            genome = mend(genome, self.material) if isinstance(candidate, Written) else genome
            if broken := broken_rules(genome, self.material):
                return Failed(UNWRITTEN, f"the prompt breaks a rule and is not sent: {broken[0]}")
        problem = Problem(case.data["problem"], case.data["input"], case.data["answer"], case.data.get("note"))
        name = case.data.get("model", self.models[0])
        asked, said = self.asked(name), self.settings(genome, name)
        shown = genome.without(problem.id, self.folds.get(problem.id, ()))
        text = render(shown, problem.input, self.shots)
        try:
            reply = await asked.generate(text, **said, **self._listed)
        except CallFailed as error:
            if error.kind != "bad-request" or not _is_about_prompt(str(error)):
                raise
            return self._not_taken(candidate, genome, problem, f"{name}: {error}")
        grade = await self.task.grader(reply.text, problem)
        if grade.feedback.startswith(RAISED):
            self._first.wrong(f"a reply counts as wrong because {grade.feedback} (the reply: {reply.text[:80]!r})")
        self._first.saw(reply, grade, problem, said, simulated=asked.url.startswith(SIMULATED))
        data: dict[str, Any] = {"said": (grade.said or reply.text)[:KEPT], "tokens": reply.input_tokens}
        if (price := self.price or asked.price) is not None:
            data["price"] = price.cost(reply.input_tokens, reply.output_tokens)
        opening = None if self.calibration is None else self.calibration.opening(reply)
        if opening is not None:
            data[OPENING] = opening
        if grade.score < 1.0 or self.writer or opening is not None:
            data |= {"input": problem.input[:KEPT], "expected": expected(problem.answer)}
        if self.writer:
            data |= {"reply": reply.text.strip()[:LONGEST_REPLY], "feedback": grade.feedback[:LONGEST_REPLY]}
            fits = len(problem.input) <= KEPT and len(reply.text) <= LONGEST_REPLY
            data["worked"] = fits and grade.score >= 1.0 and len(reply.text) > len(problem.shown) + REASONED
        if isinstance(candidate, Written):
            data["genome"] = genome
        return Ok(grade.score, data)

    def _not_taken(self, candidate: Candidate, genome: Genome, problem: Problem, why: str) -> Outcome:
        """A wrong answer: with this prompt the model will never answer, and the other problems still count."""
        self._first.wrong(f"a problem counts as wrong because its prompt is not taken: {why}")
        data: dict[str, Any] = {"said": f"({why})"[:KEPT], "input": problem.input[:KEPT]}
        data |= {"expected": expected(problem.answer), "tokens": 0}
        if self.writer:
            data |= {"reply": "", "feedback": why[:LONGEST_REPLY], "worked": False}
        return Ok(0.0, data | ({"genome": genome} if isinstance(candidate, Written) else {}))

    @property
    def _rules(self) -> list[Any]:
        parts = [[part.section, *part.wordings] for part in self.material.parts]
        return [parts, self.material.must, self.material.never]

    def settings(self, genome: Genome, name: str) -> dict[str, Any]:
        """The parameters of the request to a model."""
        said: dict[str, Any] = {"max_tokens": self.max_tokens or self.task.max_tokens, "temperature": self.temperature}
        if stop := self._stop(genome, raw=self.asked(name).raw):
            said["stop"] = stop
        if genome.biases:
            said["extra"] = {"logit_bias": dict(genome.biases)}
        return said

    @property
    def _listed(self) -> dict[str, Any]:
        """What a request asks for besides its reply."""
        return {} if self.calibration is None else {"logprobs": LISTED}

    def request(self, genome: Genome, name: str) -> dict[str, Any]:
        """Where a model is asked, and the parameters as its provider gets them: under its names, with room to reason.

        A stop text that is not among them is cut here.
        """
        asked = self.asked(name)
        call = asked.call(MARK, **self.settings(genome, name))
        body = json.loads(asked.sendable(call))
        return {"url": call.endpoint, **{field: value for field, value in body.items() if not _holds(value, MARK)}}

    def _stop(self, genome: Genome, *, raw: bool) -> list[str]:
        """Where a reply ends; a model that continues texts would write the next example too."""
        label = genome.labels[0].strip()
        next_example = ["\n\n", *([f"\n{label}"] if label else [])] if raw and "\n" not in self.task.stop else []
        return list(dict.fromkeys([*self.task.stop, *next_example]))


def expected(answer: Any) -> str:
    """The right answer as people and writers read it; empty where there is none."""
    return "" if answer is None else str(answer)[:KEPT]


def _is_about_prompt(error: str) -> bool:
    """Whether a prompt is not taken for its own sake; beside a short one, the reply is given too much room."""
    used, room = _USED.search(error), _ROOM.search(error)
    short = used is not None and room is not None and 2 * int(used[1] or used[2]) < int(room[1] or room[2])
    return not short and _NOT_TAKEN.search(error) is not None


def _holds(value: Any, text: str) -> bool:
    """Whether a text stands anywhere in a value."""
    if isinstance(value, Mapping):
        return any(_holds(part, text) for part in value.values())
    return any(_holds(part, text) for part in value) if isinstance(value, list) else value == text


def _why_empty(reply: Reply, stop: Sequence[str]) -> str:
    """Why a reply may have nothing in it."""
    if reply.finish in ("refusal", "filter"):
        return f"the last was held back ({reply.refusal or 'its provider filtered it'})"
    if any(text.startswith("\n") for text in stop):
        return (
            "the last is empty: a reply ends at its first line break, so one that begins with some is lost; --grader "
            "contains reads all of it"
        )
    return "the last is empty"


class FirstReplies:
    """Looks at the first replies, and says when none is right, or when they are cut off: then the setting is wrong."""

    MOST = 8

    def __init__(self) -> None:
        self._seen = self._cut = self._right = 0
        self._told: set[str] = set()

    def wrong(self, text: str) -> None:
        """Say why something counts as wrong although nobody has judged it; each kind of cause once."""
        if (cause := text.partition(":")[0]) not in self._told:
            self._told.add(cause)
            current_broker().emit(Notice(text))

    def saw(
        self, reply: Reply, grade: Grade, problem: Problem, settings: Mapping[str, Any], *, simulated: bool = False
    ) -> None:
        if self._seen >= self.MOST:
            return
        self._seen += 1
        self._cut += reply.finish == "length"
        self._right += grade.score > 0
        if self._seen < self.MOST:
            return
        example = (
            f"asked {problem.input[-80:]!r} and answered {reply.text[:80]!r} where {problem.shown[:80]!r} is right"
        )
        thinks = reply.text.lstrip().startswith("<think")
        if self._cut > self.MOST // 2 and not thinks:
            self._say(
                f"{self._cut} of the first {self.MOST} replies were cut off at {settings['max_tokens']} tokens "
                "(--max-tokens)",
                example,
            )
        elif not self._right:
            cause = "is the grader the right one (--grader)?"
            if thinks:
                cause = (
                    "the model writes its reasoning where the answer is read: turn it off (--reasoning-effort off), or "
                    "let the server keep it apart (its own option: --reasoning-parser, --reasoning-format)"
                )
            elif not reply.text.strip():
                cause = _why_empty(reply, settings.get("stop", ()))
            elif simulated:
                cause = (
                    f"simulated models know only the built-in tasks; --model {free_model()} answers any, without a key"
                )
            self._say(f"none of the first {self.MOST} replies was right: {cause}", example)

    @staticmethod
    def _say(what: str, example: str) -> None:
        current_broker().emit(Notice(f"{what}; the last was {example}"))


def cases(problems: Sequence[Problem], models: Sequence[str]) -> list[Case]:
    """A case for every problem, or where there are several models for every problem and model."""
    return [
        Case(
            problem.id if len(models) == 1 else f"{problem.id}@{name}",
            {"problem": problem.id, "input": problem.input, "answer": problem.answer}
            | ({"note": dict(problem.note)} if problem.note else {})
            | ({"model": name} if len(models) > 1 else {}),
        )
        for problem in problems
        for name in models
    ]


def shots(problems: Sequence[Problem]) -> dict[str, tuple[str, str]]:
    """What is shown of the problems that may serve as examples."""
    return {problem.id: (problem.input, problem.shown) for problem in problems}
