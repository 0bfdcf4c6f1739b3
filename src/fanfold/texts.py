"""Texts of strangers made harmless: for a terminal, inside JSON, and as a cell of a spreadsheet."""

from __future__ import annotations

import re

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
    """A figure for people; None is one that nobody knows."""
    return "-" if value is None else f"{value:.6g}"


def duration(seconds: float) -> str:
    """Seconds in the form a person reads fastest: 0.4s, 12s, 3m05s, 2h07m."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def shortened(text: str, most: int) -> str:
    """The text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"
