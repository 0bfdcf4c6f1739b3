"""What the answers of a task look like, and what follows from it: the grader, where a reply ends, what to say."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fanfold.errors import ConfigError
from fanfold.tasks import reading
from fanfold.tasks.programs import asserts_in
from fanfold.tasks.task import Problem

#: The most labels that count as a closed set, and the words of the longest.
MOST_LABELS, LONGEST_LABEL = 40, 6
#: Words in the name of a column, at most.
LONGEST_NAME = 8
#: The share of one answer from which on it is said.
MOSTLY = 0.9
#: The share of answers with several labels from which on answers are lists.
SEVERAL = 0.2
#: Characters of one line, and of several, that a reply can still match; longer answers need a judge.
LONGEST_LINE, LONGEST_LINES = 200, 400
#: Words from which on half of the answers are sentences, which seldom are repeated word for word, and what is said.
SENTENCE, MEANING = 6, " (sentences, to be met word for word; --grader judge --judge MODEL compares what they mean)"
#: Graders that read the answer out of a longer reply, and the tokens such a reply has at least and at most.
OPEN, OPEN_TOKENS, MOST_TOKENS = ("contains", "regex", "code", "judge", "pairwise", "own"), 256, 2048
#: Tokens of a reply that works its number out or is code, at least.
LONG_TOKENS = 512

_NUMBER = re.compile(
    r"(?:[$€£¥]|[A-Z]{3}\s)?\s?[-+−]?[$€£¥]?"
    r"(?P<number>(?!0[0-9])(?:[0-9]{1,3}(?:[,.\u00a0\u202f][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+(?:[.,][0-9]+)?))"
    r"\s?(?P<unit>[^\d\s][^\d\n]{0,15})?"
)
_FINE = re.compile(r"[0-9][.,][0-9]{5,}$")  # that no reply will have by itself
_WORKED = re.compile(r".*####[^\n]*[0-9][^\n]*", re.DOTALL)
_COMMA = re.compile(r".*\.[0-9]{3},[0-9]+|[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})|[0-9]{4,},[0-9]+|0,[0-9]+")
_POINT = re.compile(r".*,[0-9]{3}\.[0-9]+|[0-9]+\.(?:[0-9]{1,2}|[0-9]{4,})|[0-9]{4,}\.[0-9]+|0\.[0-9]+")


@dataclass(frozen=True)
class AnswerForm:
    """How answers look (`name`, in words), and settings of the task that follow.

    `grader` is None for free text: no rule can tell whether a reply is right.  `clauses` tell a model about the form,
    for a prompt's section `format`.  `hint` names a grader that may fit better.
    """

    name: str
    grader: Mapping[str, Any] | None
    max_tokens: int
    stop: tuple[str, ...] = ("\n",)
    clauses: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    hint: str = ""

    def under(self, kind: str, longest: int) -> AnswerForm:
        """The form under a grader that somebody chose: some graders need the whole of a longer reply."""
        if kind == "labels":  # perhaps one on each line
            clauses = () if self.labels else self.clauses
            return replace(self, stop=("\n\n",), clauses=clauses, labels=(), hint="")
        if kind not in OPEN and self.grader is not None:
            return self
        return replace(self, stop=(), clauses=(), hint="", max_tokens=min(MOST_TOKENS, max(OPEN_TOKENS, longest)))

    def with_room(self, max_tokens: int | None) -> AnswerForm:
        """The form where somebody gives replies more room: number or option may then come after some reasoning."""
        if max_tokens is None:
            return self
        last = self.name.startswith("numbers") or self.name == "one of the options"
        reasons = last and max_tokens > self.max_tokens
        return replace(self, max_tokens=max_tokens, stop=() if reasons else self.stop)

    def in_words(self, kind: str) -> str:
        """For people: the form, how it is graded and where replies end."""
        end = self.stop[0] if self.stop else ""
        ends = {"\n": "with the line", "\n\n": "at a blank line"}.get(end, "where the model ends them")
        graded = "by a function of yours" if kind == "own" else f"as {kind}"
        return f"answers are {self.name}: graded {graded}{self.hint}, replies end {ends}, {self.max_tokens} tokens"


def form_of(problems: Sequence[Problem]) -> AnswerForm:
    """The form of the answers, from the plainest to the freest."""
    answers = [
        (problem.shown if isinstance(problem.answer, tuple) else str(problem.answer)).strip() for problem in problems
    ]
    tokens = longest_of(problems)
    if all((problem.note or {}).get("options") for problem in problems):
        return AnswerForm("one of the options", {"kind": "choice"}, 12)
    if all(isinstance(problem.answer, list) and asserts_in(problem.answer) for problem in problems):
        return AnswerForm("tests", {"kind": "code"}, min(MOST_TOKENS, max(LONG_TOKENS, tokens)), ())
    if all(isinstance(problem.answer, dict | list) for problem in problems):
        hint = _in_any_order([problem.answer for problem in problems])
        return AnswerForm("JSON", {"kind": "json"}, 2 * tokens + 32, (), ("Reply with JSON only.",), hint=hint)
    labels = _labels(answers)
    if (numeric := _numeric(problems, answers)) is not None:
        plain = [str(reading.meant(problem.answer)) for problem in problems]  # not 0.10000000149011612
        return _numbers(numeric, answers, labels, fine=any(map(_FINE.search, plain)))
    if labels is not None:
        clauses = (f"Reply with one of: {', '.join(labels)}.",) if len(labels) <= 12 else ()
        grader = {"kind": "exact", "first_line": True, "among": list(labels)}
        name = _counted(labels, answers, "labels")
        return AnswerForm(name, grader, tokens + 6, ("\n",), clauses, labels, _in_any_order(answers))
    lines = [line for answer in answers for line in answer.split("\n")]
    if max(map(len, lines)) > LONGEST_LINE or max(map(len, answers)) > LONGEST_LINES:
        return AnswerForm("free text", None, min(MOST_TOKENS, tokens + 32), ())
    if len(lines) == len(answers):
        grader = {"kind": "exact", "first_line": True}
        sentences = statistics.median(len(answer.split()) for answer in answers) >= SENTENCE
        hint = _in_any_order(answers) or (MEANING if sentences else "")
        return AnswerForm("one line", grader, tokens + 12, clauses=("Answer on one line.",), hint=hint)
    stop = () if any("\n\n" in answer for answer in answers) else ("\n\n",)
    return AnswerForm("a few lines", {"kind": "exact"}, tokens + 24, stop)


def _numbers(
    grader: Mapping[str, Any], answers: Sequence[str], labels: tuple[str, ...] | None, *, fine: bool
) -> AnswerForm:
    if any("####" in answer for answer in answers):  # with the way to it
        return AnswerForm("numbers", grader, LONG_TOKENS, ())
    if labels is not None and len(labels) <= 6:
        clause = f"Reply with one of: {', '.join(labels)}."
        return AnswerForm(_counted(labels, answers, "numbers"), grader, 12, ("\n",), (clause,), labels)
    exactly = " with many decimals, and a reply must have all (or --grader numeric:tolerance=0.01)" if fine else ""
    return AnswerForm(f"numbers{exactly}", grader, 24, ("\n\n",), ("Reply with the number only.",))


def _in_any_order(answers: Sequence[Any]) -> str:
    """What to say where answers list some of a few labels, so that their order probably means nothing."""
    for mark in ";|,":
        rows = [answer.split(mark) if isinstance(answer, str) else answer for answer in answers]
        if not all(isinstance(row, list) and all(isinstance(part, str) for part in row) for row in rows):
            return ""
        sets = [{reading.plain(part) for part in row} for row in rows]
        several = sum(len(row) > 1 for row in rows) >= len(rows) * SEVERAL
        once = all(len(row) == len(own) for row, own in zip(rows, sets))
        varied = len({frozenset(own) for own in sets}) > 1
        if several and once and varied and _labels([part for row in rows for part in row]) is not None:
            count = len(set().union(*sets))
            return f" (lists of {count} labels; --grader labels takes them in any order)"
    return ""


def _counted(labels: Sequence[str], answers: Sequence[str], what: str) -> str:
    """How many labels there are; one that nearly all answers have is named, because saying it always scores well."""
    if len(labels) == 1:
        return f"all {labels[0]!r}"
    share = sum(reading.plain(answer) == reading.plain(labels[0]) for answer in answers) / len(answers)
    mostly = f" ({100 * share:.0f} % are {labels[0]!r})" if share >= MOSTLY else ""
    return f"one of {len(labels)} {what}{mostly}"


def longest_of(problems: Sequence[Problem]) -> int:
    """Tokens of the longest answer, on the safe side: two bytes each."""
    return max(len(problem.shown.strip().encode("utf-8", "replace")) for problem in problems) // 2


def _labels(answers: Sequence[str]) -> tuple[str, ...] | None:
    """The labels, the most frequent first, if the answers are few, short and used again and again."""
    counts = Counter(answers)
    short = all("\n" not in answer and len(answer.split()) <= LONGEST_LABEL for answer in counts)
    kinds = len(set(map(reading.plain, counts)))
    if not short or kinds > MOST_LABELS or len(answers) < 3 * kinds:
        return None
    return tuple({reading.plain(answer): answer for answer, _ in reversed(counts.most_common())}.values())[::-1]


def _numeric(problems: Sequence[Problem], answers: Sequence[str]) -> dict[str, Any] | None:
    """The grader of answers that are all numbers of one unit, written in one way; None where they are not.

    Signs such as $ and % may differ: they say nothing that the number does not.
    """
    units: set[str] = set()
    numbers: list[str] = []
    for problem, answer in zip(problems, answers):
        if isinstance(problem.answer, bool):
            return None
        if _WORKED.fullmatch(answer):
            continue
        if (written := _NUMBER.fullmatch(answer)) is None:
            return None
        units.add((written["unit"] or "").strip(" %$€£¥.").casefold().removesuffix("s"))
        numbers.append(written["number"])
    comma, point = (any(map(pattern.fullmatch, numbers)) for pattern in (_COMMA, _POINT))
    if len(units) > 1 or (comma and point):
        return None
    return {"kind": "numeric", "decimal": ","} if comma else {"kind": "numeric"}


def tidied(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems with answers as they are meant: JSON and tests in texts are read, white space around is not kept."""
    values = [asserts_in(problem.answer) or reading.value_in(problem.answer) for problem in problems]
    if not all(isinstance(value, dict | list) for value in values):
        return tuple(
            replace(problem, answer=problem.answer.strip()) if isinstance(problem.answer, str) else problem
            for problem in problems
        )
    return tuple(replace(problem, answer=value) for problem, value in zip(problems, values))


