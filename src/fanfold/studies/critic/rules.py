"""Feedback by rule, for want of anybody who reads: is this an answer to that query at all?

A rule does not understand.  It sees words in common with the query, whether anything is said beyond it, repetition,
refusals, length, and whether the form fits the kind of question; a fluent untruth passes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from fanfold.studies.critic.features import COMMON, CUES, cues, units
from fanfold.studies.critic.reward import unsafe

WEAK = (
    "feedback by rule is weak: it sees words, form, repetition and refusals, not truth "
    "(--feedback human, judge:MODEL or module:function is better)"
)
#: Words of a language change their ends: so many first letters are compared.
STEM = 5
#: So many words that the query does not have are something said.
NEWS = 6
REFUSAL = 0.2
#: What a text that is finished may end with.
_ENDS = frozenset(".!?`)}]\"'。！？」』）؟।۔")

_REFUSAL = re.compile(
    r"\b(i'm sorry|i am sorry|i apologi[sz]e|unfortunately|as an ai|language model|i (can't|cannot|can not|won't)|"
    r"(i am|i'm) (unable|not able)|unable to (answer|help|provide)|i (don't|do not) (know|have))\b"
)
#: What an answer to a kind of question usually has.
_FORMS: Mapping[str, re.Pattern[str]] = {
    "why": re.compile(r"\b(because|since|so|due|causes?|makes?|reasons?|therefore|as)\b", re.I),
    "how to": re.compile(r"(?im)^\W*\d[.)]|\b(first|then|next|after|before|until)\b|^\W*[a-z]+ (it|the|your|a)\b"),
    "compare": re.compile(r"\b(than|while|whereas|but|more|less|better|if|instead|both)\b|\w+er\b", re.I),
    "feel": re.compile(r"\b(you|your|try|common|understand|sorry to hear|normal)\b", re.I),
}  # fmt: skip
_AMOUNT = re.compile(r"\bhow (many|much|long|far|old|often|big)\b", re.I)


def rules(query: str, response: str) -> float:
    """A score from 0 to 1; see above for what it rests on."""
    found = units(response)
    said = [word[:STEM] for word in found if _of_content(word)]
    if not said:
        return 0.0
    asked = {word[:STEM] for word in units(query) if _of_content(word)}
    relevance = min(1.0, 2.0 * len(asked.intersection(said)) / len(asked)) if asked else 1.0
    news = min(1.0, len(set(said) - asked) / NEWS)
    length = min(1.0, len(found) / 12.0) if len(found) < 12 else min(1.0, 150.0 / len(found))
    ended = 1.0 if response.rstrip()[-1:] in _ENDS else 0.7
    refused = REFUSAL if _REFUSAL.search(response[:160].casefold().replace("’", "'")) else 1.0
    value = 0.3 * relevance + 0.4 * news + 0.3 * _form(query, response)
    return value * _fresh(found, said) * length * ended * refused * (1.0 - unsafe("", query, response))


def _of_content(word: str) -> bool:
    """Whether a word says what a text is about; of scripts without spaces the signs do that are not mere grammar."""
    if word >= "\u0e00":
        return not "\u3041" <= word <= "\u309f"
    return len(word) > 2 and word not in COMMON


def _form(query: str, response: str) -> float:
    """Whether the answer has what answers to such a question usually have."""
    if _AMOUNT.search(query):
        return float(any(character.isdigit() for character in response))
    kinds = [kind for kind, is_it in zip(CUES, cues(query)) if is_it and kind in _FORMS]
    return sum(_FORMS[kind].search(response) is not None for kind in kinds) / len(kinds) if kinds else 1.0


def _fresh(found: list[str], said: list[str]) -> float:
    """1 where nothing is said twice, near 0 where one thing is said again and again."""
    threes = list(zip(found, found[1:], found[2:]))
    fresh = len(set(threes)) / len(threes) if threes else 1.0
    most = max(Counter(said).values()) / len(said) if len(said) > 5 else 0.0
    return fresh * min(1.0, 1.25 - most if most > 0.25 else 1.0)
