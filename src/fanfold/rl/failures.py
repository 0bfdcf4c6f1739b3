"""Episodes that failed: what happened in them, and when there are too many."""

from __future__ import annotations

import re
from ast import literal_eval
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fanfold.errors import FanfoldError
from fanfold.redaction import redact
from fanfold.types import Failed, Ok, Outcome

#: The kind of the outcome of a block in which no episode could be played to its end.
ALL_FAILED = "episodes-failed"
#: Of how many of the latest episodes a share is meant, and fewer failures than these are never too many.
LATEST, FEWEST = 1000, 10
#: The seed of an episode that is known by its number alone, because its worker was lost.
UNKNOWN = -1
#: Characters of a message that are kept.
_LONGEST = 300


class TooManyFailures(FanfoldError):
    """More episodes failed than a run may lose."""


class Diverged(FanfoldError):
    """What a policy learnt has become infinite, or no number."""


@dataclass(frozen=True, slots=True)
class FailedEpisode:
    """An episode that raised, or gave a reward or an observation that is not a finite number.

    `seed` is the environment's and the policy's luck: with the same version of the policy, `fanfold play --seed` plays
    it again.  `step` is how many steps went well.
    """

    episode: int
    seed: int
    step: int
    kind: str
    message: str

    @classmethod
    def of(cls, episode: int, seed: int, step: int, error: BaseException) -> FailedEpisode:
        message = redact(str(error))
        return cls(episode, seed, step, type(error).__name__, message[:_LONGEST])

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def line(self) -> str:
        """All of it in a line that people read, and `in_lines` reads back."""
        return f"episode {self.episode} (seed {self.seed}) after {self.step} steps: {self.kind}: {self.message!r}"


class FailureTally:
    """Counts failed episodes among the latest, and raises when their share passes a limit."""

    def __init__(self, limit: float, state: bytes = b"[]") -> None:
        self.limit = limit
        #: Of each of the latest blocks, the episodes played, those failed, and how one of them failed.
        self._latest = deque(msgspec.json.decode(state, type=list[tuple[int, int, str]]))

    @property
    def state(self) -> bytes:
        return msgspec.json.encode(list(self._latest))

    def add(self, played: int, failures: Sequence[FailedEpisode], version: int) -> None:
        """Count a block that a version of the policy played."""
        words = "" if not failures else commonest(map(str, failures))
        self._latest.append((played, len(failures), words))
        while sum(each[0] for each in self._latest) - self._latest[0][0] >= LATEST:
            self._latest.popleft()
        all_played, all_failed = sum(each[0] for each in self._latest), sum(each[1] for each in self._latest)
        if failures and all_failed >= FEWEST and all_failed > self.limit * all_played:
            common = commonest(text for _, count, text in self._latest for _ in range(count))
            again = f". `fanfold play RUN --version {version} --seed {failures[0].seed}` plays one of them again"
            raise TooManyFailures(
                f"{all_failed} of the latest {all_played} episodes failed, most of them with {common}. The limit is "
                f"max_failed_share={self.limit:g}, and with a higher one the run continues"
                f"{'' if failures[0].seed == UNKNOWN else again}"
            )


def commonest(texts: Iterable[str]) -> str:
    """The text that occurs most often."""
    return Counter(texts).most_common(1)[0][0]


_LINE = re.compile(r"episode (\d+) \(seed (\d+)\) after (\d+) steps: (\w+): (.*)")


def all_failed(failed: Sequence[FailedEpisode]) -> Failed:
    """The outcome of a block of which nothing is left."""
    count = "the only episode" if len(failed) == 1 else f"all {len(failed)} episodes"
    detail = "\n".join(each.line for each in failed)
    return Failed(ALL_FAILED, f"{count} failed, with {commonest(map(str, failed))}", detail)


def failed_of(outcome: Outcome, numbers: range) -> list[FailedEpisode]:
    """The failed episodes of a block; of one whose worker was lost, all of them."""
    if isinstance(outcome, Ok):
        return failed_in(outcome.data)
    if outcome.kind == ALL_FAILED:
        found = [_LINE.fullmatch(line) for line in outcome.detail.splitlines()]
        parts = [match.groups() for match in found if match is not None]
        return [FailedEpisode(int(n), int(s), int(at), kind, literal_eval(text)) for n, s, at, kind, text in parts]
    return [FailedEpisode(number, UNKNOWN, 0, outcome.kind, outcome.message) for number in numbers]


def failed_in(data: Mapping[str, Any]) -> list[FailedEpisode]:
    """The failed episodes of a block, as its outcome has them."""
    return [FailedEpisode(**each) for each in data.get("failed", ())]
