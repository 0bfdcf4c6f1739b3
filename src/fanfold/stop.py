"""Stopping rules: when a run has had enough, written as `MaxTrials(500) | MaxCost(5.0) | Plateau(20)`."""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fanfold.errors import ConfigError, OnlyFailures, check_whole
from fanfold.events import Progress
from fanfold.texts import count, same_cause
from fanfold.types import UNWRITTEN, Failed, Outcome

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Rule(ABC):
    """Says when to stop.  A study copies its rules for each run and checks them after every told trial, in order.

    They are also checked twice a second, so that a limit of time holds: a rule that counts goes by `progress`, not by
    how often it is asked.

    `a | b` stops as soon as one of them does; `a & b` only when both say so at the same moment.
    """

    #: Whether its answers depend on what it was shown before; if so, a resume shows it every told trial again.
    remembers: bool = True
    #: Whether low scores are wanted.  `check` is shown those of the evaluator, not the engine's, which are times -1.
    _minimizes: bool = False

    @abstractmethod
    def check(self, progress: Progress) -> str | None:
        """The reason to stop now, or None to continue.  True and False will do as well."""

    def reason(self, progress: Progress) -> str | None:
        """What `check` says, in words."""
        if self._minimizes:
            progress = replace(progress, best=self._upward(progress.best))
        said = self.check(progress)
        return (said if isinstance(said, str) else repr(self)) if said else None

    def cost_limit(self) -> float:
        """The most that may be spent on model calls, which reserve their worst case against it before they are sent."""
        return math.inf

    def allowance(self, progress: Progress) -> float:
        """How many more trials may be asked for before results are known: what keeps a budget from being overrun."""
        return math.inf

    def mirrored(self) -> Rule:
        """The rule for a study that minimises, whose scores the engine counts as negatives."""
        mirrored = copy.copy(self)
        object.__setattr__(mirrored, "_minimizes", True)
        return mirrored

    def _upward(self, score: float | None) -> float | None:
        """A score such that a higher one is better."""
        return -score if self._minimizes and score is not None else score

    def __repr__(self) -> str:
        limit = next((value for name, value in vars(self).items() if name != "_minimizes"), None)
        return f"{type(self).__name__}({'' if limit is None else repr(limit)})"

    def __bool__(self) -> bool:
        raise ConfigError(f"rules are combined by | and &, not by `or` and `and`, which drop one: {self!r}")

    def __or__(self, other: Rule) -> Rule:
        return Either(*_parts(self, Either), *_parts(other, Either)) if isinstance(other, Rule) else NotImplemented

    def __and__(self, other: Rule) -> Rule:
        return Both(*_parts(self, Both), *_parts(other, Both)) if isinstance(other, Rule) else NotImplemented


