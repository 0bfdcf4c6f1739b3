"""One step of the game for many environments at once: blue acts, green acts, red acts, blue looks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.red import red_turn
from fanfold.studies.workflow.cage2.state import (
    ADMIN,
    DETECTED,
    OP_SERVER,
    STATE,
    THE_GAME,
    USER0,
    USER_SUBNET,
    WHICH_RED,
    draw,
    given,
    kernel,
    luck,
    open_ports,
    part,
    recount,
    size,
    stream,
)

# An observation has four bits for each host, the lowest first: two say what happened there in this step, two how
# compromised blue takes it to be.
NONE, SCANNED, EXPLOITED = 0b00, 0b01, 0b11
NO, UNSURE, USER, PRIVILEGED = 0b00, 0b01, 0b10, 0b11


@part
def compromised(s: Any, h: Any) -> Any:
    """What blue's table says of a host."""
    return s.table >> (4 * h + 2) & 3


@part
def note(s: Any, h: Any, level: Any) -> None:
    """Enter a host in blue's table."""
    s.table = s.table & ~(np.int64(3) << (4 * h + 2)) | np.int64(level) << (4 * h + 2)


@part
def restore(s: Any, r: Any, h: Any) -> None:
    foothold = 1 if h == USER0 else 0
    sessions = s.sessions[h, 0] + s.sessions[h, 1] + s.sessions[h, 2] + s.sessions[h, 3]
    s.fixed = sessions > foothold or s.files >> h & 1 or (h == OP_SERVER and not s.running)
    for kind in range(4):
        s.sessions[h, kind] = 0
    s.sessions[h, ADMIN] = foothold
    recount(s, r, h)
    s.files &= ~(1 << h)
    s.decoys[h] = 0
    s.memory &= ~r.decoys_memory[h]
    if h == OP_SERVER:
        s.memory |= np.uint64(1) << np.uint64(g.RESTORED)
        s.running = 1
        s.pinned |= r.quirk


@part
def blue_turn(s: Any, r: Any, action: Any) -> Any:
    """Act; the host on which a decoy was placed and the one on which malware was found, each -1 for none."""
    s.fixed = 0
    if action < 2:
        return -1, -1
    family, h = (action - 2) // 13, (action - 2) % 13
    if family == g.ANALYSE:
        return -1, (h if s.files >> h & 1 else -1)
    if family == g.REMOVE:
        s.fixed = s.sessions[h, DETECTED] > 0
        s.sessions[h, DETECTED] = 0
        recount(s, r, h)
        if compromised(s, h) != NO:
            note(s, h, UNSURE)
        return -1, -1
    if family == g.RESTORE:
        restore(s, r, h)
        note(s, h, NO)
        return -1, -1
    decoy = family - g.FIRST_DECOY
    if not r.decoy_fits[decoy] >> h & 1 or open_ports(s, r, h) & r.decoy_checked[decoy]:
        return -1, -1
    s.decoys[h] |= 1 << decoy
    s.memory |= r.decoy_memory[h, decoy]
    return h, -1


@part
def green_turn(s: Any, r: Any) -> Any:
    """The host green scans, or -1 while it sleeps."""
    if not r.green:
        return -1
    drawn = given(s, g.AT_GREEN, (2 << g.GREEN_SLEEPS) - 1)
    if drawn < 0:
        drawn = (luck(s, g.AT_GREEN) * 2 * g.GREEN_SLEEPS) >> 32
    return -1 if drawn >= g.GREEN_SLEEPS else np.int64(r.green_hosts[drawn])


@part
def activity(r: Any, entries: Any, ports: Any, shell: Any, placed: Any) -> Any:
    """What the entries about a host look like; a decoy `placed` there in this step is the first of them, portless."""
    entries += placed
    distinct = size(ports)
    if entries >= 3 and distinct >= 3:
        return SCANNED
    if shell or (entries >= 3 and distinct == 1):
        return EXPLOITED
    return NONE if placed and r.own_decoy_hides else SCANNED


@part
def look(s: Any, r: Any, h: Any, entries: Any, ports: Any, shell: Any, placed: Any) -> None:
    """Enter what happened on a host in the observation."""
    seen = activity(r, entries, ports, shell, placed)
    s.observation |= np.int64(seen) << (4 * h)
    if seen != NONE:
        s.alerts |= np.uint64(1) << np.uint64(h)
    if seen == EXPLOITED:
        note(s, h, USER)


