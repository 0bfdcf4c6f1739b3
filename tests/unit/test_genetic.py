"""What the genetic search promises: generations, elites, failures, duplicates, adaptation, and that it finds things."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.space import Choice, Float, Int, Space
from fanfold.stop import MaxTrials
from fanfold.strategies import Genetic, Random
from fanfold.strategies.breeding import KINDS, Bred, Selection
from fanfold.strategy import Strategy
from fanfold.study import Study
from fanfold.testing.strategies import StrategyConformance
from fanfold.types import Result, Trial

SPACE = Space(x=Float(-5, 5), y=Float(-5, 5), n=Int(0, 9), kind=Choice(["a", "b"]))
Told = tuple[float | None, str | None]


def height(candidate: dict[str, Any]) -> float:
    return (
        -((candidate["x"] - 1) ** 2) - (candidate["y"] + 2) ** 2 - abs(candidate["n"] - 3) - (candidate["kind"] == "a")
    )


def flip(bits: tuple[int, ...], rng: random.Random, rate: float) -> tuple[int, ...]:
    flipped = {rng.randrange(len(bits))} | {i for i in range(len(bits)) if rng.random() < rate / 5}
    return tuple(bit ^ (i in flipped) for i, bit in enumerate(bits))


def mix(a: tuple[int, ...], b: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice(pair) for pair in zip(a, b))


def bits(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(2) for _ in range(30))


def begun(strategy: Strategy[Any], seed: int = 1) -> Any:
    strategy.begin(seed)
    return strategy


def tell(strategy: Strategy[Any], candidate: Any, score: float | None, dropped: str | None = None) -> None:
    strategy.tell(Result(Trial(0, candidate), score, {}, dropped))


def search(strategy: Strategy[Any], score: Callable[[Any], float], trials: int, seed: int = 1) -> float:
    """The best score of a search with the strategy's own window, told in order."""
    strategy.begin(seed)
    waiting: list[Any] = []
    scores: list[float] = []
    while len(scores) < trials:
        waiting += strategy.ask(strategy.window - len(waiting))
        if not waiting:
            break
        candidate = waiting.pop(0)
        scores.append(score(candidate))
        tell(strategy, candidate, scores[-1])
    return max(scores)


