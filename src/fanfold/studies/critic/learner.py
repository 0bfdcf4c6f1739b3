"""What an application's critic has learnt: a fold over the feedback in its file, in the order in which it came."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from fanfold.encoding import digest
from fanfold.errors import LedgerError
from fanfold.ledger import Ledger, ShowRow, find_show, judged_since, last_checkpoint, shows_since
from fanfold.studies.critic.bank import prompt_of
from fanfold.studies.critic.config import CriticConfig
from fanfold.studies.critic.evaluator import Show
from fanfold.studies.critic.evolution import Member
from fanfold.studies.critic.features import NAMES
from fanfold.studies.critic.memory import PendingChoice
from fanfold.studies.critic.strategy import CriticStrategy

#: How many answers are remembered one by one, so that a changed mind can replace what was said.
REMEMBERED = 2000
#: What a saved state must have been written with.
VERSION = digest("critic online 1", *NAMES).hex()


class ShowMark(msgspec.Struct):
    """The part of a show's origin that is read at every start: the second half of its id, and when it was made."""

    key: str
    at: float


class ShowOrigin(ShowMark):
    """Where a show comes from: also the choice that was made, which its feedback teaches."""

    choice: PendingChoice


class OpenShow(msgspec.Struct):
    """A show without feedback, and the prompts behind it."""

    at: float
    prompts: list[str]


class LearnerState(msgspec.Struct):
    """A saved learner: the last commit it knows, how many shows, and what it learnt."""

    version: str
    mark: int
    shows: int
    search: msgspec.Raw
    #: By the show's number: its score, and after how many answers it came.
    learnt: dict[int, tuple[float, int]]
    open: dict[int, OpenShow]
    #: The prompts that joined: one that evolution has replaced since does not join again at the next opening.
    adopted: list[str] = []


class FeedbackLearner:
    """Keeps up with a file that any number of processes write.

    Every process reads the same feedback in the same order, so all of them know the same.  A show without feedback
    makes its prompts count as better known, so that many questions at once do not all try the same prompt; after
    `expires` seconds nobody waits for it any longer.  Feedback that comes later still teaches.
    """

    def __init__(self, config: CriticConfig, ledger: Ledger, run: int, expires: float) -> None:
        self.ledger, self.run, self.expires = ledger, run, expires
        self.search = CriticStrategy(config, ())
        self.search.begin(config.seed)
        self.mark = self.shows = 0
        #: Feedback and shows since the last checkpoint.
        self.unsaved = 0
        self._learnt: dict[int, tuple[float, int]] = {}
        self._open: dict[int, OpenShow] = {}
        self._awaited: dict[str, int | None] = {}
        self._adopted: set[str] = set()

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self) -> tuple[int, int, int, bytes]:
        """The row of a checkpoint."""
        self.unsaved = 0
        search = msgspec.Raw(self.search.save())
        adopted = sorted(self._adopted)
        state = LearnerState(VERSION, self.mark, self.shows, search, self._learnt, self._open, adopted)
        return self.run, self.search.memory.answered, self.shows, msgspec.json.encode(state)

    def load(self, state: bytes) -> bool:
        """Take up a checkpoint; False where another version wrote it, and everything has to be learnt again."""
        try:
            saved = msgspec.json.decode(state, type=LearnerState)
            if saved.version != VERSION or not self.search.load(bytes(saved.search)):
                return False
        except (msgspec.DecodeError, ValueError, KeyError):
            self.search.begin(self.search.seed)
            return False
        self.mark, self.shows, self._learnt, self._open = saved.mark, saved.shows, saved.learnt, saved.open
        self._adopted = set(saved.adopted)
        return True

    def begin(self, prompts: Sequence[str], retired: Sequence[str]) -> None:
        """Take up the last checkpoint, if there is one, and everything since."""
        state = last_checkpoint(self.ledger, self.run)
        if state is not None:
            self.load(state)
        self._adopt(prompts, retired)
        self.catch_up()

    def _adopt(self, prompts: Sequence[str], retired: Sequence[str]) -> None:
        """Let prompts that are new join the population, and those that are no longer given leave it."""
        population = self.search.population
        gone, known = {prompt_of(text) for text in retired}, self._adopted.difference(retired)
        population.members = [member for member in population.members if member.prompt not in gone]
        for prompt in map(prompt_of, (text for text in prompts if text not in known)):
            if population.find(prompt) is None:
                population.members.append(Member(prompt, self.search.middling(), guessed=1.0))
        self._adopted = known.union(prompts)

    # -- keeping up --------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take in all shows and feedback that the file has by now."""
        for row in shows_since(self.ledger, self.run, self.shows):
            self._notice(row)
        for mark, number in judged_since(self.ledger, self.run, self.mark):
            self._take(number)
            self.mark = mark
        oldest = time.time() - self.expires
        while self._open and next(iter(self._open.values())).at < oldest:
            del self._open[next(iter(self._open))]
        waiting = Counter(prompt for show in self._open.values() for prompt in show.prompts)
        for member in self.search.population.members:
            member.open = waiting[member.prompt.text]

    def expect(self, key: str) -> None:
        """Remember the number of the show with this key when it is seen."""
        self._awaited[key] = None

    def number(self, key: str) -> int:
        """The number of an expected show, which the file has."""
        number = self._awaited.pop(key)
        if number is None:
            raise LedgerError(f"{self.ledger.path} does not hold what was just written to it: is it being replaced?")
        return number

    def ranking(self) -> list[Member]:
        """The prompts, the best first."""
        return sorted(self.search.population.members, key=lambda member: -member.fitness)

    @property
    def open_shows(self) -> int:
        return len(self._open)

    def _notice(self, row: ShowRow) -> None:
        self.shows = row.number + 1
        self.unsaved += 1
        mark = self.ledger.value(row.origin, ShowMark)
        if mark.key in self._awaited:
            self._awaited[mark.key] = row.number
        if row.score is None:
            show: Show = self.ledger.value(row.candidate, Show)
            self._open[row.number] = OpenShow(mark.at, [shown.prompt.text for shown in show.shown])

    def _take(self, number: int) -> None:
        """Learn from the present feedback on a show."""
        self._open.pop(number, None)
        row = find_show(self.ledger, self.run, number)
        if row is None or row.score is None:
            return
        show: Show = msgspec.structs.replace(self.ledger.value(row.candidate, Show), number=number)
        scores, memory = _scores(show, row.score), self.search.memory
        if number in self._learnt:
            before, answered = self._learnt.pop(number)
            if before != row.score:
                self.search.revise(show, _scores(show, before), scores, memory.answered - answered)
        else:
            choice = self.ledger.value(row.origin, ShowOrigin).choice
            responses = [(each.shown.prompt, each.shown.response) for each in choice.candidates]
            self.search.notice(show.query, responses)
            self.search.learn(show, choice, scores)
            memory.records.clear()  # the file has them
            answered = memory.answered
        self.unsaved += 1
        self._learnt[number] = (row.score, answered)
        if len(self._learnt) > REMEMBERED:
            del self._learnt[next(iter(self._learnt))]


def _scores(show: Show, score: float) -> list[float]:
    """The score of each response that was shown."""
    return [score, 1.0 - score] if len(show.shown) == 2 else [score]
