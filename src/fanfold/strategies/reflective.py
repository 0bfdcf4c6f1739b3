"""Reflective evolution of texts: a model rewrites the best candidates, shown where they failed and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.snapshots import Told, Unsaved, packed, rng_state, saves, set_rng, take_over, unpacked
from fanfold.strategies.front import CaseFront
from fanfold.strategy import Strategy
from fanfold.types import UNWRITTEN, Failed, Ok, Outcome, Result

P = TypeVar("P")
How: TypeAlias = Literal["paraphrase", "shorten", "reflect", "combine", "expand", "propose"]

#: How much of a case the writer is shown, in characters; how many right ones it must not break, and how many of its
#: own texts that were not accepted.
MOST_CHARACTERS = 400
KEPT = TRIED = 2
#: Requests for the same rewriting differ by a number up to this.
SAMPLES = 1_000_000
#: After so many rewritings of which none became the best, this share of the proposals is left to the writer.
PATIENCE, LITTLE = 10, 0.1
#: After so many answers in a row without a text in them, the writer is not asked again.
SILENCE = 20
#: The share of rewritings that need no writer, where there are any.
VARIED = 0.15


@dataclass(frozen=True)
class ShownCase:
    """A case as a writer is shown it: what was asked, what was expected and answered, and why that was wrong."""

    input: str
    expected: str
    said: str
    # Not recorded where there is none, so that runs recorded without it continue.
    feedback: str | UnsetType = UNSET


@dataclass(frozen=True)
class Written(Generic[P]):
    """A candidate that a model has yet to write, from its parents and from what went wrong with the first of them.

    The search that proposes it stays pure: the evaluator asks the model, and the same `sample` of the same request is
    asked once.  `part` names the text to write where a candidate has several; `kept` are cases that were right, and
    `tried` the texts that were written of the same parent before, and not accepted.
    """

    how: How
    parents: tuple[P, ...]
    failures: tuple[ShownCase, ...] = ()
    sample: int = 0
    part: str | UnsetType = UNSET
    kept: tuple[ShownCase, ...] | UnsetType = UNSET
    tried: tuple[ShownCase, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise ConfigError(f"a model does not know how to {self.how!r} a prompt; known: {', '.join(get_args(How))}")
        if len(self.parents) < (2 if self.how == "combine" else 1):
            raise ConfigError(f"to {self.how} takes more parents than {len(self.parents)}")


def parts_of(result: Result[Any]) -> dict[str, Any] | None:
    """The named texts that a result is about; None for a request that the writer did not answer.

    An evaluator reports what was written as `parts` in the outcome's data.
    """
    candidate = result.candidate
    if isinstance(candidate, Mapping) and "how" not in candidate:
        return dict(candidate)
    for outcome in result.outcomes.values():
        if isinstance(outcome, Ok) and isinstance(outcome.data, Mapping) and "parts" in outcome.data:
            return dict(outcome.data["parts"])
    return None


def shown_case(case: str, outcome: Outcome, most: int = MOST_CHARACTERS) -> ShownCase:
    """What a writer is shown of an outcome, each text cut to `most` characters."""
    if isinstance(outcome, Failed):
        return ShownCase(case, "", "", _cut(f"{outcome.message}\n{outcome.detail}".strip(), most))
    data = outcome.data if isinstance(outcome.data, Mapping) else {}
    feedback = data.get("feedback")
    texts = {"input": data.get("input", case), "expected": data.get("expected", ""), "said": data.get("said", "")}
    texts["said"] = data.get("reply", texts["said"])  # the whole of it, where the grader read only a part
    shown = {name: str(text)[:most] for name, text in texts.items()}
    return ShownCase(**shown, feedback=_cut(feedback, most) if feedback else UNSET)


def _is_request(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= {"how", "parents", "sample"}


def _shown(case: Mapping[str, Any]) -> ShownCase:
    return msgspec.convert(case, ShownCase)


def _origin(parents: Sequence[Result[Any]], by: str) -> dict[str, Any]:
    numbers = [parent.number for parent in parents]
    return {"parents": numbers, "by": by, "must_beat": numbers}


def _cut(text: Any, most: int) -> str:
    """The head and the tail of a text that is too long: an error says last what happened."""
    text = str(text)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[len(text) - most // 2 :]}"


class Reflective(Strategy[Any]):
    """Rewrites the candidates that are best on some case, and joins those that are good at different ones.

    A candidate is a mapping of named texts, or a `Written` request for one of the `writable` texts.  `seeds` are asked
    first, the very first alone; where none of them gets a score, the search ends.  Then `propose` texts are asked for
    that need no failures, only `examples`.  A parent is drawn from the front of the cases.  The writer is shown up to
    `shown` cases that it failed with the evaluator's feedback, each text cut to so many `characters`.  A share
    `merging` of the proposals joins two parents: without the writer where they changed different parts since their last
    common ancestor.

    `beside` is another strategy over the same candidates.  It proposes the very first of them, later all but a `share`,
    which grows or shrinks with what the writer's candidates achieve, and is told every result.
    """

    def __init__(
        self,
        seeds: Sequence[Any] = (),
        *,
        writable: Sequence[str] | None = None,
        propose: int = 0,
        examples: Sequence[ShownCase] = (),
        beside: Strategy[Any] | None = None,
        share: float = 0.5,
        merging: float = 0.1,
        shown: int = 2,
        characters: int = MOST_CHARACTERS,
    ) -> None:
        for name, value in {"share": share, "merging": merging}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} of Reflective must be between 0 and 1, not {value!r}")
        if not seeds and beside is None:
            raise ConfigError("Reflective needs a text to start from: give seeds")
        self._opening = list(seeds)
        self._writable = None if writable is None else tuple(writable)
        self._proposals, self._examples = propose, tuple(examples)
        self._beside, self._share, self._merging = beside, share, merging
        self._shown, self._characters = shown, characters
        self._front = CaseFront()
        self._origins: dict[str, Any] = {}
        self._told = 0
        #: How often a written candidate, and another one, became the best, and how often not.
        self._earned = {True: [0, 0], False: [0, 0]}
        self._silent = 0

    # -- what a kind of candidate says differently ------------------------------------------------------------------

    def own(self, result: Result[Any]) -> Any:
        """The candidate that a result is about, as it was written; None where nothing was."""
        return parts_of(result)

    def parts(self, candidate: Any) -> Mapping[str, Any]:
        """The named parts of a candidate that was written."""
        return candidate  # type: ignore[no-any-return]

    def made(self, parts: Mapping[str, Any]) -> Any:
        """The candidate of these parts."""
        return dict(parts)

    def text(self, candidate: Any, part: str) -> str:
        """A part that a model writes, as a text."""
        return str(self.parts(candidate).get(part, ""))

    def varied(self, result: Result[Any]) -> Any:
        """The candidate of a result with the model's own right answers in it; None where there are none to show."""
        return None

    # -- the search -------------------------------------------------------------------------------------------------

    def begin(self, seed: int) -> None:
        super().begin(seed)
        if self._beside is not None:
            self._beside.begin(seed)

    def ask(self, n: int) -> list[Any]:
        asked: list[Any] = []
        while len(asked) < n and (proposal := self._next()) is not None:
            candidate, origin = proposal
            self._origins[encode(candidate)] = origin
            asked.append(candidate)
        return asked

    def tell(self, result: Result[Any]) -> None:
        self._told += 1
        if self._beside is not None:
            self._beside.tell(result)
        own, written = self.own(result), isinstance(result.candidate, Written)
        if self._front:
            won = result.complete and (result.score or 0.0) > (self._front.best.score or 0.0)
            self._earned[written][0 if won else 1] += 1
        if written:
            unwritten = {failure.kind for failure in result.failures.values()} == {UNWRITTEN}
            self._silent = self._silent + 1 if unwritten else 0
            self._remember(result, own)
        if result.complete and own is not None:
            self._front.add(result)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def revive(self, value: Any) -> Any:
        """A recorded candidate: a request to write, or what is asked beside."""
        return msgspec.convert(value, Written) if _is_request(value) else value

    def save(self) -> bytes:
        if self._beside is not None and not saves(self._beside):
            raise Unsaved(f"{type(self._beside).__name__} has no save() and load() of its own")
        return packed(
            rng=rng_state(self.rng),
            counts=(len(self._opening), self._proposals, self._told, self._silent, bool(self._origins)),
            earned=[self._earned[True], self._earned[False]],
            front=self._front.save(),
            beside=None if self._beside is None else self._beside.save(),
        )

    def load(self, state: bytes, told: Told) -> None:
        saved = unpacked(state)
        set_rng(self.rng, saved["rng"])
        opening, self._proposals, self._told, self._silent, asked = saved["counts"]
        self._opening = self._opening[len(self._opening) - opening :]
        self._origins = {"": None} if asked else {}  # of a candidate that was just asked: none is
        self._earned = dict(zip((True, False), saved["earned"]))
        self._front.load(saved["front"], told)
        self._front.tried = {key: tuple(map(_shown, tried)) for key, tried in self._front.tried.items()}
        if self._beside is not None:
            take_over(self._beside, saved["beside"], told)

    def _remember(self, result: Result[Any], own: Any) -> None:
        """Keep a text that was not better than its parent, to be shown when that is next rewritten."""
        number = ((result.trial.origin or {}).get("parents") or [None])[0]
        parent, part = self._front.results.get(number), str(result.candidate.part)
        failed = next((outcome for outcome in result.failures.values() if outcome.kind != UNWRITTEN), None)
        if parent is None or (own is None and failed is None):
            return
        if result.complete and (result.score or 0.0) > (parent.score or 0.0):
            return
        if failed is not None:
            why = shown_case("", failed, self._characters).feedback
        else:
            pairs = [(outcome, parent.outcomes.get(case)) for case, outcome in result.outcomes.items()]
            both = [(x.score, y.score) for x, y in pairs if isinstance(x, Ok) and isinstance(y, Ok)]
            scored, had = (sum(column) / len(both) for column in zip(*both)) if both else (0.0, 0.0)
            why = f"scored {scored:.4g} where its parent has {had:.4g}"
        shown = ShownCase("", "", "" if own is None else self.text(own, part)[: self._characters], why)
        key = parent.number, part
        self._front.tried[key] = (*self._front.tried.get(key, ()), shown)[-TRIED:]

    def origin(self, candidate: Any) -> Any:
        return self._origins.get(encode(candidate), {"parents": [], "by": "unknown"})

    def _next(self) -> tuple[Any, Any] | None:
        """The next candidate with its origin; None while there is nothing to start from."""
        if not self._told:
            return None if self._origins else self._from_beside() or self._seed()
        if self._opening:
            return self._seed()
        if not self._front:
            return self._from_beside()
        if self._proposals:
            self._proposals -= 1
            return self._request("propose", [self._front.best], self._examples)
        if self.rng.random() < self._merging and (merged := self._merge()) is not None:
            return merged
        if self._silent >= SILENCE:
            return self._from_beside()
        if not self._writes() and (other := self._from_beside()) is not None:
            return other
        mother = self._front.draw(self.rng)
        if self.rng.random() < VARIED and (varied := self.varied(mother)) is not None:
            return varied, _origin([mother], "own answers")
        wrong, right = self._cases(mother)
        shown = {case: shown_case(case, mother.outcomes[case], self._characters) for case in (*wrong, *right)}
        failures, kept = ([shown[case] for case in cases] for cases in (wrong, right))
        request, origin = self._request("reflect", [mother], failures, kept)
        return request, {**origin, "shown": list(shown)}

    def _writes(self) -> bool:
        """Whether the writer is asked: as often as the share says, and as it made a new best more often than others."""
        won, lost = self._earned[True]
        share = LITTLE if lost >= PATIENCE and not won else self._share
        chances = {written: self.rng.betavariate(1 + won, 1 + lost) for written, (won, lost) in self._earned.items()}
        return share * chances[True] >= (1 - share) * chances[False]

    def _seed(self) -> tuple[Any, Any] | None:
        return (self._opening.pop(0), {"parents": [], "by": "seed"}) if self._opening else None

    def _from_beside(self) -> tuple[Any, Any] | None:
        if self._beside is None:
            return None
        candidates = self._beside.ask(1)
        return (candidates[0], self._beside.origin(candidates[0])) if candidates else None

    def _request(
        self,
        how: How,
        parents: Sequence[Result[Any]],
        failures: Sequence[ShownCase] = (),
        kept: Sequence[ShownCase] = (),
        parts: Sequence[str] = (),
    ) -> tuple[Any, Any]:
        genomes = tuple(self.own(parent) for parent in parents)
        part = self.rng.choice(parts or self._writable_of(genomes[0]))
        sample = self.rng.randint(1, SAMPLES)
        tried = self._front.tried.get((parents[0].number, part), ()) if how == "reflect" else ()
        request = Written(how, genomes, tuple(failures), sample, part, tuple(kept) or UNSET, tried or UNSET)
        return request, {**_origin(parents, how), "written": True}

    def _writable_of(self, candidate: Any) -> Sequence[str]:
        return self._writable or sorted(self.parts(candidate))

    def _cases(self, result: Result[Any]) -> tuple[list[str], list[str]]:
        """Some cases that a candidate failed, and some it must not break: any below the best score of any case.

        Where all have the same score, there is nothing to tell them apart by, and all are to be improved.
        """
        top = self._front.top
        right = [case for case, outcome in result.outcomes.items() if isinstance(outcome, Ok) and outcome.score >= top]
        wrong = [case for case in result.outcomes if case not in right] or right
        right = [case for case in right if case not in wrong]
        return self.rng.sample(wrong, min(self._shown, len(wrong))), self.rng.sample(right, min(KEPT, len(right)))

    # -- joining two parents ----------------------------------------------------------------------------------------

    def _merge(self) -> tuple[Any, Any] | None:
        """A candidate with what two parents changed, or a request to write a part that both changed."""
        pair = self._front.pair()
        if pair is None:
            return None
        first, second = (self.parts(self.own(result)) for result in pair)
        old = self._common(pair)
        mixed = {name: second.get(name, text) if text == old.get(name) else text for name, text in first.items()}
        if mixed not in (first, second):
            candidate = self.made(mixed)
            return candidate, _origin(pair, "merge")
        differ = [name for name in self._writable_of(self.made(first)) if first[name] != second.get(name)]
        return self._request("combine", pair, parts=differ) if differ else None

    def _common(self, pair: tuple[Result[Any], Result[Any]]) -> Mapping[str, Any]:
        """The parts of the last common ancestor; without one, what no model writes counts as unchanged in the first."""
        first, second = pair
        shared = self._ancestors(first) & self._ancestors(second)
        if shared:
            return self.parts(self.own(self._front.results[max(shared)]))
        own = self.own(first)
        writable = self._writable_of(own)
        return {name: value for name, value in self.parts(own).items() if name not in writable}

    def _ancestors(self, result: Result[Any]) -> set[int]:
        ancestors: set[int] = set()
        waiting = [result.number]
        while waiting:
            number = waiting.pop()
            if number in self._front.results and number not in ancestors:
                ancestors.add(number)
                waiting += (self._front.results[number].trial.origin or {}).get("parents", ())
        return ancestors