@part
def advance(s: Any, r: Any, action: Any) -> None:
    """One step."""
    s.drawn = s.used = s.observation = 0
    s.memory |= s.alerts << np.uint64(g.ACTIVE_BEFORE)
    s.alerts = 0
    placed, malware = blue_turn(s, r, action)
    noisy = green_turn(s, r)
    noise, noise_ports = 0, 0
    if noisy >= 0:  # before red acts, who may change nothing about what listens
        noise, noise_ports = r.sockets[noisy] + size(np.int64(s.decoys[noisy])), open_ports(s, r, noisy)
    entries, ports, shell = red_turn(s, r)
    target = np.int64(s.target)
    if entries and noisy == target:
        entries, ports, noisy = entries + noise, ports | noise_ports, -1
    if entries:
        look(s, r, target, entries, ports, shell, placed == target)
    if noisy >= 0:
        look(s, r, noisy, noise, noise_ports, 0, placed == noisy)
    if malware >= 0:
        note(s, malware, PRIVILEGED)
    s.observation |= s.table
    s.reward = -s.cost - (0 if s.running else 100) - (10 if action >= 2 + 13 * g.RESTORE else 0)
    s.step += 1


@part
def seen_by_blue(s: Any, words: Any) -> None:
    """Pack what blue sees, and in a second word what of its memory has no room in the first."""
    words[0] = np.uint64(s.observation)
    if words.shape[0] > 1:
        words[0] |= s.memory << np.uint64(g.SEEN)
        words[1] = s.memory >> np.uint64(64 - g.SEEN)


@kernel
def begin(states: Any, seed: Any, episodes: Any, reds: Any) -> None:
    """Set every environment to the start of its episode, against one of `reds` by the episode's own luck."""
    for i in range(states.shape[0]):
        s = states[i]
        s.key, s.stride = stream(seed, episodes[i], WHICH_RED)
        s.red = reds[(draw(s.key, s.stride, 0) * len(reds)) >> 32]
        s.key, s.stride = stream(seed, episodes[i], THE_GAME)
        s.forced[:] = -1
        s.drawn = s.used = s.pinned = s.service = s.struck = s.empty = s.fixed = 0
        s.running = 1
        s.sessions[:] = 0
        s.sessions[USER0, ADMIN] = 1
        s.decoys[:] = 0
        s.ports[:] = -1
        s.held = s.admin = s.addresses = 1 << USER0
        s.files = s.cost = s.swept = s.scanned = s.exploited = s.owned = s.escalated = 0
        s.subnets = 1 << USER_SUBNET
        s.verb, s.target, s.success = g.SLEEP, -1, g.UNKNOWN
        s.stage, s.user = 0, -1
        s.reward = s.step = s.table = s.observation = 0
        s.alerts = s.memory = 0


@kernel
def play(states: Any, rules: Any, actions: Any, observations: Any, rewards: Any) -> None:
    """Take the actions of each row in the environment of that row; observations as 52 bits, rewards in tenths."""
    r = rules[0]
    for i in range(actions.shape[0]):
        s = states[i]
        for t in range(actions.shape[1]):
            advance(s, r, np.int64(actions[i, t]))
            observations[i, t] = np.uint64(s.observation)
            rewards[i, t] = s.reward


def start(game: g.Cage2Game, seed: int, episodes: NDArray[np.int64], states: Any = None) -> Any:
    """Environments at the start of these episodes: new ones, or `states` set back."""
    if states is None:
        states = np.zeros(len(episodes), STATE)
    reds = np.array([g.REDS.index(red) for red in game.reds], np.int8)
    begin(states, np.uint64(seed % 2**64), episodes, reds)
    return states


def unpack(observations: NDArray[np.uint64], bits: int = g.SEEN) -> NDArray[np.int8]:
    """The bits of words, as a last axis; those of an observation are in the order of `rules.HOSTS`."""
    octets = np.ascontiguousarray(observations, "<u8")[..., None].view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=bits, bitorder="little").view(np.int8)
