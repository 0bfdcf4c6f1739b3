"""The studies that run in the world: small, each with the model that answers it, and how its result is compared."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold import Case, Ok, Study
from fanfold.limits import Limits
from fanfold.models import model
from fanfold.schedules import Halving, Racing
from fanfold.space import Float, Space
from fanfold.stop import MaxTrials
from fanfold.strategies import Genetic, Random, Sweep

MODEL = "openai/gpt-4o-mini"
#: Requests a minute that the provider allows.
RPM = 60


@dataclass(frozen=True)
class Scene:
    """One study in the world.  `make(variant)` gives it fresh; `places` are those it can run on."""

    name: str
    make: Callable[[int], Study[Any]]
    places: tuple[str, ...] = ("async", "threads", "processes")
    answer: Any = None
    #: How many model calls an evaluation has in flight at once.
    together: int = 1
    weight: float = 1.0
    variants: int = 2


# -- functions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bowl:
    """A function with one hollow.  Its fingerprint is written down: reading its code would take most of the time."""

    fingerprint: str = "bowl"

    def __call__(self, candidate: Mapping[str, float], case: Case) -> Ok:
        score = 1.0 - 0.9 * (candidate["x"] - 0.3) ** 2 - 0.1 * (candidate["y"] - case.seed % 7 / 7) ** 2
        return Ok(score, {"case": case.id})


@dataclass(frozen=True)
class BowlLater(Bowl):
    async def __call__(self, candidate: Mapping[str, float], case: Case) -> Ok:  # type: ignore[override]
        await asyncio.sleep(0.01)
        return super().__call__(candidate, case)


@dataclass(frozen=True)
class BowlBlocks(Bowl):
    block_size: int = 3

    def evaluate_block(self, cells: Sequence[tuple[Any, Case]]) -> list[Ok]:
        return [self(candidate, case) for candidate, case in cells]


def functions(variant: int) -> Study[Any]:
    strategy = (Random, Genetic)[variant % 2](Space(x=Float(0, 1), y=Float(0, 1)))
    schedule = {1: {"schedule": Racing()}, 2: {"schedule": Halving()}}.get(variant % 4, {})
    return Study(
        strategy,
        (BowlLater, Bowl, Bowl, BowlBlocks)[variant](),
        list(range(2 + variant % 2)),
        stop=MaxTrials(4 + variant % 3),
        seed=variant,
        timeout=60.0,
        retries=1,
        window=3,
        **schedule,  # type: ignore[arg-type]
    )


# -- conversations: each turn depends on the replies before ------------------------------------------------------------


@dataclass(frozen=True)
class Talk:
    name: str
    turns: int
    #: Whether the limit of the provider is told, or has to be learnt.
    told: bool = False
    fingerprint: str = "talk"

    async def __call__(self, candidate: str, case: Case) -> Ok:
        asked = model(self.name, timeout=60.0, limits=Limits(requests_per_minute=RPM) if self.told else None)
        dialogue: list[dict[str, str]] = []
        for turn in range(self.turns):
            dialogue.append({"role": "user", "content": f"{candidate} says {turn} about {case.id}"})
            reply = await asked.generate(dialogue, max_tokens=20)
            dialogue.append({"role": "assistant", "content": reply.text or "(nothing)"})
        return Ok(int.from_bytes(hashlib.sha256(repr(dialogue).encode()).digest()[:4]) / 2**32, dialogue)


def talks(variant: int) -> Study[Any]:
    name = ("openai/gpt-4o-mini", "anthropic/claude-haiku-4-5")[variant % 2]
    people = [f"{word}-{variant}" for word in ("ada", "bea", "cyd", "dot")[: 2 + variant % 3]]
    return Study(Sweep(people), Talk(name, 2, variant > 1), ["tea"] if variant % 2 else ["tea", "rain"], seed=variant)


# -- the studies of the package ----------------------------------------------------------------------------------------


def prompts(variant: int) -> Study[Any]:
    from fanfold.studies.prompts import PromptsConfig, study

    config = PromptsConfig(
        model=(MODEL,), trials=3, population=2, elites=1, train=4, validation=2, held_out=2, finalists=1, seed=variant
    )
    return study(config)


def critic(variant: int) -> Study[Any]:
    from fanfold.studies.critic import ActorCriticParams, CriticConfig, study

    few = ActorCriticParams(num_candidates=2, update_interval=2)
    return study(
        CriticConfig(
            model=MODEL,
            feedback="simulated",
            total=4,
            bootstrap_queries=2,
            actor_critic=few,
            critic=variant == 0,
            seed=variant,
        )
    )


def secrets(variant: int) -> Study[Any]:
    from fanfold.studies.secrets import SecretsConfig, study

    name = ("openai/gpt-4o-mini", "anthropic/claude-haiku-4-5")[variant % 2]
    return study(
        SecretsConfig(models=(name,), num_interactions=2, messages_per_interaction=2, results=None, seed=variant)
    )


def ask(variant: int) -> Study[Any]:
    from fanfold.studies.ask.config import AskConfig
    from fanfold.studies.ask.rows import listed
    from fanfold.studies.ask.study import asking

    rows = [{"text": f"row {number} of {variant}"} for number in range(5 + variant)]
    return asking(AskConfig(prompt="Say: {text}", model=(MODEL,), max_tokens=20), listed(rows)).study


WANTED = ("north", "south", "east", "west")


async def named(text: str) -> tuple[float, str]:
    missing = [word for word in WANTED if word not in text]
    return 1.0 - len(missing) / len(WANTED), f"missing: {missing[0]}" if missing else "complete"


def writes(name: str, messages: Sequence[Mapping[str, Any]], body: Any, rng: random.Random) -> str:
    word = rng.choice((*WANTED, "up", "down"))
    return f"<rewritten>\nnorth {word}\n</rewritten>"


def evolve(variant: int) -> Study[Any]:
    from fanfold.studies.evolve.config import EvolveConfig
    from fanfold.studies.evolve.study import Subject, evolving

    config = EvolveConfig(calls=10, window=2, seed=variant, timeout=600.0)
    return evolving(config, Subject({"text": "north"}, named, None, True, MODEL))


def _player(*arguments: Any) -> Any:
    from fanfold.studies.secrets.simulated import player

    return player(*arguments)


def _solver(*arguments: Any) -> Any:
    from fanfold.studies.prompts.simulated import solver

    return solver(*arguments)


def _responder(*arguments: Any) -> Any:
    from fanfold.studies.critic.simulated import respond

    return respond(*arguments)


SCENES = {
    scene.name: scene
    for scene in (
        Scene("functions", functions, weight=12, variants=4),
        Scene("talks", talks, ("async", "processes", "batch"), weight=8, variants=4),
        Scene("prompts", prompts, ("async", "processes", "batch"), _solver),
        Scene("critic", critic, ("async", "batch"), _responder, weight=0.12),
        Scene("secrets", secrets, ("batch", "async"), _player, weight=2),
        Scene("ask", ask, ("async", "processes", "batch"), weight=3),
        Scene("evolve", evolve, ("async",), writes, weight=2),
    )
}
