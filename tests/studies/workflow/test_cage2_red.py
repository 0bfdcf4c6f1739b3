"""CAGE-2: what red's actions do and what B-line and Meander decide.  Expectations come from the rules' text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cage2_world import EVERYWHERE, EXPLOITS, World, bits, host

from fanfold.studies.workflow.cage2 import rules as g

SSH_OPEN = {"Enterprise0", "Enterprise1", "Enterprise2", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"}
SSH_OPEN |= {"User0", "User1", "User4"}
WEB = {"Enterprise1", "Enterprise2", "User3", "User4"}
AS_USER = {"HTTPSRFI": WEB, "HTTPRFI": WEB, "BlueKeep": {"User2"}, "SSHBruteForce": SSH_OPEN}
AS_ADMIN = {
    "FTPDirectoryTraversal": {"User0", "User1"},
    "HarakaRCE": {"User3", "User4"},
    "SQLInjection": {"User4"},
    "EternalBlue": {"User2"},
    "BlueKeep": {"Enterprise1", "Enterprise2"},
}
USED_PORTS = (139, 3389, 80, 443, 22, 3390, 25, 21)
REMEMBERED_OF = {
    "Defender": {22},
    "Enterprise0": {22},
    "Enterprise1": {22, 3389, 139, 80, 443},
    "Enterprise2": {22, 3389, 139, 80, 443},
    **{name: {22} for name in ("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")},
    "User0": {22, 21},
    "User1": {22, 21},
    "User2": {139, 3389},
    "User3": {80, 443, 3389, 25},
    "User4": {22, 80, 443, 3390, 25},
}


def everywhere(verb: str, name: str) -> World:
    """Meander about to act on a host that is in reach."""
    return World().hold("Enterprise2", ssh=1).about_to(verb, name)


def near(share: float, expected: float, n: int) -> bool:
    """Within five standard deviations of what the share of n fair draws should be."""
    return abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


# ---------------------------------------------------------------- scans and sweeps


@pytest.mark.parametrize("name", g.HOSTS)
def test_a_scan_remembers_the_ports_that_matter(name: str) -> None:
    world = everywhere("scan", name).step()
    assert (world.success, world.remembers(name)) == ("TRUE", REMEMBERED_OF[name])


def test_a_scan_replaces_what_was_remembered() -> None:
    world = everywhere("scan", "User1").remember("User1", 443, 139).step()
    assert world.remembers("User1") == {22, 21}


@pytest.mark.parametrize("name", ["Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"])
def test_without_a_session_on_an_enterprise_host_operational_hosts_cannot_be_reached(name: str) -> None:
    world = World().hold("Defender", admin=1).hold("User1", admin=1).remember(name, 22)
    world.about_to("exploit", name).step()
    assert (world.success, world.sees(name), world.sessions(name)) == ("FALSE", "None/No", {})
    world.about_to("scan", name).remember(name, 443).step()
    assert (world.success, world.remembers(name), world.sees(name)) == ("TRUE", {443}, "None/No")
    world.about_to("sweep", "Operational").step()
    assert (world.success, int(world["addresses"])) == ("FALSE", bits("User0"))


@pytest.mark.parametrize("base", ["Enterprise0", "Enterprise1", "Enterprise2"])
@pytest.mark.parametrize("kind", g.KINDS)
def test_any_session_on_any_enterprise_host_opens_the_way(base: str, kind: str) -> None:
    world = World().hold(base, **{kind: 1}).about_to("sweep", "Operational").step()
    assert (world.success, int(world["addresses"]) >> 4 & 0b1111) == ("TRUE", 0b1111)


def test_a_sweep_finds_every_address_of_a_subnet_and_leaves_no_trace() -> None:
    world = World().about_to("sweep", "Enterprise").step()
    assert int(world["addresses"]) == bits("User0", *g.HOSTS[:4])
    assert int(world["observation"]) == 0


# ---------------------------------------------------------------- exploits


@pytest.mark.parametrize("exploit", EXPLOITS)
def test_an_exploit_lands_exactly_where_its_service_is_real(exploit: str) -> None:
    user, admin, files = set(), set(), set()
    for name in g.HOSTS:
        world = everywhere("exploit", name)
        before = world.sessions(name)
        world.remember(name, *USED_PORTS).step(exploit=exploit, detected=1)
        new = {kind: n - before.get(kind, 0) for kind, n in world.sessions(name).items() if n != before.get(kind, 0)}
        assert (world.success == "TRUE") == bool(new)
        if new == {"admin": 1}:
            admin.add(name)
        elif new:
            assert new == ({"ssh": 1} if exploit == "SSHBruteForce" else {"detected": 1})
            user.add(name)
        if world.file(name):
            files.add(name)
    assert (user, admin) == (AS_USER.get(exploit, set()), AS_ADMIN.get(exploit, set()))
    assert files == (set() if exploit == "SSHBruteForce" else user | admin)


@pytest.mark.parametrize(("detected", "kind"), [(1, "detected"), (0, "undetected")])
def test_a_shell_is_removable_only_if_it_was_detected(detected: int, kind: str) -> None:
    world = everywhere("exploit", "User3").remember("User3", 80).step(exploit="HTTPRFI", detected=detected)
    assert world.sessions("User3") == {kind: 1}


def test_repeated_exploits_add_sessions() -> None:
    world = everywhere("exploit", "Enterprise0").remember("Enterprise0", 22)
    for _ in range(3):
        world.step().about_to("exploit", "Enterprise0")
    assert world.sessions("Enterprise0") == {"ssh": 3}


def test_a_host_that_was_never_scanned_cannot_be_exploited_and_nothing_is_seen() -> None:
    world = everywhere("exploit", "User4").step(exploit="SSHBruteForce")
    assert (world.success, world.sees("User4"), world.chances("used")) == ("FALSE", "None/No", set())


CANDIDATES = {
    (21,): {"FTPDirectoryTraversal"},
    (3390,): set(),
    (3390, 22): {"SSHBruteForce"},
    (3390, 80): {"SQLInjection", "HTTPRFI"},
    (3390, 443): {"SQLInjection", "HTTPSRFI"},
    (139, 3389): {"EternalBlue", "BlueKeep"},
    (22, 25, 80, 443, 3390): {"SSHBruteForce", "HarakaRCE", "SQLInjection", "HTTPRFI", "HTTPSRFI"},
}


@pytest.mark.parametrize("ports", CANDIDATES)
def test_the_ways_in_are_those_of_the_remembered_ports(ports: tuple[int, ...]) -> None:
    possible = set()
    for exploit in EXPLOITS:
        world = everywhere("exploit", "User4").remember("User4", *ports).step(exploit=exploit, detected=1)
        if "exploit" in world.chances("used"):
            possible.add(exploit)
    assert possible == CANDIDATES[ports]


RANKS = [21, 25, 3390, 443, 80, 139, 3389, 22]


@pytest.mark.parametrize("missing", range(8))
def test_the_best_way_in_is_taken_three_times_in_four_and_the_others_alike(missing: int) -> None:
    n = 20_000
    ports = RANKS[missing:]
    world = World(episodes=n, seed=missing).remember("User4", *ports).about_to("exploit", "User4")
    world["decoys"] = 0
    counts = {}
    for exploit in EXPLOITS:
        lands = exploit in AS_USER and "User4" in AS_USER[exploit]
        counts[exploit] = "user" if lands else ("admin" if "User4" in AS_ADMIN.get(exploit, ()) else "none")
    world.step(detected=1)
    sessions = world.states["sessions"][:, host("User4")]
    found = {"user": (sessions[:, 0] + sessions[:, 1]).sum(), "admin": sessions[:, 3].sum()}
    found["none"] = n - found["user"] - found["admin"]
    ways = [exploit for exploit in g.EXPLOITS if exploit.port in ports]
    if not {80, 443} & set(ports):
        ways = [way for way in ways if way.name != "SQLInjection"]
    for outcome in ("user", "admin", "none"):
        share = 0.0
        for rank, way in enumerate(ways):
            chance = 1.0 if len(ways) == 1 else (0.75 if rank == 0 else 0.25 / (len(ways) - 1))
            share += chance * (counts[way.name] == outcome)
        assert near(found[outcome] / n, share, n) or found[outcome] / n == share, (outcome, found, share)


@pytest.mark.slow
def test_a_shell_is_detected_nineteen_times_in_twenty() -> None:
    n, rounds, detected = 40_000, 12, 0
    for seed in range(rounds):
        world = World(episodes=n, seed=seed).remember("Enterprise1", 443).about_to("exploit", "Enterprise1").step()
        sessions = world.states["sessions"][:, host("Enterprise1")]
        assert (sessions[:, 1] + sessions[:, 2] == 1).all()
        detected += int(sessions[:, 1].sum())
    assert near(detected / (n * rounds), 0.95, n * rounds)


# ---------------------------------------------------------------- escalation and impact


def test_escalating_without_a_session_fails() -> None:
    assert everywhere("escalate", "User1").step().success == "FALSE"


@pytest.mark.parametrize("kind", ["ssh", "detected", "undetected"])
def test_escalating_makes_one_session_admin_and_leaves_a_file(kind: str) -> None:
    world = World().hold("User1", ssh=1, detected=1, undetected=1).about_to("escalate", "User1").step(escalated=kind)
    assert world.success == "TRUE"
    assert world.sessions("User1") == {
        **{each: 1 for each in ("ssh", "detected", "undetected") if each != kind},
        "admin": 1,
    }
    assert (world.file("User1"), world.reward, world.sees("User1")) == (True, -0.1, "None/No")


def test_an_admin_session_is_all_that_escalating_looks_for() -> None:
    world = World().hold("User1", ssh=2, admin=1).about_to("escalate", "User1").step()
    assert (world.success, world.sessions("User1"), world.file("User1")) == ("TRUE", {"ssh": 2, "admin": 1}, False)
    assert world.chances("drawn") == set()


def test_each_session_of_a_host_is_as_likely_to_be_escalated() -> None:
    n = 30_000
    world = World(episodes=n).hold("User1", ssh=3, detected=2, undetected=1).about_to("escalate", "User1").step()
    left = world.states["sessions"][:, host("User1")]
    for kind, number in enumerate((3, 2, 1)):
        assert near((left[:, kind] == number - 1).mean(), number / 6, n)


REVEALS = {"User1": "Enterprise1", "User2": "Enterprise1", "User3": "Enterprise0", "User4": "Enterprise0"}
REVEALS |= {"Enterprise2": "Op_Server0"}


@pytest.mark.parametrize("name", g.HOSTS)
def test_escalating_reveals_the_linked_address_and_the_hosts_own_subnet(name: str) -> None:
    world = World().hold(name, admin=1).about_to("escalate", name)
    if name == "Op_Server0":
        world["escalated"] = EVERYWHERE & ~bits(name)
    world["subnets"] = 0
    world.step()
    assert world.red == ("PrivilegeEscalate", name)
    linked = (REVEALS[name],) if name in REVEALS else ()
    assert int(world["addresses"]) == bits("User0", *linked)
    assert int(world["subnets"]) == 1 << g.SUBNETS.index(g.HOST[host(name)].subnet)
    assert int(world["service"]) == (name == "Op_Server0")


def test_impact_needs_a_session_and_the_service_found_but_no_admin_right() -> None:
    assert World().about_to("impact", "Op_Server0").step().success == "FALSE"
    world = World().hold("Op_Server0", ssh=1).about_to("impact", "Op_Server0").step()
    assert (world.success, world.reward) == ("FALSE", 0.0)
    world["service"] = 1
    world.about_to("impact", "Op_Server0").step()
    assert (world.success, world.reward, int(world["observation"])) == ("TRUE", -10.0, 0)


def test_a_stopped_service_stays_stopped_when_red_is_gone_until_op_server_is_restored() -> None:
    world = World().hold("Op_Server0", detected=1)
    world["service"] = 1
    world.about_to("impact", "Op_Server0").step()
    assert world.step("Remove Op_Server0").reward == -10.0
    assert (world.success, world.step("Restore Op_Server0").reward, world.step().reward) == ("FALSE", -1.0, 0.0)


# ---------------------------------------------------------------- B-line


def test_b_line_undisturbed_walks_its_fifteen_stages_and_stays_at_the_last() -> None:
    world = World("b_line")
    walk = [world.step(target="User3", exploit="HTTPSRFI", detected=1).red for _ in range(17)]
    assert walk == [
        ("DiscoverRemoteSystems", "User"),
        ("DiscoverNetworkServices", "User3"),
        ("ExploitRemoteService", "User3"),
        ("PrivilegeEscalate", "User3"),
        ("DiscoverNetworkServices", "Enterprise0"),
        ("ExploitRemoteService", "Enterprise0"),
        ("PrivilegeEscalate", "Enterprise0"),
        ("DiscoverRemoteSystems", "Enterprise"),
        ("DiscoverNetworkServices", "Enterprise2"),
        ("ExploitRemoteService", "Enterprise2"),
        ("PrivilegeEscalate", "Enterprise2"),
        ("DiscoverNetworkServices", "Op_Server0"),
        ("ExploitRemoteService", "Op_Server0"),
        ("PrivilegeEscalate", "Op_Server0"),
        *[("Impact", "Op_Server0")] * 3,
    ]


@pytest.mark.parametrize("stage", range(15))
@pytest.mark.parametrize("outcome", [g.FAILURE, g.UNKNOWN])
def test_b_line_goes_back_after_a_failure(stage: int, outcome: int) -> None:
    world = World("b_line").at_stage(stage)
    world["stage"], world["success"] = stage, outcome
    world.step()
    assert int(world["stage"]) == [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13][stage]


@pytest.mark.parametrize("stage", range(15))
def test_b_line_goes_on_after_a_success(stage: int) -> None:
    world = World("b_line").at_stage(stage + 1)
    assert int(world.step()["stage"]) == min(stage + 1, 14)


@pytest.mark.parametrize("user", ["User1", "User2", "User3", "User4"])
def test_b_lines_enterprise_host_is_the_one_found_from_its_user_host(user: str) -> None:
    expected = "Enterprise1" if user in ("User1", "User2") else "Enterprise0"
    for stage, verb in ((4, "DiscoverNetworkServices"), (5, "ExploitRemoteService"), (6, "PrivilegeEscalate")):
        assert World("b_line").at_stage(stage, user).step().red == (verb, expected)


def test_b_line_draws_its_user_host_once_and_evenly() -> None:
    n = 20_000
    world = World("b_line", episodes=n).step().step()
    users = world.states["user"].copy()
    for name in ("User1", "User2", "User3", "User4"):
        assert near((users == host(name)).mean(), 0.25, n)
    world["stage"], world["success"] = 1, g.FAILURE
    world.step()
    assert (world.states["user"] == users).all() and (world.states["target"] == users).all()
    assert not world.states["drawn"].any()


def test_b_line_told_of_no_address_at_its_first_arrival_at_op_server_scans_its_user_host_again() -> None:
    world = World("b_line").at_stage(11, "User2")
    world["struck"] = 0
    world.step()
    assert (world.red, world.success, world.remembers("Op_Server0")) == (
        ("DiscoverNetworkServices", "Op_Server0"),
        "TRUE",
        None,
    )
    assert world.step().red == ("DiscoverNetworkServices", "User2")
    assert world.step().red == ("ExploitRemoteService", "User2")


def test_b_line_that_was_there_before_strikes_at_the_address_it_remembers_and_fails() -> None:
    world = World("b_line").at_stage(11, "User2").step()
    world.step()
    assert (world.red, world.success) == (("ExploitRemoteService", "Op_Server0"), "FALSE")


def test_b_line_that_reaches_op_server_strikes_it_and_remembers_having_done_so() -> None:
    world = World("b_line").hold("Enterprise2", admin=1).at_stage(11, "User2")
    world["struck"] = 0
    assert world.step().step().red == ("ExploitRemoteService", "Op_Server0")
    assert (world.success, int(world["struck"])) == ("TRUE", 1)


def test_a_decoy_placed_after_b_lines_scan_is_not_in_its_plans() -> None:
    world = World("b_line").at_stage(5, "User3").remember("Enterprise0", 22).step("DecoyTomcat Enterprise0")
    assert (world.red, world.success) == (("ExploitRemoteService", "Enterprise0"), "TRUE")


# ---------------------------------------------------------------- Meander


def test_meander_first_sweeps_then_scans_each_address_once_then_escalates_what_it_holds_then_exploits() -> None:
    world = World("meander")
    assert world.step().red == ("DiscoverRemoteSystems", "User")
    scans = {world.step().red for _ in range(5)}
    assert scans == {("DiscoverNetworkServices", name) for name in g.HOSTS[8:]}
    assert world.step().red == ("PrivilegeEscalate", "User0")
    assert world.step(target="User4", exploit="SSHBruteForce").red == ("ExploitRemoteService", "User4")
    assert world.step().red == ("PrivilegeEscalate", "User4")
    assert world.step().red == ("DiscoverNetworkServices", "Enterprise0")


def test_meander_sweeps_known_subnets_in_the_order_enterprise_operational_user() -> None:
    world = World("meander").hold("Enterprise0", ssh=1)
    world["subnets"] = 0b111
    assert [world.step().red[1] for _ in range(3)] == ["Enterprise", "Operational", "User"]
    assert world.step().red[0] == "DiscoverNetworkServices"


def test_meander_never_repeats_a_failed_sweep_or_an_empty_scan() -> None:
    world = World("meander").about_to("sweep", "Operational").step()
    assert world.success == "FALSE"
    world["addresses"], world["scanned"] = bits("Op_Server0"), 0
    world.step()
    assert (world.red, world.remembers("Op_Server0")) == (("DiscoverNetworkServices", "Op_Server0"), None)
    world["exploited"] = 0
    world.step()
    assert (world.red, world.success) == (("ExploitRemoteService", "Op_Server0"), "FALSE")


def test_meander_impacts_as_soon_as_op_server_is_escalated() -> None:
    world = World("meander").hold("Op_Server0", admin=1).about_to("escalate", "User1")
    world["escalated"] = bits("Op_Server0", "User0")
    assert world.step().red == ("Impact", "Op_Server0")


@pytest.mark.parametrize("verb", ["scan", "escalate", "exploit"])
def test_meander_chooses_evenly(verb: str) -> None:
    n, names = 20_000, ("User2", "User4", "Enterprise1")
    world = World(episodes=n).about_to(verb, "User2")
    if verb == "escalate":
        world["owned"], world["escalated"] = bits(*names), bits("User0")
    else:
        world["addresses"] = bits(*names)
    world.step()
    for name in names:
        assert near((world.states["target"] == host(name)).mean(), 1 / 3, n)


def test_meander_forgets_an_address_whose_exploit_failed_and_escalated_operational_hosts_first() -> None:
    world = World().about_to("exploit", "Defender").remember("Defender", 22).step()
    assert world.success == "FALSE"
    ours = ("User1", "Enterprise0", "Enterprise2", "Op_Host1")
    world["escalated"] = bits(*ours, "User0")
    world["owned"] = bits(*ours)
    world["exploited"] = bits(*ours, "Defender")
    world["addresses"] = world["scanned"] = EVERYWHERE
    world.step(target="Defender")
    assert int(world["escalated"]) == bits("User0", "User1", "Enterprise0", "Enterprise2")
    assert int(world["exploited"]) == bits("User1", "Enterprise0", "Enterprise2", "Defender")
    world.step(target="Defender")
    assert int(world["escalated"]) == bits("User0", "User1"), "then those of the enterprise"
    assert int(world["exploited"]) == bits("User1", "Defender")
    world.step(target="Defender")
    assert int(world["escalated"]) == bits("User0", "User1"), "and never users'"


def test_defender_is_no_enterprise_host_to_meander() -> None:
    world = World().about_to("exploit", "User2").step()
    world["escalated"] = bits("Defender", "User0")
    assert int(world.step()["escalated"]) & bits("Defender")


def test_meander_that_failed_to_escalate_exploits_that_host_again() -> None:
    world = World().about_to("escalate", "User2").step()
    assert world.success == "FALSE"
    world["addresses"] = bits("User2")
    assert world.step().red == ("ExploitRemoteService", "User2")


def test_meander_that_failed_to_impact_forgets_op_server() -> None:
    world = World().about_to("impact", "Op_Server0")
    world["owned"] = bits("Op_Server0")
    world.step()
    assert world.success == "FALSE"
    world["addresses"] = bits("Op_Server0")
    assert world.step().red == ("ExploitRemoteService", "Op_Server0")


def test_meander_keeps_an_address_it_cannot_match_with_the_host_it_failed_on() -> None:
    world = World().about_to("impact", "Op_Server0").step()
    world.step()
    assert (int(world["escalated"]), int(world["exploited"])) == (bits("User0"), EVERYWHERE)


def test_meander_with_nothing_left_to_do_sleeps() -> None:
    world = World().about_to("exploit", "User2")
    world["exploited"] = EVERYWHERE
    assert (world.step().red, world.success) == (("Sleep", None), "UNKNOWN")


def test_sleep_does_nothing_with_unknown_success() -> None:
    world = World("sleep").step()
    assert (world.red, world.success, world.reward) == (("Sleep", None), "UNKNOWN", 0.0)


# ---------------------------------------------------------------- green


def test_green_sleeps_half_of_the_time_and_scans_its_eight_hosts_alike() -> None:
    n = 40_000
    world = World("sleep", episodes=n, green=True).step()
    seen = world.states["observation"]
    assert near((seen == 0).mean(), 0.5, n)
    for name in g.HOSTS:
        expected = 1 / 16 if name.startswith(("User", "Enterprise")) else 0.0
        share = (seen == np.int64(1) << 4 * host(name)).mean()
        assert near(share, expected, n) if expected else share == 0
