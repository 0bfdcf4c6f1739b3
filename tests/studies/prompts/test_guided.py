"""The guided search: what it learns, where it begins, and that it finds a planted optimum sooner than chance."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fanfold import Case, MaxEvaluations, Study
from fanfold.prompting.beliefs import Beliefs
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome
from fanfold.prompting.guided import GuidedPrompts, RandomPrompts
from fanfold.prompting.material import Material
from fanfold.schedules import PairedDropping
from fanfold.testing import ScheduleConformance, StrategyConformance
from fanfold.types import Ok, Result, Trial

SHOTS = {f"e{n}": (f"input {n}", "yes" if n % 2 else "no") for n in range(8)}
MATERIAL = Material(
    {"instruction": ("Say yes or no.", "Think.", "Answer.")},
    (("Text", "Label"), ("Q", "A"), ("Input", "Output")),
    tuple(SHOTS),
    8,
)


@pytest.mark.slow
class TestGuided(StrategyConformance):
    def make(self) -> GuidedPrompts:
        return GuidedPrompts(MATERIAL, SHOTS)


class TestRandom(StrategyConformance):
    def make(self) -> RandomPrompts:
        return RandomPrompts(MATERIAL, SHOTS)


class TestPaired(ScheduleConformance):
    def make(self) -> PairedDropping:
        return PairedDropping(2)


def begun(search: GuidedPrompts, seed: int) -> Genome:
    """The search after its first prompt."""
    search.begin(seed)
    (first,) = search.ask(1)
    search.tell(Result(Trial(0, first), 0.5, {"0": Ok(0.5)}))
    return first


def test_the_first_prompt_shows_all_examples_under_the_own_labels() -> None:
    search = GuidedPrompts(MATERIAL, SHOTS, [Genome.of("My own prompt.")])
    search.begin(0)
    (first,) = search.ask(2)  # alone, so that all others can be compared with it
    assert search.ask(2) == []
    search.tell(Result(Trial(0, first), 0.5, {"0": Ok(0.5)}))
    (second,) = search.ask(1)
    assert first == Genome(examples=tuple(SHOTS), labels=("Text", "Label"))
    assert second.head() == "My own prompt."
    assert search.origin(first)["by"] == "all examples" and search.origin(second)["by"] == "seed"


def test_all_examples_are_tried_with_an_instruction_before_anything_is_drawn() -> None:
    search = GuidedPrompts(MATERIAL, SHOTS)
    first = begun(search, 0)
    (second,) = search.ask(1)
    assert second == Genome(instruction=("Say yes or no.",), examples=first.examples, labels=first.labels)


def test_a_start_that_is_never_right_is_no_measure_for_others() -> None:
    schedule, cases = PairedDropping(2), [Case(str(n)) for n in range(8)]
    schedule.begin(0)
    schedule.tell(Result(Trial(0, "start"), 0.0, {case.id: Ok(0.0) for case in cases}))
    plan = schedule.plan(Trial(1, "hopeless"), cases)
    chunk = next(plan)
    with pytest.raises(StopIteration) as ended:
        plan.send([Ok(0.0) for _ in chunk])
    assert ended.value.value.reason == "behind after 2 of 8 cases"


@pytest.mark.slow
def test_random_prompts_cover_the_answers() -> None:
    search = GuidedPrompts(MATERIAL, SHOTS)
    begun(search, 0)
    for genome in search.ask(30):
        assert {SHOTS[id][1] for id in genome.examples} == {"yes", "no"}


@pytest.mark.slow
def test_no_prompt_is_proposed_twice() -> None:
    search = GuidedPrompts(MATERIAL, SHOTS)
    first = begun(search, 1)
    assert len({first, *search.ask(60)}) == 61


@pytest.mark.slow
def test_a_neighbour_of_the_best_names_the_trial_it_came_from() -> None:
    search = GuidedPrompts(PLENTY, MANY)
    begun(search, 0)
    told: dict[int, Genome] = {}
    for number, genome in enumerate(search.ask(30), 1):
        told[number] = genome
        search.tell(Result(Trial(number, genome), truth(genome), {str(n): Ok(truth(genome)) for n in range(20)}))
    origins = [(genome, search.origin(genome)) for genome in search.ask(30)]
    near = [(genome, origin["parents"]) for genome, origin in origins if origin["by"] == "near the best"]
    assert near and all(truth(told[parent]) > 0.35 for _, (parent,) in near)
    assert all(origin["parents"] == [] for _, origin in origins if origin["by"] == "fresh")


def test_random_search_opens_like_the_guided_one_and_learns_nothing() -> None:
    proposals = []
    for score in (0.0, 1.0):
        search = RandomPrompts(MATERIAL, SHOTS, [Genome.of("My own prompt.")])
        search.begin(0)
        (first,) = search.ask(4)
        search.tell(Result(Trial(0, first), score, {"0": Ok(score)}))
        proposals.append(search.ask(30))
        assert search.origin(first)["by"] == "all examples" and search.origin(proposals[0][5])["by"] == "random"
    assert proposals[0] == proposals[1]
    assert proposals[0][0].head() == "My own prompt." and len(set(proposals[0])) == 30


def test_beliefs_find_what_a_part_is_worth() -> None:
    beliefs = Beliefs()
    rng = random.Random(0)
    for _ in range(60):
        good, noise = rng.random() < 0.5, rng.random() < 0.5
        features = {"good": 1.0 * good, "noise": 1.0 * noise}
        beliefs.see(features, 0.3 + 0.4 * good, 20)
    known = beliefs.posterior()
    assert known.expected({"good": 1.0}) - known.expected({"noise": 1.0}) == pytest.approx(0.4, abs=0.08)
    assert known.expected({"never seen": 1.0}) == known.base


MANY = {f"e{n}": (f"input {n}", "yes" if n % 2 else "no") for n in range(20)}
PLENTY = Material(MATERIAL.clauses, MATERIAL.labels, tuple(MANY), 8)
#: A planted world: examples help or harm, each by its own amount, and labels matter.
WORTH = {id: random.Random(f"worth {id}").uniform(-0.12, 0.12) for id in MANY}


def truth(genome: Genome) -> float:
    worth = 0.35 + sum(WORTH[id] for id in genome.examples) + 0.1 * (genome.labels == ("Q", "A"))
    return min(1.0, max(0.0, worth))


def right(genome: Genome, case: int) -> float:
    return float(random.Random(f"{case} {genome}").random() < truth(genome))


def later_proposals(strategy: Any, seed: int) -> float:
    """How good the prompts of the second half of a search are, in truth."""
    study: Study[Any] = Study(
        strategy,
        lambda genome, case: right(genome, case.data),
        range(16),
        schedule=PairedDropping(4),
        stop=MaxEvaluations(400),
        window=4,
        seed=seed,
    )
    proposed = [truth(genome_of(result)) for result in study.run("async:4").results()]
    later = proposed[len(proposed) // 2 :]
    return sum(later) / len(later)


@pytest.mark.slow
def test_what_it_proposes_gets_better_than_chance() -> None:
    seeds = range(4)
    ours = [later_proposals(GuidedPrompts(PLENTY, MANY), seed) for seed in seeds]
    chance = [later_proposals(RandomPrompts(PLENTY, MANY), seed) for seed in seeds]
    assert sum(ours) / len(ours) > sum(chance) / len(chance) + 0.1, (ours, chance)


def run_plan(scores: list[float], leader: list[float] | None) -> tuple[int, Any]:
    schedule = PairedDropping(2)
    schedule.begin(0)
    cases = [Case(str(n), n) for n in range(len(scores))]
    if leader is not None:
        outcomes = {str(n): Ok(score) for n, score in enumerate(leader)}
        schedule.tell(Result(Trial(0, None), sum(leader) / len(leader), outcomes))
    plan = schedule.plan(Trial(1, None), cases)
    asked, chunk = 0, next(plan)
    while True:
        asked += len(chunk)
        try:
            chunk = plan.send([Ok(scores[case.data]) for case in chunk])
        except StopIteration as end:
            return asked, end.value


def test_a_prompt_that_is_behind_is_dropped_early_and_a_good_one_runs_to_the_end() -> None:
    assert run_plan([0.0] * 8, None)[0] == 2  # nothing right, and nothing to compare with
    assert run_plan([1.0] * 8, None) == (8, None)
    assert run_plan([0.0] * 8, [1.0] * 8)[0] == 2  # two behind
    assert run_plan([1.0] * 8, [1.0] * 8) == (8, None)
    assert run_plan([0.0] * 8, [1.0] * 8)[1].score == 0.0
