"""What of a text may change: all of it, or the blocks between markers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from fanfold.errors import ConfigError

_START, _END = "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END"
_MARKER = re.compile(rf"^.*\b({_START}|{_END})\b.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Blocks:
    """Texts by name, each as pieces: at even places what never changes, at odd places the name of a part."""

    texts: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> tuple[Blocks, dict[str, str]]:
        """The layout of some texts, and their parts as they are now."""
        pieces: dict[str, tuple[str, ...]] = {}
        parts: dict[str, str] = {}
        for name, text in texts.items():
            cut = _blocks(name, text)
            blocks = cut[1::2]
            names = [name] if len(blocks) == 1 else [f"{name}:{number}" for number in range(1, len(blocks) + 1)]
            parts |= dict(zip(names, blocks))
            cut[1::2] = names
            pieces[name] = tuple(cut)
        return cls(pieces), parts

    def filled(self, parts: Mapping[str, str]) -> dict[str, str]:
        """The texts with these parts in their places; what stands before a marker ends its line."""
        filled = {}
        for name, pieces in self.texts.items():
            text = pieces[0]
            for part, rest in zip(pieces[1::2], pieces[2::2]):
                text += parts[part]
                text += "\n" * bool(rest and not text.endswith("\n")) + rest
            filled[name] = text
        return filled

    def around(self, part: str) -> str:
        """The text that a part stands in, with a gap for it; empty for a part that is a whole text."""
        for pieces in self.texts.values():
            if part in pieces[1::2] and any(pieces[::2]):
                own = pieces.index(part, 1)
                gapped = [*pieces[:own], f"(the text to write: {part})\n", *pieces[own + 1 :]]
                return "".join(gapped)
        return ""

    def own(self, part: str, written: str) -> str:
        """What is meant for a part: all that was written, or of a text that has the markers what stands between them.

        Of several blocks it is the one in the part's place; where that cannot be told, a ConfigError says so.
        """
        if not self.around(part):
            return written
        siblings = next(pieces[1::2] for pieces in self.texts.values() if part in pieces[1::2])
        cut = _blocks("the new text", written)
        found = cut[1::2]
        if not any(cut[::2]) or len(found) == 1:
            return found[0]
        if len(found) == len(siblings):
            return found[siblings.index(part)]
        raise ConfigError(f"the new text has {len(found)} blocks between markers, and {part} is one of {len(siblings)}")


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What changed from some texts to others, as unified diffs; empty if nothing did."""
    lines: list[str] = []
    for name, text in after.items():
        old, path = before.get(name, ""), PurePath(name)
        file = path.name if path.is_absolute() else name
        lines += difflib.unified_diff(
            old.splitlines(), text.splitlines(), f"start/{file}", f"best/{file}", "", "", 2, ""
        )
    return "\n".join(lines)


def _blocks(name: str, text: str) -> list[str]:
    """What never changes and what may, in turn; a text without markers may change as a whole."""
    marks = list(_MARKER.finditer(text))
    if not marks:
        return ["", text, ""]
    cut, at = [], 0
    for number, mark in enumerate(marks):
        wanted = _END if number % 2 else _START
        line = text.count("\n", 0, mark.start()) + 1
        if mark[1] != wanted:
            raise ConfigError(f"{name}, line {line}: {mark[1]} where {wanted} should come: markers come in pairs")
        if number % 2:
            cut.append(text[at : mark.start()])
            at = mark.start()
        else:
            cut.append(text[at : mark.end()])
            at = mark.end()
    if len(marks) % 2:
        raise ConfigError(f"{name}: the last {_START} has no {_END}: markers come in pairs")
    return [*cut, text[at:]]
