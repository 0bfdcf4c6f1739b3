"""Small conversations with a simulated provider, run in children of this process that the tests kill.

Children are forked from a parent that has imported everything, so that one more life costs milliseconds.  The parent
reads one JSON object per line, forks, says the child's pid, and says how it ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold import Case, Ok, Study, Sweep
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.batch.journal import BatchJournal
from fanfold.models.batch.lifecycle import BatchLifecycle
from fanfold.models.http import Http
from fanfold.models.model import Model
from fanfold.models.providers.anthropic import Anthropic, AnthropicBatches
from fanfold.models.providers.openai import OpenAI, OpenAIBatches

TALKS, TURNS = 5, 3


@dataclass(frozen=True)
class Talk:
    model: Model
    fingerprint: str = "talk"

    async def __call__(self, candidate: str, case: Case) -> Ok:
        dialogue: list[dict[str, str]] = []
        for turn in range(TURNS):
            dialogue.append({"role": "user", "content": f"{candidate} says {turn}"})
            reply = await self.model.generate(dialogue, max_tokens=20, reasoning_effort="none")
            dialogue.append({"role": "assistant", "content": reply.text or "(nothing)"})
        return Ok(int.from_bytes(hashlib.sha256(repr(dialogue).encode()).digest()[:4]) / 2**32)


def talks(style: str, name: str, url: str, connect: Any = Http) -> Study[Any]:
    """A study whose requests are all its own, so that a bill can be checked request by request."""
    if style == "openai":
        model = Model("gpt-6-luna", OpenAI(), f"{url}/v1", Limits(), None, connect=connect, key="k")
    else:
        model = Model("claude-haiku-5-5", Anthropic(), url, Limits(), None, connect=connect, key="k")
    return Study(Sweep([f"{name}-{number}" for number in range(TALKS)]), Talk(model))


def executor(mode: str) -> Any:
    if not mode.startswith("batch"):
        return mode
    # No wave is too small for a batch here: what goes out plainly may be paid for twice when its client is killed.
    return BatchExecutor(mode[6:], settle=0.01, poll=0.02, smallest=1, looks=(0.0, 0.05, 0.1, 0.2))


#: Steps of a batch's way at which a child can be told to kill itself: (where, name, before or after the real one).
STEPS: dict[str, tuple[type[Any], str, str]] = {
    "before the intent": (BatchJournal, "intend", "before"),
    "before create": (BatchJournal, "intend", "after"),
    "inside create": (BatchLifecycle, "", "inside"),
    "before the id is noted": (BatchLifecycle, "", "after"),
    "before the results are read": (BatchLifecycle, "_collect", "before"),
    "before the answers are given": (BatchLifecycle, "_deliver", "before"),
    "after the answers are given": (BatchLifecycle, "_deliver", "after"),
    "before it is done": (BatchJournal, "all_safe", "after"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str, count: int, wait: float) -> None:
    """Let this process kill itself the `count`th time that it comes to a step."""
    owner, name, when = STEPS[step]
    places = [(kind, "create") for kind in (OpenAIBatches, AnthropicBatches)] if not name else [(owner, name)]
    left = count

    for place, method in places:
        real = getattr(place, method)

        def due() -> bool:
            nonlocal left
            left -= 1
            return left == 0

        async def later(*args: Any, real: Any = real) -> Any:
            now = due()
            if now and when == "before":
                die()
            if now and when == "inside":
                asyncio.get_running_loop().call_later(wait, die)
            value = await real(*args)
            if now and when == "after":
                die()
            return value

        def at_once(*args: Any, real: Any = real) -> Any:
            now = due()
            if now and when == "before":
                die()
            value = real(*args)
            if now and when == "after":
                die()
            return value

        setattr(place, method, later if asyncio.iscoroutinefunction(real) else at_once)


def live(order: dict[str, Any]) -> None:
    """One life of a client: run, or resume, and leave the trace in a file when it comes that far."""
    random.seed(order["seed"])
    if order.get("step"):
        die_at(order["step"], order["count"], order["wait"])
    run = talks(order["style"], order["name"], order["url"]).run(
        executor(order["mode"]), ledger=order["ledger"], run="talks"
    )
    assert run.progress.failures == 0, run
    Path(order["ledger"]).with_suffix(".trace").write_text(run.trace)


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(json.loads(line))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(f"pid {child}", flush=True)
        print(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)


if __name__ == "__main__":
    main()
