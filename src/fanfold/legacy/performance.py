"""How the documented classes run a study, and the documented figures of what that took."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fanfold.calls import counted
from fanfold.events import Watcher
from fanfold.legacy.settings import EvolutionConfig
from fanfold.running import Run
from fanfold.study import Study


@dataclass(frozen=True)
class Performance:
    """What evaluating took: the documented figures of a run."""

    seconds: float = 0.0
    evaluations: int = 0
    api_calls: int = 0
    cache_hits: int = 0
    failures: int = 0
    retries: int = 0
    rate_limited: int = 0
    #: In US dollars; None where a price is not known.
    cost: float | None = 0.0

    @classmethod
    def of(cls, run: Run[Any]) -> Performance:
        """The figures of a run, from its ledger."""
        counts = counted(run.ledger, run.ledger.run(run.id).id)
        progress = run.progress
        return cls(
            seconds=progress.elapsed,
            evaluations=progress.evaluations,
            api_calls=counts.calls,
            cache_hits=progress.reused + counts.cached + counts.shared,
            failures=progress.failures,
            retries=counts.retries,
            rate_limited=counts.refused,
            cost=None if counts.unpriced else progress.cost,
        )

    def plus(self, other: Performance) -> Performance:
        """Both together."""
        mine, yours = dataclasses.asdict(self), dataclasses.asdict(other)
        sums: dict[str, Any] = {name: mine[name] + yours[name] for name in mine if name != "cost"}
        return Performance(**sums, cost=None if self.cost is None or other.cost is None else self.cost + other.cost)

    def plus_cached(self, evaluations: int) -> Performance:
        """With so many more evaluations that were remembered."""
        return dataclasses.replace(
            self, evaluations=self.evaluations + evaluations, cache_hits=self.cache_hits + evaluations
        )

    @property
    def throughput(self) -> float:
        """Problems a second, those from the cache included."""
        return self.evaluations / self.seconds if self.seconds > 0 else 0.0

    @property
    def cache_hit_rate(self) -> float:
        return self.cache_hits / self.evaluations if self.evaluations else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "throughput": self.throughput, "cache_hit_rate": self.cache_hit_rate}


async def ran(study: Study[Any], config: EvolutionConfig, watch: Watcher | None, name: str) -> Run[Any]:
    """A run of a study under the settings: slots, cache, file."""
    return await study.run_async(
        f"async:{config.slots}",
        ledger=config.file,
        run=name,
        reuse="ledger" if config.use_cache else "never",
        cache="on" if config.use_cache else "off",
        watch=watch,
        max_failures=None,  # the documents say what becomes of a population that only fails
    )