class Either(Rule):
    """Stops as soon as one of its rules does (`|`), and asks for no more than the tightest of them allows."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def check(self, progress: Progress) -> str | None:
        reasons = [rule.reason(progress) for rule in self.rules]  # all of them: a rule may count what it is shown
        return next((reason for reason in reasons if reason is not None), None)

    def cost_limit(self) -> float:
        return min(rule.cost_limit() for rule in self.rules)

    def allowance(self, progress: Progress) -> float:
        return min(rule.allowance(progress) for rule in self.rules)

    def mirrored(self) -> Rule:
        return Either(*(rule.mirrored() for rule in self.rules))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.rules))


class Both(Rule):
    """Stops only when all of its rules say so at the same moment (`&`).

    `MaxTrials(100) & Plateau(20)` means "at least 100 trials, and then until nothing improves".  For the same reason a
    budget inside `&` is a minimum, not a limit: the run continues past it until the other rules agree.  A budget that
    must hold belongs outside: `(MaxTrials(100) & Plateau(20)) | MaxEvaluations(5000)`.
    """

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def check(self, progress: Progress) -> str | None:
        reasons = [rule.reason(progress) for rule in self.rules]
        stated = [reason for reason in reasons if reason is not None]
        return " and ".join(stated) if len(stated) == len(reasons) else None

    def cost_limit(self) -> float:
        return max(rule.cost_limit() for rule in self.rules)

    def allowance(self, progress: Progress) -> float:
        return max(rule.allowance(progress) for rule in self.rules)

    def mirrored(self) -> Rule:
        return Both(*(rule.mirrored() for rule in self.rules))

    def __repr__(self) -> str:
        return " & ".join(f"({rule!r})" if isinstance(rule, Either) else repr(rule) for rule in self.rules)


def _parts(rule: Rule, kind: type[Either] | type[Both]) -> tuple[Rule, ...]:
    return rule.rules if isinstance(rule, kind) else (rule,)


class Never(Rule):
    """Leaves the end to the strategy."""

    remembers = False

    def check(self, progress: Progress) -> str | None:
        return None


@dataclass(frozen=True, repr=False)
class MaxTrials(Rule):
    """Stops after `n` trials; not one more is asked for."""

    remembers = False

    n: int

    def __post_init__(self) -> None:
        check_whole(self.n, "the number of MaxTrials")

    def check(self, progress: Progress) -> str | None:
        return count(self.n, "trial") if progress.told >= self.n else None

    def allowance(self, progress: Progress) -> float:
        return max(0, self.n - progress.asked)


@dataclass(frozen=True, repr=False)
class MaxEvaluations(Rule):
    """Stops when no further full row of cases fits into `n` evaluations. They are never exceeded.

    Each open trial is expected to need all its cases. What a schedule saves by dropping it becomes available again.
    """

    remembers = False

    n: int

    def __post_init__(self) -> None:
        check_whole(self.n, "the number of MaxEvaluations")

    def check(self, progress: Progress) -> str | None:
        # The open rows fit by construction, so this can only hold once none is open.  Inside `&`, where others may keep
        # rows open forever, it must hold all the same: hence no look at them here.
        return count(self.n, "evaluation") if progress.told_evaluations + progress.cases > self.n else None

    def allowance(self, progress: Progress) -> float:
        return max(0, (self.n - progress.told_evaluations - progress.open * progress.cases) // progress.cases)


class MaxCalls(MaxEvaluations):
    """Stops when no further full row fits into `n` calls: one for each evaluation, and one to write the candidate."""

    def check(self, progress: Progress) -> str | None:
        return count(self.n, "call") if progress.told_calls + progress.cases >= self.n else None

    def allowance(self, progress: Progress) -> float:
        row = progress.cases + 1
        return max(0, (self.n - progress.told_calls - progress.open * row) // row)


class MaxTime(Rule):
    """Stops once the run has taken so many seconds, or "90s", "15m", "2h"; time before a resume counts."""

    remembers = False

    def __init__(self, seconds: float | str) -> None:
        self._given = seconds
        self.seconds = _parse_seconds(seconds)

    def check(self, progress: Progress) -> str | None:
        if progress.elapsed < self.seconds:
            return None
        return f"time limit of {self._given if isinstance(self._given, str) else f'{self._given:g}s'}"


@dataclass(frozen=True, repr=False)
class MaxCost(Rule):
    """Stops once the evaluations have cost `amount`.

    Model calls reserve the most they can cost before they are sent, so they never exceed it. What evaluators report
    themselves (`Ok.cost`) is known only afterwards, and open evaluations may still add to it.
    """

    remembers = False

    amount: float

    def __post_init__(self) -> None:
        if not _is_number(self.amount) or self.amount <= 0:
            raise ConfigError(f"MaxCost({self.amount!r}): give an amount above 0, in the unit of Ok.cost")

    def check(self, progress: Progress) -> str | None:
        return f"cost limit of {self.amount:g}" if progress.cost >= self.amount else None

    def cost_limit(self) -> float:
        return self.amount


@dataclass(frozen=True, repr=False)
class Target(Rule):
    """Stops once a complete trial scores at least `score`, or at most that in a study that minimises."""

    remembers = False

    score: float

    def __post_init__(self) -> None:
        if not _is_number(self.score):
            raise ConfigError(f"Target({self.score!r}): give a finite score")

    def check(self, progress: Progress) -> str | None:
        best, wanted = progress.best, self.score
        reached = best is not None and (best <= wanted if self._minimizes else best >= wanted)
        return f"target of {wanted:g} reached" if reached else None


class Plateau(Rule):
    """Stops when the best has not improved by more than `min_delta` over the last `trials` told.

    Small steps add up: the best is compared with its value when it last improved enough, not with the trial before.
    Trials without a score count as trials that did not improve.
    """

    def __init__(self, trials: int, min_delta: float = 0.0) -> None:
        check_whole(trials, "the number of Plateau")
        if not _is_number(min_delta) or min_delta < 0:
            raise ConfigError(f"Plateau({trials}, min_delta={min_delta!r}): give a finite number, at least 0")
        self.trials = trials
        self.min_delta = min_delta
        #: The best, such that higher is better, when it last improved enough, and how many had been told by then.
        self.counted: tuple[float | None, int] = (None, 0)

    def check(self, progress: Progress) -> str | None:
        best, (reference, since) = self._upward(progress.best), self.counted
        if best is not None and (reference is None or best > reference + self.min_delta):
            since = progress.told
            self.counted = best, since
        if progress.told - since < self.trials:
            return None
        return f"no improvement in {count(self.trials, 'trial')}"

    def __repr__(self) -> str:
        return f"Plateau({self.trials}{f', min_delta={self.min_delta!r}' if self.min_delta else ''})"


class MaxFailures:
    """Ends a run that only fails: its first 25 evaluations, or its latest `n`, failed in the same way.

    The same way is the same kind and the same message but for its numbers; of replies that cannot be used it is the
    kind alone.  Evaluations of earlier parts of a run do not count: the cause may have been fixed before a resume.
    """

    FIRST = 25
    #: Kinds whose messages quote what a model said, which is seldom the same twice.
    QUOTING = ("malformed", "schema")

    def __init__(self, n: int) -> None:
        check_whole(n, "the number of MaxFailures")
        self.n = n
        self._alike = 0
        self._limit = min(n, self.FIRST)
        self._way = ("", "")
        self._trace = ""

    def count(self, outcome: Outcome) -> OnlyFailures | None:
        """Count the outcome of an evaluation; gives the error that ends the run when it is enough."""
        if not isinstance(outcome, Failed):
            self._alike, self._limit = 0, self.n
            return None
        if outcome.kind == UNWRITTEN:  # the writer's doing: the search decides what to make of it
            return None
        way = (outcome.kind, "" if outcome.kind in self.QUOTING else same_cause(outcome.message))
        if way != self._way:
            self._limit = self.n if self._alike else self._limit
            # Of a call that failed, Fanfold's own lines would bury the words that say why.
            self._alike, self._way, self._trace = 0, way, outcome.detail if outcome.kind == "error" else ""
        self._alike += 1
        if self._alike < self._limit:
            return None
        which = "the first" if self._limit < self.n else "the last"
        return OnlyFailures(
            f"{which} {self._alike} evaluations failed in the same way ({outcome.kind}: {outcome.message[:200]}). Fix "
            "the cause, then resume with retry_failed=True (--retry-failed), which evaluates them again; or let them "
            "fail with max_failures=None (--max-failures 0)",
            self._trace,
        )


def stop_after(trials: int, target: float | None = None, patience: int | None = None) -> Rule:
    """So many trials, unless the target is reached, or `patience` trials bring nothing better."""
    rule: Rule = MaxTrials(trials)
    if target is not None:
        rule = rule | Target(target)
    return rule if patience is None else rule | Plateau(patience)


def limited(rule: Rule, limit: Rule) -> Rule:
    """`rule | limit`, with `limit` in place of those of its kind that `rule` has as alternatives."""
    parts = rule.rules if isinstance(rule, Either) else (rule,)
    kept = [part for part in parts if type(part) is not type(limit) and not isinstance(part, Never)]
    return Either(*kept, limit) if kept else limit


#: The limits that can be raised while a run works: the rule of each, and what of it is the limit.
LIMITS: dict[str, tuple[type[Any], str]] = {
    "max_trials": (MaxTrials, "n"),
    "max_evaluations": (MaxEvaluations, "n"),
    "max_time": (MaxTime, "seconds"),
    "max_cost": (MaxCost, "amount"),
}


def raised(rule: Rule, limits: Mapping[str, Any]) -> Rule:
    """The rule with these of its limits raised; a limit that it lacks, or that is higher already, stays."""
    for name, value in limits.items():
        kind, amount = LIMITS[name]
        limit = kind(value)
        parts = rule.rules if isinstance(rule, Either) else (rule,)
        own = [getattr(part, amount) for part in parts if type(part) is kind]
        if own and getattr(limit, amount) > max(own):
            rule = limited(rule, limit)
    return rule


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse_seconds(given: float | str) -> float:
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", given)
        seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    else:
        seconds = float(given) if _is_number(given) else 0.0
    if not 0.0 < seconds < math.inf:
        raise ConfigError(f'MaxTime({given!r}): give seconds above 0, or a text such as "90s", "15m" or "2h"')
    return seconds


#: Why runs stop, as a sentence a person would say: the beginning of a reason, and how it is told.
_SENTENCES = (
    (r"[\d,]+ calls?$", r"Stopped: the search has used its \g<0>."),
    (r"[\d,]+ [a-z]+$", r"Stopped after \g<0>, as asked."),
    (r"(time|cost) limit.*", r"Stopped at the \g<0>."),
    (r"(target of .*) reached$", r"Stopped: the \1 is reached."),
    (r"the strategy has nothing more to ask$", "Finished: there is nothing more to try."),
    (r"interrupted$", "Interrupted: resume it to continue."),
    (r"detached$", "Detached: its open calls are with the providers; resume it to collect the answers."),
)


def explained(reason: str | None, unit: str | None = None) -> str:
    """Why a run stopped, in a sentence; trials are called `unit` where the study has another name for them."""
    if not reason:
        return ""
    if unit is not None:
        reason = re.sub(r"\btrial", unit, reason)
    for pattern, sentence in _SENTENCES:
        if (match := re.match(pattern, reason)) is not None:
            return match.expand(sentence)
    return f"Stopped: {reason}{'' if reason.endswith(('.', '!', '?')) else '.'}"
