"""Names of models as people write them: documented agent types, and models that providers no longer serve."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fanfold.errors import ConfigError, nearest

#: When the tables below were last checked.
AS_OF = "2026-11-15"


@dataclass(frozen=True, slots=True)
class AgentType:
    """A documented agent type: the model it meant, when that one ends or ended, and the model it means today."""

    was: str
    ends: str
    now: str


AGENT_TYPES = {
    "claude_opus": AgentType("claude-3-opus-20240229", "2026-01-05", "anthropic/claude-opus-5-5"),
    "claude_sonnet": AgentType("claude-3-5-sonnet-20241022", "2025-10-28", "anthropic/claude-sonnet-5-5"),
    "claude_haiku": AgentType("claude-3-haiku-20240307", "2026", "anthropic/claude-haiku-5-5"),
    "gpt35": AgentType("gpt-3.5-turbo", "2026-10-23", "openai/gpt-6-luna"),
    "gpt4o_mini": AgentType("gpt-4o-mini", "2027-01-14", "openai/gpt-4o-mini"),
    "gpt4o": AgentType("gpt-4o", "2027-01-14", "openai/gpt-4o"),
    "gpt4_turbo": AgentType("gpt-4-turbo", "2026-10-23", "openai/gpt-6-sol"),
}
#: Other ways in which the same documents write them.
SPELLINGS = {"gpt-3.5": "gpt35", "gpt3.5": "gpt35", "gpt-4o-mini": "gpt4o_mini", "gpt-4o": "gpt4o"}

#: Models that are gone: how their names begin, since when, and the nearest model of today.
RETIRED = (
    ("gpt-3.5-turbo", "2026-10-23", "openai/gpt-6-luna"),
    ("gpt-4-turbo", "2026-10-23", "openai/gpt-6-sol"),
    ("gpt-4-0613", "2026-10-23", "openai/gpt-6-sol"),
    ("gpt-4-1106-preview", "2026-10-23", "openai/gpt-6-sol"),
    ("claude-3-opus", "2026-01-05", "anthropic/claude-opus-5-5"),
    ("claude-3-5-sonnet", "2025-10-28", "anthropic/claude-sonnet-5-5"),
    ("claude-3-sonnet", "2025-07-21", "anthropic/claude-sonnet-5-5"),
    ("claude-3-haiku", "2026", "anthropic/claude-haiku-5-5"),
    ("claude-2", "2025-07-21", "anthropic/claude-sonnet-5-5"),
)
PROVIDERS = ("openai", "anthropic", "local", "simulated")


def resolved(name: str, elsewhere: bool = False) -> str:
    """The model that a name means, as provider/name.

    A documented agent type means the model of today that takes its place.  A retired model is an error that names the
    nearest current one, unless it is served `elsewhere` than by its maker.
    """
    name = name.strip()
    kind = AGENT_TYPES.get(SPELLINGS.get(name, name))
    if kind is not None:
        return kind.now
    provider, slash, rest = name.partition("/")
    if elsewhere or (slash and provider in ("local", "simulated")):
        return name
    if (slash and provider in PROVIDERS) or re.match(r"(gpt-|claude-|o\d)", name):
        bare = rest if slash else name
        for beginning, since, now in RETIRED:
            if re.match(rf"{re.escape(beginning)}(?:$|[-.@\d])", bare):
                raise ConfigError(f"{name} was retired by its provider ({since}): use {now}")
        if slash:
            return name
        return f"{'anthropic' if bare.startswith('claude') else 'openai'}/{bare}"
    known = [*AGENT_TYPES, *SPELLINGS] if not slash else [f"{each}/..." for each in PROVIDERS]
    raise ConfigError(f"there is no agent type or model {name!r}{nearest(name, known)} (or write provider/name)")


def remarks(given: tuple[str, ...]) -> list[str]:
    """What people should know about the names they gave: which now mean another model, and which end soon."""
    found = []
    for name in dict.fromkeys(given):
        kind = AGENT_TYPES.get(SPELLINGS.get(name, name))
        if kind is None:
            continue
        if kind.now.endswith(f"/{kind.was}"):
            found.append(f"{name} is {kind.now}, which its provider serves until {kind.ends}")
        else:
            found.append(f"{name} was {kind.was} (retired {kind.ends}) and now means {kind.now}")
    return found
