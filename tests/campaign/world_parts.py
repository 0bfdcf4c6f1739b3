"""The parts of the world that go wrong: network, disk, workers and provider, each at the places of a plan.

A plan says at which request, connection, commit or evaluation (counted over the whole seed) which fault strikes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from world_loop import Life, WorldLoop

from fanfold.encoding import digest
from fanfold.errors import PlaceLost, WorkerDied
from fanfold.executors.base import Executor, contained, set_home
from fanfold.executors.processes import answered, packed
from fanfold.executors.worker import loads
from fanfold.ledger import Commits
from fanfold.simulator import Fault, Faults, Simulator
from fanfold.simulator.state import body_key

#: What happens to one exchange; the second group loses a reply that may be charged.
EXCHANGES = ("reset_request", "hang_request", "slow", "pieces", "drip", "twice")
LOST_REPLIES = ("reset_reply", "hang_reply", "lost_drop", "lost_502", "cut", "truncate", "content_type", "malformed")
#: What a provider answers instead, and what it does to a batch.
REFUSALS = ("rate_limit", "internal", "bad_gateway", "unavailable", "overloaded", "extra_fields")
BATCHES = (
    *("batch_expired", "batch_cancelled", "batch_shuffled", "batch_duplicates", "batch_unknown", "batch_overloaded"),
    "batch_status",
)
CONNECTIONS = ("dns", "refused")
COMMITS = ("full", "locked", "slow_disk", "torn", "unacknowledged")
EVALUATIONS = ("died_before", "died_after", "died_within", "lost", "slow_worker", "hung")

#: A text in whatever the world answers wrongly: it must never reach a model.
CANARY_KEY = "sk-canary-7b1f0c"


class Counted:
    """Counts what happens, strikes where the plan says so, and writes both into the log."""

    def __init__(self, plan: Mapping[int, str], rng: random.Random, log: Callable[[str], None]) -> None:
        self.plan, self.rng, self.log = plan, rng, log
        self.count = 0
        self.struck: Counter[str] = Counter()

    def next(self) -> str | None:
        kind = self.plan.get(self.count)
        self.count += 1
        if kind is not None:
            self.struck[kind] += 1
            self.log(f"fault {kind}")
        return kind


class Network(Counted):
    """Delays every piece a little, and breaks exchanges."""

    def __init__(self, plan: Any, connections: Any, rng: random.Random, log: Callable[[str], None]) -> None:
        super().__init__(plan, rng, log)
        self.dialled = Counted(connections, rng, log)
        self._unresolved = False

    def delay(self) -> float:
        return 0.001 + 0.05 * self.rng.random() ** 2

    def unresolved(self) -> bool:
        return self.dialled.plan.get(self.dialled.count) == "dns" and self.dialled.next() is not None

    def connecting(self, address: Any) -> None:
        if self.dialled.next() == "refused":
            raise ConnectionRefusedError(111, "Connection refused")

    def request(self, data: bytes) -> ExchangePlan | None:
        """The plan of the exchange that a request begins; None for the rest of one that has begun."""
        if not data.startswith((b"POST ", b"GET ", b"DELETE ", b"PUT ")):
            return None
        return ExchangePlan(self.next(), self.rng)


class ExchangePlan:
    """What the network does to one request and its reply."""

    def __init__(self, kind: str | None, rng: random.Random) -> None:
        self._kind, self._rng = kind, rng
        self.swallowed = kind in ("reset_request", "hang_request")
        self.broken = kind == "reset_request"

    def reply(self, data: bytes) -> tuple[list[tuple[float, bytes]], bool]:
        """The pieces in which a reply arrives, with the pause before each, and whether the connection breaks then."""
        rng, delay = self._rng, 0.001 + 0.05 * self._rng.random()
        match self._kind:
            case "hang_reply":
                return [], False
            case "reset_reply":
                return [(delay, data[: rng.randrange(len(data))])], True
            case "slow":
                return [(rng.uniform(1.0, 50.0), data)], False
            case "pieces" | "drip":
                pause = 0.0 if self._kind == "pieces" else rng.uniform(0.01, 0.5)
                cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(rng.randint(1, 40)))})
                return [(pause, data[start:end]) for start, end in itertools.pairwise(cuts)], False
            case "twice":
                return [(delay, data), (0.0, data)], False
        return [(delay, data)], False


class Disk(Counted):
    """Commits, which take their time, fail, and are torn by a loss of power."""

    def __init__(self, plan: Any, rng: random.Random, log: Callable[[str], None]) -> None:
        super().__init__(plan, rng, log)
        self._kind: str | None = None
        #: After a loss of power: the bytes of the log that are safe, and the seed of what becomes of the others.
        self.torn: tuple[int, int] | None = None

    def before(self, func: Any) -> float:
        """Seconds until a call that would be a thread's begins."""
        if not _commits(func):
            return 0.001 * self.rng.random()
        self._kind = self.next()
        return self.rng.uniform(0.1, 10.0) if self._kind == "slow_disk" else 0.002 * self.rng.random()

    def after(self) -> float:
        return 0.002 * self.rng.random()

    def call(self, loop: WorldLoop, life: Life | None, func: Any, args: Any) -> Any:
        if life is None or not _commits(func):
            return func(*args)
        commits, kind = func.__self__, self._kind
        self.log(f"commit {sum(map(len, args[0].values()))} rows")
        if kind in ("full", "locked"):
            text = "database or disk is full" if kind == "full" else "database is locked"
            commits._transaction = _failing(text)
            return func(*args)
        log = Path(f"{commits.ledger.path}-wal")
        safe = log.stat().st_size if kind == "torn" and log.exists() else 0
        value = func(*args)
        if kind == "torn":
            self.torn = (safe, self.rng.getrandbits(32))
        if kind in ("torn", "unacknowledged"):
            loop.kill(life)
        return value

    def copy(self, source: Path, target: Path) -> None:
        """What is left of a ledger after a kill, or after a loss of power."""
        target.write_bytes(source.read_bytes())
        log = source.with_name(f"{source.name}-wal")
        if log.exists():
            data = bytearray(log.read_bytes())
            if self.torn is not None:
                safe, seed = self.torn
                tear(data, safe, random.Random(seed))
            target.with_name(f"{target.name}-wal").write_bytes(data)
        self.torn = None


