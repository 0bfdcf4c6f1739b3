"""The game of CAGE Challenge 2 (Scenario2) as tables: hosts, ports, decoys, exploits, plans, and what may be varied."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fanfold.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: where it stands, what listens on it, what red's admin rights there cost per step in tenths."""

    name: str
    subnet: str
    windows: bool
    listens: tuple[int, ...]
    cost: int
    #: The host whose address is found by escalating here.
    reveals: str | None = None


_SCENARIO = tomllib.loads(Path(__file__).with_name("scenario2.toml").read_text(encoding="utf-8"))


def _frozen(entry: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, list) else part for part in entry)


HOST = tuple(Host(*_frozen(entry)) for entry in _SCENARIO["hosts"])
HOSTS = tuple(host.name for host in HOST)
#: In the order in which Meander looks for one to sweep.
SUBNETS = ("Enterprise", "Operational", "User")
#: The first eight are those red remembers; a port's place here is its bit.
PORTS = (139, 3389, 80, 443, 22, 3390, 25, 21, 53, 68, 135, 445)
REMEMBERED = 0xFF
#: What is known of a session: how it came about and whether blue noticed it, or that it has become admin.
KINDS = ("ssh", "detected", "undetected", "admin")


@dataclass(frozen=True, slots=True)
class Decoy:
    """A listening process that fools red.  `checked` is the port that must be free, which need not be `port`."""

    name: str
    port: int
    checked: int
    system: Literal["any", "Windows", "Linux"]


DECOYS = tuple(Decoy(*entry) for entry in _SCENARIO["decoys"])


@dataclass(frozen=True, slots=True)
class Exploit:
    """A way in, most preferred first: the port it goes to and the hosts on which it lands, as a user or as admin."""

    name: str
    port: int
    user: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()


EXPLOITS = tuple(Exploit(*_frozen(entry)) for entry in _SCENARIO["exploits"])
SQL, SSH = 2, 7
#: The session an exploit of a real service gives: none (there is no such service), one of the user, an admin's, or
#: none although the service is there.
NOTHING, AS_USER, AS_ADMIN, REFUSED = range(4)

#: Decoys that some host has room for, as pairs of a host and a decoy.
PLACEABLE = tuple(
    (host, decoy)
    for host in HOST
    for decoy in DECOYS
    if decoy.checked not in host.listens and decoy.system in ("any", "Windows" if host.windows else "Linux")
)
#: Those worth remembering: where red's admin rights cost much or show the way on.  Each further bit of memory
#: multiplies the observations that are met.
GUARDS = tuple((host, decoy) for host, decoy in PLACEABLE if host.cost >= 10 or host.reveals is not None)
#: What a blue with memory sees besides the 52 bits, all of it known from its own actions and observations: the decoys
#: that guard, the hosts that showed activity before this step, and whether it has restored Op_Server0.
MEMORY = (
    *(f"Decoy{decoy.name} {host.name} stands" for host, decoy in GUARDS),
    *(f"activity on {name} before" for name in HOSTS),
    "Op_Server0 was restored",
)
ACTIVE_BEFORE, RESTORED = len(GUARDS), len(MEMORY) - 1
SEEN = 4 * len(HOSTS)

FAMILIES = ("Analyse", "Remove", *(f"Decoy{decoy.name}" for decoy in DECOYS), "Restore")
#: Blue's 145 actions: two without a host, then thirteen of each family.
ACTIONS = ("Sleep", "Monitor", *(f"{family} {host}" for family in FAMILIES for host in HOSTS))
ANALYSE, REMOVE, FIRST_DECOY, RESTORE = 0, 1, 2, 10
#: Actions that never do anything: decoys on hosts that have no room for them.
IDLE = tuple(
    number
    for number, action in enumerate(ACTIONS)
    if action.startswith("Decoy") and action not in {f"Decoy{decoy.name} {host.name}" for host, decoy in PLACEABLE}
)

RED_ACTIONS = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)
SLEEP, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)
FAILURE, SUCCESS, UNKNOWN = range(3)
OUTCOMES = ("FALSE", "TRUE", "UNKNOWN")

REDS = ("b_line", "meander", "sleep")
B_LINE, MEANDER, ASLEEP = range(3)
#: What the fifteen stages of B-line do to what; `U` is its user host and `E` the enterprise host found from there.
PLAN = tuple((RED_ACTIONS.index(verb), target) for verb, target, _ in _SCENARIO["plan"])
#: Where B-line continues after a failure of each stage.
JUMPS = tuple(jump for _, _, jump in _SCENARIO["plan"])
PLAN_USER, PLAN_ENTERPRISE = 100, 101

#: Green scans one of these, half of the time.
GREEN_HOSTS = ("User0", "User1", "User2", "User3", "User4", "Enterprise0", "Enterprise1", "Enterprise2")
GREEN_SLEEPS = len(GREEN_HOSTS)

#: Every chance of one step has a place of its own, so that what is drawn for one never moves another.
CHANCES = ("target", "exploit", "detected", "escalated", "green")
AT_TARGET, AT_EXPLOIT, AT_DETECTED, AT_ESCALATED, AT_GREEN = range(5)
PLACES = 8


