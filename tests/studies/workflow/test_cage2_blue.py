"""CAGE-2: what blue's actions do, what they cost, and what blue sees.  Expectations come from the rules' text."""

from __future__ import annotations

import pytest
from cage2_world import World, host

from fanfold.studies.workflow.cage2 import rules as g

LINUX = ("Defender", "Enterprise0", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0", "User3", "User4")
ANY_WITHOUT_WEB = {*LINUX[:6], "User0", "User1", "User2"}
WORKS_ON = {
    "Apache": ANY_WITHOUT_WEB,
    "Femitter": {"Enterprise1", "Enterprise2", "User2"},
    "HarakaSMPT": set(LINUX[:6]),
    "Smss": {"User0", "User1"},
    "SSHD": {"User2", "User3"},
    "Svchost": {"User0", "User1"},
    "Tomcat": ANY_WITHOUT_WEB,
    "Vsftpd": set(LINUX),
}
OPENS = {
    "Apache": 80,
    "Femitter": 21,
    "HarakaSMPT": 25,
    "Smss": 139,
    "SSHD": 22,
    "Svchost": 3389,
    "Tomcat": 443,
    "Vsftpd": 80,
}
COSTS = {
    **{"Defender": 0.1, "Enterprise0": 1, "Enterprise1": 1, "Enterprise2": 1, "Op_Host0": 0.1, "Op_Host1": 0.1},
    **{"Op_Host2": 0.1, "Op_Server0": 1, "User0": 0, "User1": 0.1, "User2": 0.1, "User3": 0.1, "User4": 0.1},
}


def test_there_are_145_actions_in_the_order_of_the_challenge() -> None:
    assert len(g.ACTIONS) == 145
    places = {0: "Sleep", 1: "Monitor", 2: "Analyse Defender", 15: "Remove Defender", 28: "DecoyApache Defender"}
    places |= {41: "DecoyFemitter Defender", 54: "DecoyHarakaSMPT Defender", 67: "DecoySmss Defender"}
    places |= {80: "DecoySSHD Defender", 93: "DecoySvchost Defender", 106: "DecoyTomcat Defender"}
    places |= {119: "DecoyVsftpd Defender", 132: "Restore Defender", 139: "Restore Op_Server0", 144: "Restore User4"}
    assert {place: g.ACTIONS[place] for place in places} == places


# ---------------------------------------------------------------- decoys


@pytest.mark.parametrize("decoy", WORKS_ON)
def test_a_decoy_can_be_placed_where_its_port_is_free_and_the_system_fits(decoy: str) -> None:
    placed = {name for name in g.HOSTS if World("sleep").step(f"Decoy{decoy} {name}").decoys(name) == {decoy}}
    assert placed == WORKS_ON[decoy]


@pytest.mark.parametrize("decoy", WORKS_ON)
def test_a_scan_after_the_decoy_remembers_its_port(decoy: str) -> None:
    name = sorted(WORKS_ON[decoy])[0]
    listening = {port for port in g.HOST[host(name)].listens if port in g.PORTS[:8]}
    world = World().about_to("scan", name).step(f"Decoy{decoy} {name}")
    assert world.remembers(name) == listening | {OPENS[decoy]}


def test_vsftpd_listens_on_80_but_asks_whether_21_is_free_so_it_stands_beside_apache_and_blocks_it() -> None:
    first = World("sleep").step("DecoyVsftpd Enterprise0")
    assert first.step("DecoyApache Enterprise0").decoys("Enterprise0") == {"Vsftpd"}
    second = World("sleep").step("DecoyApache Enterprise0")
    assert second.step("DecoyVsftpd Enterprise0").decoys("Enterprise0") == {"Apache", "Vsftpd"}


def test_vsftpd_can_be_placed_again_and_again_and_each_time_hides_what_it_hides() -> None:
    for _ in range(2):
        world = World().step("DecoyVsftpd Enterprise0").about_to("scan", "Enterprise0").step("DecoyVsftpd Enterprise0")
        assert world.sees("Enterprise0") == "None/No"
    assert World().step("DecoyApache Enterprise0").about_to("scan", "Enterprise0").step("DecoyApache Enterprise0").sees(
        "Enterprise0"
    ) == ("Scan/No"), "the second Apache is not placed"


# ---------------------------------------------------------------- Remove


def test_remove_kills_detected_shells_and_nothing_else() -> None:
    world = World("sleep").hold("Enterprise1", ssh=1, detected=2, undetected=1, admin=1).plant("Enterprise1")
    world.step("Remove Enterprise1")
    assert world.sessions("Enterprise1") == {"ssh": 1, "undetected": 1, "admin": 1}
    assert world.file("Enterprise1")
    assert int(world["fixed"]) == 1
    assert int(world.step("Remove Enterprise1")["fixed"]) == 0


def test_a_host_whose_last_session_is_removed_is_held_no_more() -> None:
    world = World().hold("Enterprise1", detected=1)
    assert world.about_to("sweep", "Operational").step().success == "TRUE"
    assert world.about_to("sweep", "Operational").step("Remove Enterprise1").success == "FALSE"


# ---------------------------------------------------------------- Restore


def test_restore_takes_everything_of_reds_and_the_decoys() -> None:
    world = World("sleep").hold("User4", ssh=1, detected=1, undetected=1, admin=1).plant("User4").remember("User4", 22)
    world.step("DecoyVsftpd User4").step("Restore User4")
    assert (world.sessions("User4"), world.file("User4"), world.decoys("User4")) == ({}, False, set())
    assert world.remembers("User4") == {22}, "what red knows is not on the host"
    assert (world.reward, int(world["fixed"])) == (-1.0, 1)
    assert World("sleep").step("Restore User4").reward == -1.0


def test_reds_first_session_on_user0_survives_restore_and_costs_nothing() -> None:
    world = World("sleep").hold("User0", ssh=2, admin=1).plant("User0").step("Restore User0")
    assert (world.sessions("User0"), world.file("User0")) == ({"admin": 1}, False)
    assert world.step().reward == 0.0
    assert int(world.step("Restore User0")["fixed"]) == 0


@pytest.mark.parametrize(("quirk", "later"), [(True, 1), (False, 0)])
def test_a_restored_op_server_cannot_be_stopped_again_unless_that_quirk_is_fixed(quirk: bool, later: int) -> None:
    world = World(restore_quirk=quirk).hold("Op_Server0", ssh=1)
    world["service"] = 1
    assert world.about_to("impact", "Op_Server0").step().reward == -10.0
    world.step("Restore Op_Server0")
    assert (int(world["running"]), world.success) == (1, "FALSE")
    world.hold("Op_Server0", ssh=1).about_to("impact", "Op_Server0").step()
    assert (world.success, int(world["running"])) == ("TRUE", later)


def test_one_restore_before_anything_happened_removes_the_threat_for_good() -> None:
    world = World("b_line", length=100)
    world.step("Restore Op_Server0", target="User1")
    while world.red[0] != "Impact":
        world.step(exploit="SSHBruteForce", target="User1")
    assert (world.success, int(world["running"]), world.reward) == ("TRUE", 1, -3.1)


# ---------------------------------------------------------------- reward


@pytest.mark.parametrize("name", g.HOSTS)
def test_an_admin_session_costs_what_the_host_is_worth_and_a_users_nothing(name: str) -> None:
    assert World("sleep").hold(name, ssh=1, detected=1, undetected=1).step().reward == 0.0
    assert World("sleep").hold(name, admin=1).step().reward == -COSTS[name]
    assert World("sleep").hold(name, admin=3).step().reward == -COSTS[name]


def test_costs_of_hosts_of_the_stopped_service_and_of_restore_add_up() -> None:
    world = World("sleep")
    for name in g.HOSTS[1:]:
        world.hold(name, admin=1)
    world["running"] = 0
    assert world.step().reward == pytest.approx(-(4 * 1 + 7 * 0.1) - 10)
    assert world.step("Restore User1").reward == pytest.approx(-(4 * 1 + 6 * 0.1) - 10 - 1)


def test_what_red_wins_in_a_step_is_paid_for_in_that_step_and_what_blue_restores_is_not() -> None:
    world = World().about_to("exploit", "User3").remember("User3", 25)
    assert world.step(exploit="HarakaRCE", detected=1).reward == -0.1
    assert World("sleep").hold("Enterprise1", admin=1).step("Restore Enterprise1").reward == -1.0


# ---------------------------------------------------------------- Analyse, and the table


def test_analyse_shows_privileged_where_there_is_a_malicious_file_and_nothing_where_there_is_none() -> None:
    assert World("sleep").plant("User2").step("Analyse User2").sees("User2") == "None/Privileged"
    assert World("sleep").hold("User2", ssh=1).step("Analyse User2").sees("User2") == "None/No"
    assert World("sleep").think("User2", "User").step("Analyse User2").sees("User2") == "None/User"


def test_analyse_looks_before_red_acts() -> None:
    world = World().about_to("exploit", "User3").remember("User3", 25)
    assert world.step("Analyse User3", exploit="HarakaRCE", detected=1).sees("User3") == "Exploit/User"


def test_what_analyse_found_outweighs_an_exploit_seen_in_the_same_step() -> None:
    world = World().plant("User3").about_to("exploit", "User3").remember("User3", 25)
    assert world.step("Analyse User3", exploit="HarakaRCE", detected=1).sees("User3") == "Exploit/Privileged"


@pytest.mark.parametrize("level", ["No", "Unknown", "User", "Privileged"])
def test_remove_makes_blue_unsure_of_a_host_it_did_not_think_clean_and_restore_clears_it(level: str) -> None:
    after = "No" if level == "No" else "Unknown"
    assert World("sleep").think("User1", level).step("Remove User1").sees("User1") == f"None/{after}"
    assert World("sleep").think("User1", level).step("Restore User1").sees("User1") == "None/No"


@pytest.mark.parametrize("action", ["Remove", "Restore"])
def test_what_red_does_after_blue_fixed_a_host_is_seen_on_top(action: str) -> None:
    world = World().think("User4", "Privileged").about_to("exploit", "User4").remember("User4", 22)
    assert world.step(f"{action} User4").sees("User4") == "Exploit/User"


def test_a_verdict_lasts_and_activity_is_of_one_step() -> None:
    world = World().about_to("exploit", "User4").remember("User4", 22).step()
    assert world.sees("User4") == "Exploit/User"
    assert world.about_to("impact", "Op_Server0").step("Monitor").sees("User4") == "None/User"


# ---------------------------------------------------------------- activity


@pytest.mark.parametrize("name", g.HOSTS)
def test_a_scan_looks_like_a_scan_on_every_host(name: str) -> None:
    world = World().hold("Enterprise0", ssh=1).about_to("scan", name).step()
    assert world.sees(name) == "Scan/No"
    assert [other for other in g.HOSTS if world.sees(other) != "None/No"] == [name]


EXPLOIT_CASES = {
    "a detected shell": ("Enterprise1", {443}, {"exploit": "HTTPSRFI", "detected": 1}, "Exploit/User"),
    "an undetected shell": ("Enterprise1", {443}, {"exploit": "HTTPSRFI", "detected": 0}, "Scan/No"),
    "an undetected shell of an admin": ("User1", {21}, {"detected": 0}, "Scan/No"),
    "brute force that lands": ("Op_Server0", {22}, {}, "Exploit/User"),
    "brute force on Defender": ("Defender", {22}, {}, "Exploit/User"),
    "nothing there": ("Enterprise1", {139}, {"exploit": "EternalBlue"}, "None/No"),
}


@pytest.mark.parametrize("case", EXPLOIT_CASES)
def test_how_an_exploit_looks(case: str) -> None:
    name, ports, chance, seen = EXPLOIT_CASES[case]
    world = World().hold("Enterprise2", ssh=1).about_to("exploit", name).remember(name, *ports)
    assert world.step(**chance).sees(name) == seen


DECOY_HITS = {
    "Apache": ("User0", "HTTPRFI"),
    "Femitter": ("Enterprise1", "FTPDirectoryTraversal"),
    "HarakaSMPT": ("Enterprise0", "HarakaRCE"),
    "Smss": ("User1", "EternalBlue"),
    "SSHD": ("User2", "SSHBruteForce"),
    "Svchost": ("User1", "BlueKeep"),
    "Tomcat": ("User2", "HTTPSRFI"),
    "Vsftpd": ("Enterprise0", "HTTPRFI"),
}


@pytest.mark.parametrize("decoy", DECOY_HITS)
def test_a_decoy_stops_its_exploit_and_looks_like_a_scan_or_brute_force(decoy: str) -> None:
    name, exploit = DECOY_HITS[decoy]
    world = World().step(f"Decoy{decoy} {name}").remember(name, OPENS[decoy]).about_to("exploit", name)
    world.step(exploit=exploit)
    assert (world.success, world.file(name)) == ("FALSE", False)
    assert world.sessions(name) == ({"admin": 1} if name == "User0" else {})
    assert world.sees(name) == ("Exploit/User" if decoy == "SSHD" else "Scan/No")


@pytest.mark.parametrize("decoy", DECOY_HITS)
@pytest.mark.parametrize("observation", ["cyborg", "original"])
@pytest.mark.slow
def test_a_decoy_placed_in_the_step_in_which_it_is_hit_makes_the_hit_look_like_an_exploit(
    decoy: str, observation: str
) -> None:
    name, exploit = DECOY_HITS[decoy]
    world = World(observation=observation).remember(name, OPENS[decoy]).about_to("exploit", name)
    world.step(f"Decoy{decoy} {name}", exploit=exploit)
    assert (world.success, world.sees(name)) == ("FALSE", "Exploit/User")


def test_a_decoy_that_was_restored_away_leaves_nothing_to_exploit_and_nothing_to_see() -> None:
    world = World().about_to("scan", "Enterprise0").step("DecoyTomcat Enterprise0")
    world.about_to("exploit", "Enterprise0").step("Restore Enterprise0", exploit="HTTPSRFI")
    assert (world.success, world.sees("Enterprise0")) == ("FALSE", "None/No")
    assert world.chances("used") == {"exploit"}, "it was tried"


@pytest.mark.parametrize("name", ["User3", "User4"])
def test_vsftpd_is_useless_where_a_real_web_server_is_found_first(name: str) -> None:
    world = World().step(f"DecoyVsftpd {name}").remember(name, 80).about_to("exploit", name)
    assert world.step(exploit="HTTPRFI", detected=1).success == "TRUE"


@pytest.mark.parametrize(("observation", "hidden"), [("cyborg", "None/No"), ("original", "Scan/No")])
def test_a_decoy_just_placed_hides_a_small_scan_and_an_undetected_shell_in_one_variant(
    observation: str, hidden: str
) -> None:
    scan = World(observation=observation).about_to("scan", "Enterprise0").step("DecoyApache Enterprise0")
    assert scan.sees("Enterprise0") == hidden
    shell = World(observation=observation).about_to("exploit", "Enterprise1").remember("Enterprise1", 443)
    assert shell.step("DecoyFemitter Enterprise1", detected=0).sees("Enterprise1") == hidden
    elsewhere = World(observation=observation).about_to("scan", "Enterprise0").step("DecoyApache Defender")
    assert elsewhere.sees("Enterprise0") == "Scan/No"
    refused = World(observation=observation).about_to("scan", "Enterprise0").step("DecoyFemitter Enterprise0")
    assert refused.sees("Enterprise0") == "Scan/No"
    alone = World("sleep", observation=observation).step("DecoyApache Enterprise0")
    assert alone.sees("Enterprise0") == "None/No"


def test_a_decoy_just_placed_does_not_hide_a_scan_of_three_ports_nor_a_detected_shell_nor_brute_force() -> None:
    assert World().about_to("scan", "User1").step("DecoyApache User1").sees("User1") == "Scan/No"
    shell = World().about_to("exploit", "Enterprise1").remember("Enterprise1", 443)
    assert shell.step("DecoyFemitter Enterprise1", detected=1).sees("Enterprise1") == "Exploit/User"
    force = World().about_to("exploit", "Enterprise0").remember("Enterprise0", 22)
    assert force.step("DecoyApache Enterprise0").sees("Enterprise0") == "Exploit/User"


# ---------------------------------------------------------------- green


def test_greens_scan_is_seen_like_reds_and_sleep_is_not() -> None:
    world = World("sleep", green=True)
    assert world.step(green="User2").sees("User2") == "Scan/No"
    assert int(world.step(green=None)["observation"]) == 0
    assert int(World("sleep").step(green="User2")["observation"]) == 0, "green is asleep unless asked for"


def test_greens_scan_and_reds_action_on_one_host_are_read_together() -> None:
    def both(name: str, port: int, **chance: object) -> str:
        world = World(green=True).about_to("exploit", name).remember(name, port)
        return world.step(green=name, **chance).sees(name)

    assert both("User1", 21, detected=1) == "Scan/No", "two ports and the shell's own make three: a scan"
    assert both("Enterprise0", 22) == "Exploit/User", "all on one port"
    assert both("User1", 22) == "Scan/No", "two ports are neither one nor three"
    assert both("Enterprise1", 443, detected=1) == "Scan/No"


def test_greens_scan_of_another_host_disturbs_nothing() -> None:
    world = World(green=True).about_to("exploit", "Enterprise0").remember("Enterprise0", 22)
    world.step("DecoyApache User0", green="User0")
    assert (world.sees("Enterprise0"), world.sees("User0")) == ("Exploit/User", "Scan/No")


def test_a_decoy_just_placed_hides_greens_small_scan_too() -> None:
    world = World("sleep", green=True)
    assert world.step("DecoyVsftpd Enterprise0", green="Enterprise0").sees("Enterprise0") == "None/No"
