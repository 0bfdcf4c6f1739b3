"""What is asked of the engine: responses to a query, and feedback on the one that was shown, as evaluations."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from fanfold.calls import stop_run
from fanfold.encoding import digest, encode
from fanfold.errors import CallFailed
from fanfold.fingerprints import Unknown
from fanfold.models import Model, model
from fanfold.models.catalogue import defined
from fanfold.models.providers import provider_names
from fanfold.prompting.genome import Genome
from fanfold.prompting.writing import rewrite
from fanfold.schedule import Plan, Schedule
from fanfold.strategies.reflective import How, ShownCase, Written
from fanfold.studies.critic.bank import former_prompt, system_prompt
from fanfold.studies.critic.feedback import Feedback, FeedbackSource, own_source, source_of, taken
from fanfold.studies.critic.terminal import Human
from fanfold.types import Case, Failed, Ok, Outcome, Trial

SLOT = "slot-"
#: What the writer is told that prompts are for.
PURPOSE = "the system prompt of an assistant. People like or dislike its responses, and you make them like more."


#: What to do about a source that only fails.
_REMEDY = (
    "Every question costs calls of the model, and nothing is learnt without feedback. Fix the feedback, then resume: "
    "it is learnt from what comes next. Or begin again as another run, which learns from these questions, too: their "
    "replies are in the ledger and need not be paid for again"
)


class Silence:
    """The questions without feedback since the last that got some; too many are the first 5, or later 20."""

    def __init__(self) -> None:
        self._failed: set[int] = set()
        self._most = 5

    def lasts(self, number: int) -> int:
        """Note that a question got no feedback, however often it was asked; how many did not, if that is too many."""
        self._failed.add(number)
        return len(self._failed) if len(self._failed) >= self._most else 0

    def end(self) -> None:
        self._failed.clear()
        self._most = 20


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Responses of several prompts to one query, each in its slot, at its temperature.

    `number` counts the queries of a run, `sample` how often this query was answered before.
    """

    number: int
    query: str
    prompts: tuple[Genome, ...]
    temperatures: tuple[float, ...]
    sample: int = 0

    @property
    def slots(self) -> int:
        return len(self.prompts)


class Shown(msgspec.Struct, frozen=True):
    """A response that is shown, and what it comes from."""

    slot: int
    prompt: Genome
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


class Write(msgspec.Struct, frozen=True, tag="write"):
    """A new version of a prompt, from responses that were not liked; `number` tells requests apart."""

    number: int
    prompts: tuple[Genome, ...]
    failures: tuple[ShownCase, ...] = ()

    @property
    def slots(self) -> int:
        return 1


Step: TypeAlias = Generate | Show | Write


def step_of(value: Any) -> Step:
    """A step as it was recorded, also by version 0.1.0, whose prompts had other sections."""
    step: Step = msgspec.convert(_of_today(value) if is_former(value) else value, Step)
    return step


def is_former(value: Any) -> bool:
    """Whether version 0.1.0 recorded a step."""
    return isinstance(value, Mapping) and any("system_role" in prompt for prompt in _prompts(value))


def _prompts(value: Mapping[str, Any]) -> list[Any]:
    return [*value.get("prompts", ()), *(each["prompt"] for each in value.get("shown", ()))]


