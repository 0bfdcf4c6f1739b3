"""A conversation as the rules see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    speaker: str
    text: str
