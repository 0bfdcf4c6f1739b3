"""What the breeder promises: children that are valid, new and of their parents, and that start from their weights."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuro_world import everything

from fanfold import Case, MaxTrials, Study
from fanfold.errors import ConfigError
from fanfold.strategies import Genetic
from fanfold.strategies.breeding import Bred, Breeder
from fanfold.strategy import Strategy
from fanfold.studies.neuro.genome import CHOSEN, KERNELS, Conv, Dense, Individual, NetworkGenome, individual_of, key
from fanfold.studies.neuro.space import NetworkSpace, random_genome, valid
from fanfold.studies.neuro.strategy import (
    CHANGES,
    NeuroBreeder,
    Spread,
    crossover,
    mutate,
    shared,
    sibling,
    step,
    weights_of,
)
from fanfold.testing import StrategyConformance
from fanfold.types import Blob, Failed, Ok, Outcome, Result, Trial

SPACE = NetworkSpace()
WIDE = NetworkSpace(conv_layers=(0, 6), filters=(1, 64), kernels=KERNELS, dense_layers=(0, 5), nodes=(1, 300))
POINT = NetworkSpace((1, 1), (8, 8), (3,), (1, 1), (9, 9), ("relu",), ("none",), (0.0, 0.0), ("sgd",), (0.1, 0.1))
MOTHER = NetworkGenome((Conv(8, 3, "relu"), Conv(16, 5, "tanh")), (Dense(64, "relu"),), "batch", 0.1, "adam", 1e-3)
FATHER = NetworkGenome((Conv(9, 5, "selu"),), (Dense(40, "tanh"), Dense(50, "selu")), "none", 0.3, "sgd", 2e-2)
seeds = st.integers(0, 2**32)
#: Bounds between the digits to which numbers are rounded, and whole ones.
FINE = replace(WIDE, dropout=(0, 0.12345), learning_rates=(0.00123456, 1))
EVERYTHING = everything(WIDE)
spaces = st.sampled_from((SPACE, WIDE, FINE, NetworkSpace.original(), EVERYTHING))


def told(
    genome: NetworkGenome,
    score: float | None = 0.5,
    number: int = 0,
    outcomes: Mapping[str, Outcome] | None = None,
) -> Result[Any]:
    return Result(Trial(number, Individual(genome)), score, outcomes or {})


def trained(genome: NetworkGenome, number: int, weights: bytes) -> Result[Any]:
    return told(genome, 0.5, number, {"rung": Ok(0.5, {"accuracy": 0.5, "weights": Blob.of(weights)})})


class Pool:
    """Parents to pick from, in turn."""

    def __init__(self, *members: Result[Any]) -> None:
        self.members = members

    def __call__(self, but: Result[Any] | None = None) -> Result[Any] | None:
        return next((member for member in self.members if member is not but), None)


def children(made: NeuroBreeder, pool: Pool, count: int = 200, rate: float = 0.2) -> list[Bred[Individual]]:
    rng = Random(1)
    return [made.child(pool, rng, rate) for _ in range(count)]


class TestNeuroBreederInASearch(StrategyConformance):
    def make(self) -> Strategy[Any]:
        made: Breeder[Individual] = NeuroBreeder(SPACE, inherit=True, spread=Spread(members=8))
        return Genetic(breeder=made, population=8, seeds=[Individual(MOTHER)])


class TestNeuroBreederInASteadySearch(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(breeder=NeuroBreeder(WIDE, spread=Spread()), population=10, steady=True)


# -- mutation ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_none_of_ten_thousand_offspring_is_invalid() -> None:
    rng = Random(1)
    pool = [random_genome(SPACE, rng) for _ in range(50)]
    wrong = 0
    for number in range(10_000):
        child, _ = mutate(crossover(*rng.sample(pool, 2), rng), SPACE, rng, 0.2)
        wrong += not valid(child, SPACE)
        pool[number % 50] = child  # so that they are offspring of offspring, hundreds of generations on
    assert wrong == 0


@pytest.mark.slow
@given(spaces, seeds, st.floats(0, 1))
def test_offspring_of_any_space_are_valid_and_follow_from_the_seed(space: NetworkSpace, seed: int, rate: float) -> None:
    def bred() -> list[NetworkGenome]:
        rng = Random(seed)
        crossed = crossover(random_genome(space, rng), random_genome(space, rng), rng)
        return [crossed, mutate(crossed, space, rng, rate)[0], step(crossed, space, rng)[0]]

    found = bred()
    assert all(valid(genome, space) for genome in found) and found == bred()


@given(spaces, seeds)
def test_a_step_changes_one_gene_and_says_which(space: NetworkSpace, seed: int) -> None:
    rng = Random(seed)
    genome = random_genome(space, rng)
    changed, names = step(genome, space, rng)
    assert changed != genome and len(names) == 1
    whole = {name.replace(" ", "_") for name in ("norm", "dropout", "optimiser", "learning rate", *CHOSEN)}
    differing = {name for name in whole if getattr(genome, name) != getattr(changed, name)}
    if names[0].replace(" ", "_") in whole:
        assert differing == {names[0].replace(" ", "_")}
        assert (genome.conv, genome.dense) == (changed.conv, changed.dense)
    else:
        assert not differing
        assert (genome.conv == changed.conv) != (genome.dense == changed.dense)
        if names[0] in ("conv layers", "dense layers"):
            assert abs(len(genome.conv) + len(genome.dense) - len(changed.conv) - len(changed.dense)) == 1
        else:
            pairs = list(zip((*genome.conv, *genome.dense), (*changed.conv, *changed.dense)))
            assert sum(one != other for one, other in pairs) == 1


def test_every_change_happens_at_about_its_rate() -> None:
    rng = Random(0)
    counts: Counter[str] = Counter()
    for _ in range(3000):
        counts.update(mutate(MOTHER, SPACE, rng, 0.1)[1])
    layers = {"filters": 2, "kernel": 2, "conv activation": 2, "nodes": 1, "dense activation": 1}
    expected = {name: 1 - 0.9 ** layers.get(name, 1) for name in CHANGES}
    assert {name: counts[name] / 3000 for name in CHANGES} == pytest.approx(expected, abs=0.03)


def test_newer_genes_change_where_the_space_has_choices_and_take_no_luck_elsewhere() -> None:
    names = {name for seed in range(40) for name in mutate(MOTHER, EVERYTHING, Random(seed), 1.0)[1]}
    assert names >= {"block", "dense block", *(gene.replace("_", " ") for gene in CHOSEN)}
    one, other = Random(5), Random(5)
    narrow = replace(EVERYTHING, **{name: getattr(WIDE, name) for name in (*CHOSEN.values(), "blocks", "dense_blocks")})
    assert mutate(MOTHER, narrow, one, 0.5) == mutate(MOTHER, WIDE, other, 0.5) and one.random() == other.random()


def test_at_rate_nothing_changes_and_at_rate_one_everything_does() -> None:
    assert mutate(MOTHER, SPACE, Random(0), 0.0) == (MOTHER, [])
    assert all(set(mutate(MOTHER, WIDE, Random(seed), 1.0)[1]) >= set(CHANGES) - {"dropout"} for seed in range(20))


def test_layers_are_added_copied_and_removed_within_bounds() -> None:
    rng = Random(0)
    grown, shrunk, copied = 0, 0, 0
    for _ in range(600):
        genome, names = step(MOTHER, SPACE, rng)
        if names == ["conv layers"]:
            grown += len(genome.conv) == 3
            shrunk += len(genome.conv) == 1
            copied += len(genome.conv) == 3 and len(set(genome.conv)) == 2
    assert grown > shrunk > 0 and grown > copied > 0
    narrow = replace(SPACE, conv_layers=(2, 2), dense_layers=(1, 1))
    assert not {name for _ in range(300) for name in step(MOTHER, narrow, rng)[1]} & {"conv layers", "dense layers"}


@pytest.mark.parametrize("size", [4, 5, 16, 31, 32])
def test_a_size_moves_in_proportion_and_never_stays(size: int) -> None:
    rng = Random(0)
    genome = replace(MOTHER, conv=(Conv(size, 3, "relu"),))
    found = [CHANGES["filters"][1](genome, 0, SPACE, rng).conv[0].filters for _ in range(300)]
    assert size not in found and all(4 <= filters <= 32 for filters in found)
    if size == 16:
        assert statistics.median(found) == pytest.approx(16, abs=2)
        assert sum(filters in (4, 32) for filters in found) < 60


def test_a_space_of_one_genome_has_nothing_to_change() -> None:
    only = random_genome(POINT, Random(0))
    assert mutate(only, POINT, Random(0), 1.0) == (only, []) and step(only, POINT, Random(0)) == (only, [])


# -- crossover --------------------------------------------------------------------------------------------------------


@given(spaces, seeds)
def test_every_layer_of_a_child_stands_where_it_stood_in_a_parent(space: NetworkSpace, seed: int) -> None:
    rng = Random(seed)
    mother, father = random_genome(space, rng), random_genome(space, rng)
    child = crossover(mother, father, rng)
    assert len(child.conv) in (len(mother.conv), len(father.conv))
    assert len(child.dense) in (len(mother.dense), len(father.dense))
    stacks = [
        (child.conv, mother.conv, father.conv),
        (child.dense[::-1], mother.dense[::-1], father.dense[::-1]),
    ]
    for layers, mine, theirs in stacks:
        for at, layer in enumerate(layers):
            assert layer in (*mine[at : at + 1], *theirs[at : at + 1])
    trained = {(parent.optimiser, parent.learning_rate) for parent in (mother, father)}
    assert (child.optimiser, child.learning_rate) in trained
    assert child.norm in (mother.norm, father.norm) and child.dropout in (mother.dropout, father.dropout)


def test_dense_layers_are_aligned_at_the_classes() -> None:
    rng = Random(0)
    found = {crossover(MOTHER, FATHER, rng).dense for _ in range(100)}
    near = (Dense(64, "relu"), Dense(50, "selu"))
    assert found == {(layer,) for layer in near} | {(Dense(40, "tanh"), layer) for layer in near}


def test_a_child_of_two_equal_parents_is_their_equal() -> None:
    assert all(crossover(MOTHER, MOTHER, Random(seed)) == MOTHER for seed in range(20))


# -- the rate of the spread -------------------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_original_formula() -> None:
    spread = Spread()
    assert spread.rate(0.35, [0.5, 0.5]) == pytest.approx(0.55)
    assert spread.rate(0.35, [0.0, 1.0]) == pytest.approx(0.15)
    assert spread.rate(0.35, [0.45, 0.55]) == pytest.approx(0.35)
    assert spread.rate(0.35, []) == spread.rate(0.35, [0.9]) == 0.35
    assert spread.rate(0.99, [0.5, 0.5]) == 0.8 and spread.rate(0.01, [0.0, 1.0]) == 0.1


@pytest.mark.parametrize(
    "options", [{"wide": 0}, {"wide": float("nan")}, {"least": 0.9}, {"most": 1.5}, {"members": 1}, {"least": -0.1}]
)
def test_a_spread_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Spread(**options)


def test_children_change_more_when_the_scores_draw_together() -> None:
    def changes(scores: list[float]) -> float:
        made = NeuroBreeder(SPACE, crossover_rate=0, fresh_share=0, spread=Spread())
        for number, score in enumerate(scores):
            made.learn(told(MOTHER, score, number), None)
        return statistics.mean(len(bred.by.split("+")) for bred in children(made, Pool(told(MOTHER)), rate=0.35))

    assert changes([0.9] * 10) > 1.5 * changes([0.1, 0.9] * 5)


def test_the_order_of_telling_is_no_matter_to_the_spread() -> None:
    results = [told(MOTHER, 0.2 * Random(number).random() ** 3, number) for number in range(30)]
    found = []
    for order in (results, results[::-1], Random(0).sample(results, 30)):
        made = NeuroBreeder(SPACE, spread=Spread(members=7))
        for result in order:
            made.learn(result, None)
        found.append([bred.candidate for bred in children(made, Pool(results[0]), 20)])
    assert found[0] == found[1] == found[2]


# -- the breeder ------------------------------------------------------------------------------------------------------


def test_no_genome_is_bred_twice() -> None:
    small = replace(POINT, filters=(4, 8), activations=("relu", "tanh"), optimisers=("sgd", "adam"))  # 40 genomes
    made = NeuroBreeder(small)
    made.learn(told(random_genome(small, Random(99)), 0.5), None)
    first = {key(random_genome(small, Random(99)))}
    rng = Random(0)
    found = [made.sample(rng) for _ in range(10)]
    pool = Pool(*(told(bred.candidate.genome, 0.1 * at, at) for at, bred in enumerate(found)))
    found += [made.child(pool, rng, 0.1) for _ in range(20)]
    found += [made.again(found[-1], rng, 0.1) for _ in range(5)]
    keys = [key(bred.candidate.genome) for bred in found]
    assert len(set(keys)) == len(keys) == 35 and not first & set(keys)
    assert all(valid(bred.candidate.genome, small) for bred in found)


def test_a_space_that_is_used_up_still_gives_candidates() -> None:
    made = NeuroBreeder(POINT)
    only = random_genome(POINT, Random(0))
    assert [made.sample(Random(0)).candidate.genome for _ in range(3)] == [only] * 3
    bred = made.child(Pool(told(only)), Random(0), 0.5)
    assert bred.candidate.genome == only and made.again(bred, Random(0), 0.5).candidate.genome == only


def test_children_name_their_parents_and_what_was_done() -> None:
    made = NeuroBreeder(SPACE, crossover_rate=0.5, fresh_share=0.1)
    parents = told(MOTHER, number=3), told(FATHER, number=5)
    for parent in parents:
        made.learn(parent, None)
    found = children(made, Pool(*parents), 400)
    origins = [bred.origin for bred in found]
    assert {tuple(origin["parents"]) for origin in origins} == {(), (3,), (3, 5)}
    crossed = sum(origin["parents"] == [3, 5] for origin in origins)
    fresh = sum(origin["by"] == "sample" for origin in origins)
    assert 120 < crossed < 220 and 15 < fresh < 70
    for origin in origins:
        words = origin["by"].split("+")
        assert ("crossover" in words) == (len(origin["parents"]) == 2)
        assert set(words) <= {*CHANGES, "crossover", "sample"} and len(set(words)) == len(words)


def test_a_parent_outside_the_space_has_children_inside() -> None:
    far = replace(MOTHER, conv=(Conv(500, 7, "relu"),) * 5, learning_rate=3.0)
    assert all(valid(bred.candidate.genome, SPACE) for bred in children(NeuroBreeder(SPACE), Pool(told(far)), 50))


@pytest.mark.parametrize("options", [{"crossover_rate": 1.5}, {"fresh_share": -0.1}, {"fresh_share": float("nan")}])
def test_shares_outside_zero_and_one_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        NeuroBreeder(SPACE, **options)


# -- inheritance ------------------------------------------------------------------------------------------------------


def test_the_weights_are_those_of_the_last_case_that_was_evaluated() -> None:
    first, second = (Ok(0.5, {"weights": Blob.of(data)}) for data in (b"1", b"2"))
    lost = Failed("timeout", "too late")
    assert weights_of(told(MOTHER, outcomes={"a": first, "b": second})) == Blob.of(b"2")
    assert weights_of(told(MOTHER, None, outcomes={"a": first, "b": lost})) == Blob.of(b"1")
    for data in (None, {}, {"weights": None}, {"weights": "2"}, [1], "weights"):
        assert weights_of(told(MOTHER, outcomes={"a": Ok(0.5, data)})) is None
    assert weights_of(told(MOTHER)) is None


def test_children_inherit_only_where_it_was_asked_for() -> None:
    pool = Pool(trained(MOTHER, 1, b"m"), trained(FATHER, 2, b"f"))
    assert not any(bred.candidate.inherited for bred in children(NeuroBreeder(SPACE), pool))
    found = children(NeuroBreeder(SPACE, inherit=True, fresh_share=0.2), pool)
    assert all((bred.candidate.inherited is None) == (not bred.parents) for bred in found)
    assert {bred.candidate.inherited for bred in found} == {None, Blob.of(b"m"), Blob.of(b"f")}


def test_a_child_starts_from_the_parent_it_shares_most_with_and_names_it_first() -> None:
    pool = Pool(trained(MOTHER, 1, b"m"), trained(FATHER, 2, b"f"))
    genomes = {1: MOTHER, 2: FATHER}
    made = NeuroBreeder(SPACE, crossover_rate=1.0, fresh_share=0.0, inherit=True)
    for bred in children(made, pool, rate=0.05):
        parents = bred.origin["parents"]
        assert bred.candidate.inherited == Blob.of(b"m" if parents[0] == 1 else b"f")
        likeness = [shared(genomes[number], bred.candidate.genome) for number in parents]
        assert likeness == sorted(likeness, reverse=True)


def test_a_parent_without_weights_gives_way_to_one_with() -> None:
    pool = Pool(told(MOTHER, number=1), trained(FATHER, 2, b"f"))
    made = NeuroBreeder(SPACE, crossover_rate=1.0, fresh_share=0.0, inherit=True)
    found = [bred for bred in children(made, pool) if len(bred.parents) == 2]
    assert found and all(bred.candidate.inherited == Blob.of(b"f") for bred in found)
    alone = children(NeuroBreeder(SPACE, crossover_rate=0.0, inherit=True), Pool(told(MOTHER)), 20)
    assert all(bred.candidate.inherited is None for bred in alone)


# -- in a study -------------------------------------------------------------------------------------------------------


def score(candidate: Any, case: Case) -> Ok:
    """Likes many filters, a learning rate of 0.003, and children that inherit; weights grow from the parent's."""
    individual = individual_of(candidate)
    genome = individual.genome
    size = sum(layer.filters for layer in genome.conv)
    before = individual.inherited.read() if individual.inherited is not None else b""
    weights = Blob.of(before + key(genome)[:8].encode())
    found = size / 100 - abs(genome.learning_rate - 0.003) * 10 + 0.01 * min(len(before), 80)
    return Ok(found, {"accuracy": found, "weights": weights})


