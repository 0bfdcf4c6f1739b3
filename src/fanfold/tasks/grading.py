"""Graders by rule: exact, labels, numeric, choice, contains, regex, JSON schema, and code that is run."""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from fanfold.errors import ConfigError
from fanfold.schemas import check_schema, fault, same
from fanfold.tasks import reading, sandbox
from fanfold.tasks.task import Grade, Problem

#: Characters of what was understood that are kept, and differences to the right JSON that are told.
LONGEST, DIFFERENCES = 200, 3


@dataclass(frozen=True)
class Exact:
    """The reply is the answer (or one of them), whatever its case, spacing, and the punctuation around it.

    With `first_line` what follows the first line does not count; with `case` upper and lower case matter.  Where the
    answers are `among` a few labels, a reply that names one of them and no other counts as that label.
    """

    first_line: bool = False
    case: bool = False
    among: tuple[str, ...] = ()

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        said = reading.first_line(reply) if self.first_line else reply
        if self.among and self._plain(said) not in map(self._plain, self.among):
            said = reading.chosen(said, {label: label for label in self.among}) or said
        right = any(self._plain(said) == self._plain(answer) for answer in _answers(problem))
        return _grade(right, reading.plain(said), self._wrong(said, problem))

    def _wrong(self, said: str, problem: Problem) -> str:
        """What is wrong with the form of a reply."""
        if self.among and self._plain(said) not in map(self._plain, self.among):
            return f"the reply is none of {', '.join(self.among)}"
        text = reading.plain(said)
        there = any(reading.has_words(reading.plain(answer), text) for answer in _answers(problem))
        return "the right answer stands in the reply, but not alone" if there else ""

    def check(self, problem: Problem) -> str:
        return _lacking(problem)

    def _plain(self, text: str) -> str:
        if not self.case:
            return reading.plain(text)
        words = " ".join(text.split())
        return words.strip(reading.WRAPPING) or words


@dataclass(frozen=True)
class Labels:
    """The reply names the labels of the answer, in any order, and no others: `bug; ui`, one a line, or a JSON list.

    With `partial` the score is the share of all labels named, in the reply or the answer, that both name.
    """

    partial: bool = False

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        right = self._right(problem)
        said = labels_in(reply, commas=not any("," in label for label in right))
        missing, more = sorted(right - said), sorted(said - right)
        share = len(right & said) / len(right | said) if right | said else 1.0
        told = {"missing": missing, "too many": more}
        wrong = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in told.items() if labels)
        return _grade(share if self.partial else said == right, "; ".join(sorted(said)), wrong)

    def check(self, problem: Problem) -> str:
        return "" if problem.answer == [] else _lacking(problem)

    def _right(self, problem: Problem) -> set[str]:
        if isinstance(problem.answer, list | tuple):
            return labels_in(reading.as_json(_answers(problem)))
        return labels_in(str(problem.answer))


#: What separates labels; a comma may be part of one where something else separates.
_SEPARATORS, _COMMAS = re.compile(r"\s*[;；؛|\n]\s*"), re.compile(r"\s*[,，、،]\s*")


def labels_in(text: str, *, commas: bool = True) -> set[str]:
    """The labels that a text lists; `commas` separate them where nothing else does."""
    if (values := reading.json_values(text)) and isinstance(values[-1], list):
        parts = list(map(str, values[-1]))
    else:
        commas = commas and _SEPARATORS.search(text.strip()) is None
        parts = (_COMMAS if commas else _SEPARATORS).split(text)
    return {reading.plain(re.sub(r"\A(?:[-*•· ]|[0-9]{1,2}[.)] )+", "", part)) for part in parts} - {""}


