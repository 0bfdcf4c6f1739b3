"""The workflows of CAGE-2: in which order a defender cares for types of machines, roles of machines or single ones."""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.errors import ConfigError
from fanfold.studies.workflow.spaces import Orders, Workflow, show

__all__ = ["GRAINS", "NAMED", "UNITS", "cage2_orders", "checked", "one_hot", "options_of_hosts", "parse", "show"]

UNITS = ("defender", "enterprise", "op_server", "op_host", "user")

#: The orders that the original system gave names.
NAMED: dict[str, Workflow] = {
    "critical_first": ("defender", "op_server", "enterprise", "op_host", "user"),
    "enterprise_focus": ("enterprise", "defender", "op_server", "op_host", "user"),
    "user_priority": ("user", "defender", "enterprise", "op_server", "op_host"),
    "operational_focus": ("op_server", "op_host", "defender", "enterprise", "user"),
    "balanced": ("defender", "enterprise", "op_server", "user", "op_host"),
    "reverse": ("user", "op_host", "enterprise", "op_server", "defender"),
}

#: The hosts in the order of the game, and the unit type and the role of each.  A role is what a host of a subnet is to
#: red: the front is what users lead to, the gate what leads to the operational subnet.
_HOSTS = """
defender     defender     defender
enterprise0  enterprise   enterprise_front
enterprise1  enterprise   enterprise_front
enterprise2  enterprise   enterprise_gate
op_host0     op_host      op_host
op_host1     op_host      op_host
op_host2     op_host      op_host
op_server0   op_server    op_server
user0        user         user_foothold
user1        user         user_windows
user2        user         user_windows
user3        user         user_linux
user4        user         user_linux
"""
_HOST, _UNIT, _ROLE = zip(*(line.split() for line in _HOSTS.split("\n") if line))
#: How finely machines are told apart: of each grain, the option that each host belongs to.
GRAINS: dict[str, tuple[str, ...]] = {"units": _UNIT, "roles": _ROLE, "hosts": _HOST}
_OPTIONS = {"units": UNITS, "roles": tuple(dict.fromkeys(_ROLE)), "hosts": _HOST}
_GRAIN_OF = {frozenset(options): grain for grain, options in _OPTIONS.items()}


def cage2_orders(grain: str = "units", contested: Sequence[tuple[str, str]] | None = None) -> Orders:
    """All orders of a grain; with `contested`, only the order within these pairs matters."""
    names, what = (NAMED, "unit type") if grain == "units" else ({}, grain.removesuffix("s"))
    return Orders(_OPTIONS[grain], None if contested is None else tuple(contested), names, what)


def parse(text: str, grain: str = "units") -> Workflow:
    """Read `defender>enterprise>op_server>op_host>user` (also with arrows or commas), or the name of a named order."""
    return cage2_orders(grain).parse(text)


def checked(workflow: Sequence[str]) -> Workflow:
    """The workflow as a tuple; an error unless it has every option of a grain exactly once."""
    return cage2_orders(_GRAIN_OF.get(frozenset(workflow), "units")).checked(workflow)


def options_of_hosts(workflow: Workflow) -> tuple[str, ...]:
    """The option of the workflow that each host belongs to."""
    grain = _GRAIN_OF.get(frozenset(workflow))
    if grain is None:
        raise ConfigError(f"workflow {show(workflow)!r} is not an order of CAGE-2's {', '.join(GRAINS)}")
    return GRAINS[grain]


def one_hot(workflow: Sequence[str]) -> tuple[float, ...]:
    """The 25 numbers a network is told of an order of unit types: for each place, which type stands there.

    Networks for other workflows are told nothing: each learns for one workflow alone.
    """
    return tuple(float(unit == known) for unit in workflow for known in UNITS) if set(workflow) == set(UNITS) else ()
