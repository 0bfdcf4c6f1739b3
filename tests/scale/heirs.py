"""A small search whose candidates inherit large blobs and whose rungs continue from them; workers import it."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from fanfold.running import Run
from fanfold.schedules import Halving, last_rung
from fanfold.stop import MaxTrials
from fanfold.strategies import Genetic
from fanfold.strategies.breeding import Bred, Pick
from fanfold.study import Study
from fanfold.types import Blob, Case, Ok, Result

#: Bytes of each blob: enough for a store.
SIZE = 70_000


class Heirs:
    """Breeds candidates that start from the weights of a parent."""

    def sample(self, rng: Random) -> Bred[Any]:
        return Bred({"gene": rng.randrange(10**9), "inherited": None})

    def child(self, pick: Pick[Any], rng: Random, rate: float) -> Bred[Any]:
        parent = pick()
        assert parent is not None
        last = list(parent.outcomes.values())[-1]
        assert isinstance(last, Ok)
        return Bred({"gene": rng.randrange(10**9), "inherited": last.data["weights"]}, (parent,))

    def again(self, bred: Bred[Any], rng: Random, rate: float) -> Bred[Any]:
        return bred

    def learn(self, result: Result[Any], better: bool | None) -> None: ...

    def needs(self) -> list[int]:
        return []


class Training:
    """Each rung continues from the state of the one before, the first from what is inherited: all bytes count."""

    continues: ClassVar[bool] = True
    passing: ClassVar[tuple[str, ...]] = ("state",)
    fingerprint = "training-1"

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Ok:
        if previous is not None:
            start = previous.data["state"].read() + previous.data["weights"].read()
        else:
            start = b"" if candidate["inherited"] is None else candidate["inherited"].read()
        rng = Random(f"{candidate['gene']} {case.id} {sum(start)}")
        return Ok(rng.random(), {"weights": Blob.of(rng.randbytes(SIZE)), "state": Blob.of(rng.randbytes(SIZE))})


def heirs(keep: int | None = 2, trials: int = 20) -> Study[Any]:
    return Study(
        Genetic(breeder=Heirs(), population=6, elites=1),
        Training(),
        ["one", "two"],
        Halving(2, cohort=5),
        MaxTrials(trials),
        aggregate=last_rung,
        keep=keep,
        name="heirs",
    )


def outcomes(run: Run[Any]) -> list[Any]:
    return [(result.number, result.score, result.dropped, list(result.outcomes)) for result in run.results()]
