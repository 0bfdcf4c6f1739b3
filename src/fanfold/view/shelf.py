"""The ledgers that are looked at: read in threads, each with connections of its own, and what is kept of them."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from fanfold.errors import LedgerError
from fanfold.ledger import CellValues, Ledger, Quantity, RunHead, RunView
from fanfold.report.pages.matrix import Arrangement, arrange
from fanfold.report.pages.parts import Payload, ShownRun
from fanfold.report.pages.runs import row_of

K = TypeVar("K")
T = TypeVar("T")

#: Threads that read, the seconds that a statement may take, and the most matrices that are kept in memory.
THREADS, SECONDS, MATRICES = 4, 2.0, 6
#: The most lines about runs and answers that are kept, and the most bytes of an answer.
ROWS, ANSWERS, LARGEST = 2000, 64, 2**20


@dataclass
class _Matrix:
    """The values of a run's cells, once one thread has read them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    values: CellValues | None = None


class Shelf:
    """The ledgers given at the start, by number. Nothing else is ever opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = dict(enumerate(paths))
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fanfold-view")
        self._own = threading.local()
        self._opened: list[Ledger] = []
        self._lock = threading.Lock()
        self._matrices: OrderedDict[tuple[int, int, str], _Matrix] = OrderedDict()
        self._rows: OrderedDict[tuple[int, int], tuple[Hashable, Payload]] = OrderedDict()
        self._arranged: OrderedDict[Hashable, list[Arrangement]] = OrderedDict()
        self._answers: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()

    async def read(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, where `ledger` and `shown` work."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        self._threads.shutdown()
        for ledger in self._opened:
            ledger.close()

    def ledger(self, number: int) -> Ledger:
        """This thread's connection to a ledger."""
        ledgers: dict[int, Ledger] = self._own.__dict__.setdefault("ledgers", {})
        if number not in self.paths:
            raise LedgerError(f"there is no ledger {number}: this server shows {len(self.paths)}")
        if number not in ledgers:
            ledgers[number] = Ledger(self.paths[number], readonly=True, patience=SECONDS)
            with self._lock:
                self._opened.append(ledgers[number])
        return ledgers[number]

    def ledgers(self) -> dict[int, Ledger]:
        return {number: self.ledger(number) for number in self.paths}

    def view(self, number: int, name: str) -> RunView:
        """A run of a ledger, by its exact name."""
        ledger = self.ledger(number)
        id = ledger.find(name)
        if id is None:
            raise LedgerError(f"{ledger.path} has no run {name!r:.80}")
        return RunView(ledger, id)

    def shown(self, number: int, name: str) -> ShownRun:
        """The same with its study's words for it."""
        return ShownRun(self.view(number, name), number)

    def row(self, number: int, ledger: Ledger, head: RunHead) -> Payload:
        """The line about a run, made again only when the run has changed."""
        version = (head, RunView(ledger, head.id).status)
        kept = self._rows.get((number, head.id))
        if kept is None or kept[0] != version:
            kept = version, row_of(number, ledger, head)
            with self._lock:
                _remember(self._rows, (number, head.id), kept, ROWS)
        return kept[1]

    def values(self, shown: ShownRun, colour: Quantity) -> CellValues:
        """The matrix of a run in memory, up to date."""
        key = (shown.ledger, shown.view.id, colour)
        with self._lock:
            entry = _remember(self._matrices, key, self._matrices.get(key) or _Matrix(), MATRICES)
        with entry.lock:  # one thread reads it, and the others wait
            if entry.values is None:
                entry.values = shown.view.values(colour)
            else:
                entry.values.refresh(shown.view.ledger)
            return entry.values

    def arrange(self, shown: ShownRun, chosen: Mapping[str, str], mark: int | None, again: bool = False) -> Arrangement:
        """The order of a matrix: the one that a page was told at a mark, the last, or one made `again`."""
        key = (shown.ledger, shown.view.id, *chosen.values())
        recent = self._arranged.get(key, [])
        if recent and not again:
            return next((arranged for arranged in recent if arranged.mark == mark), recent[-1])
        arranged = arrange(shown, self.values(shown, cast(Quantity, chosen["colour"])), chosen)
        with self._lock:
            _remember(self._arranged, key, [*recent[-3:], arranged], MATRICES)
        return arranged

    def kept(self, key: Hashable, version: Hashable, make: Callable[[], bytes]) -> bytes:
        """An answer that is made again only when its version has changed."""
        found = self._answers.get(key)
        if found is not None and found[0] == version:
            return found[1]
        answer = make()
        if len(answer) <= LARGEST:
            with self._lock:
                _remember(self._answers, key, (version, answer), ANSWERS)
        return answer


def _remember(kept: OrderedDict[K, T], key: K, value: T, most: int) -> T:
    """Keep a value, and only the `most` that were used last."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
    return value
