"""Rarer garbage collections while a run is under way.

Thousands of evaluations in flight are as many live objects, and by default Python looks through the young ones after
every 700 allocations: about a fifth of the CPU time of a run with 1,000 calls in flight.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

#: Allocations between two collections of the youngest objects.
YOUNG = 20_000

_lock = threading.RLock()  # what is collected inside it may end such a block itself
_under_way = 0
_before = (0, 0, 0)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect rarely in this block, unless the program has turned collection off or made it rarer still."""
    global _under_way, _before
    with _lock:
        if not _under_way:
            _before = gc.get_threshold()
            if 0 < _before[0] < YOUNG:
                gc.set_threshold(YOUNG, *_before[1:])
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if not _under_way:
                gc.set_threshold(*_before)
