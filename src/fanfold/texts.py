"""Texts for people: figures as a person writes them, and texts of strangers made harmless.

They are made harmless for a terminal, inside JSON, and as a cell of a spreadsheet.
"""

from __future__ import annotations

import math
import re
from typing import Any

#: What a terminal obeys instead of showing, and what hides or reorders the text around it: control characters (also
#: those of eight bits), marks of direction, characters without width, fillers, tags and halves of characters.
_HIDDEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_LINES = re.compile(f"[{_HIDDEN}]")
_IN_A_LINE = re.compile(rf"[{_HIDDEN}\t\n]")
#: What makes a spreadsheet take a cell for a formula; some also take the wide forms.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

#: What differs between two messages of one cause: counts, positions, addresses.
_NUMBERS = re.compile(r"\[request id [^]]*\]|0x[0-9a-f]+|\d+")


def same_cause(message: str) -> str:
    """A message without what differs between two of one cause: equal for both."""
    return _NUMBERS.sub("#", message[:500])


def printable(text: str, *, lines: bool = True) -> str:
    """The text as a terminal may have it: what it would obey, or not show, is shown as an escape such as \\x1b.

    Line breaks and tabs stay, unless it is to be one line.
    """
    if lines:
        return _IN_LINES.sub(_escape, text.replace("\r\n", "\n"))
    return _IN_A_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable_json(text: str) -> str:
    """A JSON text with the same meaning that a terminal can have: such characters occur in its strings only."""
    return _IN_LINES.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def spreadsheet_cell(text: str) -> str:
    """A text as a cell of CSV: one that a spreadsheet would take for a formula gets an apostrophe in front.

    Numbers stay as they are.
    """
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def number(value: float | None) -> str:
    """A figure for people, such as 0.8167, 12.5 or 1,234; None is one that nobody knows."""
    if value is None:
        return "-"
    if 999.95 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    return re.sub(r"e([-+])0", r"e\1", f"{value:.4g}").replace("e+", "e")


def money(amount: float | None, simulated: bool = False) -> str:
    """US dollars with three digits that count, and never fewer than cents: $12.50, $0.0117; None is unknown."""
    text = "unknown" if amount is None else f"${amount:g}"
    if amount and math.isfinite(amount):
        digits = max(2, 2 - math.floor(math.log10(abs(amount))))
        whole, _, cents = f"{abs(amount):,.{digits}f}".partition(".")
        text = f"{'-' * (amount < 0)}${whole}.{cents[:2]}{cents[2:].rstrip('0')}"
    return f"{text} (simulated)" if simulated else text


def duration(seconds: float) -> str:
    """Seconds in the form a person reads fastest: 12 ms, 0.4 s, 12 s, 3 min 05 s, 2 h 07 min."""
    if 0 < seconds < 0.095:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0095 else f"{1000 * seconds:.1g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds > 0 else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def file_size(size: float) -> str:
    """Bytes in the form a person reads fastest: 512 bytes, 12.3 kB, 564 MB, 1.7 GB."""
    if size < 1000:
        return f"{size:.0f} bytes"
    power = min(3, math.floor(math.log10(size) / 3))
    scaled = size / 1000**power
    return f"{scaled:,.{int(scaled < 99.95)}f} {('kB', 'MB', 'GB')[power - 1]}"


def count(n: int, noun: str) -> str:
    """So many of something: 1 trial, 1,234 trials."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def shortened(text: str, most: int = 100) -> str:
    """The text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def pretty(candidate: Any) -> str:
    """A candidate for people: one line for each key of a dict, anything else as JSON or as the text it is."""
    import json

    if isinstance(candidate, str):
        return candidate
    if isinstance(candidate, dict) and candidate:
        width = max(len(key) for key in candidate)
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in candidate.items()}
        return "\n".join(f"{key.ljust(width)} = {value}" for key, value in values.items())
    return json.dumps(candidate)
