"""Red: what B-line and Meander decide, and what their actions do."""

from __future__ import annotations

from typing import Any

import numpy as np

from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.state import (
    ADMIN,
    DETECTED,
    ENTERPRISE,
    OP_SERVER,
    OPERATIONAL,
    OPERATIONAL_SUBNET,
    SSH_SESSION,
    UNDETECTED,
    USER0,
    USERS,
    choose,
    given,
    luck,
    member,
    open_ports,
    part,
    reachable,
    recount,
    size,
)

#: The local port of a shell, unlike that of any service.
EPHEMERAL = 1 << len(g.PORTS)


@part
def decide_b_line(s: Any, r: Any) -> None:
    stage = min(s.stage + 1, 14) if s.success == g.SUCCESS else r.jumps[s.stage]
    if stage == 12 and not s.struck and s.empty:
        stage = 1  # it was told no address to strike at, and starts again behind the first sweep
    s.stage = stage
    s.struck |= stage == 12
    if stage == 1 and s.user < 0:
        s.user = choose(s, g.AT_TARGET, USERS)
    s.verb = r.stage_verb[stage]
    s.target = r.stage_target[stage]
    if s.target == g.PLAN_USER:
        s.target = s.user
    elif s.target == g.PLAN_ENTERPRISE:
        s.target = member(r.reveals[s.user], 0)


@part
def digest(s: Any) -> None:
    """What Meander makes of how its last action went."""
    bit = 1 << s.target
    if s.verb == g.EXPLOIT:
        if s.success == g.SUCCESS:
            s.owned |= bit
            return
        s.exploited &= ~bit
        lost = s.escalated & OPERATIONAL
        if not lost:
            lost = s.escalated & ENTERPRISE
        s.escalated &= ~lost
        s.exploited &= ~lost
    elif (s.verb == g.ESCALATE or s.verb == g.IMPACT) and s.success == g.FAILURE:
        s.escalated &= ~bit
        if s.owned & bit:
            s.exploited &= ~bit


@part
def decide_meander(s: Any) -> None:
    if s.target >= 0:
        digest(s)
    unswept = s.subnets & ~s.swept
    unscanned = s.addresses & ~s.scanned
    names = (s.owned | 1 << USER0) & ~s.escalated & (s.exploited | ~s.owned)
    rest = s.addresses & ~s.exploited
    if s.escalated >> OP_SERVER & 1:
        s.verb, s.target = g.IMPACT, OP_SERVER
    elif unswept:
        s.verb, s.target = g.SWEEP, member(unswept, 0)
        s.swept |= 1 << s.target
    elif unscanned:
        s.verb, s.target = g.SCAN, choose(s, g.AT_TARGET, unscanned)
        s.scanned |= 1 << s.target
    elif names:
        s.verb, s.target = g.ESCALATE, choose(s, g.AT_TARGET, names)
        s.escalated |= 1 << s.target
    elif rest:
        s.verb, s.target = g.EXPLOIT, choose(s, g.AT_TARGET, rest)
        s.exploited |= 1 << s.target
    else:
        s.verb, s.target = g.SLEEP, -1


@part
def sweep(s: Any, r: Any, subnet: Any) -> None:
    if subnet == OPERATIONAL_SUBNET and not s.held & ENTERPRISE:
        s.success = g.FAILURE
    else:
        s.addresses |= r.members[subnet]


@part
def scan(s: Any, r: Any, h: Any) -> Any:
    if not reachable(s, h):
        s.empty = 1
        return 0, 0, 0
    ports = open_ports(s, r, h)
    s.ports[h] = ports & g.REMEMBERED
    return r.sockets[h] + size(np.int64(s.decoys[h])), ports, 0


