"""One cell: a candidate is written if it has yet to be, the user's evaluator scores it, and its words are kept."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from fanfold.calls import Reply, aside, traced
from fanfold.errors import ConfigError
from fanfold.evaluation import failure_of, outcome_of
from fanfold.executors.base import home
from fanfold.models import Model, model
from fanfold.prompting.writing import Unwritten, rewrite
from fanfold.strategies.reflective import Written
from fanfold.studies.evolve.blocks import Blocks
from fanfold.studies.evolve.program import RIGHT, SHOWN, prompts_of, turns_of
from fanfold.studies.evolve.scoring import KEPT, Scorer, read_result
from fanfold.sync import run_sync
from fanfold.tasks import Grade, Grader, Problem
from fanfold.types import UNWRITTEN, Case, Failed, Ok, Outcome

#: What simulated models write.
SIMULATED = "fanfold.studies.evolve.simulated:writer"


@dataclass(frozen=True)
class Writing:
    """Who writes, what for, and how much: `kind` is what the texts are, such as code or prompts."""

    model: str | Model | None = None
    base_url: str | None = None
    limits: str = "adaptive"
    effort: str | None = None
    goal: str = ""
    kind: str = "text"
    max_tokens: int = 4096
    #: Definitions of the user's own that the model's name stands for.
    defined: Mapping[str, Any] | None = None
    #: About how many tokens all texts have, and the longest that may change.
    reads: int = 0
    writes: int = 0
    _made: list[Model] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def fingerprint(self) -> dict[str, Any]:
        asked = self.model.fingerprint if isinstance(self.model, Model) else self.model
        names = ("base_url", "effort", "goal", "kind", "max_tokens", "defined")
        return {"model": asked, **{name: getattr(self, name) for name in names}}

    @property
    def writer(self) -> Model | None:
        """The model that writes, made when it is first needed."""
        if not isinstance(self.model, str):
            return self.model
        if not self._made:
            settings: dict[str, Any] = {"parameters": {"reasoning_effort": self.effort}, "hints": {"answer": SIMULATED}}
            self._made.append(model(self.model, base_url=self.base_url, limits=self.limits, **settings))
        return self._made[0]

    def check_ready(self) -> None:
        """Refuse a writer that cannot be asked, and texts that are too long for it."""
        self._made.clear()
        if self.writer is None:
            return
        known = self.writer.capabilities
        for tokens, room, does in ((self.reads, known.context, "reads"), (self.writes, known.output, "writes")):
            if room is not None and tokens > room:
                raise ConfigError(
                    f"the text has about {tokens:,} tokens, and {self.writer.id} {does} at most {room:,} at once: mark "
                    "what may change with EVOLVE-BLOCK-START and EVOLVE-BLOCK-END, or choose another writer"
                )

    async def parts(self, candidate: Any, blocks: Blocks) -> dict[str, str]:
        """The parts of a candidate; the same request is paid for once, however many cells need it."""
        if isinstance(candidate, Mapping) and "how" not in candidate:
            return dict(candidate)
        request: Written[Any] = candidate
        if not isinstance(candidate, Written):
            request = msgspec.convert(candidate, Written[dict[str, str]])
        around = blocks.around(str(request.part))
        context = f"It stands in this text, whose other lines stay as they are:\n{around}" if around else ""
        # Two requests about the same text get two answers, also from a model without temperature.
        attempt = f"This is attempt {request.sample}: attempts should differ from each other."
        description = "\n\n".join(filter(None, (self.goal, context, attempt)))
        assert self.writer is not None
        plain = tuple({name: text for name, text in parent.items() if SHOWN not in name} for parent in request.parents)
        asked = replace(request, parents=plain)
        text = await rewrite(asked, self.writer, description=description, kind=self.kind, max_tokens=self.max_tokens)
        try:
            text = blocks.own(str(request.part), text)
        except ConfigError as error:
            raise Unwritten(str(error)) from None
        before = request.parents[0].get(str(request.part), "")
        ends = "\n" * (before.endswith("\n") and not text.endswith("\n"))  # a file that ends its last line still does
        return {**request.parents[0], str(request.part): text + ends}


@dataclass(frozen=True)
class AnswerGrader:
    """Grades what a program answers to a case against the field of the case that holds the right answer."""

    grader: Grader
    field: str

    def problem(self, case: Case) -> Problem:
        asked = {name: value for name, value in case.data.items() if name != self.field}
        return Problem(case.id, _text(next(iter(asked.values())) if len(asked) == 1 else asked), case.data[self.field])

    async def __call__(self, answer: Any, case: Case) -> Outcome:
        problem = self.problem(case)
        grade: Grade = await self.grader(str(answer), problem)
        data = {"input": problem.input[-KEPT:], "expected": problem.shown[-KEPT:], "said": str(answer)[-KEPT:]}
        return Ok(grade.score, data | ({"feedback": grade.feedback} if grade.feedback else {}))


@dataclass(frozen=True)
class EvolveEvaluator:
    """Scores the texts of a candidate by the user's evaluator, or by grading the answer of the user's program.

    The words of the evaluator, what it printed in a worker process, and what prompts were asked and replied, are the
    feedback that a writer is shown.
    """

    blocks: Blocks
    scorer: Scorer
    writing: Writing = field(default_factory=Writing)
    grader: AnswerGrader | None = None
    failed_score: float | None = None

    def check_ready(self) -> None:
        """Refuse a writer that cannot be asked: one that nobody knows, or without a key."""
        self.writing.check_ready()
        if self.grader is not None:
            getattr(self.grader.grader, "check_ready", lambda: None)()

    def __call__(self, candidate: Any, case: Case) -> Outcome:
        with aside():
            return self._scored(candidate, case)

    def _scored(self, candidate: Any, case: Case) -> Outcome:
        try:
            parts = run_sync(lambda: self.writing.parts(candidate, self.blocks))
        except Unwritten as error:
            return Failed(UNWRITTEN, str(error))
        with _printed() as printed, traced() as trace:
            try:
                value = self.scorer(self.texts(parts, case), case.data)
            except Exception as error:
                value = self._failed(error)
        return run_sync(lambda: self._outcome(value, case, parts, candidate, trace, printed.getvalue()))

    def texts(self, parts: Mapping[str, str], case: Case | None = None) -> dict[str, str]:
        """The texts as the evaluator gets them; without a case, as the user takes them home."""
        return self.blocks.filled(prompts_of(parts, without=None if case is None else case.id))

    def _failed(self, error: Exception) -> Ok:
        """What a case counts on which the evaluator raised; where that is not said, the error itself."""
        if self.failed_score is None:
            raise error
        failed = failure_of(error)
        return Ok(self.failed_score, {"feedback": f"{failed.message}\n{failed.detail[-KEPT:]}"})

    async def _outcome(
        self, value: Any, case: Case, parts: dict[str, str], candidate: Any, trace: list[Any], printed: str = ""
    ) -> Outcome:
        value = value.text if isinstance(value, Reply) else value
        if self.grader is None or isinstance(value, Ok | Failed):
            outcome = read_result(value)
        elif value is None:
            return Failed("bad-score", "the program returned None, and not an answer to grade: it lacks a `return`")
        else:
            outcome = await self.grader(value, case)
        if isinstance(outcome, Failed):
            return outcome
        checked = outcome_of(outcome.score)
        if isinstance(checked, Failed):
            return checked
        shown = "" if case.data is None else _text(case.data)[-KEPT:]
        data = {"input": shown, **(outcome.data if isinstance(outcome.data, Mapping) else {})}
        turns = turns_of(trace, self.texts(parts, case))
        words = [
            f"Score: {checked.score:.6g}",
            data.get("feedback", ""),
            f"It printed:\n{printed.strip()[-KEPT:]}" if printed.strip() else "",
        ]
        words += [
            f"The prompt {turn.prompt!r} was asked:\n{turn.asked}\nThe model replied:\n{turn.said}" for turn in turns
        ]
        data["feedback"] = "\n".join(filter(None, words))
        if turns:
            right = checked.score >= RIGHT
            data["turns"] = [{"prompt": turn.prompt, "shown": turn.shown} for turn in turns if right]
            last = turns[-1]
            if not right and self.grader is not None and last.said and last.said == str(value).strip():
                data["turns"] = [{"prompt": last.prompt, "shown": last.corrected(data["expected"])}]
        if candidate != parts:
            data["parts"] = parts
        return Ok(outcome.score, data, outcome.cost)


class AsyncEvolveEvaluator(EvolveEvaluator):
    """The same for evaluators that are coroutine functions."""

    async def __call__(self, candidate: Any, case: Case) -> Outcome:  # type: ignore[override]
        with aside():
            return await self._scored(candidate, case)

    async def _scored(self, candidate: Any, case: Case) -> Outcome:  # type: ignore[override]
        try:
            parts = await self.writing.parts(candidate, self.blocks)
        except Unwritten as error:
            return Failed(UNWRITTEN, str(error))
        with traced() as trace:
            try:
                value = await self.scorer(self.texts(parts, case), case.data)
            except Exception as error:
                value = self._failed(error)
        return await self._outcome(value, case, parts, candidate, trace)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    """What is printed here, in a worker process; elsewhere others print too, and nothing is taken from them."""
    text = io.StringIO()
    if home() is None:
        yield text
        return
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text
