"""What can go wrong on demand: which faults there are, and the seeded plan that says when each strikes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fanfold.config import from_mapping
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, nearest

#: What a request is for; a fault may be told to strike only some of these.
OPERATIONS = ("generate", "line", "create", "upload", "poll", "list", "results", "cancel", "delete", "other")

#: Strike instead of the work: nothing is processed, nothing is charged.
BEFORE = {
    "rate_limit": "429, with Retry-After of `value` seconds when given",
    "spend_limit": "the error of an account without money, which waiting does not cure",
    "internal": "500",
    "bad_gateway": "502, an HTML page as gateways send it",
    "unavailable": "503",
    "overloaded": "529",
    "hang": "never answered",
    "disconnect": "the connection closes without an answer",
}
#: Strike after the work: what was asked for is done and charged.
AFTER = {
    "lost_drop": "done and charged, then the connection closes without an answer",
    "lost_502": "done and charged, then answered with 502",
    "lost_hang": "done and charged, then never answered",
    "drip": "`value` bytes per second, 1 by default",
    "cut": "the connection closes in the middle of the body",
    "truncate": "the JSON ends in the middle, the HTTP is in order",
    "content_type": "an HTML page with status 200",
    "malformed": "what was asked for is missing from the JSON (no choices, no content, no status)",
    "extra_fields": "fields that no client knows",
}
#: Change what the model says, in realtime and in the lines of a batch.
ANSWER = {
    "refusal": "the model refuses",
    "content_filter": "the answer is withheld by a filter",
    "length": "the answer ends at the token limit",
}
#: Decided when a batch is created; `value` is a share of its lines where one is named.
BATCH = {
    "batch_failed": "fails validation, or, where batches are not validated, every line is errored",
    "batch_expired": "expires with the share `value` done, at the time it would have ended",
    "batch_stuck": "stands still with the share `value` done until it really expires",
    "batch_cancelled": "is cancelled by the provider with the share `value` done",
    "batch_billing": "every line is errored for want of credit",
    "batch_errors": "the share `value` of the lines, 0.5 by default, is rejected by the model API",
    "batch_overloaded": "the share `value` of the lines, 0.5 by default, fails for an overload that passes",
    "batch_shuffled": "results in another order",
    "batch_duplicates": "some results come twice",
    "batch_missing": "some results are missing, whatever the counts say",
    "batch_unknown": "results with ids that nobody sent",
    "batch_status": "the status is a word that no client knows (`value`) while it runs",
    "results_elsewhere": "results_url points to the host `value`, another.example by default",
}
_SHARES = ("batch_expired", "batch_stuck", "batch_cancelled", "batch_errors", "batch_overloaded")
_WORDS = ("batch_status", "results_elsewhere")
KINDS = {**BEFORE, **AFTER, **ANSWER, **BATCH}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: with a `probability`, at most so many `times`, between `start` and `end`.

    `start` and `end` are seconds after the faults were set.  `on` names operations; when empty, the fault strikes
    everything its kind makes sense for (a lost answer: the creation of batches).
    """

    kind: str
    probability: float = 1.0
    times: int | None = None
    start: float = 0.0
    end: float | None = None
    on: tuple[str, ...] = ()
    value: float | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"there is no fault {self.kind!r}{nearest(self.kind, KINDS)}")
        for operation in self.on:
            if operation not in OPERATIONS:
                raise ConfigError(f"fault {self.kind!r}: no operation {operation!r}{nearest(operation, OPERATIONS)}")
        if not 0 <= self.probability <= 1:
            raise ConfigError(f"fault {self.kind!r}: probability must lie between 0 and 1, not {self.probability}")
        if self.kind in _WORDS or self.value is None:
            return
        if isinstance(self.value, str) or self.value < 0 or (self.kind in _SHARES and self.value > 1):
            wanted = "a share between 0 and 1" if self.kind in _SHARES else "a number above 0"
            raise ConfigError(f"fault {self.kind!r}: value must be {wanted}, not {self.value!r}")

    def number(self, default: float) -> float:
        """`value` as a number."""
        return default if self.value is None else float(self.value)

    def strikes(self, operation: str) -> bool:
        """Whether this fault has anything to do with an operation."""
        if self.on:
            return operation in self.on
        if self.kind in ANSWER:
            return operation in ("generate", "line")
        if self.kind in BATCH or self.kind.startswith("lost_"):
            return operation == "create"
        return operation != "line"


@dataclass(frozen=True, slots=True)
class Faults:
    """Everything that is to go wrong; the first fault that strikes wins.  In JSON: `{"seed": 0, "faults": [...]}`."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    @staticmethod
    def of(value: Mapping[str, Any], where: str = "the faults") -> Faults:
        """Faults from JSON-like data; a typo is a ConfigError that names it."""
        return from_mapping(Faults, value, where)


class FaultPlan:
    """Faults as they strike: counts what is left of each and draws from one seeded stream per fault."""

    def __init__(self, faults: Faults, since: float | None) -> None:
        self.faults = faults
        self._since = since  # None: until the first request, when a loop with a time runs
        self._left = [fault.times for fault in faults.faults]
        self._streams = [
            random.Random(derive_seed(faults.seed, index, fault.kind)) for index, fault in enumerate(faults.faults)
        ]

    def draw(self, kinds: Mapping[str, str], operation: str, now: float) -> Fault | None:
        """The first fault among `kinds` that strikes this operation now."""
        for index, fault in enumerate(self.faults.faults):
            if fault.kind in kinds and self._strikes(index, fault, operation, now):
                return fault
        return None

    def draw_all(self, kinds: Mapping[str, str], operation: str, now: float) -> dict[str, Fault]:
        """Every fault among `kinds` that strikes, by its kind."""
        return {
            fault.kind: fault
            for index, fault in enumerate(self.faults.faults)
            if fault.kind in kinds and self._strikes(index, fault, operation, now)
        }

    def _strikes(self, index: int, fault: Fault, operation: str, now: float) -> bool:
        if self._since is None:
            self._since = now
        left = self._left[index]
        elapsed = now - self._since
        if left == 0 or not fault.strikes(operation) or elapsed < fault.start:
            return False
        if fault.end is not None and elapsed >= fault.end:
            return False
        if fault.probability < 1 and self._streams[index].random() >= fault.probability:
            return False
        if left is not None:
            self._left[index] = left - 1
        return True
