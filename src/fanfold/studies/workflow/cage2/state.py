"""The state of an environment as one record of small integers, and the luck of its episode.

Sets of hosts are bit masks.  An episode's luck is a hash of a counter, so any draw of any episode can be made anywhere.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fanfold.errors import MissingExtra
from fanfold.studies.workflow.cage2 import rules as g

try:
    import numba
except ImportError as error:
    raise MissingExtra("numba", "workflow", "CAGE-2") from error

F = TypeVar("F", bound=Callable[..., Any])


# Dividing by zero is not checked for (nothing here does it): the check would keep loops from being vectorised.
_jit: Any = functools.partial(numba.njit, nogil=True, error_model="numpy")


def kernel(function: F) -> F:
    """Compiled where it is first called, kept on disk, and free of the interpreter's lock."""
    compiled: F = _jit(cache=True)(function)
    return compiled


def part(function: F) -> F:
    """A function that only kernels call, which saves compiling what Python would need to call it."""
    compiled: F = _jit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return compiled


def _edition() -> str:
    """Names the code of this folder.

    numba's cache notices a change of the file a kernel stands in, not of what that kernel calls.  With the edition in
    the type of the state, it compiles again whatever was changed here.
    """
    files = sorted(file for file in Path(__file__).parent.iterdir() if file.suffix in (".py", ".toml"))
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=6).hexdigest()


STATE = np.dtype(
    [
        # luck: draw number n of the episode is a hash of key + n * stride
        ("key", "u8"),
        ("stride", "u8"),
        ("forced", "i1", g.PLACES),  # outcomes of this step's chances that are given instead of drawn; -1 draws
        ("drawn", "u1"),  # which chances of this step were drawn
        ("used", "u1"),  # which were taken from `forced`
        # the network
        ("running", "i1"),  # OTService
        ("pinned", "i1"),  # it cannot be stopped any more
        ("sessions", "i4", (13, 4)),
        ("decoys", "u1", 13),
        ("ports", "i2", 13),  # what red remembers of a host's ports; -1: never scanned
        ("files", "i4"),
        ("held", "i4"),  # hosts with any session of red
        ("admin", "i4"),  # hosts with an admin session of red
        ("cost", "i4"),  # of these, in tenths
        # red
        ("red", "i1"),
        ("verb", "i1"),
        ("target", "i1"),
        ("success", "i1"),
        ("empty", "i1"),  # the last scan reached nothing
        ("service", "i1"),  # OTService was found
        ("stage", "i1"),
        ("user", "i1"),
        ("struck", "i1"),  # B-line has once exploited Op_Server0
        ("subnets", "i4"),  # known
        ("swept", "i4"),
        ("addresses", "i4"),  # known
        ("scanned", "i4"),
        ("exploited", "i4"),
        ("owned", "i4"),  # exploited with success at some time
        ("escalated", "i4"),
        # blue
        ("fixed", "i1"),  # this step's Remove or Restore took something from red
        ("reward", "i4"),  # in tenths
        ("step", "i4"),
        ("table", "i8"),  # how compromised blue thinks each host is: the lasting bits of the observation
        ("observation", "i8"),
        ("alerts", "u8"),  # hosts on which this step's observation shows activity
        ("memory", "u8"),  # what blue remembers: see `rules.MEMORY`
        (f"edition_{_edition()}", "u1"),
    ],
    align=True,
)

USER0, OP_SERVER = g.HOSTS.index("User0"), g.HOSTS.index("Op_Server0")
ENTERPRISE, OPERATIONAL, USERS = 0b1110, 0b11110000, 0b1111 << 9
OPERATIONAL_SUBNET, USER_SUBNET = g.SUBNETS.index("Operational"), g.SUBNETS.index("User")
SSH_SESSION, DETECTED, UNDETECTED, ADMIN = range(4)  # as in rules.KINDS
#: Purposes of the streams of an episode.
THE_GAME, BLUE_CHOICES, WHICH_RED = range(3)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@part
def mix(x: Any) -> Any:
    """A bijection of 64 bits whose every output bit depends on every input bit (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@part
def stream(seed: Any, episode: Any, purpose: Any) -> Any:
    """(key, stride) of a sequence of its own for one purpose in one episode under one seed."""
    key = mix(mix(mix(np.uint64(seed) + GOLDEN) ^ np.uint64(episode)) + GOLDEN * np.uint64(purpose + 1))
    return key, mix(key ^ GOLDEN) | np.uint64(1)


@part
def draw(key: Any, stride: Any, number: Any) -> Any:
    """32 random bits: the draw with this number."""
    return np.int64(mix(key + np.uint64(number + 1) * stride) >> np.uint64(32))


@part
def luck(s: Any, place: Any) -> Any:
    """The 32 random bits that belong to the chance at `place` in this step."""
    s.drawn |= 1 << place
    return draw(s.key, s.stride, s.step * g.PLACES + place)


@part
def given(s: Any, place: Any, possible: Any) -> Any:
    """The outcome that was given for the chance at `place` if it is one of the possible ones, else -1."""
    outcome = np.int64(s.forced[place])
    if outcome < 0 or not possible >> outcome & 1:
        return np.int64(-1)
    s.used |= 1 << place
    return outcome


@part
def size(members: Any) -> Any:
    """How many bits are set."""
    count = 0
    while members:
        members &= members - 1
        count += 1
    return count


@part
def member(members: Any, number: Any) -> Any:
    """The place of the bit with this number among those that are set."""
    for _ in range(number):
        members &= members - 1
    place = 0
    while not members >> place & 1:
        place += 1
    return place


@part
def choose(s: Any, place: Any, members: Any) -> Any:
    """One of a set, each as likely, or the one that was given."""
    outcome = given(s, place, members)
    if outcome >= 0:
        return outcome
    number = size(members)
    return member(members, 0 if number == 1 else (luck(s, place) * number) >> 32)


@part
def recount(s: Any, r: Any, h: Any) -> None:
    """Bring what is derived from the sessions of a host up to date."""
    bit = 1 << h
    s.held &= ~bit
    if s.sessions[h, 0] + s.sessions[h, 1] + s.sessions[h, 2] + s.sessions[h, 3]:
        s.held |= bit
    if s.admin & bit:
        s.admin &= ~bit
        s.cost -= r.cost[h]
    if s.sessions[h, ADMIN]:
        s.admin |= bit
        s.cost += r.cost[h]


@part
def open_ports(s: Any, r: Any, h: Any) -> Any:
    """The ports that listen on a host now, those of decoys included."""
    ports = r.open[h]
    for decoy in range(8):
        if s.decoys[h] >> decoy & 1:
            ports |= r.decoy_port[decoy]
    return ports


@part
def reachable(s: Any, h: Any) -> Any:
    """Whether red's traffic, which starts at User0, gets to the host."""
    return not OPERATIONAL >> h & 1 or s.held & ENTERPRISE != 0
