"""One episode of CAGE-2 step by step, as a drawing: what red and blue did, and which machines red held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fanfold import drawings
from fanfold.drawings import Drawing
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2_blocks import network
from fanfold.studies.workflow.collect import context_of
from fanfold.tensors import Arrays

#: From the best for blue to the worst; the ledger keeps keys in the order of the alphabet.
CLEAN, KNOWN, USER, ADMIN = "0", "1", "2", "3"
STATES = {
    CLEAN: "red has not been here",
    KNOWN: "red has scanned it",
    USER: "red has a session",
    ADMIN: "red is administrator",
}
#: The machine of each subnet that the others are drawn around.
_HUBS = {"User": "User0", "Enterprise": "Defender", "Operational": "Op_Server0"}


def watched(
    weights: Arrays, game: g.Cage2Game, workflow: tuple[str, ...] | None, greedy: bool, seed: int, number: int = 0
) -> Drawing:
    """The episode of that number, which follows from the policy, the game and the seed alone."""
    steps: list[dict[str, Any]] = []
    before = dict.fromkeys(g.HOSTS, "")
    for at, (choice, tenths, state) in enumerate(_played(weights, game, workflow, greedy, seed, number), 1):
        after, moves = _states(state), [_red(state), _blue(choice)]
        changed = {host: reached for host, reached in after.items() if reached != before[host]}
        steps.append({"title": f"Step {at}", "states": changed, "moves": moves, "value": tenths / 10})
        before = after
    nodes = [{"id": host.name, "name": host.name, "group": host.subnet} for host in g.HOST]
    links = [(host.name, host.reveals) for host in g.HOST if host.reveals is not None]
    links += [(_HUBS[host.subnet], host.name) for host in g.HOST if _HUBS[host.subnet] != host.name]
    return drawings.replay(nodes, links, STATES, steps)


def _played(
    weights: Arrays, game: g.Cage2Game, workflow: tuple[str, ...] | None, greedy: bool, seed: int, number: int
) -> Iterator[tuple[int, int, Any]]:
    """Blue's action, the reward in tenths and the state after every step, from the kernel that plays whole episodes."""
    from fanfold.studies.workflow.cage2.engine import start  # compiled code, which others do without
    from fanfold.studies.workflow.cage2.policy import PolicyTable
    from fanfold.studies.workflow.cage2.rollout import collect

    policy = network(weights, context_of(workflow))
    table = PolicyTable(policy)
    table.load(policy, 0, greedy=greedy)
    numbers, key = np.array([number], np.int64), np.uint64(seed % 2**64)
    states, kinds = start(game, seed, numbers), (np.int32, np.uint8, np.int16, np.uint16)
    block = tuple(np.empty((1, game.length), kind) for kind in kinds)
    for step in range(game.length):
        waiting = 1
        while waiting:  # a block of one more step: the episode continues where it stopped
            rows = (table.slots, table.keys, table.chances, table.counts)
            part = tuple(array[:, : step + 1] for array in block)
            waiting = collect(states, game.tables(), key, numbers, policy.layers(), True, table.greedy, rows, part)
            if waiting:
                table.grow()
        yield int(block[1][0, step]), int(block[2][0, step]), states[0]


def _states(state: Any) -> dict[str, str]:
    """How far red has come on every machine."""
    states = {}
    for at, host in enumerate(g.HOSTS):
        ways = {ADMIN: int(state["admin"]) >> at & 1, USER: int(state["held"]) >> at & 1}
        ways[KNOWN] = int(state["ports"][at]) >= 0
        states[host] = next((name for name, reached in ways.items() if reached), CLEAN)
    return states


def _red(state: Any) -> dict[str, Any]:
    verb, target = int(state["verb"]), int(state["target"])
    place = None if target < 0 else g.SUBNETS[target] if verb == g.SWEEP else g.HOSTS[target]
    failed = verb != g.SLEEP and int(state["success"]) == g.FAILURE
    subnet = f" in {place}" if verb == g.SWEEP and place else ""
    action = f"{g.RED_ACTIONS[verb]}{subnet}{' (failed)' if failed else ''}"
    return {"who": "red", "action": action, "node": place if place in g.HOSTS else None}


def _blue(choice: int) -> dict[str, Any]:
    family, _, host = g.ACTIONS[choice].partition(" ")
    return {"who": "blue", "action": family, "node": host or None}
