"""What a task is: problems with known answers, a grader, and what a search may say to a model about them."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fanfold.calls import unasked
from fanfold.config import load_toml
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, FanfoldError, NoWayHome, nearest
from fanfold.executors.base import is_coroutine_function
from fanfold.files import load_function

#: The sections of a prompt that a task may offer clauses for.
SECTIONS = ("role", "instruction", "cue", "format")
#: The settings of the tasks that ship with Fanfold, and under `usual` those of a task that says nothing better.
SETTINGS = load_toml(Path(__file__).with_name("data") / "tasks.toml")

#: How large a part of a split is: a number of problems, or a share of all of them.
Size: TypeAlias = int | float


def tupled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Lists, as TOML has them, as the tuples that `Task` holds."""
    made: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    if "labels" in made:
        made["labels"] = tuple((str(one), str(other)) for one, other in made["labels"])
    if "clauses" in made:
        made["clauses"] = {section: tuple(clauses) for section, clauses in made["clauses"].items()}
    return made


_USUAL = tupled(SETTINGS.pop("usual"))
USUAL_LABELS: tuple[tuple[str, str], ...] = _USUAL["labels"]
USUAL_CLAUSES: Mapping[str, tuple[str, ...]] = _USUAL["clauses"]
#: The parts of a split where nothing is said and problems are plenty, and the fewest problems that can be split.
SIZES = {"held_out": 60, "validation": 24, "examples": 8, "train": 24}
FEWEST = 8
#: The parts of a split of fewer problems.
SHARES = {"held_out": 0.36, "validation": 0.14, "examples": 0.2, "train": 0.3}


@dataclass(frozen=True)
class Problem:
    """One thing to ask: the text a model is shown, and what a grader needs to judge the reply.

    `answer` is the right answer, a list of right answers, or tests, as the grader wants it.  `note` holds what else
    belongs to the problem: `options` of a multiple choice, `shown` for the answer as an example should show it.
    """

    id: str
    input: str
    answer: Any = None
    note: Mapping[str, Any] | None = None

    @property
    def gist(self) -> str:
        """The input without what may differ between two that are the same: case and white space."""
        return " ".join(self.input.casefold().split())

    @property
    def shown(self) -> str:
        """The answer as a text, for use as an example in a prompt."""
        answer = (self.note or {}).get("shown", self.answer)
        if isinstance(answer, list | tuple):
            answer = answer[0] if answer else None
        if isinstance(answer, Mapping | list):
            return json.dumps(answer, ensure_ascii=False, default=str)
        return "" if answer is None else str(answer)


@dataclass(frozen=True)
class Grade:
    """What a reply is worth, from 0 to 1, the answer as it was understood, and in words what is wrong with it."""

    score: float
    said: str = ""
    feedback: str = field(default="", compare=False)


class Grader(Protocol):
    """Judges a reply to a problem.  It never raises for what a model says: a useless reply has the score 0.

    A grader may have `check(problem) -> str` as well, which says what makes a problem impossible to grade ("" if
    nothing does); a task calls it for each of its problems when it is made.
    """

    async def __call__(self, reply: str, problem: Problem) -> Grade: ...


#: What reading a text that is not as expected raises, and how the feedback on such a reply begins.
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
RAISED = "the grader raises "
#: A reply that is wrong whatever the problem is, and what a grader is made of.
NO_ANSWER = "I do not know."
_CALLABLE = (
    "give a function of (reply, problem), an object with __call__(self, reply, problem), or grader('exact') of one "
    "that is known by its name"
)