@dataclass(frozen=True, slots=True)
class Cage2Game:
    """What may be varied.

    With several `reds`, each episode's red is drawn from the episode's own luck.  `observation` is what Blue's table
    says: `cyborg` is that of the challenge, `original` that of a patched wrapper in which a decoy that was just placed
    hides nothing.  With `restore_quirk` (CybORG 2.1), Op_Server0's service cannot be stopped any more once that host
    was restored.  With `memory`, blue also sees what it could remember (`MEMORY`); networks that learnt without play
    without.
    """

    reds: tuple[str, ...] = ("b_line",)
    length: int = 100
    green: bool = False
    observation: str = "cyborg"
    restore_quirk: bool = True
    memory: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.reds, str):
            object.__setattr__(self, "reds", (self.reds,))
        if not self.reds:
            raise ConfigError(f"reds: name at least one of {', '.join(REDS)}")
        for red in self.reds:
            if red not in REDS:
                raise ConfigError(f"reds: there is no red agent {red!r}{nearest(str(red), REDS)}")
        if self.observation not in ("cyborg", "original"):
            known = nearest(str(self.observation), ("cyborg", "original"))
            raise ConfigError(f"observation: there is no variant {self.observation!r}{known}")
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise ConfigError(f"length: an episode has at least one step, not {self.length!r}")

    @property
    def bits(self) -> int:
        """How many bits blue sees."""
        return SEEN + (len(MEMORY) if self.memory else 0)

    def tables(self) -> Any:
        """The rules in the form the kernels take them: an array of one record."""
        return _tables(self.green, self.restore_quirk, self.observation == "cyborg")


RULES = np.dtype(
    [
        ("open", "i4", 13),  # listening ports, as bits
        ("sockets", "i4", 13),
        ("cost", "i4", 13),
        ("reveals", "i4", 13),  # addresses, as a set of hosts
        ("subnet", "i4", 13),
        ("members", "i4", 3),  # of a subnet
        ("decoy_port", "i4", 8),
        ("decoy_checked", "i4", 8),
        ("decoy_fits", "i4", 8),  # the hosts whose system fits
        ("decoy_memory", "u8", (13, 8)),  # the bit of blue's memory that says it stands
        ("decoys_memory", "u8", 13),
        ("candidates", "i4", 256),  # exploits by what red remembers of a host's ports
        ("exploit_port", "i4", 8),
        ("lands", "i1", (8, 13)),
        ("stopped_by", "i4", 8),  # decoys
        ("stage_verb", "i1", 15),
        ("stage_target", "i1", 15),
        ("jumps", "i1", 15),
        ("green_hosts", "i1", 8),
        ("green", "i1"),
        ("quirk", "i1"),
        ("own_decoy_hides", "i1"),
    ],
    align=True,
)


def port_bits(*ports: int) -> int:
    """Ports as a set of bits."""
    return sum(1 << PORTS.index(port) for port in set(ports))


@functools.lru_cache
def _tables(green: bool, quirk: bool, own_decoy_hides: bool) -> Any:
    rules = np.zeros(1, RULES)
    row = rules[0]
    _fill_hosts(row)
    _fill_ways_in(row)
    row["stage_verb"] = [verb for verb, _ in PLAN]
    row["stage_target"] = [_target(where) for _, where in PLAN]
    row["jumps"] = JUMPS
    row["green_hosts"] = [HOSTS.index(name) for name in GREEN_HOSTS]
    row["green"], row["quirk"], row["own_decoy_hides"] = green, quirk, own_decoy_hides
    return rules


def _fill_hosts(row: Any) -> None:
    for number, host in enumerate(HOST):
        row["open"][number] = port_bits(*host.listens)
        row["sockets"][number] = len(host.listens)
        row["cost"][number] = host.cost
        row["reveals"][number] = 0 if host.reveals is None else 1 << HOSTS.index(host.reveals)
        row["subnet"][number] = SUBNETS.index(host.subnet)
        row["members"][SUBNETS.index(host.subnet)] |= 1 << number


def _fill_ways_in(row: Any) -> None:
    for number, decoy in enumerate(DECOYS):
        fits = [decoy.system == "any" or host.windows == (decoy.system == "Windows") for host in HOST]
        row["decoy_port"][number] = port_bits(decoy.port)
        row["decoy_checked"][number] = port_bits(decoy.checked)
        row["decoy_fits"][number] = sum(1 << host for host, fit in enumerate(fits) if fit)
    for bit, (host, decoy) in enumerate(GUARDS):
        row["decoy_memory"][HOST.index(host), DECOYS.index(decoy)] = 1 << bit
    row["decoys_memory"] = row["decoy_memory"].sum(axis=1)
    for number, exploit in enumerate(EXPLOITS):
        row["exploit_port"][number] = port_bits(exploit.port)
        row["stopped_by"][number] = sum(1 << i for i, decoy in enumerate(DECOYS) if decoy.port == exploit.port)
        for names, lands in ((exploit.user, AS_USER), (exploit.admin, AS_ADMIN)):
            for name in names:
                row["lands"][number][HOSTS.index(name)] = lands
    row["lands"][SSH][HOSTS.index("Defender")] = REFUSED
    web = port_bits(80, 443)
    for ports in range(256):
        ways = sum(1 << i for i, exploit in enumerate(EXPLOITS) if ports & port_bits(exploit.port))
        row["candidates"][ports] = ways if ports & web else ways & ~(1 << SQL)


def _target(where: str) -> int:
    if where in ("U", "E"):
        return PLAN_USER if where == "U" else PLAN_ENTERPRISE
    return SUBNETS.index(where) if where in SUBNETS else HOSTS.index(where)