@dataclass(frozen=True)
class Numeric:
    """The reply's final number equals the answer's: after `####`, in `\\boxed{}`, or else the last one.

    Both are compared exactly, unless `tolerance` says how far they may be apart.  1,234 is 1234; $, % and units do not
    count.  With `decimal` a comma, 1.234,5 is 1234.5.  An answer of single precision, as numpy and Parquet have it, is
    the number that it stands for, too: 0.1 for 0.10000000149011612.
    """

    tolerance: float = 0.0
    decimal: Literal[".", ","] = "."

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise ConfigError(f"tolerance must be a number that is not negative, not {self.tolerance!r}")

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        said = self._number(reply)
        if said is None:
            return Grade(0.0, feedback="there is no number in the reply")
        bound = Fraction(self.tolerance)
        answers = [*self._numbers(problem), *map(self._number, map(reading.meant, _given(problem)))]
        right = any(abs(said.value - answer.value) <= bound for answer in answers if answer)
        return _grade(right, said.text)

    def check(self, problem: Problem) -> str:
        if lacking := _lacking(problem):
            return lacking
        unread = [answer for answer, read in zip(_answers(problem), self._numbers(problem)) if read is None]
        return f"the answer {unread[0]!r:.80} has no number in it: use another grader, or correct it" if unread else ""

    def _numbers(self, problem: Problem) -> list[reading.ExactNumber | None]:
        return [self._number(answer) for answer in _given(problem)]

    def _number(self, answer: Any) -> reading.ExactNumber | None:
        if not isinstance(answer, str):
            return reading.number(reading.as_json(answer))
        return reading.number(answer if self.decimal == "." else answer.translate(_SWAPPED))


_SWAPPED = str.maketrans(".,", ",.")


@dataclass(frozen=True)
class MultipleChoice:
    """The reply decides for the right option, by its letter or its text; naming several is wrong.

    The options are the problem's `note["options"]` (a list, or texts by label), or lines such as "A) Paris" in its
    input; the answer is a label, an option's text, or its position counted from 0.
    """

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        options = options_of(problem)
        said = reading.chosen(reply, options)
        wrong = "" if said else "the reply does not decide for one of the options"
        return _grade(said is not None and said == right_option(problem, options), said or "", wrong)

    def check(self, problem: Problem) -> str:
        options = options_of(problem)
        if len(options) < 2:
            return (
                "there are no options: give them as a list in the field 'options', or as lines like 'A) ...' in input"
            )
        if right_option(problem, options) is None:
            counted = "; positions count from 0" if isinstance(problem.answer, int) else ""
            return (
                f"the answer {problem.answer!r:.80} is none of the options {', '.join(options)} nor one of their "
                f"texts{counted}"
            )
        return ""


@dataclass(frozen=True)
class Contains:
    """The answer (or one of them; with `every` each of them) stands in the reply as words of its own."""

    every: bool = False

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        text = reading.plain(reply)
        found = [reading.has_words(reading.plain(answer), text) for answer in _answers(problem)]
        right = all(found) if self.every else any(found)
        return _grade(right, ", ".join(answer for answer, there in zip(_answers(problem), found) if there))

    def check(self, problem: Problem) -> str:
        return _lacking(problem)


