"""CAGE-2: a blue that remembers sees more, knows nothing it could not, and plays the same game."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cage2_world import World, host

from fanfold.errors import ConfigError
from fanfold.rl.experience import Experience, merge
from fanfold.rl.ppo import Adam, Ppo
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.engine import unpack
from fanfold.studies.workflow.cage2.env import Cage2, Cage2Vector
from fanfold.studies.workflow.cage2.policy import PolicyNetwork, PolicyTable
from fanfold.studies.workflow.cage2.rollout import EpisodeBlock, rollout
from fanfold.studies.workflow.collect import cage2_policy
from fanfold.studies.workflow.config import WorkflowConfig
from fanfold.studies.workflow.episodes import collect_single_episode, initial_policy
from fanfold.studies.workflow.study import study
from fanfold.tensors import pack

GAME = g.Cage2Game(("b_line", "meander"), length=40, green=True, memory=True)
NETWORK = PolicyNetwork.initial(0, bits=GAME.bits)


def bits_of(keys: np.ndarray) -> np.ndarray:
    """Packed observations as rows of bits."""
    octets = np.ascontiguousarray(keys, "<u8").reshape(len(keys), -1).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=GAME.bits, bitorder="little")


def remembered(world: World) -> set[str]:
    return {name for bit, name in enumerate(g.MEMORY) if int(world["memory"]) >> bit & 1}


@pytest.fixture(scope="module")
def block() -> EpisodeBlock:
    return rollout(PolicyTable(NETWORK), GAME, range(160), seed=3)


# ---------------------------------------------------------------- what is remembered


def test_a_decoy_is_remembered_until_its_host_is_restored() -> None:
    world = World("sleep", memory=True)
    world.step("DecoyTomcat Enterprise0").step("DecoyFemitter User2")
    assert remembered(world) == {"DecoyTomcat Enterprise0 stands", "DecoyFemitter User2 stands"}
    assert remembered(world.step("Restore User2")) == {"DecoyTomcat Enterprise0 stands"}


def test_a_decoy_that_found_no_room_is_not_remembered() -> None:
    world = World("sleep", memory=True)
    world.step("DecoySSHD Enterprise0").step("DecoyVsftpd Op_Server0").step("DecoyApache Op_Server0")
    assert remembered(world) == {"DecoyVsftpd Op_Server0 stands"}, "port 22 is taken there, and Vsftpd listens on 80"


def test_activity_is_remembered_from_the_step_after_it_was_seen() -> None:
    world = World("b_line", memory=True).at_stage(1)
    world.step()
    assert world.sees("User1") == "Scan/No" and not remembered(world)
    assert remembered(world.step()) == {"activity on User1 before"}


def test_the_restore_of_op_server0_is_remembered() -> None:
    world = World("sleep", memory=True)
    assert not remembered(world.step("Restore Op_Host0"))
    assert remembered(world.step("Restore Op_Server0").step()) == {"Op_Server0 was restored"}


def by_hand(actions: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Blue's memory after every step, from its own actions and the 52 bits it was shown, in plain Python."""
    standing: dict[str, set[g.Decoy]] = {name: set() for name in g.HOSTS}
    before, restored, rows = set[str](), False, []
    for number, action in enumerate(actions):
        family, _, name = g.ACTIONS[action].partition(" ")
        if family == "Restore":
            standing[name].clear()
            restored |= name == "Op_Server0"
        elif family.startswith("Decoy"):
            machine = g.HOST[host(name)]
            decoy = next(each for each in g.DECOYS if f"Decoy{each.name}" == family)
            taken = {*machine.listens, *(each.port for each in standing[name])}
            if decoy.checked not in taken and decoy.system in ("any", "Windows" if machine.windows else "Linux"):
                standing[name].add(decoy)
        if number:
            before |= {name for name in g.HOSTS if seen[number - 1][4 * host(name) : 4 * host(name) + 2].any()}
        bits = [f"Decoy{decoy.name} {name} stands" for name in g.HOSTS for decoy in standing[name]]
        bits += [f"activity on {name} before" for name in before] + ["Op_Server0 was restored"] * restored
        rows.append([name in bits for name in g.MEMORY])
    return np.array(rows, np.int8)


