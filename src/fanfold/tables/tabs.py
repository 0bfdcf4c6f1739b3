"""Rows whose values are separated by tabs, in which a quote may be only a part of the text."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_OPEN = re.compile(r'"(?:[^"]|"")*')


class TabbedRows:
    """Reads like `csv.reader`, but a line with as many values as there are columns (`width`) is a row by itself.

    Many programs quote nothing that they write with tabs, and a text may begin with a quote that is never closed: as
    CSV it would take in the rows below.  Cells that a spreadsheet put in quotes are read as it means them, also those
    with line breaks.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.width, self.line_num = 0, 0
        self._source, self._waiting = iter(lines), ""
        self._lines = iter(self._taken, "")

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines)
        values = _values(line)
        if len(values) == self.width > 1 and not (_OPEN.fullmatch(values[-1]) and self._continues()):
            return [quoted[1].replace('""', '"') if (quoted := _QUOTED.fullmatch(each)) else each for each in values]
        return next(csv.reader(itertools.chain([line], self._lines), strict=True, delimiter="\t"))

    def _continues(self) -> bool:
        """Whether the next line is not a row by itself, so that the last cell of this one may continue there."""
        self._waiting = self._waiting or next(self._source, "")
        return bool(self._waiting) and len(_values(self._waiting)) != self.width

    def _taken(self) -> str:
        """The next line; none at the end."""
        line, self._waiting = self._waiting or next(self._source, ""), ""
        self.line_num += bool(line)
        return line


def _values(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t")