def shortened(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems, with 3 for 3.0 and a day without 00:00:00 where all answers are such: tables hold them so."""
    answers = [problem.answer for problem in problems]
    for end in (".0", " 00:00:00"):
        such = re.compile(rf"-?[0-9-]+{re.escape(end)}")
        if all(isinstance(each, str | float | datetime) and such.fullmatch(str(each)) for each in answers):
            texts = [str(each).removesuffix(end) for each in answers]
            short = [int(text) if isinstance(each, float) else text for each, text in zip(answers, texts)]
            return tuple(replace(problem, answer=each) for problem, each in zip(problems, short))
    return tuple(problems)


def spelled_alike(problems: Sequence[Problem], labels: Sequence[str]) -> tuple[Problem, ...]:
    """The problems with every label in its most frequent spelling, so that prompts show one."""
    spelling = {reading.plain(label): label for label in labels}
    return tuple(
        replace(problem, answer=spelling.get(reading.plain(problem.answer), problem.answer))
        if isinstance(problem.answer, str)
        else problem
        for problem in problems
    )


def listed(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems with answers that are shown whole: a list is one answer, not several that are right."""
    return tuple(
        replace(problem, note={**(problem.note or {}), "shown": reading.as_json(problem.answer)})
        if isinstance(problem.answer, list)
        else problem
        for problem in problems
    )


def free_text(problems: Sequence[Problem], source: str) -> ConfigError:
    """Why answers that no reply would match cannot be graded without a word from the user."""
    sample = max((problem.shown for problem in problems), key=len)
    return ConfigError(
        f"{source}: the answers are free text, up to {len(sample):,} characters long ({sample!r:.60}), which no reply "
        "would match: choose how to grade it with --grader judge --judge MODEL, with a function of yours "
        "(--grader grade.py), or with --grader contains"
    )


def looks_like_data(names: Iterable[Any]) -> bool:
    """Whether what should be names of columns are values: a number, or a whole sentence."""
    return any(_NUMBER.fullmatch(text) or len(text.split()) > LONGEST_NAME for text in map(str, names))


def label_of(column: str) -> str:
    """What a prompt calls a column: its name, in words."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[_\-.]+", " ", column).strip()
    return words[:1].upper() + words[1:]
