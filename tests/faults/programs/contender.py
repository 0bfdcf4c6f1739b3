"""Runs one search under a run name of its choice and says how that went: the program that others compete with."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any

from searches import Coroutine, Plain, search

from fanfold import FanfoldError


def main(run: str, ledger: str, side: str, *conditions: str) -> None:
    search("genetic", "all", Plain(None), trials=1).run(
        "async:8"
    ).ledger.close()  # import everything while that is still allowed
    for condition in conditions:
        name, _, value = condition.partition("=")
        CONDITIONS[name](int(value))
    print("ready", flush=True)
    try:
        done = search("genetic", "all", Coroutine(side)).run("async:8", ledger=ledger, run=run)
    except FanfoldError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
    print(done.trace, flush=True)


def as_user(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def files_up_to(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


CONDITIONS: dict[str, Any] = {"user": as_user, "limit": files_up_to}

if __name__ == "__main__":
    main(*sys.argv[1:])
