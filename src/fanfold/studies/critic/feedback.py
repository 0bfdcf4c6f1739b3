"""Feedback: what people, rules, functions and judge models say of responses, and how it becomes one score."""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fanfold.config import load_toml
from fanfold.errors import ConfigError, nearest
from fanfold.executors.base import is_coroutine_function, name_of
from fanfold.files import guarded, imported
from fanfold.models import Model, model
from fanfold.studies.critic.features import units
from fanfold.studies.critic.rules import rules

#: Words a minute that people read.
READING_SPEED = 230.0


@dataclass(frozen=True, slots=True)
class Feedback:
    """One piece of feedback: its kind, what was said, and the score it stands for, from 0 to 1.

    A preference's score is that of the first of two responses: 1 when it was preferred, 0.5 when neither was.
    """

    kind: str
    raw: Any
    score: float


def _plain(raw: Any) -> Any:
    """A number or truth value of numpy, or of a tensor that holds only one, as the plain one."""
    return raw.item() if getattr(raw, "shape", None) == () and callable(getattr(raw, "item", None)) else raw


def _number(raw: Any, low: float, high: float, kind: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
        raise ConfigError(f"{kind} feedback must be a number from {low:g} to {high:g}, not {raw!r}")
    return float(raw)


def _yes(raw: Any, kind: str) -> bool:
    if not isinstance(raw, bool):
        raise ConfigError(f"{kind} feedback must be true or false, not {raw!r}")
    return raw


def _preference(raw: Any) -> float:
    if raw not in ("A", "B", "tie"):
        raise ConfigError(f"preference feedback must be 'A', 'B' or 'tie', not {raw!r}")
    return {"A": 1.0, "B": 0.0, "tie": 0.5}[raw]


def _likeness(raw: Any, response: str) -> float:
    """How much of a response stayed in what a person made of it."""
    if not isinstance(raw, str):
        raise ConfigError(f"correction feedback must be the text as it should be, not {raw!r:.60}")
    return difflib.SequenceMatcher(None, units(response), units(raw)).ratio()


def _reading(raw: Any, response: str) -> float:
    """Seconds spent against those the text takes to read: half the score for half of it."""
    found = units(response)
    read_as = sum(0.5 if len(unit) <= 2 and unit >= "\u0e00" else 1.0 for unit in found)  # two signs are about a word
    needed = max(1.0, 60.0 * read_as / READING_SPEED)
    return min(1.0, _number(raw, 0.0, math.inf, "reading") / needed)


#: How each kind of feedback is read, and what it counts beside others: explicit more than implicit.
KINDS: dict[str, tuple[Callable[[Any, str], float], float]] = {
    "score": (lambda raw, response: _number(raw, 0.0, 1.0, "score"), 1.0),
    "thumbs": (lambda raw, response: float(_yes(raw, "thumbs")), 1.0),
    "rating": (lambda raw, response: (_number(raw, 1, 5, "rating") - 1) / 4, 1.0),
    "correction": (_likeness, 1.0),
    "preference": (lambda raw, response: _preference(raw), 1.0),
    "acceptance": (lambda raw, response: float(_yes(raw, "acceptance")), 0.5),
    "reprompt": (lambda raw, response: 1.0 - float(_yes(raw, "reprompt")), 0.3),
    "reading": (_reading, 0.2),
}


def read(kind: str, raw: Any, response: str = "") -> Feedback:
    """Feedback of a kind as it was given; a correction and a reading time are about the `response`."""
    if kind not in KINDS:
        raise ConfigError(f"there is no feedback of kind {kind!r}{nearest(kind, KINDS)}")
    raw = _plain(raw)
    return Feedback(kind, raw, KINDS[kind][0](raw, response))


def aggregate(given: Iterable[Feedback]) -> float:
    """One score for several pieces of feedback on one response: the mean, explicit feedback counting most."""
    pieces = [(KINDS[piece.kind][1], piece.score) for piece in given]
    if not pieces:
        raise ConfigError("there is no feedback to aggregate: give at least one piece")
    return sum(weight * score for weight, score in pieces) / sum(weight for weight, _ in pieces)


class FeedbackAggregator:
    """One score for whatever was said of a response, explicit feedback counting more than implicit.

    Feedback is a number from 0 to 1, true or false, a mapping of kinds to values (`{"rating": 4, "reading": 12.5}`), a
    `Feedback`, or a list of these.
    """

    def __call__(self, said: Any, response: str) -> float:
        return aggregate(self.read(said, response))

    def read(self, said: Any, response: str) -> list[Feedback]:
        """The pieces of feedback in what was said."""
        said = _plain(said)
        if isinstance(said, Feedback):
            return [said]
        if isinstance(said, bool | int | float):
            return [read("thumbs" if isinstance(said, bool) else "score", said)]
        if isinstance(said, Mapping):
            return [read(kind, raw, response) for kind, raw in said.items()]
        if isinstance(said, list | tuple):
            return [piece for each in said for piece in self.read(each, response)]
        raise ConfigError(
            f"{said!r:.80} is not feedback: give a number from 0 to 1, true or false, or a mapping of kinds "
            f"({', '.join(KINDS)}) to values"
        )


class FeedbackSource(Protocol):
    """Where feedback comes from, once responses exist: one response to judge, or two to choose from."""

    async def __call__(self, query: str, responses: tuple[str, ...]) -> Feedback: ...


@dataclass(frozen=True)
class Scored:
    """Feedback from a function of (query, response) that gives a score from 0 to 1, in the form that was asked for."""

    score: Callable[[str, str], Any]
    ask: str = "score"
    #: Whether the function answers at once; others are called on a thread so as not to hold up everything else.
    quick: bool = False

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.score).bind("query", "response")
        except ValueError:  # a builtin says nothing about its arguments
            return
        except TypeError as error:
            name = name_of(self.score)
            raise ConfigError(f"the feedback {name!r} is called with (query, response): {error}") from error

    async def __call__(self, query: str, responses: tuple[str, ...]) -> Feedback:
        scores = [await self._one(query, response) for response in responses]
        if len(scores) == 2:
            return read("preference", "tie" if scores[0] == scores[1] else "A" if scores[0] > scores[1] else "B")
        if self.ask == "rating":
            return read("rating", 1 + round(4 * scores[0]))
        if self.ask == "thumbs":
            return read("thumbs", scores[0] >= 0.5)
        return read("score", scores[0])

    async def _one(self, query: str, response: str) -> float:
        if is_coroutine_function(self.score):
            said = await self.score(query, response)
        elif self.quick:
            said = self.score(query, response)
        else:
            said = await asyncio.to_thread(self.score, query, response)
        if inspect.iscoroutine(said):
            said.close()
            raise ConfigError(
                f"the feedback {name_of(self.score)!r} returned a coroutine: give the coroutine function itself"
            )
        said = _plain(said)
        return _number(float(said) if isinstance(said, bool) else said, 0.0, 1.0, "score")


