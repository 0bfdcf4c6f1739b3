"""The settings of a critic inside an application: those of a study, with defaults of its own, over many openings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fanfold.config import from_mapping
from fanfold.errors import ConfigError
from fanfold.studies.critic.config import ActorCriticParams, CriticConfig, prompt_text

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
    texts = None if prompts is None else [prompt_text(text, "prompts") for text in prompts]
    if wrong := [text for text in texts or () if not isinstance(text, str)]:
        raise ConfigError(f"prompts must be a list of texts, and one of them is {wrong[0]!r:.60}")
    return texts


def check_seconds(timeout: Any, expires: Any) -> None:
    """Refuse a `timeout` or an `expires` that are not seconds."""
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not expires >= 0:
        raise ConfigError(f"expires must be seconds of at least 0, not {expires!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise ConfigError(f"timeout must be seconds above 0, or None, not {timeout!r}")


def plain(value: Any) -> Any:
    """A setting as it is recorded: settings of its own as a mapping."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    kept = dataclasses.asdict(value)
    if isinstance(value, ActorCriticParams) and value.num_candidates == ActorCriticParams.num_candidates:
        del kept["num_candidates"]  # the default of a study; an application has its own
    return kept


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
    evolution = {"population_size": begun["evolution"].get("population_size", 10), **fields["evolution"]}
    size = len(given) if not fields["evolve"] and former is None else max(len(given), evolution["population_size"])
    fields["evolution"] = {"elite_size": min(2, size), **evolution, "population_size": size}
    before = (former or {}).get("candidates") or begun["actor_critic"].get("num_candidates", CANDIDATES)
    wanted = changes.get("actor_critic", {}).get("num_candidates", before) if candidates is None else candidates
    many = min(wanted, size) if isinstance(wanted, int) else wanted  # which the config refuses
    fields["actor_critic"] = {**fields["actor_critic"], "num_candidates": many}
    config = from_mapping(CriticConfig, fields, where)
    if former is not None:
        recorded = from_mapping(CriticConfig, former["fields"], where)
        for field in dataclasses.fields(CriticConfig):
            old, new = getattr(recorded, field.name), getattr(config, field.name)
            if old != new and field.name not in CHANGEABLE:
                raise ConfigError(f"{field.name} was {old!r} when {where} began, and cannot change")
    return config, given, wanted
