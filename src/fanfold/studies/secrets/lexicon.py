"""The study's words, phrases, disguises and names of models: data files beside this module."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any


@functools.lru_cache
def table(name: str) -> dict[str, Any]:
    """The data file of that name."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def words(name: str) -> list[str]:
    """A list of `words.toml`."""
    listed: str = table("words")[name]
    return listed.split()


def phrase(name: str) -> re.Pattern[str]:
    """A regular expression of `phrases.toml`."""
    phrases = table("phrases")
    any_case = name in phrases["any_case"]
    pattern = "".join(phrases["any_case" if any_case else "exact"][name])
    for part in ("noun", "lead", "quote"):
        pattern = pattern.replace(f"@{part}", phrases[part])
    return re.compile(pattern, re.I if any_case else 0)
