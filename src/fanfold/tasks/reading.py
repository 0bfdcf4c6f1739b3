"""How an answer is read out of a reply: first line, plain text, final number, chosen option, JSON, code.

A reply may be anything, so everything here takes time linear in its length and gives None where there is no answer.
"""

from __future__ import annotations

import ast
import json
import math
import re
import struct
import textwrap
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

#: What may stand around an answer without being part of it.
WRAPPING = " \t\r\n.,;:!?\"'`*_()[]{}<>“”‘’«»…。、，；：！？（）［］｛｝「」『』【】〔〕《》〈〉،؛؟۔।\u200e\u200f"
#: A letter or digit that beside a word makes it another word; some scripts write no blanks between words, or a particle
#: right behind one: Thai to Khmer, kana, Chinese characters, Hangul.
_LETTER = (
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    r"\uf900-\ufaff\U00020000-\U0003ffff]"
)
#: Digits in a number that is still read; longer ones are not answers, and slow.
_MOST_DIGITS = 1000
#: Places in a reply where a JSON value is looked for.
_MOST_STARTS = 1000
#: Digits from which on a number that single precision has exactly was hardly meant so.
_SINGLE = 12

_NUMBER = re.compile(
    rf"(?<!{_LETTER}|_)(?<!(?:{_LETTER}|_)\.)"
    r"(?P<whole>[0-9]{1,3}(?:[,\u00a0\u202f][0-9]{3})+(?![0-9])|[0-9]*)(?P<part>\.[0-9]+)?(?<=[0-9])"
    r"(?:(?P<power>[eE][-+]?[0-9]{1,3})(?!\w)|/(?P<below>[0-9]+)(?![0-9/]|\.[0-9]))?"
)
_HEADING = re.compile(r"[.)]\s*\w")
_FRAC = re.compile(r"\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_ARABIC_MARKS = str.maketrans("٫٬", ".,")
_FENCE = re.compile(r"```[ \t]*([^\s`]*)[^\n`]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_DECLARED = re.compile(
    r"(?:\b(?:answer|option|choice)\b\W*(?:(?:is|was|would be|must be)\b\W*)?|boxed\W*(?:text\W*)?)$", re.I
)
_NEGATED = re.compile(
    r"(?:(?:\bnot|n['’]t|\bnever|\brather than|\binstead of)\W+(?:option\W+|choice\W+)?|(?:不是|并非|而非|不属于)\W*)$",
    re.I,
)
#: What stands behind a letter that is an option and not a word.
_CLOSED = re.compile(r"[ \t]{0,3}(?:[).:,/&\]*}\"。，、；：）】」]|$|(?:or|and)\b)", re.MULTILINE)


def first_line(text: str) -> str:
    """The first line that has anything on it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def plain(text: str) -> str:
    """A text without what does not matter: case, white space, and the punctuation and quotes around it."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(WRAPPING) or folded  # an answer that is itself punctuation stays what it is


def has_words(words: str, text: str) -> bool:
    """Whether `words` stand in a text as words of their own, not as part of another word; both as `plain` has them."""
    return re.search(rf"(?<!{_LETTER}){re.escape(words)}(?!{_LETTER})", text) is not None


@dataclass(frozen=True)
class ExactNumber:
    """A number exactly, and as it was written (without separators)."""

    value: Fraction
    text: str


def number(text: str) -> ExactNumber | None:
    """The final answer of a text: the number after `####`, or in `\\boxed{}`, whichever comes last; else its last one.

    Thousands separators, currency and percent signs, decimals, exponents, fractions such as 3/4 and the digits of any
    script are understood.
    """
    text = _OTHER_DIGIT.sub(lambda found: str(unicodedata.digit(found[0])), text).translate(_ARABIC_MARKS)
    text = text.replace("\\,", ",").replace("{,}", ",").replace("\\$", "$")
    text = _FRAC.sub(r"\1/\2", text)
    marked = [found for found in (_after_hashes(text), _in_box(text)) if found is not None]
    if marked:
        return max(marked, key=lambda found: found[0])[1]
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return None if last is None else _read(text, last)


def _after_hashes(text: str) -> tuple[int, ExactNumber | None] | None:
    for mark in reversed(list(re.finditer("####(?!#)", text))):
        line = text[mark.end() : mark.end() + 300].split("\n", 1)[0]
        found = _NUMBER.search(line)
        # "#### 2. Add them up" and "#### Step 2" are headings, not answers
        if found is not None and not re.search(r"\w", line[: found.start()]) and not _HEADING.match(line, found.end()):
            return mark.start(), _read(line, found)
    return None


def _in_box(text: str) -> tuple[int, ExactNumber | None] | None:
    at = text.rfind("\\boxed{")
    if at < 0:
        return None
    depth, end = 0, at + 6
    for end in range(at + 6, min(len(text), at + 300)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            break
    inside = text[at + 7 : end]
    found = list(_NUMBER.finditer(inside))
    return (at, _read(inside, found[-1])) if found else None


def _read(text: str, found: re.Match[str]) -> ExactNumber | None:
    """The number that was found, with its sign."""
    whole = re.sub(r"[^0-9]", "", found["whole"])
    written = (whole or "0") + (found["part"] or "") + (found["power"] or "")
    if len(written) > _MOST_DIGITS:
        return None
    value = Fraction(written)
    start = found.start()
    if found["below"]:
        below = found["below"]
        if len(below) > _MOST_DIGITS:
            return None
        if text[start - 1 : start] == "/" or not int(below):  # the end of a date, or no fraction at all
            return ExactNumber(Fraction(int(below)), below)
        value, written = value / int(below), f"{written}/{below}"
    if text[start - 1 : start] in ("$", "€", "£", "¥"):
        start -= 1
    if text[start - 1 : start] in ("-", "−") and not re.match(r"[\w)\]}%]", text[max(0, start - 2) : start - 1]):
        value, written = -value, f"-{written}"
    return ExactNumber(value, written)


def chosen(reply: str, options: Mapping[str, str]) -> str | None:
    """The label of the one option a reply decides for, by its label or its text; None when it names none or several.

    What is declared ("the answer is B", `\\boxed{B}`) counts before what is only mentioned; what is negated does not.
    """
    bare = plain(reply)
    exact = {
        label for label, text in options.items() if bare and bare in (label.casefold(), plain(text), plain(_bare(text)))
    }
    if exact:
        return exact.pop() if len(exact) == 1 else None
    named: set[str] = set()
    declared: set[str] = set()
    end = -10  # of the last mention that was declared
    for start, stop, label, between in sorted(_mentions(reply, options)):
        before = reply[max(0, start - 40) : start]
        if _NEGATED.search(before):
            continue
        named.add(label)
        if _DECLARED.search(before) or (start - end <= 6 and not re.search(between, reply[end:start])):
            declared.add(label)
            end = stop
    decided = declared or named
    return decided.pop() if len(decided) == 1 else None


def _mentions(reply: str, options: Mapping[str, str]) -> list[tuple[int, int, str, str]]:
    """Where options are named: start, end, label, and what may not stand between a declared option and this one.

    A longer option hides a shorter one inside it.
    """
    found: list[tuple[int, int, str, str]] = []
    rest = reply
    for label, text in sorted(options.items(), key=lambda option: -len(option[1])):
        words = r"\s+".join(map(re.escape, _bare(text).split()))
        if not words:
            continue

        def hide(match: re.Match[str], label: str = label) -> str:
            found.append((match.start(), match.end(), label, r"[\w\n]"))
            return "_" * len(match[0])

        rest = re.sub(rf"(?<!{_LETTER}){words}(?!{_LETTER})", hide, rest, flags=re.IGNORECASE)
    known = {label.casefold(): label for label in options}
    labels = "|".join(map(re.escape, options))
    for match in re.finditer(rf"(?<!{_LETTER}|_)(?:{labels})(?!{_LETTER}|_)(?!['’]\w)", rest, re.IGNORECASE):
        start, end = match.span()
        label = known[match[0].casefold()]
        closed = _CLOSED.match(rest, end) is not None
        declared = _DECLARED.search(rest[max(0, start - 40) : start]) is not None
        # "A" and "I" are words as well, and so is many a small letter: those count with a mark or a declaration
        if (declared and closed) or (match[0] == label and (declared or closed or label not in ("A", "I"))):
            found.append((start, end, label, r"[\w.\n]"))
    return found


def _bare(text: str) -> str:
    """An option without its article."""
    return re.sub(r"^\s*(?:the|an?)\s+(?=\S)", "", text, flags=re.IGNORECASE)


def json_values(reply: str) -> list[Any]:
    """The JSON values in a reply: all of it, else its fenced blocks, else every object or list in its text."""
    whole = _json(reply)
    if whole:
        return whole
    fenced = [value for _, block in _FENCE.findall(reply) for value in _json(block)]
    if fenced:
        return fenced
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    found: list[Any] = []
    at = 0
    for _ in range(_MOST_STARTS):
        start = re.compile(r"[\[{]").search(reply, at)
        if start is None:
            break
        try:
            value, at = decoder.raw_decode(reply, start.start())
            found.append(value)
        except (ValueError, RecursionError):
            at = start.end()
    return found


def value_in(answer: Any) -> Any:
    """An object or a list that stands in a text as JSON, or as Python prints it; anything else as it is."""
    if not isinstance(answer, str) or answer.lstrip()[:1] not in ("{", "["):
        return answer
    for read in (json.loads, ast.literal_eval):
        try:
            return read(answer.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return answer


def _json(text: str) -> list[Any]:
    try:
        return [json.loads(text, parse_constant=_no_constant)]
    except (ValueError, RecursionError):
        return []


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def as_json(value: Any) -> str:
    """A value as text: JSON where it can be, for people and for comparing."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(deeply nested)"


def meant(value: Any) -> Any:
    """The number that one of single precision stands for, 0.1 for 0.10000000149011612; anything else as it is."""
    digits = repr(value).partition("e")[0].lstrip("-0.").replace(".", "")
    if not isinstance(value, float) or len(digits) < _SINGLE or _single(value) != value:
        return value
    return next(short for n in range(1, 10) if _single(short := float(f"{value:.{n}g}")) == value)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


def code(reply: str) -> str:
    """The Python code in a reply: its Python blocks one after the other, else its first block, else all of it."""
    blocks = _FENCE.findall(reply)
    python = [textwrap.dedent(block) for language, block in blocks if language.lower() in ("python", "py", "python3")]
    if python:
        return "\n\n".join(python)
    return next((textwrap.dedent(block) for language, block in blocks if not language), reply)