@dataclass(frozen=True)
class Regex:
    """What `pattern` finds in the reply (its `group`, in the first match or the last) is graded by another grader.

    A problem without an answer is right when the pattern is found.  Some patterns take forever on some texts, and
    Python cannot interrupt them, so each search runs in the sandbox (about 30 ms): one that uses a second of processor
    time counts as not found.
    """

    pattern: str
    group: int | str | None = None
    last: bool = False
    ignore_case: bool = True
    then: Exact | Numeric | MultipleChoice | Contains = field(default_factory=Exact)

    def __post_init__(self) -> None:
        try:
            compiled = re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error
        group = self._group
        if group not in compiled.groupindex and not (isinstance(group, int) and 0 <= group <= compiled.groups):
            raise ConfigError(f"pattern {self.pattern!r} has no group {group!r}: put what is wanted in parentheses")

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        flags = int(re.IGNORECASE if self.ignore_case else 0)
        search = f"find({self.pattern!r}, {flags}, {reply!r}, {self._group!r}, {self.last})"
        ran = await sandbox.run(_FIND, [search], sandbox.CodeBounds(seconds=60.0, cpu=1), needs=())  # our own code
        if ran.cut == "time":
            raise TimeoutError("searching a reply took more than a minute on the clock: is the machine overloaded?")
        found = ran.tests[0].value
        if not isinstance(found, str):
            why = ran.tests[0].error
            return _grade(False, f"({why})" if why else "", why or f"nothing in the reply fits {self.pattern}")
        return await self.then(found, problem) if problem.answer is not None else _grade(True, found)

    def check(self, problem: Problem) -> str:
        return "" if problem.answer is None else self.then.check(problem)

    @property
    def _group(self) -> int | str:
        if self.group is not None:
            return self.group
        return min(1, re.compile(self.pattern).groups)


_FIND = """
import re
def find(pattern, flags, text, group, last):
    found = None
    for found in re.compile(pattern, flags).finditer(text):
        if not last:
            break
    return None if found is None else found[group] or ""
"""


@dataclass(frozen=True)
class JsonSchema:
    """The reply holds JSON (bare or in a fenced block) that fits the schema and, if there is an answer, equals it.

    Of several values the last that fits counts.  Schemas are those of draft 2020-12 without `pattern` and `format`.
    A schema with an unknown keyword is refused when the grader is made.
    """

    schema: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_schema(self.schema)

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        values = reading.json_values(reply)
        if not values:
            return Grade(0.0, "(no JSON)", "there is no JSON in the reply")
        fitting = [value for value in values if not fault(value, self.schema)]
        if not fitting:
            why = fault(values[-1], self.schema)
            return _grade(False, f"({why})", f"the JSON does not fit the schema: {why}")
        right = problem.answer is None or same(fitting[-1], problem.answer)
        wrong = "" if right else "; ".join(itertools.islice(_differences(fitting[-1], problem.answer), DIFFERENCES))
        return _grade(right, reading.as_json(fitting[-1]), wrong)


def _differences(said: Any, right: Any, where: str = "") -> Iterator[str]:
    """Where a JSON value is not the right one, in words."""
    if isinstance(said, Mapping) and isinstance(right, Mapping):
        for name in right:
            path = f"{where}.{name}" if where else str(name)
            if name in said:
                yield from _differences(said[name], right[name], path)
            else:
                yield f"{path} is missing"
        yield from (f"{where}.{name} is too much".lstrip(".") for name in said if name not in right)
    elif isinstance(said, list) and isinstance(right, list) and len(said) == len(right):
        for place, (one, other) in enumerate(zip(said, right)):
            yield from _differences(one, other, f"{where}.{place}".lstrip("."))
    elif not same(said, right):
        yield f"{where or 'the value'} is {reading.as_json(said):.80}, not {reading.as_json(right):.80}"