@dataclass(frozen=True)
class Own:
    """A grader of the user's own: a function of (reply, problem), or the Python file of one (`grade.py:name`).

    It may be a coroutine function, or an object that can be called.  It returns True or False, a number from 0 to 1,
    (number, feedback), a mapping with `score` and `feedback`, or a `Grade`; anything else fails the evaluation.  Where
    it cannot read a reply and raises (`json.loads`, a missing key), the reply is wrong; other exceptions fail it too.
    """

    function: Any

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            object.__setattr__(self, "function", load_function(self.function, "grade", "def grade(reply, problem)"))
        if not callable(self.function):
            raise ConfigError(f"a grader must be callable, and {self.function!r:.80} is not: {_CALLABLE}")
        try:
            inspect.signature(self.function).bind("reply", "problem")
        except ValueError:  # a builtin says nothing about its arguments
            return
        except TypeError as error:
            raise ConfigError(f"{self}: it is called with (reply, problem): {error}") from error

    @classmethod
    def of(cls, grader: Any) -> Grader:
        """A grader as it is, or a function of the user's own as one."""
        known = type(grader).__module__.partition(".")[0] == __name__.partition(".")[0]
        return grader if known else cls(grader)

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        # A plain function runs beside the loop, so that one that takes its time holds up nobody else.
        aside = not is_coroutine_function(self.function)
        try:
            value = await asyncio.to_thread(self._called, reply, problem) if aside else self.function(reply, problem)
            value = await value if inspect.isawaitable(value) else value
        except FanfoldError:
            raise
        except UNREADABLE as error:  # it had graded a right answer
            return Grade(0.0, "", f"{RAISED}{type(error).__name__}: {error}")
        return self._grade(value)

    def _called(self, reply: str, problem: Problem) -> Any:
        try:
            return self.function(reply, problem)
        except StopIteration:  # which no thread can hand over
            raise LookupError("next() has found nothing") from None

    def check(self, problem: Problem) -> str:
        return str(getattr(self.function, "check", lambda problem: "")(problem))

    def check_ready(self) -> None:
        getattr(self.function, "check_ready", lambda: None)()

    def tried(self, problem: Problem) -> float | None:
        """The score of a problem's right answer; None where there is none, or where that would ask somebody.

        A function that cannot grade it is refused, before any reply is paid for.
        """
        try:
            return self._tried(problem.shown, problem) if problem.shown else None
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{self}: given the right answer of problem {problem.id!r}, it raises {type(error).__name__}: {error} "
                f"(the reply was {problem.shown!r:.60}; return 0 for one that cannot be read)"
            ) from error

    def check_wrong(self, problem: Problem, replies: Iterable[str]) -> None:
        """Refuse a function that gives no score to these replies; what it cannot read and raises for is wrong."""
        for reply in replies:
            try:
                self._tried(reply, problem)
            except ConfigError as error:
                raise ConfigError(f"{error}, also for the reply {reply!r:.60} to problem {problem.id!r}") from error
            except (Exception, SystemExit):
                continue

    def _tried(self, reply: str, problem: Problem) -> float | None:
        """The score of a reply; None where that would ask somebody."""
        if is_coroutine_function(self.function):
            return None
        try:
            with unasked():
                value = self.function(reply, problem)
        except NoWayHome:  # it asks a model, which is not paid for this
            return None
        if inspect.iscoroutine(value):
            value.close()
            return None
        return self._grade(value).score

    def _grade(self, value: Any) -> Grade:
        score, words = value, ""
        if isinstance(value, Grade):
            score = value.score
        elif isinstance(value, Mapping) and "score" in value:
            score, words = value["score"], value.get("feedback", "")
        elif isinstance(value, tuple) and len(value) == 2:
            score, words = value
        try:
            number = math.nan if isinstance(score, str | bytes | None) else float(score)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not 0.0 <= number <= 1.0:
            raise ConfigError(
                f"{self}: it returned {value!r:.80}, and must return True or False, a number from 0 to 1, or (number, "
                "feedback)"
            )
        return value if isinstance(value, Grade) else Grade(number, "", str(words or ""))

    def __str__(self) -> str:
        return f"the grader {getattr(self.function, '__name__', type(self.function).__name__)!r}"


@dataclass(frozen=True)
class Split:
    """Four disjoint sets of problems: to show, to search on, to choose by, and to report on once."""

    examples: tuple[Problem, ...]
    train: tuple[Problem, ...]
    validation: tuple[Problem, ...]
    held_out: tuple[Problem, ...]


