"""The settings of a critic inside an application: those of a study, with defaults of its own, over many openings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fanfold.config import from_mapping
from fanfold.errors import ConfigError
from fanfold.studies.critic.config import CriticConfig, prompt_text

#: Where an application differs from a study: it continues for as long as people ask.
DEFAULTS: dict[str, Any] = {"half_life": 200.0, "evolve": False, "max_tokens": 512}
#: Prompts that answer each question; one of the answers is shown.
CANDIDATES = 2
#: What may differ each time a file is opened.  The rest decides what was learnt, and stays.
CHANGEABLE = (
    *("model", "base_url", "max_tokens", "reasoning_effort"),
    *("half_life", "evolve", "evolution", "actor_critic"),
)


def texts_of(prompts: Iterable[str] | None) -> list[str] | None:
    """The prompts that were given, as a list; `@FILE` stands for what is in the file."""
    if isinstance(prompts, str | Mapping):
        kind = "text" if isinstance(prompts, str) else "mapping"
        raise ConfigError(f"prompts must be a list of texts, not the {kind} {prompts!r:.60}")
    return None if prompts is None else [prompt_text(text, "prompts") for text in prompts]


def plain(value: Any) -> Any:
    """A setting as it is recorded: settings of its own as a mapping."""
    is_settings = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_settings else value


def settings_of(
    former: Mapping[str, Any] | None,
    changes: Mapping[str, Any],
    prompts: Sequence[str] | None,
    candidates: int | None,
    where: str,
) -> tuple[CriticConfig, list[str], int]:
    """The settings of a critic, its prompts, and how many of them are to answer once there are so many.

    The config keeps the prompts it began with.
    """
    if former is None and not (changes.get("model") and prompts):
        raise ConfigError(
            f"there is no critic {where} yet: give model= and prompts=[...] (--model, --prompts) to begin one"
        )
    given = list(dict.fromkeys(prompts or (former or {})["prompts"]))
    begun = {"prompts": given, **DEFAULTS, "evolution": {}, "actor_critic": {}} if former is None else former["fields"]
    fields = {**begun, **changes}
    # Without evolution the prompts are those given, and each answer has a prompt of its own.
    room = len(given) if not fields["evolve"] and former is None else begun["evolution"].get("population_size", 10)
    size = max(len(given), room)
    fields["evolution"] = {"elite_size": min(2, size), **fields["evolution"], "population_size": size}
    before = (former or {}).get("candidates") or begun["actor_critic"].get("num_candidates", CANDIDATES)
    wanted = before if candidates is None else candidates
    fields["actor_critic"] = {**fields["actor_critic"], "num_candidates": min(wanted, size)}
    config = from_mapping(CriticConfig, fields, where)
    if former is not None:
        recorded = from_mapping(CriticConfig, former["fields"], where)
        for field in dataclasses.fields(CriticConfig):
            old, new = getattr(recorded, field.name), getattr(config, field.name)
            if old != new and field.name not in CHANGEABLE:
                raise ConfigError(f"{field.name} was {old!r} when {where} began, and cannot change")
    return config, given, wanted