@dataclass(frozen=True)
class CodeTests:
    """The reply's Python code passes the problem's tests, run in a sandbox (what that is worth: `sandbox.run`).

    The problem's answer is a list of tests: a pair of an expression and the JSON value it must have, or a statement
    that must not raise (`assert f(2) == 4`).  All must pass; with `partial` the score is the share that does.  Where
    the sandbox lacks a guard, code is refused before it is run, unless it is `unsafe`.
    """

    partial: bool = False
    seconds: float = 10.0
    cpu: int = 5
    memory: int = 512
    unsafe: bool = False

    def __post_init__(self) -> None:
        self._bounds  # noqa: B018 - what cannot be used is refused here

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        tests = _tests(problem)
        needs = () if self.unsafe else sandbox.NEEDED
        ran = await sandbox.run(reading.code(reply), [text for text, _ in tests], self._bounds, needs)
        if ran.cut == "unguarded":
            raise ConfigError(unguarded())
        failures = [
            _failed(text, done)
            for (text, wanted), done in zip(tests, ran.tests)
            if done.error or (wanted is not _ANYTHING and not same(done.value, wanted))
        ]
        passed = len(tests) - len(failures)
        said = f"{passed} of {len(tests)} tests passed" + (f"; {failures[0]}" if failures else "")
        return _grade(passed / len(tests) if self.partial else not failures, said, "; ".join(failures[:3]))

    def check(self, problem: Problem) -> str:
        wanted = "the answer must be a list of tests: 'assert f(2) == 4', or ['f(2)', 4]"
        if not isinstance(answer := problem.answer, list | tuple) or not answer:
            return wanted
        for test in answer:
            pair = isinstance(test, list | tuple) and len(test) == 2 and isinstance(test[0], str)
            if not isinstance(test, str) and not pair:
                return f"{wanted}, not {test!r:.80}"
        return ""

    @property
    def _bounds(self) -> sandbox.CodeBounds:
        return sandbox.CodeBounds(self.seconds, self.cpu, self.memory)


def _failed(test: str, done: sandbox.Tested) -> str:
    """A test with what is wrong; in the place of one of several lines stands the line that failed."""
    wrong = done.error or f"gave {reading.as_json(done.value)[:60]}"
    return wrong if "\n" in test else f"{test}: {wrong}"


def unguarded() -> str:
    """Why code that a model wrote is not run on this machine; "" where it is."""
    lacking = sandbox.missing()
    return lacking and (
        f"code that a model wrote is not run here, because this machine lacks {lacking}: use one that has it, or "
        "say unsafe = true (--unsafe), and the code can read, write and send whatever you can"
    )


_ANYTHING = object()


def _tests(problem: Problem) -> list[tuple[str, Any]]:
    return [(test, _ANYTHING) if isinstance(test, str) else (test[0], test[1]) for test in problem.answer]


def options_of(problem: Problem) -> dict[str, str]:
    """The options of a multiple choice, by label."""
    given = (problem.note or {}).get("options")
    if isinstance(given, Mapping):
        return {str(label): str(text) for label, text in given.items()}
    if given is not None:
        labels = string.ascii_uppercase if len(given) <= 26 else [str(number + 1) for number in range(len(given))]
        return {label: str(text) for label, text in zip(labels, given)}
    return dict(re.findall(r"^[ \t]*\(?([A-Z])[).:][ \t]+(\S.*?)[ \t]*$", problem.input, re.MULTILINE))


def right_option(problem: Problem, options: Mapping[str, str]) -> str | None:
    """The label of the right option."""
    answer = problem.answer
    if isinstance(answer, int) and not isinstance(answer, bool):
        return list(options)[answer] if 0 <= answer < len(options) else None
    if not isinstance(answer, str):
        return None
    by_label = [label for label in options if label.casefold() == answer.strip().casefold()]
    by_text = [label for label, text in options.items() if reading.plain(text) == reading.plain(answer)]
    return next(iter(by_label or by_text), None)


def _given(problem: Problem) -> Sequence[Any]:
    return problem.answer if isinstance(problem.answer, list | tuple) else [problem.answer]


def _answers(problem: Problem) -> list[str]:
    return [answer if isinstance(answer, str) else reading.as_json(answer) for answer in _given(problem)]


def _lacking(problem: Problem) -> str:
    answers = _given(problem)
    if not answers or any(answer is None or not str(answer).strip() for answer in answers):
        return "there is no answer to compare with: fill it in, or leave the problem out"
    return ""


def _grade(score: float, said: str, wrong: str = "") -> Grade:
    # half a surrogate pair, which JSON and Python can spell, cannot be written to a ledger
    kept = [text[:most].encode("utf-8", "replace").decode() for text, most in ((said, LONGEST), (wrong, 3 * LONGEST))]
    return Grade(float(score), kept[0], kept[1] if score < 1 else "")
