"""Makes the same model calls as its twin, in a run of its own on a shared ledger."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from fanfold import Case, Study, Sweep
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.http import Http
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers.openai import OpenAI


@dataclass(frozen=True)
class Ask:
    asked: Model

    async def __call__(self, candidate: int, case: Case) -> float:
        reply = await self.asked.generate(f"question {candidate}", max_tokens=8, reasoning_effort="none")
        return float(len(reply.text))


def main() -> None:
    url, ledger, name, executor, count = sys.argv[1:]
    asked = Model("gpt-6-luna", OpenAI(), f"{url}/v1", Limits(), Price(1.0, 2.0), connect=Http, key="sk-twin")
    study = Study(Sweep(list(range(int(count)))), Ask(asked), window=int(count))
    polls = {"batch": 0.02, "slow batch": 60.0}
    place = BatchExecutor("openai", settle=0.05, poll=polls[executor]) if executor in polls else executor
    print("ready", flush=True)
    sys.stdin.readline()
    done = study.run(place, ledger=ledger, run=name)
    print(done.progress.evaluations, done.progress.failures, f"{done.progress.cost:.6f}", flush=True)


if __name__ == "__main__":
    main()
