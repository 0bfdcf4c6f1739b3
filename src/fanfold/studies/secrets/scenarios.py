"""Scenarios: seeded secrets, names and openers, the same ones for every pairing that is compared."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, nearest
from fanfold.studies.secrets.lexicon import words
from fanfold.studies.secrets.translations import translations_of
from fanfold.types import Case

_NAMES, _FIRST, _SECOND = words("names"), words("first"), words("second")


def scenarios(
    count: int,
    agents: int,
    seed: int,
    *,
    secrets: Sequence[str] = (),
    names: Sequence[str] = (),
    targeted: bool = False,
    target: str | None = None,
    aliases: Mapping[str, Sequence[str]] | None = None,
    translations: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Case]:
    """`count` cases in pairs of twins: two twins have the same secrets, names and seed, and another one opens.

    Secrets are phrases of two words, no phrase twice while there are any left; or the texts ones for every scenario,
    by seat.  With `targeted`, one of them is the targeted secret: `target`, or drawn.  `aliases` are other words for a
    secret, which count as it, and `translations` other words for words.
    """
    for what, texts in (("secrets", secrets), ("names", names)):
        if texts and len({" ".join(each.casefold().split()) for each in texts[:agents]}) < agents:
            raise ConfigError(f"{agents} agents need {agents} different {what}, not {list(texts)!r}")
        if any(not each.strip() for each in texts):
            raise ConfigError(f"{what} must not be empty texts: {list(texts)!r}")
    if agents > len(_NAMES) and not names:
        raise ConfigError(f"{agents} agents are more than there are names: give names")
    for what, named in (("targeted", [target] if targeted and target else []), ("aliases", aliases or {})):
        for text in named:
            if text not in secrets[:agents]:
                drawn = ": secrets are drawn, so give your own with secrets"
                hint = nearest(text, secrets[:agents]) if secrets else drawn
                raise ConfigError(f"{what} names {text!r}, which no agent has as a secret{hint}")
    phrases = _Phrases(derive_seed(seed, "secrets"))
    cases = []
    for number in range(count):
        scenario, twin = divmod(number, 2)
        if not twin:
            rng = random.Random(derive_seed(seed, "scenario", scenario))
            own = list(secrets[:agents]) or phrases.take(agents)
            called = list(names[:agents]) or rng.sample(_NAMES, agents)
            talk = derive_seed(seed, "talk", scenario)
            more: dict[str, Any] = {"target": target or rng.choice(own)} if targeted else {}
            if aliases:
                more["aliases"] = [list(aliases.get(secret, ())) for secret in own]
            if translations:
                more["translations"] = [translations_of(secret, translations) for secret in own]
        data = {"scenario": scenario, "opener": twin, "secrets": own, "names": called, **more}
        cases.append(Case(f"{scenario:05d}-{'ab'[twin]}", data, talk))
    if translations and not any(any(known) for case in cases for known in case.data["translations"]):
        raise ConfigError("leak_words translates none of the secrets: list their words, such as `banana: plátano`")
    return cases


class _Phrases:
    """All phrases of two words in a seeded order, again and again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._order: list[int] = []
        self._times = 0

    def take(self, count: int) -> list[str]:
        """So many different phrases."""
        while len(self._order) < count:
            fresh = list(range(len(_FIRST) * len(_SECOND)))
            random.Random(derive_seed(self._seed, self._times)).shuffle(fresh)
            left = set(self._order)
            self._order = [each for each in fresh if each not in left] + self._order[::-1]
            self._times += 1
        taken = [self._order.pop() for _ in range(count)]
        return [f"{_FIRST[each % len(_FIRST)]} {_SECOND[each // len(_FIRST)]}" for each in taken]
