"""Runs one search to its end and prints its trace: the program that the tests kill and start again."""

from __future__ import annotations

import sys

from searches import Coroutine, Plain, search


def main(strategy: str, schedule: str, order: str, executor: str, ledger: str, side: str, trials: str = "60") -> None:
    evaluate = Coroutine(side) if executor.startswith("async") else Plain(side)
    study = search(strategy, schedule, evaluate, in_order=order == "in-order", trials=int(trials))
    print("ready", flush=True)
    print(study.run(executor, ledger=ledger, run="search").trace, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