def test_memory_follows_from_what_blue_did_and_saw(block: EpisodeBlock) -> None:
    bits = bits_of(block.keys)
    assert bits[:, g.SEEN : g.SEEN + g.ACTIVE_BEFORE].any(axis=0).all(), "every decoy occurs"
    for episode in range(12):
        seen = bits[block.observations[episode]]
        # What is seen before step t is the result of the action at t - 1; before the first, nothing.
        expected = by_hand(block.actions[episode, :-1], seen[1:, : g.SEEN])
        assert not seen[0].any() and (seen[1:, g.SEEN :] == expected).all()


def test_the_game_is_the_same_with_and_without_memory(block: EpisodeBlock) -> None:
    actions = iter(block.actions)
    for episode in range(8):
        plain, remembers = (World("meander", seed=episode, memory=memory) for memory in (False, True))
        for action in next(actions):
            for world in (plain, remembers):
                world.step(g.ACTIONS[action])
            assert plain.reward == remembers.reward and plain["observation"] == remembers["observation"]


def test_actions_called_idle_do_nothing() -> None:
    assert len(g.IDLE) == 13 * len(g.DECOYS) - len(g.PLACEABLE)
    for action in g.IDLE:
        idle, asleep = World("sleep"), World("sleep")
        idle.step(g.ACTIONS[action]), asleep.step("Sleep")
        assert (idle.states == asleep.states).all(), g.ACTIONS[action]


# ---------------------------------------------------------------- blocks


def test_observations_with_memory_are_distinct_rows_of_two_words(block: EpisodeBlock) -> None:
    assert block.keys.shape == (len(block.keys), 2) and len({*map(tuple, block.keys.tolist())}) == len(block.keys)
    assert GAME.bits == 52 + len(g.MEMORY) and not (block.keys[:, 1] >> np.uint64(GAME.bits - 64)).any()


def test_a_function_and_the_network_play_alike_and_a_table_grows(block: EpisodeBlock) -> None:
    table = PolicyTable(NETWORK.scores)
    again = rollout(table, GAME, range(160), seed=3)
    assert len(table) > 4_096, "more than it had room for at first"
    for name in ("keys", "observations", "actions", "tenths"):
        assert np.array_equal(getattr(again, name), getattr(block, name)), name


def test_one_table_serves_blues_with_and_without_memory() -> None:
    table = PolicyTable(NETWORK)
    short = dataclasses.replace(GAME, length=5)
    rollout(table, short, range(3))
    table.load(PolicyNetwork.initial(0), 1)
    assert rollout(table, dataclasses.replace(short, memory=False), range(3)).keys.ndim == 1


@pytest.mark.parametrize("network", [NETWORK, PolicyNetwork.initial(0)])
def test_a_network_plays_as_it_learnt_whatever_the_game_shows(network: PolicyNetwork) -> None:
    blocks = [rollout(PolicyTable(network), dataclasses.replace(GAME, memory=memory), range(5)) for memory in (0, 1)]
    assert np.array_equal(blocks[0].actions, blocks[1].actions) and np.array_equal(blocks[0].keys, blocks[1].keys)


def test_gymnasium_environments_show_the_same_bits(block: EpisodeBlock) -> None:
    options: dict[str, Any] = {"length": 40, "green": True, "memory": True}
    one, many = Cage2(GAME.reds, seed=3, **options), Cage2Vector(4, GAME.reds, seed=3, **options)
    assert one.observation_space.shape == (GAME.bits,) and many.single_observation_space.shape == (GAME.bits,)
    one.reset(options={"episode_id": 2})
    many.reset()
    bits = bits_of(block.keys)
    for step in range(39):
        expected = bits[block.observations[:4, step + 1]]
        assert (many.step(block.actions[:4, step])[0] == expected).all()
        assert (one.step(int(block.actions[2, step]))[0] == expected[2]).all()


# ---------------------------------------------------------------- learning


def experience(keys: np.ndarray) -> Experience:
    n = len(keys)
    ones, rng = np.ones(n, np.int64), np.random.default_rng(1)
    gain = rng.normal(size=n)
    action = rng.integers(0, 145, n)
    parts = (np.full(n, -5.0), ones, np.maximum(gain, 0), np.minimum(gain, 0), np.array([float(n), float(n)]))
    return Experience(keys, ones, gain, np.arange(n), action, *parts)