def tear(data: bytearray, safe: int, rng: random.Random) -> None:
    """Lose what was written but not synced: the end, and sectors before it, in any order."""
    end = rng.randint(safe, len(data)) if len(data) > safe else safe
    del data[end:]
    for start in range(safe, end, 512):
        if rng.random() < 0.3:
            size = len(data[start : min(start + 512, end)])
            data[start : start + size] = bytes(size)


def _commits(func: Any) -> bool:
    return isinstance(getattr(func, "__self__", None), Commits) and func.__name__ == "_write"


def _failing(text: str) -> Callable[..., Any]:
    def transaction(*_: Any) -> Any:
        raise sqlite3.OperationalError(text)

    return transaction


class Place(Executor):
    """An executor whose workers are slow, die, hang and get lost; like `async`, `threads` or `processes`.

    A worker that is like a process gets its function and arguments by pickle, and its model calls come home by pickle.
    """

    def __init__(self, kind: str, slots: int, count: Counted) -> None:
        self.kind, self.slots, self._count = kind, slots, count
        self.name = f"{kind}:{slots}"
        self.interruptible = kind == "async"
        self._died: set[bytes] = set()

    @property
    def depth(self) -> int:
        return self.slots * (2 if self.kind == "processes" else 1)

    async def __aenter__(self) -> Place:
        if self.kind == "processes":
            set_home(_home)
        return self

    async def __aexit__(self, *_: object) -> None:
        set_home(None)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        count, rng = self._count, self._count.rng
        kind = count.next()
        count.log(f"evaluation {count.count}")
        await asyncio.sleep(0.01 * rng.random())
        key = digest(pickle.dumps(args)) if kind else b""
        if kind in ("died_before", "died_within", "died_after", "hung"):
            if key in self._died:
                kind = None  # a worker that dies twice on a cell is that cell's failure, and meant to be
            self._died.add(key)
        if kind == "lost":
            raise PlaceLost("the node went away")
        if kind == "died_before":
            raise WorkerDied("the worker was killed by SIGKILL; out of memory?")
        if kind == "hung":
            await asyncio.get_running_loop().create_future()
        if self.kind == "processes":
            fn, args = loads(packed((fn, args)))
        call = asyncio.ensure_future(_called(fn, args))
        try:
            if kind == "died_within":
                await asyncio.wait([call], timeout=rng.uniform(0.0, 2.0))
                raise WorkerDied("the worker was killed by SIGKILL; out of memory?")
            value = await call
        finally:
            call.cancel()
        await asyncio.sleep(rng.uniform(1.0, 20.0) if kind == "slow_worker" else 0.5 * rng.random() ** 3)
        if kind == "died_after":
            raise WorkerDied("the worker exited with code 1 before it answered")
        return loads(packed(value)) if self.kind == "processes" else value


async def _called(fn: Callable[..., Any], args: Any) -> Any:
    try:
        value = fn(*args)
        return await value if hasattr(type(value), "__await__") else value
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        raise contained(error) from error


def _home(request: Any) -> Any:
    """A model call that comes home from a worker: as bytes, both ways."""

    async def ask() -> Any:
        value, error = loads(await answered(packed(request)))
        if error is not None:
            raise error
        return value

    return asyncio.ensure_future(ask())


class Provider:
    """The simulator behind the world's network: what it is asked is written down, and it fails where the plan says."""

    def __init__(self, simulator: Simulator, plan: Any, rng: random.Random, log: Callable[[str], None]) -> None:
        self.simulator = simulator
        self.count = Counted(plan, rng, log)
        self.bodies: list[bytes] = []
        self._log = log

    async def respond(self, request: Any) -> Any:
        kind = self.count.next()
        if kind is not None:
            shared = kind in ("batch_expired", "batch_cancelled", "batch_overloaded")
            value = self.count.rng.random() if shared else None
            on = ("generate", "create") if kind.startswith("lost_") else ()
            fault = Fault(kind, times=1, on=on, value="pondering" if kind == "batch_status" else value)
            self.simulator.set_faults(Faults((fault,)))
        self.bodies.append(request.body)
        self._log(f"asked {request.method} {request.path} {digest(request.body).hex()[:8]}")
        answer = await self.simulator.respond(request)
        self._log(f"answers {getattr(answer, 'status', None) or answer.how}")
        return answer

    def wall(self) -> float:
        return self.simulator.wall()

    async def close(self) -> None:
        await self.simulator.close()

    def charged(self) -> Counter[tuple[str, str]]:
        """How often each request was charged; in a batch, apart."""
        return Counter((charge.key, charge.price) for charge in self.simulator.charges)


def durable_calls(ledger: Path) -> Counter[str]:
    """The requests whose replies are durable, by the hash of their body."""
    import msgspec

    db = sqlite3.connect(ledger)
    try:
        return Counter(body_key(msgspec.json.decode(text)) for (text,) in db.execute("SELECT request FROM call"))
    finally:
        db.close()


def scan(folder: Path, needle: bytes) -> list[str]:
    """The files below a folder that hold some bytes."""
    return [
        os.path.join(place, name)  # noqa: PTH118
        for place, _, names in os.walk(folder)
        for name in names
        if needle in Path(place, name).read_bytes()
    ]
