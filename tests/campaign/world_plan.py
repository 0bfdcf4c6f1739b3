"""What a seed means: a study, a place, and what goes wrong where; and the story of what happened."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from world_parts import BATCHES, COMMITS, CONNECTIONS, EVALUATIONS, EXCHANGES, LOST_REPLIES, REFUSALS
from world_studies import SCENES


@dataclass(frozen=True)
class Plan:
    """What a seed means: the study, its place, and what goes wrong where."""

    scene: str
    variant: int
    place: str
    slots: int
    kills: tuple[int, ...] = ()
    #: Of these lives, those that are stopped as Ctrl-C does rather than killed.
    gently: tuple[bool, ...] = ()
    #: The most that the run may cost, as a share of what it costs.
    budget: float | None = None
    exchanges: dict[int, str] = field(default_factory=dict)
    connections: dict[int, str] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    commits: dict[int, str] = field(default_factory=dict)
    evaluations: dict[int, str] = field(default_factory=dict)

    @property
    def calm(self) -> tuple[str, int, str, int]:
        """What is the same in the calm world."""
        return self.scene, self.variant, self.place, self.slots

    def __str__(self) -> str:
        faults = [*self.exchanges.items(), *self.connections.items(), *self.answers.items(), *self.commits.items()]
        faults += self.evaluations.items()
        told = ", ".join(f"{kind} at {number}" for number, kind in faults)
        ends = [f"{'stopped' if gently else 'killed'} at {at}" for at, gently in zip(self.kills, self.gently)]
        limit = [] if self.budget is None else [f"{self.budget:.0%} of the money"]
        words = [f"{self.scene} {self.variant} on {self.place}:{self.slots}", *limit, *ends, *([told] if told else [])]
        return "; ".join(words)


@dataclass
class Story:
    """What happened in a world."""

    plan: Plan
    log: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lives: int = 0
    kills: int = 0
    stops: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    evaluations: int = 0
    charges: int = 0
    batched: int = 0
    repeated: int = 0
    bill: float = 0.0
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    result: Any = None
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()


def plan_of(seed: int, calm_world: Callable[[Plan], Story]) -> Plan:
    """What the seed means.  Places of faults are drawn evenly over what the calm world does."""
    rng = random.Random(f"plan {seed}")
    scenes = list(SCENES.values())
    scene = rng.choices(scenes, [scene.weight for scene in scenes])[0]
    plan = Plan(scene.name, rng.randrange(scene.variants), rng.choice(scene.places), rng.choice((1, 4)))
    calm = calm_world(plan)
    counts = calm.counts

    def places(number: int, kinds: tuple[str, ...], of: str) -> dict[int, str]:
        most = counts[of]
        return {rng.randrange(int(1.2 * most)): rng.choice(kinds) for _ in range(number if most else 0)}

    few = (0, 0, 1, 2, 4)
    # A call whose reply cannot be read three times has failed, and is meant to: two losses can never be three.
    exchanges = places(rng.choice(few), EXCHANGES, "exchanges")
    answers = places(rng.choice(few), REFUSALS, "exchanges")
    if plan.place == "batch":
        answers |= places(rng.choice((0, 1, 1)), BATCHES, "exchanges")
    for _ in range(rng.choice((0, 0, 1, 2))):
        lost = places(1, LOST_REPLIES, "exchanges")
        for kind in lost.values():
            (exchanges if kind in ("reset_reply", "hang_reply") else answers).update(lost)
    evaluations = places(rng.choice(few), EVALUATIONS, "evaluations") if plan.place != "batch" else {}
    if scene.name not in ("functions",):
        evaluations = {at: "slow_worker" if kind == "hung" else kind for at, kind in evaluations.items()}
    ends = rng.choice((0, 1, 1, 2, 3))
    return Plan(
        plan.scene,
        plan.variant,
        plan.place,
        plan.slots,
        tuple(rng.randint(1, int(1.1 * calm.steps)) for _ in range(ends)),
        tuple(rng.random() < 0.2 for _ in range(ends)),
        rng.choice((0.2, 0.5, 0.9)) if calm.bill and rng.random() < 0.15 else None,
        exchanges,
        places(rng.choice((0, 0, 1)), CONNECTIONS, "connections"),
        answers,
        places(rng.choice((0, 0, 1, 2)), COMMITS, "commits"),
        evaluations,
    )