@pytest.mark.parametrize("alike", [0, 1])
def test_equal_observations_of_two_words_are_merged(alike: int) -> None:
    keys = np.random.default_rng(0).integers(0, 9, (40, 2)).astype(np.uint64)
    keys[:, alike] = 7  # only the other word tells them apart
    whole = experience(keys)
    merged = merge([whole, whole])
    assert len(merged.observations) == len({*map(tuple, keys.tolist())}) == 9
    assert (merged.observations[merged.where] == np.vstack([keys, keys])).all()
    for each, key in enumerate(merged.observations):
        met = (keys == key).all(axis=1)
        assert merged.visits[each] == 2 * met.sum() and np.isclose(merged.targets[each], 2 * whole.targets[met].sum())


def test_a_blue_with_memory_never_takes_an_idle_action_however_it_learns(block: EpisodeBlock) -> None:
    policy = cage2_policy(memory=True)
    weights = policy.initial(0)
    data, adam = experience(block.keys[:500]), Adam()
    data.gain[np.isin(data.action, g.IDLE)] = 100.0
    for step in range(5):
        weights, _ = policy.learn(weights, adam, data, Ppo(target_kl=100.0), 0.0, step)
    chances = policy.head.log_chances(
        policy.outputs(weights, block.keys[:50]), np.repeat(np.arange(50), len(g.IDLE)), np.tile(g.IDLE, 50)
    )
    assert chances.max() < -20


# ---------------------------------------------------------------- options


def test_one_policy_without_a_workflow_remembers_by_default() -> None:
    assert WorkflowConfig(mode="ppo").game.memory
    for other in ({"mode": "search"}, {"mode": "ppo", "workflow": "user>defender>enterprise>op_server>op_host"}):
        assert not WorkflowConfig(**other).game.memory
    assert not WorkflowConfig(mode="ppo", memory=False).game.memory
    assert WorkflowConfig(mode="search", memory=True).game.memory


def test_a_run_that_was_recorded_before_there_was_memory_continues_without() -> None:
    fields = WorkflowConfig.formerly({"mode": "ppo", "episodes_per_update": None, "block": 125})
    config = WorkflowConfig(**fields)
    assert (config.game.memory, config.per_update, config.per_block) == (False, 500, 125)
    assert WorkflowConfig.formerly({"memory": True})["memory"]


@pytest.mark.parametrize(
    ("red_agent", "reds"),
    [
        ("random", ("b_line", "meander")),
        ("B_lineAgent,MeanderAgent", ("b_line", "meander")),
        ("MeanderAgent, SleepAgent", ("meander", "sleep")),
        ("b_line", ("b_line",)),
    ],
)
def test_the_red_of_each_episode_may_be_drawn_from_several(red_agent: str, reds: tuple[str, ...]) -> None:
    assert WorkflowConfig(red_agent=red_agent).game.reds == reds


def test_the_return_is_told_for_each_attacker() -> None:
    more: dict[str, Any] = {"total_episodes": 20, "length": 10, "fresh_episodes": 200, "results": None}
    run = study(WorkflowConfig(mode="ppo", red_agent="B_lineAgent,SleepAgent", **more)).run()
    assert run.summary is not None
    against, whole = run.summary.figures["return_against"], run.summary.figures["return"]
    assert set(against) == {"b_line", "sleep"} and min(against.values()) < whole < max(against.values())
    assert "By attacker: b_line -" in run.summary.sections[0].text


def test_an_unknown_red_among_several_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no red agent 'MeanderAgnet'.*MeanderAgent"):
        WorkflowConfig(red_agent="B_lineAgent,MeanderAgnet")


def test_an_episode_is_played_with_memory_where_the_policy_learnt_with_it() -> None:
    plain = collect_single_episode(initial_policy(), red_agent="random")
    remembers = collect_single_episode(pack(cage2_policy(memory=True).initial(0)), red_agent="random")
    assert plain.observations.shape == (100, 52) and remembers.observations.shape == (100, GAME.bits)
    assert unpack(np.zeros(1, np.uint64)).shape == (1, 52)