#: What a judge is asked about one answer, and about two.
_ONE, _TWO = load_toml(Path(__file__).with_name("judge.toml")).values()


@dataclass(frozen=True)
class ModelJudge:
    """Feedback from a model: a rating from 1 to 5, or a preference, asked in both orders so that none has the edge."""

    name: str
    base_url: str | None = None
    effort: str | None = None

    @functools.cached_property
    def asked(self) -> Model:
        return self._made()

    def _made(self) -> Model:
        return model(self.name, base_url=self.base_url, parameters={"reasoning_effort": self.effort})

    def check_ready(self) -> None:
        """Refuse a judge that cannot be asked, before anything is."""
        self._made()

    async def __call__(self, query: str, responses: tuple[str, ...]) -> Feedback:
        if len(responses) == 1:
            return read("rating", await self._digit(_ONE, "12345", query=query, first=responses[0]))
        first, second = responses
        forth = await self._digit(_TWO, "012", query=query, first=first, second=second)
        back = await self._digit(_TWO, "012", query=query, first=second, second=first)
        votes = (forth == 1) + (back == 2) - (forth == 2) - (back == 1)
        return read("preference", "A" if votes > 0 else "B" if votes < 0 else "tie")

    async def _digit(self, form: str, allowed: str, **parts: str) -> int:
        inside = {name: re.sub(r"</?(question|answer)[-\w]*>", "", part) for name, part in parts.items()}
        reply = await self.asked.generate(form.format(**inside), max_tokens=8, temperature=0.0)
        found = re.search(rf"(?<!\d)[{allowed}](?!\d)", reply.text)
        if found is None:
            raise ValueError(f"the judge {self.name} was asked for one digit of {allowed} and said {reply.text!r:.80}")
        return int(found.group())


def source_of(name: str, ask: str, base_url: str | None = None, effort: str | None = None) -> FeedbackSource:
    """The source of feedback that a text means: rules, human, page, simulated, judge:MODEL, or module:function."""
    known = ("rules", "human", "page", "simulated", "judge:MODEL", "module:function")
    head, colon, rest = name.partition(":")
    if name == "rules":
        return Scored(rules, ask, quick=True)
    if name in ("human", "page"):
        from fanfold.studies.critic.terminal import Human, OnPage

        return Human(ask) if name == "human" else OnPage(ask)
    if name == "simulated":
        from fanfold.studies.critic.simulated import planted_feedback

        return Scored(planted_feedback, ask, quick=True)
    if head == "judge" and rest:
        return ModelJudge(rest, base_url, effort)
    if not colon or not rest:
        raise ConfigError(f"feedback={name!r} cannot be used{nearest(name, known)}")
    function = imported(name, "take (query, response) and give a number from 0 to 1")
    return Scored(guarded(name, None, function) if inspect.isclass(function) else function, ask)


def own_source(given: Any, ask: str) -> FeedbackSource:
    """A caller's own source as it is; a plain function of (query, response) as the source that it makes."""
    source: FeedbackSource = given if is_coroutine_function(given) else Scored(given, ask)
    return source


def taken(said: Any, responses: Sequence[str]) -> Feedback:
    """What a source said, checked: feedback, or a number or truth value, of two responses "A", "B" or "tie"."""
    if isinstance(said, Feedback):
        score = _number(_plain(said.score), 0.0, 1.0, f"the score of {said.kind}")
        return replace(said, raw=_plain(said.raw), score=score)
    if len(responses) == 2:
        return read("preference", said)
    said = _plain(said)
    return read("thumbs" if isinstance(said, bool) else "score", said)
