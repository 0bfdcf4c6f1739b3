"""Names of models as people write them: documented agent types, and models that providers no longer serve."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fanfold.errors import ConfigError, nearest
from fanfold.models.catalogue import catalogue
from fanfold.models.providers import find_provider, maker_of, provider_names
from fanfold.studies.secrets.lexicon import table


@dataclass(frozen=True, slots=True)
class AgentType:
    """A documented agent type: the model it meant, when that one ends or ended, and the model it means today."""

    was: str
    ends: str
    now: str


_DATA = table("models")
#: When the tables were last checked.
AS_OF: str = _DATA["as_of"]
AGENT_TYPES = {name: AgentType(*fields) for name, fields in _DATA["agent_types"].items()}
#: Other ways in which the same documents write them.
SPELLINGS: dict[str, str] = _DATA["spellings"]
#: Models that are gone, by how their names begin: since when, and the nearest model of today.
RETIRED: dict[str, tuple[str, str]] = _DATA["retired"]


def resolved(name: str, elsewhere: bool = False) -> str:
    """The model that a name means, as provider/name.

    A documented agent type means the model of today that takes its place.  A retired model is an error that names the
    nearest current one, unless it is served `elsewhere` than by its maker.
    """
    name = name.strip()
    kind = AGENT_TYPES.get(SPELLINGS.get(name, name))
    if kind is not None:
        return kind.now
    if name in catalogue():
        return name
    prefix, slash, rest = name.partition("/")
    bare = rest if slash else name
    known = bool(slash) and prefix in provider_names()
    if elsewhere or (known and not find_provider(prefix).family):
        return name
    maker = prefix if known else None if slash else maker_of(bare)
    if maker is None:
        names = [f"{prefix}/..." for prefix in provider_names()] if slash else [*AGENT_TYPES, *SPELLINGS, *catalogue()]
        raise ConfigError(f"there is no agent type or model {name!r}{nearest(name, names)} (or write provider/name)")
    for beginning, (since, now) in RETIRED.items():
        if re.match(rf"{re.escape(beginning)}(?:$|[-.@\d])", bare):
            raise ConfigError(f"{name} was retired by its provider ({since}): use {now}")
    return f"{maker}/{bare}"


def remarks(given: tuple[str, ...]) -> list[str]:
    """What people should know about the names they gave: which now mean another model, and which end soon."""
    texts = []
    for name in dict.fromkeys(given):
        kind = AGENT_TYPES.get(SPELLINGS.get(name, name))
        if kind is None:
            continue
        if kind.now.endswith(f"/{kind.was}"):
            texts.append(f"{name} is {kind.now}, which its provider serves until {kind.ends}")
        else:
            texts.append(f"{name} was {kind.was} (retired {kind.ends}) and now means {kind.now}")
    return texts
