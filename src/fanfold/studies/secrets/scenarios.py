"""Scenarios: seeded secrets, names and openers, the same ones for every pairing that is compared."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.types import Case

_NAMES_TEXT = (
    "Ada Bo Cleo Dov Edda Finn Gus Hana Ivo Juno Kai Lena Milo Nora Otis Pia Quin Rhea Sol Tess Ugo Vera Wim Xena "
    "Yara Zeno Abel Bea Cyril Dora"
)
_FIRST_TEXT = (
    "amber ancient arctic auburn azure bitter bold brass bright brittle broken bronze busy calm carved cedar chalk "
    "clever cobalt cold copper coral cosmic crimson crooked crystal curious dancing daring desert distant double "
    "dusty eager early ebony electric elegant emerald empty fading feral fierce floating foggy forgotten frozen "
    "gentle giant gilded glass golden granite hidden hollow honest humble icy indigo iron ivory jade jolly jumping "
    "kind lazy leaden lilac linen little lonely loud lunar marble mellow merry midnight misty mossy mute narrow "
    "nimble noble nutmeg obsidian olive opal orange oval paper patient pearl peppered phantom plaid polar proud "
    "purple quartz quiet quilted rapid restless roaming ruby rustic saffron salty sandy sapphire scarlet secondhand "
    "shady silent silver sleepy smoky solar spiral stormy striped sugared sunken tangled tidal tiny topaz twin "
    "umber velvet violet wandering wicker wild winding wooden woolen yellow"
)
_SECOND_TEXT = (
    "acorn anchor anvil apple arrow badger ballad bamboo banner barrel basket beacon beetle bell blanket bottle "
    "bridge button cabin cactus camel candle canyon carpet castle cellar chimney clover compass cradle crane "
    "cricket crown curtain cypress dagger daisy dolphin donkey dragon drum eagle easel engine falcon feather fern "
    "fiddle finch flute forest fountain fox garden gazebo gecko ginger glacier goblet guitar hammer harbor harp "
    "hazel hedgehog helmet heron igloo island jacket jaguar jasmine kettle kite ladder lagoon lantern lemon "
    "lighthouse lizard locket magnet mango maple meadow mirror monkey mountain needle nickel oasis octopus orchard "
    "otter owl oyster paddle panther parade parrot pebble pelican pepper piano pillow pirate planet pocket pony "
    "puzzle quarry rabbit raft raven ribbon river rocket saddle sailor sandal satchel sparrow spider staircase "
    "stove sunflower teapot temple thimble thunder tiger tower tractor trumpet tulip tunnel turtle umbrella valley "
    "violin volcano wagon walnut walrus whistle willow window wizard zebra"
)
_NAMES, _FIRST, _SECOND = _NAMES_TEXT.split(), _FIRST_TEXT.split(), _SECOND_TEXT.split()


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
) -> list[Case]:
    """`count` cases in pairs of twins: two twins have the same secrets, names and seed, and another one opens.

    Secrets are phrases of two words, no phrase twice while there are any left; or the given ones for every scenario,
    by seat.  With `targeted`, one of them is the targeted secret: `target`, or drawn.  `aliases` are other words for a
    secret, which count as it.
    """
    for what, given in (("secrets", secrets), ("names", names)):
        if given and (len(given) < agents or len(set(given[:agents])) < agents):
            raise ConfigError(f"{agents} agents need {agents} different {what}, not {list(given)!r}")
        if any(not each.strip() for each in given):
            raise ConfigError(f"{what} must not be empty texts: {list(given)!r}")
    if agents > len(_NAMES) and not names:
        raise ConfigError(f"{agents} agents are more than there are names: give names")
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
        data = {"scenario": scenario, "opener": twin, "secrets": own, "names": called, **more}
        cases.append(Case(f"{scenario:05d}-{'ab'[twin]}", data, talk))
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