@dataclass(frozen=True)
class Task:
    """Problems and how replies to them are graded, with the material that a search for a prompt may use.

    `description` says in one sentence what is to be done, for models that write prompts.  `labels` suggest what to call
    input and answer, `clauses` what to say, by section; `seeds` are the weak first prompts a person would write.
    `source` says where the problems came from and how they were read, `form` how an input of several parts is put
    together.  With `cover` the examples of a split have all the answers there are, where they are enough.
    """

    name: str
    problems: tuple[Problem, ...]
    grader: Grader
    description: str = ""
    labels: tuple[tuple[str, str], ...] = field(default_factory=lambda: USUAL_LABELS)
    clauses: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: USUAL_CLAUSES)
    seeds: tuple[str, ...] = ()
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    source: str = ""
    cover: bool = False
    form: str = ""

    def __post_init__(self) -> None:
        if not self.problems:
            raise ConfigError(f"task {self.name!r} has no problems: give at least one")
        if not callable(self.grader):
            raise ConfigError(
                f"task {self.name!r}: grader must be callable, and {self.grader!r:.80} is not: {_CALLABLE}"
            )
        object.__setattr__(self, "grader", Own.of(self.grader))
        for section in self.clauses:
            if section not in SECTIONS:
                raise ConfigError(f"task {self.name!r}: clauses has no section {section!r}{nearest(section, SECTIONS)}")
        check = getattr(self.grader, "check", None)
        seen: set[str] = set()
        for problem in self.problems:
            if problem.id in seen:
                raise ConfigError(f"task {self.name!r}: two problems have the id {problem.id!r}: ids must be unique")
            seen.add(problem.id)
            if check is not None and (complaint := check(problem)):
                raise ConfigError(f"task {self.name!r}, problem {problem.id!r}: {complaint}")
        if isinstance(self.grader, Own) and self.grader.tried(first := self.problems[0]) is not None:
            others = (problem.shown for problem in self.problems if problem.shown not in ("", first.shown))
            self.grader.check_wrong(first, (*itertools.islice(others, 1), NO_ANSWER))

    def split(
        self,
        seed: int = 0,
        examples: Size = 0.1,
        train: Size = 0.4,
        validation: Size = 0.2,
        held_out: Size = 0.3,
    ) -> Split:
        """Four disjoint sets of problems; a size is a number of problems or, as a fraction, a share of all.

        Who comes where depends on the seed and the ids alone, not on the order of the problems, and the held-out set
        stays the same when the other sizes change.  Of problems with the same input, whatever its case and spacing,
        only one is used, so that nothing in one set gives away an answer in another.
        """
        distinct = list({problem.gist: problem for problem in reversed(self.problems)}.values())
        distinct.sort(key=lambda problem: (derive_seed(seed, "split", problem.id), problem.id))
        sizes = {"held_out": held_out, "validation": validation, "examples": examples, "train": train}
        counts = {name: self._count(name, size, len(distinct)) for name, size in sizes.items()}
        if sum(counts.values()) > len(distinct):
            wanted = " + ".join(f"{counts[name]} {name}" for name in ("examples", "train", "validation", "held_out"))
            repeated = len(self.problems) - len(distinct)
            raise ConfigError(
                f"task {self.name!r} has {len(distinct)} different problems"
                f"{f' ({repeated} more repeat an input)' if repeated else ''}, too few for {wanted}: "
                f"ask for fewer, or give more problems"
            )
        parts: dict[str, tuple[Problem, ...]] = {}
        for name, count in counts.items():
            if name == "examples" and self.cover:
                firsts = {problem.shown: problem.id for problem in reversed(distinct)}
                distinct.sort(key=lambda problem: firsts[problem.shown] != problem.id)
            parts[name], distinct = tuple(distinct[:count]), distinct[count:]
        return Split(**parts)

    def sizes(self, **wanted: Size | None) -> dict[str, Size]:
        """The sizes of a split: those that are wanted, and for the others the usual ones, or fewer in a small task."""
        total = len({problem.gist for problem in self.problems})
        taken = {name: self._count(name, size, total) for name, size in wanted.items() if size is not None}
        open_ = {name: usual for name, usual in SIZES.items() if name not in taken}
        left = total - sum(taken.values())
        if taken and open_ and total >= FEWEST and left < len(open_):
            asked = " + ".join(f"{count:,} {name}" for name, count in taken.items())
            raise ConfigError(
                f"task {self.name!r} has {total:,} different problems, and {asked} leave too few of them for "
                f"{', '.join(open_)}: ask for fewer, or give more problems"
            )
        if open_ and (total < FEWEST or left < len(open_)):
            raise ConfigError(
                f"task {self.name!r} has {total} different problems, too few to search and to report on others: "
                f"give at least {FEWEST}, better 100"
            )
        whole = sum(SHARES[name] for name in open_)
        fewer = {name: min(usual, max(1, int(left * SHARES[name] / whole))) for name, usual in open_.items()}
        return {**taken, **fewer}

    def _count(self, name: str, size: Size, total: int) -> int:
        if isinstance(size, bool) or not isinstance(size, int | float) or not size >= 0:
            raise ConfigError(f"{name} must be a number of problems or a share between 0 and 1, not {size!r}")
        if isinstance(size, int):
            return size
        if size > 1:
            raise ConfigError(f"{name}={size!r} is not a share: give at most 1.0, or a whole number of problems")
        count = int(size * total + 1e-9)  # a sum of shares such as 0.1 + 0.4 + 0.2 + 0.3 is to use every problem
        if size and not count:
            raise ConfigError(
                f"{name}={size!r} of the {total} problems of task {self.name!r} is not even one: "
                f"give a number of problems instead, or more problems"
            )
        return count
