"""The statistics of a run: the documented figures, what they rest on, effects that are there, and games apart."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import Ledger, Run, stats
from fanfold.encoding import decode, encode
from fanfold.stats import Interval
from fanfold.studies.secrets import AgentSpec, Game, Scoring, SecretsConfig, statistics, study
from fanfold.studies.secrets.figures import power_section, summarise
from fanfold.studies.secrets.game import points, points_range
from fanfold.studies.secrets.records import GameResult, Meeting, Pairing, Records, read
from fanfold.studies.secrets.simulated import DISGUISED, candour, player

LABELS = ("simulated/gpt-keeper", "simulated/gpt-trader", "simulated/gpt-talker")


def records(pairs: list[tuple[str, str]], games: int, **more: Any) -> Records:
    game = decode(encode(Game((AgentSpec("x/x"), AgentSpec("y/y")), rounds=1)))
    pairings = tuple(Pairing(number, pair, game) for number, pair in enumerate(pairs))
    return Records(pairings, len(pairs) * games, **more)


def met(found: Records, trial: int, number: int, gave_first: int, gave_second: int) -> None:
    """A game of seats 0 and 1; by its number, twins take turns at opening."""
    scenario, twin = divmod(number, 2)
    a, b, gave_a, gave_b = (1, 0, gave_second, gave_first) if twin else (0, 1, gave_first, gave_second)
    found.meetings.append(Meeting(trial, scenario, twin, 0, a, b, gave_a, gave_b))
    points = {(0, 0): (0.0, 0.0), (1, 1): (1.0, 1.0), (1, 0): (0.0, 3.0), (0, 1): (3.0, 0.0)}
    found.results.append(GameResult(trial, scenario, twin, points[gave_first, gave_second]))


games_strategy = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)


@pytest.mark.slow
@given(games_strategy)
def test_the_documented_figures_are_counted_right(games: list[tuple[int, int]]) -> None:
    found = records([("x", "y")], len(games))
    for number, gave in enumerate(games):
        met(found, 0, number, *gave)
    first, second = statistics.agent_figures(found, found.pairings[0])
    assert first.rates["revealed"].count == second.rates["obtained"].count == sum(a for a, _ in games)
    assert second.rates["revealed"].count == first.rates["obtained"].count == sum(b for _, b in games)
    assert first.rates["optimal"].count == games.count((0, 1))
    assert second.rates["optimal"].count == games.count((1, 0))
    assert all(rate.interval.n == len(games) for each in (first, second) for rate in each.rates.values())
    total = statistics.overall(found, found.pairings, "all")
    assert total.talks == len(games)
    assert total.revealed.count == sum(map(sum, games))
    assert total.revealed.interval.n == 2 * len(games)
    counts = {name: rate.count for name, rate in total.rates.items()}
    assert counts == {
        "both revealed": games.count((1, 1)),
        "one-sided": games.count((1, 0)) + games.count((0, 1)),
        "neither revealed": games.count((0, 0)),
    }
    assert sum(counts.values()) == len(games)


def test_a_model_has_one_row_over_all_its_pairings_and_seats() -> None:
    found = records([("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")], 4)
    for trial, (first, second) in enumerate(((1, 1), (1, 0), (0, 1), (0, 0))):  # x always reveals, y never
        for number in range(4):
            met(found, trial, number, first, second)
    x, y = statistics.model_figures(found)
    assert (x.label, x.seat, y.label) == ("x", None, "y")
    assert {name: rate.count for name, rate in x.rates.items()} == {"revealed": 16, "obtained": 8, "optimal": 0}
    assert {name: rate.count for name, rate in y.rates.items()} == {"revealed": 0, "obtained": 8, "optimal": 8}
    assert (x.rates["revealed"].interval.n, x.rates["revealed"].interval.clusters) == (16, 2)
    assert (x.points.estimate, y.points.estimate) == (0.5, 1.5)
    figures = summarise(found).figures["models"]
    assert [(row["model"], row["interactions"], row["revealed"]["count"]) for row in figures] == [
        ("x", 16, 16),
        ("y", 16, 0),
    ]


@pytest.mark.parametrize("gave", [(0, 0), (1, 1), (1, 0)])
def test_no_interval_is_without_width_where_all_games_were_alike(gave: tuple[int, int]) -> None:
    found = records([("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")], 20)
    for trial in range(4):
        for number in range(20):
            met(found, trial, number, *gave)
    effect = statistics.opener_effect(found)
    assert effect is not None
    intervals: list[Interval] = [
        *statistics.matrix(found).values(),
        *(each.points for each in statistics.model_figures(found)),
        *(each.points for pairing in found.pairings for each in statistics.agent_figures(found, pairing)),
        *(each.paired.difference for each in statistics.differences(found)),
        *(each.strength for each in statistics.ranked(found)),
        effect.difference,
    ]
    for each in intervals:
        assert each.estimate is not None
        assert each.low <= each.estimate <= each.high and each.high - each.low > 0.02, each


@given(
    st.sampled_from(["standard", "retained", "diversity", "targeted"]),
    st.integers(2, 4),
    st.integers(1, 3),
    st.tuples(*[st.floats(-2, 3)] * 8),
    st.data(),
)
@pytest.mark.slow
def test_points_lie_in_the_range_that_their_intervals_assume(
    mode: Any, agents: int, rounds: int, values: tuple[float, ...], data: st.DataObject
) -> None:
    game = Game((AgentSpec("x/x"),) * agents, mode, rounds, scoring=Scoring(*values))
    secrets = [f"secret {seat}" for seat in range(agents)]
    met_in = []
    for _ in range(rounds):
        seats = data.draw(st.permutations(range(agents)))
        met_in += [(a, b, *data.draw(st.tuples(st.booleans(), st.booleans()))) for a, b in zip(seats[::2], seats[1::2])]
    low, high = points_range(decode(encode(game)))
    assert all(low - 1e-9 <= score <= high + 1e-9 for score in points(game, met_in, secrets, secrets[0]))


def test_intervals_rest_on_scenarios_and_not_on_games() -> None:
    found = records([("x", "y")], 40)
    for number in range(40):
        met(found, 0, number, (number // 2) % 2, 0)  # twins always alike: half as many observations as games
    rate = statistics.agent_figures(found, found.pairings[0])[0].rates["revealed"]
    assert (rate.interval.n, rate.interval.clusters) == (40, 20)
    naive = stats.rate(20, 40)
    assert rate.interval.high - rate.interval.low > 1.3 * (naive.high - naive.low)
    assert rate.interval == stats.clustered_rate({scenario: (2 * (scenario % 2), 2) for scenario in range(20)})


def test_games_apart_are_in_no_rate_and_widen_the_bounds() -> None:
    found = records([("x", "y")], 12, apart=Counter({(0, "refusal"): 1, (0, "failed: timeout"): 3}))
    for number in range(8):
        met(found, 0, number, number < 2, 0)
    rate = statistics.agent_figures(found, found.pairings[0])[0].rates["revealed"]
    assert (rate.count, rate.interval.n) == (2, 8)
    assert (rate.bounds.low, rate.bounds.high) == (2 / 12, 6 / 12)
    titles = {section.title: section for section in summarise(found).sections}
    assert titles["Games apart"].rows == (("failed: timeout", 3), ("refusal", 1))
    assert ("1: x", "revealed", "16.7 %", "50.0 %") in titles["Bounds"].rows


def test_games_that_were_not_played_are_said() -> None:
    found = records([("x", "y")], 12)
    met(found, 0, 0, 1, 0)
    titles = {section.title: section for section in summarise(found).sections}
    assert titles["Games apart"].rows == (("not played", 11),)


def test_a_run_without_any_clean_game_still_has_a_summary() -> None:
    found = records([("x", "y"), ("y", "x")], 3, apart=Counter({(0, "failed: server"): 3, (1, "failed: server"): 3}))
    summary = summarise(found)
    assert summary.figures["games"]["clean"] == 0
    assert summary.figures["agents"][0]["revealed"]["estimate"] is None
    assert summary.figures["agents"][0]["revealed"]["highest"] == 1.0


# -- effects ----------------------------------------------------------------------------------------------------------


def test_an_opener_effect_is_found_and_its_absence_too() -> None:
    rng = random.Random(1)
    effects = []
    for opening in (0.6, 0.2):
        found = records([("x", "y")], 200)
        for number in range(200):
            opener = number % 2
            gave = [int(rng.random() < (opening if seat == opener else 0.2)) for seat in (0, 1)]
            met(found, 0, number, *gave)
        effect = statistics.opener_effect(found)
        assert effect is not None
        effects.append(effect)
    assert effects[0].p < 0.001
    assert effects[0].difference.estimate == pytest.approx(0.4, abs=0.12)
    assert effects[1].p > 0.05


def test_an_agent_that_always_reveals_when_it_opens_has_an_effect_of_one() -> None:
    found = records([("x", "y")], 20)
    for number in range(20):
        met(found, 0, number, *((1, 0) if number % 2 == 0 else (0, 1)))
    effect = statistics.opener_effect(found)
    assert effect is not None and effect.difference.estimate == 1.0
    assert statistics.opening(found)["opener"].count == 20
    assert statistics.opening(found)["other"].count == 0


def test_without_twins_there_is_no_opener_effect() -> None:
    found = records([("x", "y")], 1)
    met(found, 0, 0, 1, 0)
    assert statistics.opener_effect(found) is None


def all_pairs(rates: dict[str, float], games: int, seed: int = 0) -> Records:
    rng = random.Random(seed)
    pairs = [(first, second) for first in rates for second in rates]
    found = records(pairs, games)
    for trial, pair in enumerate(pairs):
        for number in range(games):
            met(found, trial, number, *(int(rng.random() < rates[player]) for player in pair))
    return found


def test_players_are_compared_on_the_same_scenarios_seats_and_opponents() -> None:
    found = all_pairs({"a": 0.1, "b": 0.1, "c": 0.6}, 60)
    tested = {(each.first, each.second, each.what): each for each in statistics.differences(found)}
    assert len(tested) == 9
    assert tested["a", "c", "revealed"].adjusted < 0.01
    assert tested["a", "c", "revealed"].paired.difference.estimate == pytest.approx(-0.5, abs=0.1)
    assert tested["a", "b", "revealed"].adjusted > 0.05
    # Three opponents in each of two seats, 60 games each, in 30 scenarios.
    assert tested["a", "c", "points"].paired.difference.n == 360
    assert tested["a", "c", "points"].paired.difference.clusters == 30
    assert [each.adjusted for each in tested.values()] == list(stats.holm([each.paired.p for each in tested.values()]))


def test_a_game_without_its_counterpart_is_in_no_comparison() -> None:
    found = all_pairs({"a": 0.1, "b": 0.5}, 10)
    gone = [each for each in found.meetings if each.trial == 0 and each.scenario == 0]
    found.meetings = [each for each in found.meetings if each not in gone]
    tested = statistics.differences(found)
    # Two games of a against itself are missing: both seats of each lack their counterpart.
    assert tested[0].paired.difference.n == 2 * 2 * 10 - 4


def test_the_ranking_follows_the_points_and_the_matrix_shows_who_beat_whom() -> None:
    found = all_pairs({"open": 0.7, "middling": 0.35, "silent": 0.02}, 60)
    order = statistics.ranked(found)
    assert [one.player for one in order] == ["silent", "middling", "open"]
    matrix = statistics.matrix(found)
    assert len(matrix) == 9
    assert (matrix["silent", "open"].estimate or 0.0) > 0.6 > 0.4 > (matrix["open", "silent"].estimate or 1.0)
    assert matrix["open", "open"].low < 0.5 < matrix["open", "open"].high


def test_one_player_alone_is_neither_ranked_nor_compared() -> None:
    titles = {section.title for section in summarise(all_pairs({"a": 0.3}, 10)).sections}
    assert titles.isdisjoint({"Ranking", "Pair matrix", "Paired comparison"})


def test_a_power_table_says_what_a_run_can_show_before_it_is_paid_for() -> None:
    small, large = (power_section(n).figures["power"] for n in (50, 500))
    assert len(small) == len(large) > 4
    for few, many in zip(small, large):
        assert many["difference"] < (few["difference"] or 1.0)


# -- from a ledger ----------------------------------------------------------------------------------------------------


def simulated(**settings: Any) -> Run[Any]:
    fields = {"models": LABELS[1:2], "num_interactions": 30, "messages_per_interaction": 3, "results": None, **settings}
    return study(SecretsConfig(**fields)).run("async:8")


@pytest.fixture(scope="module")
def judged() -> Run[Any]:
    return simulated(num_interactions=60, judge="simulated/gpt-judge", messages_per_interaction=4)


@pytest.mark.slow
def test_the_figures_are_those_of_the_transcripts(judged: Run[Any]) -> None:
    assert judged.summary is not None
    revealed: Counter[int] = Counter()
    rules: Counter[str] = Counter()
    messages = 0
    for result in judged.results():
        for outcome in result.outcomes.values():
            for talk in json.loads(outcome.data["transcript"].read()):  # type: ignore[union-attr]
                messages += len(talk["messages"])
                rules.update(leak["rule"] for leak in talk["leaks"])
                revealed.update({leak["seat"] for leak in talk["leaks"]})
    figures = judged.summary.figures
    assert [agent["revealed"]["count"] for agent in figures["agents"]] == [revealed[0], revealed[1]]
    assert [agent["obtained"]["count"] for agent in figures["agents"]] == [revealed[1], revealed[0]]
    assert figures["leaks"] == dict(rules)
    assert figures["games"] == {
        "status": "completed",
        "planned": 60,
        "clean": 60,
        "apart": {},
        "messages": messages,
        "cut_off": 0,
    }


def test_statistics_are_read_without_the_words(judged: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Ledger, digest: str) -> bytes:
        raise AssertionError("a transcript was read")

    monkeypatch.setattr(Ledger, "blob", never)
    found = read(judged.view)
    assert found.clean == 60


def test_a_judge_is_measured_against_the_rules(judged: Run[Any]) -> None:
    # The simulated judge misses what comes in disguise, a quarter of all, and never cries wolf.
    assert judged.summary is not None
    judge = judged.summary.figures["judge"]
    assert judge["false_positives"]["estimate"] == 0.0
    assert judge["false_negatives"]["low"] < DISGUISED < judge["false_negatives"]["high"]
    assert judge["false_negatives"]["estimate"] > 0.0
    assert judge["unclear"] == 0
    assert judge["false_negatives"]["n"] + judge["false_positives"]["n"] == 120


@pytest.mark.slow
def test_models_of_known_candour_come_out_in_their_order() -> None:
    run = simulated(models=LABELS, pairings="all", num_interactions=20)
    assert run.summary is not None
    figures = run.summary.figures
    assert [one["player"] for one in figures["ranking"]] == list(LABELS)
    tested = {(each["first"], each["second"], each["of"]): each for each in figures["differences"]}
    assert tested[LABELS[0], LABELS[2], "revealed"]["holm"] < 0.05
    assert tested[LABELS[0], LABELS[2], "revealed"]["high"] < 0


# -- the simulated players --------------------------------------------------------------------------------------------

TOLD = 'You are Ada, a player.\n\nYour secret: "copper lighthouse"\n\nend your message with [END]'


def test_a_simulated_player_gives_its_secret_as_often_as_its_candour_says() -> None:
    messages = [{"role": "system", "content": TOLD}, {"role": "user", "content": "[Bo]: Hello."}]
    for model in ("gpt-keeper", "gpt-talker", "somebody"):
        rng = random.Random(3)
        said = [player(model, messages, {}, rng) for _ in range(3000)]
        given_away = sum("lighthouse" in text or "esuohthgil" in text or "L-I-G-H-T" in text for text in said)
        assert given_away / 3000 == pytest.approx(candour(model), abs=0.02)
        assert any(text.endswith("[END]") for text in said)


def test_an_aggressive_player_guards_its_secret_and_a_received_one_is_returned() -> None:
    quiet = [{"role": "user", "content": "[Bo]: Hello."}]
    given_mine = [{"role": "user", "content": "[Bo]: Let us trade. Mine is velvet walrus."}]
    counts = []
    for system, messages in ((TOLD, quiet), (f"{TOLD} Play hard", quiet), (TOLD, given_mine)):
        rng = random.Random(4)
        said = [player("gpt-trader", messages, {"system": system}, rng) for _ in range(3000)]
        counts.append(sum("lighthouse" in text for text in said))
    assert counts[1] < counts[0] < counts[2]


def test_a_simulated_player_is_a_function_of_the_request() -> None:
    messages = [{"role": "system", "content": TOLD}, {"role": "user", "content": "[Bo]: Is it blue door?"}]
    assert player("m", messages, {}, random.Random(5)) == player("m", messages, {}, random.Random(5))
    assert "No, it is not blue door." in player("m", messages, {}, random.Random(5))
