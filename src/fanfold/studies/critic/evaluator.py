"""What is asked of the engine: responses to a query, and feedback on the one that was shown, as evaluations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from fanfold.encoding import digest, encode
from fanfold.fingerprints import Unknown
from fanfold.models import Model, model
from fanfold.models.catalogue import defined
from fanfold.schedule import Plan, Schedule
from fanfold.studies.critic.feedback import FeedbackSource, source_of
from fanfold.studies.critic.genome import Prompt
from fanfold.types import Case, Ok, Trial

SLOT = "slot-"


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Responses of several prompts to one query, each in its slot, at its temperature.

    `number` counts the queries of a run, `sample` how often this query was answered before.
    """

    number: int
    query: str
    prompts: tuple[Prompt, ...]
    temperatures: tuple[float, ...]
    sample: int = 0

    @property
    def slots(self) -> int:
        return len(self.prompts)


class Shown(msgspec.Struct, frozen=True):
    """A response that is shown, and what it comes from."""

    slot: int
    prompt: Prompt
    temperature: float
    response: str


class Show(msgspec.Struct, frozen=True, tag="show"):
    """Feedback on the response that was chosen, or on two of them."""

    number: int
    query: str
    shown: tuple[Shown, ...]

    @property
    def slots(self) -> int:
        return 1


Step: TypeAlias = Generate | Show


@dataclass(frozen=True)
class Slots(Schedule):
    """Runs as many cases as a candidate has slots."""

    remembers = False

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield cases[: trial.candidate.slots]
        return None


def slots(many: int) -> list[Case]:
    return [Case(f"{SLOT}{number}", number) for number in range(many)]


@dataclass(frozen=True)
class CriticEvaluator:
    """Asks the model for the response in a slot, or the source of feedback for what it makes of the one shown.

    The score of a response is 0 until it was shown: what it is worth is for the feedback to say.
    """

    model: str
    feedback: str = "rules"
    ask: str = "score"
    base_url: str | None = None
    max_tokens: int = 128
    #: The caller's own source of feedback; a resume with another one says so.
    source: FeedbackSource | None = field(default=None, compare=False)
    effort: str | None = None

    @property
    def fingerprint(self) -> str | dict[str, Any]:
        settings = (self.model, self.base_url, self.feedback, self.ask, self.max_tokens)
        definitions = defined(self.model, self.feedback.removeprefix("judge:"))
        more = [*([definitions] if definitions else []), *([{"effort": self.effort}] if self.effort else [])]
        said = f"fanfold.critic/1 {digest(encode([*settings, *more])).hex()[:12]}"
        return said if self.source is None else {"settings": said, "source": Unknown("a source of the caller's own")}

    @functools.cached_property
    def asked(self) -> Model:
        return answering(self.model, self.base_url, self.effort)

    @functools.cached_property
    def judged(self) -> FeedbackSource:
        return self.source or source_of(self.feedback, self.ask, self.base_url, self.effort)

    def check_ready(self) -> None:
        """Refuse a model that cannot be asked: one that nobody knows, or without a key."""
        answering(self.model, self.base_url)
        getattr(self.judged, "check_ready", lambda: None)()

    async def __call__(self, candidate: Step, case: Case) -> Ok:
        if isinstance(candidate, Generate):
            return await self._generate(candidate, case.data)
        said = await self.judged(candidate.query, tuple(shown.response for shown in candidate.shown))
        return Ok(said.score, data={"kind": said.kind, "raw": said.raw, "score": said.score})

    async def _generate(self, candidate: Generate, slot: int) -> Ok:
        reply = await self.asked.generate(
            candidate.query,
            system=candidate.prompts[slot].text,
            temperature=candidate.temperatures[slot],
            max_tokens=self.max_tokens,
            sample=candidate.sample,
        )
        return Ok(0.0, data={"text": reply.text, "finish": reply.finish, "tokens": reply.output_tokens})


def answering(name: str, base_url: str | None = None, effort: str | None = None) -> Model:
    """The model of a name; a simulated one writes as `simulated.respond` does."""
    hints = {"answer": "fanfold.studies.critic.simulated:respond"}
    return model(name, base_url=base_url, parameters={"reasoning_effort": effort}, hints=hints)


def response_of(data: Any) -> tuple[str, int] | None:
    """Text and tokens of a kept response, or None where there is nothing to show."""
    if not isinstance(data, dict) or not isinstance(data.get("text"), str) or not data["text"].strip():
        return None
    return data["text"], int(data.get("tokens", 0))
