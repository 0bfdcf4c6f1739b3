"""How the documented classes run a study, and the documented figures of what that took."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from typing import Any

from fanfold.events import Watcher
from fanfold.ledger import Ledger
from fanfold.legacy.settings import EvolutionConfig
from fanfold.running import Run
from fanfold.study import Study
from fanfold.types import Result


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
        counts = run.view.counts()
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

    def __add__(self, other: Performance) -> Performance:
        mine, yours = dataclasses.asdict(self), dataclasses.asdict(other)
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Performance(**{name: mine[name] + yours[name] for name in mine if name != "cost"}, cost=cost)

    @property
    def throughput(self) -> float:
        """Problems a second, those from the cache included."""
        return self.evaluations / self.seconds if self.seconds > 0 else 0.0

    @property
    def cache_hit_rate(self) -> float:
        return self.cache_hits / self.evaluations if self.evaluations else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "throughput": self.throughput, "cache_hit_rate": self.cache_hit_rate}


class StudyRuns:
    """Runs studies under the documented settings, all in one file: that of the settings, or one that goes with this."""

    def __init__(self, config: EvolutionConfig) -> None:
        self._config = config
        self._ledger = Ledger() if config.file is None else None

    async def run(self, study: Study[Any], name: str, watch: Watcher | None = None) -> Run[Any]:
        config = self._config
        return await study.run_async(
            f"async:{config.slots}",
            ledger=config.file if self._ledger is None else self._ledger.path,
            run=name,
            reuse="ledger" if config.use_cache else "never",
            cache="on" if config.use_cache else "off",
            watch=watch,
            progress=False,
            max_failures=None,  # the documents say what becomes of a population that only fails
        )

    async def results(
        self, study: Study[Any], name: str, watch: Watcher | None = None
    ) -> tuple[list[Result[Any]], Performance]:
        """The results of a sweep in the order of its candidates, and what it took."""
        for model in self._config.models:
            # Opened here, outside the run, so that the pace of requests outlives the run.
            self._config.asked(model).line()
        run = await self.run(dataclasses.replace(study, name=name), f"{name}-{secrets.token_hex(6)}", watch)
        with run.ledger:
            return sorted(run.results(), key=lambda result: result.number), Performance.of(run)
