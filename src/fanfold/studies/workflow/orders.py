"""Workflows: in which order a defender cares for the types of machines, how far two orders are apart, and kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from fanfold.errors import ConfigError, MissingExtra, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNITS = ("defender", "enterprise", "op_server", "op_host", "user")
#: Every unit type once, the one to be fixed first in front.
Workflow: TypeAlias = tuple[str, ...]

#: The orders that the original system gave names.
NAMED: dict[str, Workflow] = {
    "critical_first": ("defender", "op_server", "enterprise", "op_host", "user"),
    "enterprise_focus": ("enterprise", "defender", "op_server", "op_host", "user"),
    "user_priority": ("user", "defender", "enterprise", "op_server", "op_host"),
    "operational_focus": ("op_server", "op_host", "defender", "enterprise", "user"),
    "balanced": ("defender", "enterprise", "op_server", "user", "op_host"),
    "reverse": ("user", "op_host", "enterprise", "op_server", "defender"),
}

#: Decays of the Mallows kernel to choose from: from nearly linear in the pairs to every order for itself.
DECAYS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5)


def orders() -> tuple[Workflow, ...]:
    """All 120 workflows, always in the same order."""
    return tuple(itertools.permutations(UNITS))


def parse(text: str) -> Workflow:
    """Read `defender>enterprise>op_server>op_host>user` (also with arrows or commas), or the name of a named order."""
    if not isinstance(text, str):
        raise ConfigError(f"a workflow is written like {show(UNITS)!r}, not {text!r}")
    words = [re.sub(r"[\s-]+", "_", word.strip().lower()) for word in re.split(r"->|[>→,]", text)]
    if len(words) == 1 and words[0] in NAMED:
        return NAMED[words[0]]
    for word in words:
        if word not in UNITS:
            known = UNITS if len(words) > 1 else (*UNITS, *NAMED)
            raise ConfigError(f"workflow {text!r}: there is no unit type {word!r}{nearest(word, known)}")
    return checked(words)


def show(workflow: Sequence[str]) -> str:
    """The text that `parse` reads."""
    return ">".join(workflow)


def checked(workflow: Sequence[str]) -> Workflow:
    """The workflow as a tuple (a ledger gives lists back); an error unless it has every unit type exactly once."""
    order = tuple(workflow)
    if sorted(map(str, order)) != sorted(UNITS):
        twice = [unit for unit in UNITS if order.count(unit) > 1]
        missing = [unit for unit in UNITS if unit not in order]
        wrong = [unit for unit in order if unit not in UNITS]
        problems = [("twice", twice), ("missing", missing), ("unknown", wrong)]
        listed = "; ".join(f"{what}: {', '.join(map(str, units))}" for what, units in problems if units)
        raise ConfigError(
            f"workflow {show(tuple(map(str, order)))!r} ({listed}): name each of {', '.join(UNITS)} exactly once"
        )
    return order


def one_hot(workflow: Sequence[str]) -> tuple[float, ...]:
    """The 25 numbers a network is told: for each place, which unit type stands there."""
    return tuple(float(unit == known) for unit in checked(workflow) for known in UNITS)


def kendall(a: Sequence[str], b: Sequence[str], ignore: Iterable[str] = ()) -> int:
    """How many pairs of unit types the two orders put the other way round: 0 to 10.

    Types in `ignore` are left out of both, as for machines that red cannot reach.
    """
    left_out = frozenset(ignore)
    place = {unit: position for position, unit in enumerate(b)}
    kept = [place[unit] for unit in a if unit not in left_out]
    return sum(first > second for first, second in itertools.combinations(kept, 2))


def nearest_workflow(workflow: Sequence[str], trained: Iterable[Sequence[str]]) -> Workflow | None:
    """The trained workflow at the smallest Kendall distance; None without any.

    Of several equally near, the one that agrees on the most urgent types for longest, and then the first by name: the
    order in which they were trained does not matter.
    """
    wanted = checked(workflow)
    return min((checked(other) for other in trained), key=lambda other: _apart(wanted, other), default=None)


def _apart(wanted: Workflow, other: Workflow) -> tuple[int, int, Workflow]:
    agreed = next((i for i, (a, b) in enumerate(zip(wanted, other)) if a != b), len(wanted))
    return kendall(wanted, other), -agreed, other


def distances(workflows: Sequence[Sequence[str]], ignore: Iterable[str] = ()) -> NDArray[np.int64]:
    """Kendall's distance between any two of the workflows."""
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra("numpy", "workflow", "the search over workflows") from error
    left_out = frozenset(ignore)
    for unit in left_out:
        if unit not in UNITS:
            raise ConfigError(f"ignore: there is no unit type {unit!r}{nearest(str(unit), UNITS)}")
    pairs = list(itertools.combinations([unit for unit in UNITS if unit not in left_out], 2))
    places = [checked(workflow).index for workflow in workflows]
    signs = np.array([[place(a) < place(b) for a, b in pairs] for place in places], np.int64)
    signs = signs.reshape(len(places), len(pairs))
    apart: NDArray[np.int64] = (signs[:, None, :] != signs[None, :, :]).sum(axis=2)
    return apart


def mallows(workflows: Sequence[Sequence[str]], decay: float, ignore: Iterable[str] = ()) -> NDArray[np.float64]:
    """exp(-decay * Kendall distance) of any two workflows: positive definite for every decay above 0.

    With `ignore`, orders that differ only in the place of those types are one and the same to the kernel.
    """
    if not 0.0 < decay < float("inf"):
        raise ConfigError(f"decay={decay!r}: give a number above 0")
    import numpy as np

    kernel: NDArray[np.float64] = np.exp(-decay * distances(workflows, ignore))
    return kernel