@part
def choose_exploit(s: Any, ways: Any) -> Any:
    """The best of the ways in three times out of four, else any other; or the one that was given."""
    way = given(s, g.AT_EXPLOIT, ways)
    if way >= 0:
        return way
    number = size(ways)
    if number == 1:
        return member(ways, 0)
    drawn, quarter = luck(s, g.AT_EXPLOIT), 1 << 30
    return member(ways, 0 if drawn < 3 * quarter else 1 + (drawn - 3 * quarter) * (number - 1) // quarter)


@part
def notice(s: Any) -> Any:
    """Whether a new shell is seen, which is so nineteen times out of twenty."""
    seen = given(s, g.AT_DETECTED, 0b11)
    return seen if seen >= 0 else np.int64((luck(s, g.AT_DETECTED) * 20) >> 32 > 0)


@part
def exploit(s: Any, r: Any, h: Any) -> Any:
    s.success = g.FAILURE
    ways = r.candidates[s.ports[h]] if s.ports[h] >= 0 else 0
    if not ways:
        return 0, 0, 0
    way = choose_exploit(s, ways)
    if not reachable(s, h):
        return 0, 0, 0
    lands, port = r.lands[way, h], r.exploit_port[way]
    if lands == g.NOTHING and not s.decoys[h] & r.stopped_by[way]:
        return 0, 0, 0
    if lands == g.NOTHING or lands == g.REFUSED:
        return (10 if way == g.SSH else 2), port, 0
    s.success = g.SUCCESS
    if way == g.SSH:
        s.sessions[h, SSH_SESSION] += 1
        recount(s, r, h)
        return 11, port, 0
    s.files |= 1 << h
    noticed = notice(s)
    kind = ADMIN if lands == g.AS_ADMIN else (DETECTED if noticed else UNDETECTED)
    s.sessions[h, kind] += 1
    recount(s, r, h)
    return (2, port | EPHEMERAL, 1) if noticed else (1, port, 0)


@part
def choose_session(s: Any, h: Any) -> Any:
    """The kind of one session of the host, each session as likely; or the kind that was given."""
    held = 0
    for kind in range(ADMIN):
        held |= (s.sessions[h, kind] > 0) << kind
    kind = given(s, g.AT_ESCALATED, held)
    if kind >= 0:
        return kind
    if size(held) == 1:
        return member(held, 0)
    left = (luck(s, g.AT_ESCALATED) * (s.sessions[h, 0] + s.sessions[h, 1] + s.sessions[h, 2])) >> 32
    kind = 0
    while left >= s.sessions[h, kind]:
        left -= s.sessions[h, kind]
        kind += 1
    return kind


@part
def escalate(s: Any, r: Any, h: Any) -> None:
    if not s.held >> h & 1:
        s.success = g.FAILURE
        return
    if not s.sessions[h, ADMIN]:
        s.sessions[h, choose_session(s, h)] -= 1
        s.sessions[h, ADMIN] += 1
        s.files |= 1 << h
        recount(s, r, h)
    s.addresses |= r.reveals[h]
    s.subnets |= 1 << r.subnet[h]
    if h == OP_SERVER:
        s.service = 1


@part
def impact(s: Any) -> None:
    if not s.held >> OP_SERVER & 1 or not s.service:
        s.success = g.FAILURE
    elif not s.pinned:
        s.running = 0


@part
def red_turn(s: Any, r: Any) -> Any:
    """Decide and act; what it leaves behind on the target: (entries, ports, whether one is that of a shell)."""
    if s.red == g.B_LINE:
        decide_b_line(s, r)
    elif s.red == g.MEANDER:
        decide_meander(s)
    s.success, s.empty = g.SUCCESS, 0
    target = np.int64(s.target)
    if s.verb == g.SCAN:
        return scan(s, r, target)
    if s.verb == g.EXPLOIT:
        return exploit(s, r, target)
    if s.verb == g.SWEEP:
        sweep(s, r, target)
    elif s.verb == g.ESCALATE:
        escalate(s, r, target)
    elif s.verb == g.IMPACT:
        impact(s)
    else:
        s.success = g.UNKNOWN
    return 0, 0, 0
