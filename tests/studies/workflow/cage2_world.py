"""One CAGE-2 environment that a test plays by names, with every chance outcome given or drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.engine import play, start

EVERYWHERE = (1 << 13) - 1
ACTIVITY = {0b00: "None", 0b01: "Scan", 0b11: "Exploit"}
LEVEL = {0b00: "No", 0b01: "Unknown", 0b10: "User", 0b11: "Privileged"}
EXPLOITS = tuple(exploit.name for exploit in g.EXPLOITS)


def host(name: str) -> int:
    return g.HOSTS.index(name)


def bits(*names: str) -> int:
    return sum(1 << host(name) for name in names)


class World:
    """`step` plays; the rest looks, or arranges what red is about to do."""

    def __init__(self, red: str = "meander", episodes: int = 1, seed: int = 0, **options: Any) -> None:
        self.game = g.Cage2Game((red,), **options)
        self.states = start(self.game, seed, np.arange(episodes))
        self.rewards = np.zeros((episodes, 1), np.int32)
        self._keys = np.zeros((episodes, 1), np.uint64)

    def __getitem__(self, field: str) -> Any:
        return self.states[field][0]

    def __setitem__(self, field: str, value: Any) -> None:
        self.states[field] = value

    # ------------------------------------------------------------ playing

    def step(self, blue: str = "Sleep", **chance: Any) -> World:
        """Blue's action by name; `target`, `exploit`, `detected`, `escalated` and `green` give outcomes."""
        forced = np.full(g.PLACES, -1)
        for name, value in chance.items():
            if name == "exploit":
                value = EXPLOITS.index(value)
            elif name == "escalated":
                value = g.KINDS.index(value)
            elif name == "target":
                value = host(value)
            elif name == "green":
                value = g.GREEN_SLEEPS if value is None else g.GREEN_HOSTS.index(value)
            forced[g.CHANCES.index(name)] = value
        self.states["forced"] = forced
        actions = np.full((len(self.states), 1), g.ACTIONS.index(blue), np.uint8)
        play(self.states, self.game.tables(), actions, self._keys, self.rewards)
        return self

    # ------------------------------------------------------------ looking

    @property
    def red(self) -> tuple[str, str | None]:
        verb, target = int(self["verb"]), int(self["target"])
        names = g.SUBNETS if verb == g.SWEEP else g.HOSTS
        return g.RED_ACTIONS[verb], names[target] if target >= 0 else None

    @property
    def success(self) -> str:
        return g.OUTCOMES[int(self["success"])]

    @property
    def reward(self) -> float:
        return int(self["reward"]) / 10

    def sees(self, name: str) -> str:
        """What the observation says of a host: activity/compromised."""
        four = int(self["observation"]) >> 4 * host(name) & 15
        return f"{ACTIVITY[four & 3]}/{LEVEL[four >> 2]}"

    def sessions(self, name: str) -> dict[str, int]:
        return {kind: int(n) for kind, n in zip(g.KINDS, self["sessions"][host(name)]) if n}

    def file(self, name: str) -> bool:
        return bool(int(self["files"]) >> host(name) & 1)

    def decoys(self, name: str) -> set[str]:
        return {decoy.name for i, decoy in enumerate(g.DECOYS) if int(self["decoys"][host(name)]) >> i & 1}

    def remembers(self, name: str) -> set[int] | None:
        """The ports red remembers of a host; None when it never scanned it."""
        ports = int(self["ports"][host(name)])
        return None if ports < 0 else {port for i, port in enumerate(g.PORTS) if ports >> i & 1}

    def chances(self, field: str) -> set[str]:
        """Which chances of the last step were drawn, or used as given."""
        return {name for place, name in enumerate(g.CHANCES) if int(self[field]) >> place & 1}

    # ------------------------------------------------------------ arranging

    def hold(self, name: str, **kinds: int) -> World:
        """Give red sessions on a host."""
        h = host(name)
        for kind, number in kinds.items():
            self.states["sessions"][:, h, g.KINDS.index(kind)] += number
        self["held"] = self.states["held"] | 1 << h
        if kinds.get("admin") and not int(self["admin"]) >> h & 1:
            self["admin"] = self.states["admin"] | 1 << h
            self["cost"] = self.states["cost"] + g.HOST[h].cost
        return self

    def plant(self, name: str) -> World:
        self["files"] = self.states["files"] | 1 << host(name)
        return self

    def remember(self, name: str, *ports: int) -> World:
        self.states["ports"][:, host(name)] = g.port_bits(*ports)
        return self

    def think(self, name: str, level: str) -> World:
        """Enter a host in blue's table."""
        code = {text: bits for bits, text in LEVEL.items()}[level]
        self["table"] = (self.states["table"] & ~(3 << 4 * host(name) + 2)) | code << 4 * host(name) + 2
        return self

    def about_to(self, verb: str, name: str) -> World:
        """Bring Meander to where its only choice is this action on this host or subnet."""
        assert self.game.reds == ("meander",)
        self["verb"], self["target"], self["success"] = g.SLEEP, -1, g.UNKNOWN
        self["swept"], self["scanned"], self["addresses"] = 0b111, EVERYWHERE, bits("User0")
        self["exploited"], self["owned"], self["escalated"] = EVERYWHERE, 0, bits("User0")
        if verb == "sweep":
            self["subnets"], self["swept"] = 1 << g.SUBNETS.index(name), 0
        elif verb == "scan":
            self["addresses"], self["scanned"] = bits(name), 0
        elif verb == "exploit":
            self["addresses"], self["exploited"] = bits(name), 0
        elif verb == "escalate":
            self["owned"], self["escalated"] = bits(name), EVERYWHERE & ~bits(name) & ~bits("Op_Server0")
        elif verb == "impact":
            self["escalated"] = bits(name, "User0")
        else:
            raise ValueError(verb)
        return self

    def at_stage(self, stage: int, user: str = "User1") -> World:
        """Bring B-line to where it performs this stage next, as after a success of the one before."""
        assert self.game.reds == ("b_line",)
        self["stage"], self["success"], self["user"] = stage - 1, g.SUCCESS, host(user)
        self["struck"] = 1
        return self
