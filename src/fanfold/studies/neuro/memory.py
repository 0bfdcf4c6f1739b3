"""How many networks fit beside each other: predicted, corrected by what is measured, and learnt from what failed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fanfold.errors import FanfoldError

J = TypeVar("J")
T = TypeVar("T")

#: The share of what is free that is used: the rest is for fragments and for others.
SHARE = 0.9


class DoesNotFit(FanfoldError):
    """A network takes more memory than there is, even by itself."""


class DeviceMemory:
    """What a device can hold, in predicted bytes.

    A prediction is off by a factor that hardly depends on the network; the first measurement gives it.  Of a sum of
    predictions that did not fit, no more than half is tried again.
    """

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free
        self.factor = 1.0
        self.ceiling = math.inf

    def fitting(self, predictions: Sequence[int]) -> int:
        """How many of these, from the first on, fit together: at least one, because only trying shows it."""
        room, total = SHARE * self._free(), 0
        for count, prediction in enumerate(predictions):
            total += prediction
            if count and (total * self.factor > room or total >= self.ceiling):
                return count
        return len(predictions)

    def measured(self, predicted: int, used: int) -> None:
        """So much was used at the peak by what was predicted to use that."""
        if predicted > 0 and used > 0:
            self.factor = used / predicted

    def failed(self, predicted: int) -> None:
        """So much did not fit."""
        self.ceiling = min(self.ceiling, predicted // 2 + 1)


class GroupPace:
    """Hill climbing on networks per second: groups grow while that pays, and once it does not, they stay.

    Every so often the neighbours are tried again, because what pays changes with the networks.
    """

    GAIN, AGAIN = 1.05, 16

    def __init__(self, start: int, most: int) -> None:
        self.most = max(1, most)
        self.size = min(max(1, start), self.most)
        self._rates: dict[int, float] = {}
        self._best = self.size
        self._since = 0

    def saw(self, size: int, seconds: float) -> None:
        """A group of so many took so long."""
        if size != self.size or seconds <= 0:
            return  # what was left over says nothing of full groups
        self._rates[size] = size / seconds
        self._since += 1
        if self._rates[size] > self.GAIN * self._rates.get(self._best, 0.0) or size == self._best:
            self._best = size
            larger, smaller = min(2 * size, self.most), max(1, size // 2)
            untried = [other for other in (larger, smaller) if other not in self._rates]
            self.size = untried[0] if untried else size
        else:
            self.size = self._best
        if self._since >= self.AGAIN:
            self._since, self._rates = 0, {self._best: self._rates[self._best]}


def in_groups(
    jobs: Sequence[J],
    predict: Callable[[J], int],
    memory: DeviceMemory,
    train: Callable[[Sequence[J]], Sequence[T]],
    out_of_memory: Callable[[BaseException], bool],
    most: Callable[[], int],
) -> list[T | DoesNotFit]:
    """Train jobs in groups that fit.  A group that does not is halved and tried again, and its size remembered."""
    done: list[T | DoesNotFit] = []
    while len(done) < len(jobs):
        left = jobs[len(done) :]
        predictions = [predict(job) for job in left]
        count = min(memory.fitting(predictions), max(1, most()))
        while True:
            try:
                done.extend(train(left[:count]))
                break
            except Exception as error:
                if not out_of_memory(error):
                    raise
                memory.failed(sum(predictions[:count]))
                if count == 1:
                    done.append(
                        DoesNotFit(f"training it takes about {predictions[0]:,} bytes, and there is not that much room")
                    )
                    break
                count = count // 2
    return done


def free_memory() -> int:
    """Bytes that this process may still take, as far as the system tells."""
    limits = []
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    try:
        limits.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits[-1] = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return max(0, min(limits, default=2**32))