def search(trials: int = 80) -> Study[Any]:
    strategy = Genetic(breeder=NeuroBreeder(SPACE, inherit=True, spread=Spread()), population=10)
    return Study(strategy, score, [Case("rung")], seed=3, stop=MaxTrials(trials))


@pytest.mark.slow
def test_a_search_improves_and_its_lineage_can_be_followed() -> None:
    run = search().run()
    results = {result.number: result for result in run.results()}
    best = run.best
    assert best is not None and best.score is not None
    assert best.score > max(result.score or 0.0 for result in results.values() if result.number < 10) + 0.3
    for result in results.values():
        parents = result.trial.origin["parents"]
        inherited = individual_of(result.candidate).inherited
        assert (inherited is None) == (not parents)
        if inherited is not None:
            assert inherited == weights_of(results[parents[0]])
    keys = [key(individual_of(result.candidate).genome) for result in results.values()]
    assert len(set(keys)) == len(keys)


@pytest.mark.slow
def test_a_search_that_was_broken_off_goes_on_with_the_same_weights(tmp_path: Path) -> None:
    ledger = tmp_path / "l.db"
    search(35).run(ledger=ledger, run="a")
    assert search().run("threads:3", ledger=ledger, run="a").trace == search().run().trace


def test_a_litter_is_one_network_with_several_learning_rates() -> None:
    breeder, rng = NeuroBreeder(litter=4), Random(3)
    genomes = [breeder.sample(rng).candidate.genome for _ in range(8)]
    for brood in (genomes[:4], genomes[4:]):
        assert len({(genome.conv, genome.dense, genome.norm, genome.optimiser) for genome in brood}) == 1
        assert len({genome.learning_rate for genome in brood}) == 4
        assert len({genome.dropout > 0 for genome in brood}) == 1
    assert genomes[0].conv != genomes[4].conv or genomes[0].dense != genomes[4].dense


def test_siblings_of_a_child_have_its_parents_and_stay_near_its_learning_rate() -> None:
    genome = random_genome(NetworkSpace(), Random(1))
    near = [sibling(genome, NetworkSpace(), Random(seed)).learning_rate / genome.learning_rate for seed in range(50)]
    assert 0.05 < min(near) < 1 < max(near) < 20