class TestGenerationsConform(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(SPACE, population=10)


class TestSteadyConforms(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(SPACE, population=6, steady=True)


class TestATinySpaceConforms(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(Space(n=Int(0, 3)), population=8, elites=3)


class TestFunctionsConform(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(sample=bits, mutate=flip, crossover=mix, population=9, seeds=[(1,) * 30, (0,) * 30])


class TestMutationOnlyEndingConforms(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(sample=bits, mutate=flip, population=5, elites=0, tournament=1, generations=3)


def test_a_generation_is_bred_only_when_all_of_the_last_was_told() -> None:
    genetic = begun(Genetic(SPACE, population=10, elites=2))
    assert genetic.generation == 0
    first = genetic.ask(100)
    assert len(first) == 10
    for candidate in first[:-1]:
        tell(genetic, candidate, height(candidate))
        assert genetic.ask(1) == []
    assert genetic.generation == 1
    tell(genetic, first[-1], height(first[-1]))
    assert len(genetic.ask(100)) == 8
    assert genetic.generation == 2


def test_an_elite_is_never_asked_again_and_lives_on_as_a_parent() -> None:
    # Without crossover and with mutations of one step, a child tells who its parent was.
    genetic = begun(
        Genetic(
            sample=lambda rng: rng.randrange(10),
            mutate=lambda number, rng, rate: number + 1000,
            population=8,
            elites=1,
            tournament=8,
            seeds=[7],
        )
    )
    asked = genetic.ask(8)
    for candidate in asked:
        tell(genetic, candidate, 100.0 if candidate == 7 else 0.0)
    for _ in range(3):
        children = genetic.ask(8)
        assert len(children) == 7
        assert 7 not in children
        assert {child % 1000 for child in children} == {7}
        for child in children:
            tell(genetic, child, 1.0)


@pytest.mark.slow
@given(st.permutations(range(8)), st.permutations(range(6)), st.integers(0, 1000))
@settings(max_examples=30)
def test_the_order_of_telling_a_generation_changes_nothing(first: list[int], second: list[int], seed: int) -> None:
    def trace(*orders: list[int]) -> list[Any]:
        genetic = begun(Genetic(SPACE, population=8, elites=2), seed)
        asked: list[Any] = []
        for order in orders:
            generation = genetic.ask(8)
            asked += generation
            for i in order:
                tell(genetic, generation[i], height(generation[i]))
        return asked + genetic.ask(8) + [genetic.rate]

    assert trace(first, second) == trace(list(range(8)), list(range(6)))


@pytest.mark.slow
@given(
    st.integers(0, 1000),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=40),
    st.lists(st.sampled_from([None, -1.0, 0.0, 2.5]), min_size=1),
)
def test_asks_may_be_split_anywhere(
    seed: int, steady: bool, steps: list[tuple[int, int]], scores: list[float | None]
) -> None:
    whole, split = (begun(Genetic(SPACE, population=5, steady=steady), seed) for _ in range(2))
    waiting: list[Any] = []
    told = 0
    for n, tells in steps:
        together = whole.ask(n)
        assert together == [candidate for _ in range(n) for candidate in split.ask(1)]
        waiting += together
        for _ in range(min(tells, len(waiting))):
            candidate = waiting.pop(told % len(waiting))
            for strategy in (whole, split):
                tell(strategy, candidate, scores[told % len(scores)])
            told += 1
    assert (whole.rate, whole.generation) == (split.rate, split.generation)


@pytest.mark.parametrize("steady", [False, True])
def test_a_failed_result_is_never_a_parent(steady: bool) -> None:
    genetic = begun(
        Genetic(
            sample=lambda rng: rng.randrange(10**6),
            mutate=lambda number, rng, rate: number + 10**7,
            population=6,
            elites=2,
            steady=steady,
        )
    )
    asked = genetic.ask(6)
    good = asked[3]
    for candidate in asked:
        tell(genetic, candidate, -5.0 if candidate == good else None)
    children = genetic.ask(6)
    assert len(children) >= 5  # one elite at most: nothing else is complete
    assert {child % 10**7 for child in children} == {good}


@pytest.mark.parametrize("steady", [False, True])
def test_when_everything_failed_the_search_samples_anew(steady: bool) -> None:
    genetic = begun(Genetic(SPACE, population=6, steady=steady))
    for _ in range(3):
        asked = genetic.ask(6)
        assert len(asked) == 6
        for candidate in asked:
            tell(genetic, candidate, None)


@pytest.mark.parametrize("steady", [False, True])
def test_a_dropped_result_may_be_a_parent(steady: bool) -> None:
    genetic = begun(Genetic(SPACE, population=4, elites=1, steady=steady, crossover_rate=0, tournament=4))
    asked = genetic.ask(4)
    for i, candidate in enumerate(asked):
        tell(genetic, candidate, float(i), "lagging" if i == 3 else None)
    (child,) = genetic.ask(1)
    assert sum(child[name] == asked[3][name] for name in child) >= 2


def test_a_dropped_result_never_becomes_an_elite() -> None:
    genetic = begun(Genetic(SPACE, population=4, elites=1, tournament=4, crossover_rate=0))
    asked = genetic.ask(4)
    for i, candidate in enumerate(asked):
        tell(genetic, candidate, float(i), "lagging" if i == 3 else None)
    for candidate in genetic.ask(4):
        tell(genetic, candidate, None)
    # The dropped winner is gone with its generation; the complete runner-up has stayed and is the only parent.
    assert all(sum(child[name] == asked[2][name] for name in child) >= 1 for child in genetic.ask(4))
    assert [member.result.candidate for member in genetic._members] == [asked[2]]


def test_steady_never_waits() -> None:
    genetic = begun(Genetic(SPACE, population=4, steady=True))
    assert len(genetic.ask(50)) == 50
    assert genetic.generation == 13


def test_steady_breeds_from_the_best_told_so_far() -> None:
    genetic = begun(
        Genetic(sample=lambda rng: 0, mutate=lambda number, rng, rate: number + 1, population=2, elites=0, steady=True)
    )
    for _ in range(60):
        (candidate,) = genetic.ask(1)
        tell(genetic, candidate, float(candidate))
    assert candidate >= 50


@pytest.mark.parametrize("steady", [False, True])
def test_no_candidate_is_asked_twice_while_the_space_has_room(steady: bool) -> None:
    genetic = begun(Genetic(Space(n=Int(0, 200)), population=8, steady=steady, elites=2))
    for _ in range(20):
        asked = genetic.ask(8)
        assert len({encode(candidate) for candidate in asked}) == len(asked)
        for candidate in asked:
            tell(genetic, candidate, -abs(candidate["n"] - 77.0))


@pytest.mark.parametrize("steady", [False, True])
def test_a_space_smaller_than_the_population_does_not_hang_the_search(steady: bool) -> None:
    assert search(Genetic(Space(n=Int(0, 2)), population=8, steady=steady), lambda c: float(c["n"]), 60) == 2.0


def test_seeds_open_the_first_generation() -> None:
    seeds = [{"x": 1.0, "y": -2.0, "n": 3, "kind": "b"}, {"x": 0.0, "y": 0.0, "n": 0, "kind": "a"}]
    for steady in (False, True):
        assert begun(Genetic(SPACE, population=4, seeds=seeds, steady=steady)).ask(4)[:2] == seeds


def test_the_search_ends_after_the_given_generations() -> None:
    for steady, expected in ((False, 10 + 8 + 8), (True, 30)):
        genetic = begun(Genetic(SPACE, population=10, elites=2, generations=3, steady=steady))
        asked = 0
        while batch := genetic.ask(7):
            asked += len(batch)
            for candidate in batch:
                tell(genetic, candidate, height(candidate))
        assert asked == expected
        assert genetic.generation == 3
        assert genetic.ask(1) == []


def generation_of_bits(genetic: Genetic, told: Callable[[int], float]) -> None:
    for i, candidate in enumerate(genetic.ask(100)):
        tell(genetic, candidate, told(i))


def test_the_mutation_rate_grows_with_success_and_shrinks_without_within_bounds() -> None:
    rising = begun(Genetic(sample=bits, mutate=flip, population=10, mutation_rate=0.1))
    falling = begun(Genetic(sample=bits, mutate=flip, population=10, mutation_rate=0.1))
    rising_rates, falling_rates = [rising.rate], [falling.rate]
    for step in range(30):
        generation_of_bits(rising, lambda i, step=step: step * 100.0 + i)
        generation_of_bits(falling, lambda i, step=step: -step * 100.0 - i)
        rising_rates.append(rising.rate)
        falling_rates.append(falling.rate)
    assert rising_rates == sorted(rising_rates)
    assert falling_rates == sorted(falling_rates, reverse=True)
    assert rising_rates[-1] == pytest.approx(0.5)
    assert falling_rates[-1] == pytest.approx(0.01)


def test_the_mutation_rate_grows_when_diversity_is_lost() -> None:
    alike = begun(Genetic(sample=bits, mutate=flip, population=10, mutation_rate=0.1))
    tiny = begun(Genetic(Space(n=Int(0, 2)), population=10, mutation_rate=0.1))
    for _ in range(4):
        generation_of_bits(alike, lambda i: 1.0)
        generation_of_bits(tiny, lambda i: -float(i))
    assert alike.rate > 0.1
    assert tiny.rate > 0.1


def test_a_rate_that_does_not_adapt_stays() -> None:
    genetic = Genetic(SPACE, adaptive=False, mutation_rate=0.3)
    search(genetic, height, 200)
    assert genetic.rate == 0.3


@pytest.mark.parametrize("steady", [False, True])
def test_memory_is_bounded_by_the_population_not_by_the_trials(steady: bool) -> None:
    genetic = Genetic(SPACE, population=8, steady=steady)
    search(genetic, height, 500)
    assert len(genetic._members) + len(genetic._children.queue) + len(genetic._children) <= 8 + genetic.window


@pytest.mark.parametrize("steady", [False, True])
def test_it_finds_better_candidates_than_random_search(steady: bool) -> None:
    for seed in range(3):
        found = search(Genetic(SPACE, steady=steady), height, 600, seed)
        assert found > search(Random(SPACE), height, 600, seed)
        assert found > -0.05


@pytest.mark.parametrize("steady", [False, True])
def test_it_solves_a_problem_given_by_functions(steady: bool) -> None:
    genetic = Genetic(sample=bits, mutate=flip, crossover=mix, steady=steady)
    assert search(genetic, lambda candidate: float(sum(candidate)), 1500) == 30


def test_a_told_candidate_that_lost_its_type_in_the_ledger_is_recognised() -> None:
    parents: list[type] = []

    def recording(candidate: Any, rng: random.Random, rate: float) -> tuple[int, ...]:
        parents.append(type(candidate))
        return flip(candidate, rng, rate)

    genetic = begun(Genetic(sample=bits, mutate=recording, population=4))
    for candidate in genetic.ask(4):
        tell(genetic, list(candidate), 1.0)
    assert genetic.ask(4)
    assert set(parents) == {tuple}


def test_a_candidate_that_was_never_asked_is_refused() -> None:
    genetic = begun(Genetic(SPACE))
    with pytest.raises(ConfigError, match="not open"):
        tell(genetic, {"x": 0}, 1.0)


def test_the_window_fits_the_way_it_breeds() -> None:
    assert Genetic(SPACE, population=20).window == 20
    assert Genetic(SPACE, population=20, steady=True).window == 10
    assert Genetic(SPACE, population=2, elites=1, steady=True).window == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "needs the function sample"),
        ({"sample": bits}, "needs the function mutate"),
        ({"sample": bits, "mutate": 3}, "mutate must be a function"),
        ({"sample": bits, "mutate": flip, "crossover": 3}, "crossover must be a function"),
        ({"space": {"x": 1}}, "needs a Space"),
        ({"space": SPACE, "mutate": flip}, "not both"),
        ({"space": SPACE, "population": 1}, "population"),
        ({"space": SPACE, "population": 8.0}, "population"),
        ({"space": SPACE, "elites": 32}, "elites must be a whole number between 0 and 31"),
        ({"space": SPACE, "elites": -1}, "elites"),
        ({"space": SPACE, "tournament": 0}, "tournament"),
        ({"space": SPACE, "crossover_rate": 1.1}, "crossover_rate"),
        ({"space": SPACE, "mutation_rate": 0}, "mutation_rate must be more than 0"),
        ({"space": SPACE, "mutation_rate": "high"}, "mutation_rate"),
        ({"space": SPACE, "generations": 0}, "generations"),
        ({"space": SPACE, "population": 2, "elites": 0, "seeds": [{}] * 3}, "3 seeds do not fit"),
        ({"space": SPACE, "seeds": [{"x": 0.0}]}, "has no 'y'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_a_reason(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Genetic(**arguments)


# -- selection, origins and breeders -----------------------------------------------------------------------------------


def _told(number: int, score: float) -> Result[Any]:
    return Result(Trial(number, number), score, {})


@pytest.mark.parametrize("kind", KINDS)
def test_every_selection_prefers_the_better_and_never_gives_the_one_excluded(kind: str) -> None:
    members = [_told(number, float(number)) for number in range(12)]
    selection = Selection(kind, 3, 1.5)
    selection.enter(members, [member.score or 0.0 for member in members])
    rng = random.Random(3)
    drawn = [selection.pick(rng) for _ in range(1200)]
    assert sum(each.number for each in drawn if each is not None) / len(drawn) > 6.0
    assert all(selection.pick(rng, but=members[11]) is not members[11] for _ in range(200))


def test_one_spin_of_the_wheel_gives_everyone_his_share_up_to_one() -> None:
    members = [_told(number, float(number)) for number in range(10)]
    selection = Selection("sus", 3, 2.0)
    selection.enter(members, [float(number) for number in range(10)])
    rng = random.Random(5)
    drawn = [selection.pick(rng) for _ in range(10)]
    for number, member in enumerate(members):
        share = 2.0 * number / 9
        assert abs(sum(each is member for each in drawn) - share) < 1.0


def test_a_lonely_member_has_no_partner() -> None:
    only = _told(0, 1.0)
    for kind in KINDS:
        selection = Selection(kind, 3, 1.5)
        selection.enter([only], [1.0])
        assert selection.pick(random.Random(0), but=only) is None


def test_a_selection_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="roulette"):
        Genetic(SPACE, selection="roulete")  # type: ignore[arg-type]


def test_the_origin_of_a_child_names_the_trials_of_its_parents() -> None:
    study = Study(Genetic(SPACE, population=6, elites=1), lambda c, case: height(c), stop=MaxTrials(30))
    results = list(study.run().results())
    assert [each.trial.origin for each in results[:6]] == [{"by": "sample", "parents": []}] * 6
    for each in results[6:]:
        origin = each.trial.origin
        assert origin["by"] in ("crossover", "mutation")
        assert len(origin["parents"]) == (2 if origin["by"] == "crossover" else 1)
        assert all(parent < each.number for parent in origin["parents"])


def test_a_merit_of_several_objectives_decides_who_is_kept() -> None:
    def smallest_n(results: Any) -> list[float]:
        return [-float(result.candidate["n"]) for result in results]

    genetic = begun(Genetic(SPACE, population=6, elites=2, merit=smallest_n))
    asked = genetic.ask(6)
    for candidate in asked:
        tell(genetic, candidate, float(candidate["n"]))
    genetic.ask(1)
    kept = sorted(candidate["n"] for candidate in asked)[:2]
    assert sorted(member.result.candidate["n"] for member in genetic._members) == kept


def test_a_breeder_learns_what_beat_its_parents() -> None:
    learned: list[tuple[Any, bool | None]] = []

    class Counting:
        def sample(self, rng: random.Random) -> Bred[Any]:
            return Bred(rng.randrange(1000), by="sample")

        def child(self, pick: Any, rng: random.Random, rate: float) -> Bred[Any]:
            parent = pick()
            return Bred(parent.candidate + 1, (parent,), "plus one")

        def again(self, bred: Bred[Any], rng: random.Random, rate: float) -> Bred[Any]:
            return Bred(bred.candidate + 1, bred.parents, bred.by)

        def learn(self, result: Result[Any], better: bool | None) -> None:
            learned.append((result.trial.origin["by"], better))

    study = Study(Genetic(breeder=Counting(), population=5, elites=1), lambda c, case: float(c), stop=MaxTrials(20))
    study.run()
    assert learned[:5] == [("sample", None)] * 5
    assert learned[5:] == [("plus one", True)] * 15


def flip_in_place(bits: list[int], rng: random.Random, rate: float) -> list[int]:
    bits[:] = flip(tuple(bits), rng, rate)
    return bits


def mix_in_place(a: list[int], b: list[int], rng: random.Random) -> list[int]:
    a[:], b[:] = mix(tuple(a), tuple(b), rng), []
    return a


@pytest.mark.parametrize("steady", [False, True])
def test_operators_that_change_their_arguments_breed_as_those_that_do_not(steady: bool) -> None:
    def trace(**operators: Any) -> str:
        strategy = Genetic(sample=lambda rng: list(bits(rng)), population=10, steady=steady, **operators)
        return Study(strategy, lambda candidate, case: sum(candidate), stop=MaxTrials(60)).run("inline").trace

    copying = {"mutate": lambda *args: list(flip(*args)), "crossover": lambda *args: list(mix(*args))}
    assert trace(mutate=flip_in_place, crossover=mix_in_place) == trace(**copying)


@pytest.mark.parametrize("name", ["sample", "mutate", "crossover"])
def test_an_operator_that_returns_nothing_is_named(name: str) -> None:
    operators: dict[str, Any] = {"sample": bits, "mutate": flip, "crossover": mix, name: lambda *args: None}
    with pytest.raises(ConfigError, match=f"{name} returned None: it must return a candidate"):
        search(Genetic(population=4, crossover_rate=1.0, **operators), sum, 20)
