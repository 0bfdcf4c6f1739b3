"""What the answers of a task look like, and what follows from it: the grader, where a reply ends, what to say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fanfold.errors import ConfigError
from fanfold.tasks.task import Problem

#: The most labels that count as a closed set, and the words of the longest.
MOST_LABELS, LONGEST_LABEL = 40, 6
#: Characters of an answer that is still one line to be matched; what is longer needs a judge.
LONGEST_LINE = 200


@dataclass(frozen=True)
class AnswerForm:
    """How answers look (`name`, in words), and settings of the task that follow."""

    name: str
    grader: Mapping[str, Any]
    max_tokens: int
    stop: tuple[str, ...] = ("\n",)
    #: What to tell a model about the form, as clauses of a prompt's section `format`.
    clauses: tuple[str, ...] = ()
    labels: tuple[str, ...] = field(default=(), repr=False)

    @property
    def said(self) -> str:
        """For people: the form, how it is graded and where replies end."""
        end = "at a blank line" if self.stop == ("\n\n",) else "with the line"
        return f"answers are {self.name}: graded as {self.grader['kind']}, replies end {end}, {self.max_tokens} tokens"


def form_of(problems: Sequence[Problem], source: str) -> AnswerForm:
    """The form of the answers, from the plainest to the freest; free text is refused, because nothing can match it."""
    answers = [str(problem.answer).strip() for problem in problems]
    longest = max(map(len, answers))
    if all((problem.note or {}).get("options") for problem in problems):
        return AnswerForm("one of the options", {"kind": "choice"}, 12)
    if all(isinstance(problem.answer, dict) for problem in problems):
        longest = max(len(json.dumps(problem.answer)) for problem in problems)
        return AnswerForm("JSON", {"kind": "json"}, longest + 32, ("\n\n",), ("Reply with JSON only.",))
    if all(is_number(problem.answer) for problem in problems):
        shown = any("####" in answer for answer in answers)  # with the way to it
        clauses = () if shown else ("Reply with the number only.",)
        return AnswerForm("numbers", {"kind": "numeric"}, 256 if shown else 24, ("\n\n",), clauses)
    if (labels := _labels(answers)) is not None:
        named = ", ".join(labels[:12])
        clauses = (f"Reply with one of: {named}.",) if len(labels) <= 12 else ()
        grader = {"kind": "exact", "first_line": True, "among": list(labels)}
        return AnswerForm(f"one of {len(labels)} labels", grader, longest // 2 + 6, ("\n",), clauses, labels)
    if longest <= LONGEST_LINE and not any("\n" in answer for answer in answers):
        return AnswerForm(
            "one line", {"kind": "exact", "first_line": True}, longest // 2 + 12, clauses=("Answer on one line.",)
        )
    sample = max(answers, key=len)
    raise ConfigError(
        f"{source}: the answers are free text, up to {longest:,} characters long ({sample!r:.60}), which no reply "
        "would match: say how to grade it with --grader judge --judge MODEL, or with --grader contains"
    )


def _labels(answers: Sequence[str]) -> tuple[str, ...] | None:
    """The labels, the most frequent first, if the answers are few, short and used again and again."""
    counts = Counter(answers)
    short = all("\n" not in answer and len(answer.split()) <= LONGEST_LABEL for answer in counts)
    if not short or len(counts) > MOST_LABELS or len(answers) < 3 * len(counts):
        return None
    return tuple(answer for answer, _ in counts.most_common())


def is_number(answer: Any) -> bool:
    if isinstance(answer, bool):
        return False
    text = str(answer).strip()
    return re.fullmatch(r"[-+−]?[$€£]?[0-9][0-9,]*(\.[0-9]+)?%?|.*####[^\n]*[0-9][^\n]*", text, re.DOTALL) is not None


def parsed(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems with answers that are JSON objects in text, as in a CSV file, read as such."""
    if not all(isinstance(problem.answer, str) and problem.answer.lstrip()[:1] == "{" for problem in problems):
        return tuple(problems)
    try:
        return tuple(
            replace(problem, answer=json.loads(problem.answer), note={**(problem.note or {}), "shown": problem.answer})
            for problem in problems
        )
    except ValueError:
        return tuple(problems)


def label_of(column: str) -> str:
    """What a prompt calls a column: its name, in words."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[_\-.]+", " ", column).strip()
    return words[:1].upper() + words[1:]
