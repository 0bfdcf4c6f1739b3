"""Makes model calls and shares them: `sharer.py BASE_URL SHARE FIRST:LAST LEDGER`."""

from __future__ import annotations

import argparse
import random

from fanfold import Case, Study, Sweep
from fanfold.events import Event, Notice
from fanfold.limits import Limits
from fanfold.models import model


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("base_url", "share", "calls", "ledger"):
        parser.add_argument(name)
    parser.add_argument("--rpm", type=float)
    parser.add_argument("--in-flight", type=int)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--shuffle", type=int)
    parser.add_argument("--budget", type=float)
    parser.add_argument("--executor", default="")
    parser.add_argument("--run", default="sharer")
    options = parser.parse_args()
    first, last = map(int, options.calls.split(":"))
    numbers = list(range(first, last))
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(numbers)
    limits = Limits(requests_per_minute=options.rpm, in_flight=options.in_flight)
    mini = model(
        "openai/gpt-4o-mini", base_url=f"{options.base_url}/v1", key="no-key-needed", limits=limits, price=(1, 2)
    )

    async def evaluate(candidate: str, case: Case) -> float:
        return float(len((await mini.generate(f"number {case.data}", max_tokens=16)).text))

    def watch(event: Event) -> None:
        if isinstance(event, Notice):
            print(event.message, flush=True)

    run = Study(Sweep(["one"]), evaluate, [Case(str(number), number) for number in numbers]).run(
        options.executor or f"async:{options.slots}",
        ledger=options.ledger,
        run=options.run,
        share=None if options.share == "none" else options.share,
        share_budget=options.budget,
        watch=watch,
    )
    print(f"told {run.progress.told}: {run.reason}", flush=True)


if __name__ == "__main__":
    main()
