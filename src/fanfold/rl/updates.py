"""What the ledger holds of a policy that learns: its updates with their times, and the policies it ended with."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.rl.failures import ALL_FAILED, FailedEpisode, failed_of
from fanfold.types import Ok, Result

#: When the evaluation of a trial began, and how many seconds it took.
Times = Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Update:
    """What one update of the policy learnt from, and how long it took.

    `lags` counts episodes by how many versions old their policy was.  `collection` are the seconds in which at least
    one of the blocks was played, and `learning` those of the update itself.
    """

    number: int
    returns: Sequence[float]
    steps: int
    lags: Mapping[int, int]
    collection: float = 0.0
    learning: float = 0.0
    failed: int = 0
    #: The data of the blocks, for figures that only some environments have.
    blocks: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        return statistics.fmean(self.returns) if self.returns else 0.0

    @property
    def lag(self) -> float:
        return sum(lag * count for lag, count in self.lags.items()) / max(1, self.lags_total)

    @property
    def lags_total(self) -> int:
        return sum(self.lags.values())


def updates(results: Iterable[Result[Any]], times: Times | None = None) -> list[Update]:
    """The updates of a run.  The learner says which blocks each learnt from, where it asks for the next ones.

    Of a run that was stopped, the last blocks are an update that may not have come.
    """
    blocks: dict[int, tuple[int, Ok]] = {}
    said: list[Mapping[str, Any]] = []
    for result in results:
        outcome = next(iter(result.outcomes.values()))
        if isinstance(outcome, Ok) and result.candidate["learn"]:
            blocks[result.number] = (result.candidate["version"], outcome)
        if isinstance(result.trial.origin, Mapping):
            said += result.trial.origin.get("updates", ())
    learnt = {trial for each in said for trial in each["trials"]}
    if rest := [trial for trial in blocks if trial not in learnt]:
        said.append({"number": len(said) + 1, "trials": rest})
    return [_update(each, blocks, times or {}) for each in sorted(said, key=lambda each: each["number"])]


def _update(said: Mapping[str, Any], blocks: Mapping[int, tuple[int, Ok]], times: Times) -> Update:
    number, own = said["number"], [(trial, *blocks[trial]) for trial in said["trials"] if trial in blocks]
    lags: Counter[int] = Counter()
    for _, version, outcome in own:
        lags[number - 1 - version] += len(outcome.data["returns"])
    datas = [outcome.data for *_, outcome in own]
    return Update(
        number,
        [each for data in datas for each in data["returns"]],
        sum(sum(data.get("lengths", ())) for data in datas),
        lags,
        _covered(times[trial] for trial, *_ in own if trial in times),
        said.get("seconds", 0.0),
        sum(len(data.get("failed", ())) for data in datas),
        datas,
    )


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of the spans, each a beginning and a length, covers."""
    total, until = 0.0, float("-inf")
    for began, seconds in sorted(spans):
        total += max(0.0, began + seconds - max(began, until))
        until = max(until, began + seconds)
    return total


def failures(results: Iterable[Result[Any]]) -> list[tuple[int, FailedEpisode]]:
    """The failed episodes of a run, each with the version of the policy that played it."""
    failed = []
    for result in results:
        block = result.candidate
        numbers = range(block["first_episode"], block["first_episode"] + block["episodes"])
        for outcome in result.outcomes.values():
            # A larger block whose worker was lost is played again in halves.
            if isinstance(outcome, Ok) or outcome.kind == ALL_FAILED or len(numbers) == 1:
                failed += [(block["version"], each) for each in failed_of(outcome, numbers)]
    return failed


@dataclass(frozen=True, slots=True)
class EndPolicy:
    """One of the policies that training ended with, and what it did on held-out episodes."""

    name: str
    candidate: Mapping[str, Any]
    mean: float


def ending(results: Iterable[Result[Any]]) -> list[EndPolicy]:
    """The policies that training ended with; of one that was stopped before, the last that played."""
    plays: dict[tuple[str, bool], list[Result[Any]]] = {}
    last: Result[Any] | None = None
    for result in results:
        if result.score is None:
            continue
        if result.candidate["learn"]:
            last = result
        else:
            plays.setdefault((result.candidate["weights"].digest, result.candidate["greedy"]), []).append(result)
    if not plays and last is not None:
        return [EndPolicy("the last that played, sampled", {**last.candidate, "learn": False}, last.score or 0.0)]
    policies = []
    for (weights, greedy), played in plays.items():
        kind = "last" if weights == next(iter(plays))[0] else "averaged"
        episodes = sum(each.candidate["episodes"] for each in played)
        mean = sum((each.score or 0.0) * each.candidate["episodes"] for each in played) / episodes
        policies.append(EndPolicy(f"{kind}, {'greedy' if greedy else 'sampled'}", played[0].candidate, mean))
    return policies