def _of_today(value: Mapping[str, Any]) -> dict[str, Any]:
    if "prompts" in value:
        return {**value, "prompts": [former_prompt(prompt) for prompt in value["prompts"]]}
    return {**value, "shown": [{**each, "prompt": former_prompt(each["prompt"])} for each in value["shown"]]}


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
    #: The part of every system prompt that never changes.
    pinned: str = ""
    writer: str | None = None
    #: Whether a source of feedback that only fails is put up with, as in a rehearsal, where judges say made-up words.
    patient: bool = field(default=False, compare=False)

    def rehearsed(self) -> CriticEvaluator:
        """The same for made-up replies; nobody is asked about those."""
        by_person = self.source is None and self.feedback in ("human", "page")
        return replace(self, patient=True, feedback="rules" if by_person else self.feedback)

    @property
    def fingerprint(self) -> str | dict[str, Any]:
        settings = (self.model, self.base_url, self.feedback, self.ask, self.max_tokens)
        definitions = defined(self.model, self.feedback.removeprefix("judge:"), self.writer)
        further = {"effort": self.effort, "pinned": self.pinned, "writer": self.writer}
        more = [*([definitions] if definitions else []), *({name: value} for name, value in further.items() if value)]
        said = f"fanfold.critic/1 {digest(encode([*settings, *more])).hex()[:12]}"
        return said if self.source is None else {"settings": said, "source": Unknown("a source of the caller's own")}

    @functools.cached_property
    def asked(self) -> Model:
        return answering(self.model, self.base_url, self.effort)

    @functools.cached_property
    def judged(self) -> FeedbackSource:
        if self.source is not None:
            return own_source(self.source, self.ask)
        return source_of(self.feedback, self.ask, self._address(self.feedback.removeprefix("judge:")), self.effort)

    def writing(self) -> Model:
        """The model that writes new prompts, where there is one."""
        assert self.writer is not None
        return model(self.writer, base_url=self._address(self.writer))

    def _address(self, name: str) -> str | None:
        """Where a judge or a writer is asked: at `base_url` too, unless its name says who else has it."""
        provider, slash, _ = name.partition("/")
        others = slash and provider in provider_names() and provider != self.model.partition("/")[0]
        return None if others or defined(name) else self.base_url

    @functools.cached_property
    def _silence(self) -> Silence:
        return Silence()

    def check_ready(self) -> None:
        """Refuse a model that cannot be asked: one that nobody knows, or without a key."""
        answering(self.model, self.base_url)
        if self.writer is not None:
            self.writing()
        getattr(self.judged, "check_ready", lambda: None)()

    async def __call__(self, candidate: Step, case: Case) -> Outcome:
        if isinstance(candidate, Generate):
            return await self._generate(candidate, case.data)
        if isinstance(candidate, Write):
            return await self._write(candidate)
        said = await self._judge(candidate)
        return Ok(said.score, data={"kind": said.kind, "raw": said.raw, "score": said.score})

    async def _generate(self, candidate: Generate, slot: int) -> Outcome:
        if isinstance(self.judged, Human):
            await self.judged.check_present()  # nothing is paid for that nobody can judge
        reply = await self.asked.generate(
            candidate.query,
            system=system_prompt(candidate.prompts[slot], self.pinned),
            temperature=candidate.temperatures[slot],
            max_tokens=self.max_tokens,
            sample=candidate.sample,
        )
        if not reply.text.strip():
            remedy = f": {self.max_tokens} tokens were too few (--max-tokens)" if reply.finish == "length" else ""
            return Failed("malformed", f"{self.model} answered with nothing but blanks ({reply.finish}){remedy}")
        return Ok(0.0, data={"text": reply.text, "finish": reply.finish, "tokens": reply.output_tokens})

    async def _judge(self, candidate: Show) -> Feedback:
        """The feedback on what is shown; where only failures come of asking, the run stops, and nothing is lost."""
        responses = tuple(shown.response for shown in candidate.shown)
        try:
            said = taken(await self.judged(candidate.query, responses), responses)
        except CallFailed:
            raise  # the broker and its breaker know what to do about calls
        except Exception as error:
            if not self.patient and (many := self._silence.lasts(candidate.number)):
                reason = f"{type(error).__name__}: {error}"
                text = f"{many} questions in a row got no feedback, the last for this reason: {reason}"
                await stop_run(CallFailed("no-feedback", f"{text[:600]}. {_REMEDY}"))
            raise
        self._silence.end()
        return said

    async def _write(self, candidate: Write) -> Ok:
        parents = tuple({"system prompt": prompt.text} for prompt in candidate.prompts)
        how: How = "reflect" if candidate.failures else "paraphrase"
        request: Written[Mapping[str, str]] = Written(how, parents, candidate.failures, candidate.number)
        text = await rewrite(request, self.writing(), description=PURPOSE, kind="prompt", max_tokens=1024)
        return Ok(0.0, data={"text": text})


def answering(name: str, base_url: str | None = None, effort: str | None = None) -> Model:
    """The model of a name; a simulated one writes as `simulated.respond` does."""
    hints = {"answer": "fanfold.studies.critic.simulated:respond"}
    return model(name, base_url=base_url, parameters={"reasoning_effort": effort}, hints=hints)


def response_of(data: Any) -> tuple[str, int] | None:
    """Text and tokens of a kept response, or None where there is nothing to show."""
    if not isinstance(data, dict) or not isinstance(data.get("text"), str) or not data["text"].strip():
        return None
    return data["text"], int(data.get("tokens", 0))
