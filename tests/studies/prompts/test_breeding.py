"""What the breeder promises: children that differ, ways of making them that earn their place, a search that pays."""

from __future__ import annotations

import copy
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fanfold import Case, MaxTrials, Study
from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.ledger import Ledger
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.prompting.breeding import (
    RECIPES,
    Bandit,
    PromptBreeder,
    candidate_of,
    credit,
    failures_of,
    genome_of,
)
from fanfold.prompting.genome import Candidate, Genome
from fanfold.prompting.material import Material, faults
from fanfold.prompting.operators import OPERATORS
from fanfold.prompting.writing import realise
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.strategies import Genetic
from fanfold.strategies.breeding import Bred, Breeder
from fanfold.strategies.reflective import MOST_CHARACTERS, ShownCase, Written
from fanfold.strategy import Strategy
from fanfold.testing import StrategyConformance
from fanfold.types import Failed, Ok, Outcome, Result, Trial

MATERIAL = Material(
    clauses={
        "role": ("You are a careful geographer.", "You are a helpful assistant.", "You are a poet."),
        "instruction": ("Name the city mentioned in the sentence.", "Find the city.", "Where does it happen?"),
        "cue": ("Think step by step.", "Take your time."),
        "format": ("Output only the city.", "Answer with one word.", "Do not explain.", "Answer as JSON."),
    },
    labels=(("Sentence", "City"), ("Text", "Answer"), ("Input", "Output")),
    examples=("e1", "e2", "e3", "e4", "e5", "e6"),
)
SEEDS = (Genome.of("Which city is it?"), Genome.of("Tell me where this is. Be polite."))
MOTHER = Genome.of("Read the text and name the city in it. Answer with one word.")
FATHER = Genome.of("You are an expert. Find the city and output only its name.")


def told(
    candidate: Candidate,
    score: float | None = 0.5,
    number: int = 0,
    outcomes: Mapping[str, Outcome] | None = None,
    origin: Any = None,
) -> Result[Any]:
    return Result(Trial(number, candidate, origin), score, outcomes or {})


def wrong(case: int, score: float = 0.0) -> Ok:
    return Ok(score, {"input": f"in {case}", "expected": f"right {case}", "said": f"wrong {case}"})


class Pool:
    """Parents to pick from, in turn."""

    def __init__(self, *members: Result[Any]) -> None:
        self.members = members

    def __call__(self, but: Result[Any] | None = None) -> Result[Any] | None:
        return next((member for member in self.members if member is not but), None)


def breeder(**options: Any) -> PromptBreeder:
    return PromptBreeder(MATERIAL, SEEDS, **{"fresh_share": 0.0, **options})


def children(made: PromptBreeder, pool: Pool, count: int = 200, rate: float = 0.2) -> list[Bred[Candidate]]:
    rng = Random(1)
    return [made.child(pool, rng, rate) for _ in range(count)]


class TestPromptBreederInASearch(StrategyConformance):
    def make(self) -> Strategy[Any]:
        made: Breeder[Candidate] = PromptBreeder(MATERIAL, SEEDS, writer=True)
        return Genetic(breeder=made, population=10, seeds=SEEDS)


class TestPromptBreederInASteadySearch(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Genetic(breeder=PromptBreeder(MATERIAL), population=10, steady=True)


# -- samples and children ---------------------------------------------------------------------------------------------


def test_samples_are_proper_varied_and_of_both_kinds() -> None:
    made, rng = breeder(), Random(0)
    samples = [made.sample(rng) for _ in range(200)]
    assert {bred.by for bred in samples} == {"seed variation", "composition"}
    assert all(isinstance(bred.candidate, Genome) and not faults(bred.candidate, MATERIAL) for bred in samples)
    assert len({bred.candidate for bred in samples}) > 150
    assert not any(bred.parents for bred in samples)
    assert not {bred.candidate for bred in samples} & set(SEEDS)


def test_without_seeds_or_a_bank_there_are_still_samples() -> None:
    assert {PromptBreeder(MATERIAL).sample(Random(n)).by for n in range(9)} == {"composition"}
    assert {PromptBreeder(Material(), SEEDS).sample(Random(n)).by for n in range(9)} == {"seed variation"}
    assert PromptBreeder(Material()).sample(Random(0)).candidate == Genome()


def test_some_children_are_fresh_so_that_a_search_in_a_rut_meets_something_new() -> None:
    made = children(breeder(fresh_share=0.2), Pool(told(MOTHER, number=3), told(FATHER, number=5)))
    fresh = [bred for bred in made if not bred.parents]
    assert 20 < len(fresh) < 60
    assert {bred.by for bred in fresh} == {"seed variation", "composition"}


@pytest.mark.slow
def test_children_differ_from_their_parents_and_say_how_they_were_made() -> None:
    pool = Pool(told(MOTHER, number=3), told(FATHER, number=5))
    made = children(breeder(crossover_rate=0.5), pool)
    for bred in made:
        assert isinstance(bred.candidate, Genome) and not faults(bred.candidate, MATERIAL)
        names = bred.by.split("+")
        assert set(names) <= {*OPERATORS, "crossover"}
        assert (names[0] == "crossover") == (len(bred.parents) == 2)
        assert bred.origin == {"parents": [3, 5] if len(bred.parents) == 2 else [3], "by": bred.by}
    assert sum(bred.candidate == MOTHER for bred in made) < 5
    assert 60 < sum(len(bred.parents) == 2 for bred in made) < 110
    assert not any(len(bred.parents) == 2 for bred in children(breeder(crossover_rate=0), pool))
    assert not any(len(bred.parents) == 2 for bred in children(breeder(), Pool(told(MOTHER))))


@pytest.mark.slow
def test_a_higher_rate_changes_more() -> None:
    def changes(rate: float) -> float:
        made = children(breeder(crossover_rate=0), Pool(told(MOTHER)), rate=rate)
        return statistics.fmean(len(bred.by.split("+")) for bred in made)

    assert changes(0.01) == 1 < changes(0.3) < changes(1.0)


def test_a_child_that_exists_is_changed_further_and_keeps_its_record() -> None:
    made, rng, mother = breeder(), Random(0), told(MOTHER)
    first: Bred[Candidate] = Bred(MOTHER, (mother,), "clause insert")
    second = made.again(first, rng, 0.2)
    assert second.candidate != MOTHER and second.parents == (mother,)
    assert second.by.startswith("clause insert+") and second.by.split("+")[1] in OPERATORS
    written: Bred[Candidate] = Bred(Written("paraphrase", (MOTHER,), sample=4), (mother,), "paraphrase")
    again = made.again(written, rng, 0.2)
    assert again.by == "paraphrase" and isinstance(again.candidate, Written)
    assert again.candidate.sample != 4 and replace(again.candidate, sample=4) == written.candidate
    assert made.again(Bred(SEEDS[0], by="composition"), rng, 0.2).by == "composition"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": ["Name it."]}, "Genome.of"),
        ({"seeds": [Genome(instruction=("word " * 200,))]}, "200 words and most_words is 120"),
        ({"seeds": [Genome(examples=("nobody",))]}, "'nobody', which is not among"),
        ({"model_share": 1.5}, "model_share must be between 0 and 1"),
        ({"crossover_rate": -1}, "crossover_rate"),
    ],
)
def test_what_cannot_be_bred_from_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PromptBreeder(MATERIAL, **options)


# -- what a model writes ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_share_of_the_children_is_left_to_a_model_in_every_way() -> None:
    outcomes = {str(case): wrong(case) for case in range(5)}
    pool = Pool(told(MOTHER, outcomes=outcomes), told(FATHER))
    made = children(breeder(writer=True, model_share=0.4), pool, 400)
    written = [bred for bred in made if isinstance(bred.candidate, Written)]
    assert 120 < len(written) < 200
    assert {bred.by for bred in written} == set(RECIPES)
    for bred in written:
        candidate = bred.candidate
        assert isinstance(candidate, Written) and candidate.how == bred.by and candidate.sample > 0
        assert candidate.parents == ((MOTHER, FATHER) if candidate.how == "combine" else (MOTHER,))
        assert len(candidate.failures) == (3 if candidate.how == "reflect" else 0)
    shown = {bred.candidate.failures for bred in written if isinstance(bred.candidate, Written)}
    assert len(shown) > 5, "each reflection looks at other failures"
    assert not any(isinstance(bred.candidate, Written) for bred in children(breeder(model_share=0.9), pool))


def test_a_model_is_not_asked_for_what_makes_no_sense() -> None:
    def ways(*pool: Result[Any]) -> set[str]:
        made = children(breeder(writer=True, model_share=1), Pool(*pool))
        return {bred.by for bred in made if isinstance(bred.candidate, Written)}

    assert ways(told(MOTHER)) == {"paraphrase", "shorten", "expand"}
    assert ways(told(Genome.of("Name it."))) == {"paraphrase", "expand"}
    assert ways(told(Genome())) == {"expand"}
    long = Genome(instruction=tuple(f"Clause {number} has so many words in it." for number in range(12)))
    assert ways(told(long)) == {"paraphrase", "shorten"}
    assert "combine" not in ways(told(MOTHER), told(replace(MOTHER, examples=("e1",))))
    assert "reflect" not in ways(told(MOTHER, outcomes={"0": Ok(1.0, wrong(0).data), "1": Failed("error", "x")}))


def test_the_written_prompt_of_a_result_is_what_is_bred_from() -> None:
    written = Written("paraphrase", (MOTHER,), sample=1)
    for genome in (FATHER, decode(encode(FATHER))):
        outcomes = {"0": Failed("error", "no"), "1": Ok(0.0, {"genome": genome, "said": "x"})}
        assert genome_of(told(written, outcomes=outcomes)) == FATHER
    assert genome_of(told(written, None, outcomes={"0": Failed("error", "no")})) == MOTHER
    assert genome_of(told(MOTHER)) is MOTHER
    again = decode(encode(written))
    assert candidate_of(again) == written and candidate_of(decode(encode(MOTHER))) == MOTHER
    assert genome_of(told(again, outcomes={"1": Ok(0.0, {"genome": decode(encode(FATHER))})})) == FATHER
    with pytest.raises(ConfigError, match="not a prompt of this study"):
        candidate_of({"instruction": 3})


def test_too_long_a_written_prompt_is_bred_from_within_the_limits() -> None:
    long = Genome.of("Say a word. " * 100)
    pool = Pool(told(Written("expand", (MOTHER,)), outcomes={"0": Ok(1.0, {"genome": long})}))
    assert not any(faults(bred.candidate, MATERIAL) for bred in children(breeder(), pool, 30))  # type: ignore[arg-type]


def test_failures_are_few_short_and_the_same_whatever_order_they_came_in() -> None:
    outcomes: dict[str, Outcome] = {str(case): wrong(case, 0.1 * case) for case in range(6)}
    outcomes |= {"7": Ok(1.0, wrong(7).data), "8": Failed("error", "x"), "9": Ok(0.0, {"said": "?"}), "10": Ok(0.0)}
    found = failures_of(told(MOTHER, outcomes=outcomes))
    assert found == tuple(ShownCase(f"in {case}", f"right {case}", f"wrong {case}") for case in range(3))
    assert failures_of(told(MOTHER, outcomes=dict(reversed(outcomes.items())))) == found
    drawn = failures_of(told(MOTHER, outcomes=outcomes), Random(5))
    assert len(drawn) == 3 and drawn == failures_of(told(MOTHER, outcomes=dict(reversed(outcomes.items()))), Random(5))
    huge = failures_of(told(MOTHER, outcomes={"0": Ok(0.0, {"input": "x" * 9999, "expected": 42, "said": ""})}))
    assert huge == (ShownCase("x" * MOST_CHARACTERS, "42", ""),)
    assert failures_of(told(MOTHER)) == ()


# -- credit -----------------------------------------------------------------------------------------------------------


def test_the_bandit_finds_the_arm_that_pays_and_leaves_it_when_it_stops() -> None:
    def favourite(bandit: Bandit, chances: dict[str, float], rng: Random) -> str:
        tried: Counter[str] = Counter()
        for step in range(400):
            arm = bandit.ranked(list(chances), rng)[0]
            tried[arm] += step >= 200
            bandit.learn(arm, rng.random() < chances[arm])
        return tried.most_common(1)[0][0]

    bandit, rng = Bandit(dict.fromkeys("abcdef", 1.0)), Random(3)
    poor = dict.fromkeys("abcdef", 0.05)
    assert favourite(bandit, poor | {"d": 0.5}, rng) == "d"
    assert favourite(bandit, poor | {"b": 0.5}, rng) == "b"
    assert all(sum(earned) <= 50 for earned in bandit.standing.values()), "memory is bounded"


def test_the_bandit_is_a_function_of_its_luck_and_its_lessons() -> None:
    def ranks(lessons: list[tuple[str, bool]]) -> list[list[str]]:
        bandit, rng = Bandit(dict.fromkeys("abc", 1.0)), Random(7)
        for arm, won in lessons:
            bandit.learn(arm, won)
        return [bandit.ranked("abc", rng) for _ in range(5)]

    assert ranks([("a", True)]) == ranks([("a", True)])
    assert ranks([("a", True)] * 20) != ranks([("a", False)] * 20)
    assert all(sorted(order) == ["a", "b", "c"] for order in ranks([]))


def test_every_operator_that_made_a_child_shares_in_what_it_earned() -> None:
    made = breeder()
    origin = {"parents": [1], "by": "crossover+clause insert+word swap"}
    made.learn(told(MOTHER, origin=origin), True)
    standing = made.bandit.standing
    assert standing["clause insert"] == standing["word swap"]
    assert standing["clause insert"][0] > 0 == standing["clause insert"][1]
    made.learn(told(MOTHER, origin={"parents": [1], "by": "reflect"}), False)
    assert made.bandit.standing["reflect"] == (0.0, 1.0)


@pytest.mark.parametrize("origin", [None, {}, {"by": ""}, {"by": "composition"}, "odd", {"by": "of another version"}])
def test_origins_that_say_nothing_teach_nothing(origin: Any) -> None:
    made = breeder()
    made.learn(told(MOTHER, origin=origin), True)
    made.learn(told(MOTHER, origin={"parents": [1], "by": "reflect"}), None)
    assert not any(map(any, made.bandit.standing.values()))


def test_what_paid_is_used_more() -> None:
    made = breeder(crossover_rate=0)
    for _ in range(30):
        made.learn(told(MOTHER, origin={"parents": [0], "by": "example add"}), True)
        for name in OPERATORS:
            made.learn(told(MOTHER, origin={"parents": [0], "by": name}), name == "example add")
    used = Counter(name for bred in children(made, Pool(told(MOTHER)), 100, 0.01) for name in bred.by.split("+"))
    assert used["example add"] > 90


def test_credit_is_told_from_the_results_alone() -> None:
    results = [
        told(MOTHER, 0.5, 0, origin={"parents": [], "by": "seed"}),
        told(MOTHER, 0.7, 1, origin={"parents": [0], "by": "word swap+word swap"}),
        told(MOTHER, 0.7, 2, origin={"parents": [0, 1], "by": "crossover+word swap"}),
        told(MOTHER, None, 3, origin={"parents": [1], "by": "reflect"}),
        told(MOTHER, 0.9, 4, origin={"parents": [3], "by": "reflect"}),
        told(MOTHER, 0.9, 5),
    ]
    assert credit(results) == {"word swap": (1, 2), "crossover": (0, 1), "reflect": (0, 1)}


# -- a search ---------------------------------------------------------------------------------------------------------

BEST = Genome(
    instruction=("Find the city.",), format=("Output only the city.",), examples=("e5", "e2"), labels=("Text", "Answer")
)


def planted(genome: Genome, case: Case) -> float:
    """How near a prompt is to the best one, a little different from case to case."""
    wanted = [clause in genome.clauses for clause in ("Find the city.", "Output only the city.")]
    wanted += ["Answer as JSON." not in genome.clauses, "You are a poet." not in genome.clauses]
    wanted += [genome.labels == BEST.labels, "e5" in genome.examples, "e2" in genome.examples]
    wanted += [genome.examples[:1] == ("e5",), genome.words <= 12]
    return sum(wanted) / len(wanted) - 0.001 * case.data


def search(strategy: Strategy[Any], seed: int, trials: int = 150) -> float:
    study: Study[Any] = Study(strategy, planted, range(2), stop=MaxTrials(trials), seed=seed)
    best = study.run().best
    assert best is not None and best.score is not None
    return best.score


class Samples(Strategy[Any]):
    """Random search with the same samples."""

    def __init__(self) -> None:
        self.breeder = breeder()

    def ask(self, n: int) -> list[Any]:
        return [self.breeder.sample(self.rng).candidate for _ in range(n)]


@pytest.mark.slow
def test_a_search_with_the_breeder_finds_a_planted_prompt_that_samples_do_not() -> None:
    bred = [search(Genetic(breeder=breeder(), population=12, seeds=SEEDS), seed) for seed in range(6)]
    sampled = [search(Samples(), seed) for seed in range(6)]
    assert statistics.fmean(bred) > statistics.fmean(sampled) + 0.05
    assert max(bred) > 0.99


def writer(simulator: Simulator) -> Model:
    transport = SimulatedTransport(simulator)
    return replace(model("simulated/gpt-6-luna"), connect=lambda: transport)


def written_words(name: str, messages: Any, body: Any, rng: Random) -> str:
    return f"<prompt>Find the city. Use {rng.randint(2, 99)} words.</prompt>" if rng.random() < 0.8 else "I cannot."


@pytest.mark.slow
def test_a_search_with_a_writer_resumes_without_asking_it_again(tmp_path: Path) -> None:
    simulator = Simulator(SimulatorConfig(answer=written_words))
    asked = writer(simulator)

    async def evaluate(candidate: Candidate, case: Case) -> Ok:
        genome = await realise(candidate, asked, "find the city")
        data: dict[str, Any] = {"said": "x", "input": "some input", "expected": "y"}
        return Ok(planted(genome, case), data | ({"genome": genome} if isinstance(candidate, Written) else {}))

    def run(trials: int) -> Any:
        strategy = Genetic(breeder=breeder(writer=True, model_share=0.5), population=8, seeds=SEEDS)
        study: Study[Any] = Study(strategy, evaluate, range(2), stop=MaxTrials(trials), seed=1)
        return study.run("async:8", ledger=tmp_path / "runs.db", run="r")

    run(40)
    paid = len(simulator.charges)
    assert paid > 5
    assert run(40).progress.told == 40 and len(simulator.charges) == paid
    run(60)
    with Ledger(tmp_path / "runs.db", readonly=True) as ledger:
        results = list(ledger.results(ledger.run("r").id))
    assert len(results) == 60
    ways = {result.trial.origin["by"] for result in results}
    assert "seed" in ways and ways & set(RECIPES) and any(name.startswith("crossover") for name in ways)
    calls = {encode(result.candidate) for result in results if isinstance(candidate_of(result.candidate), Written)}
    assert len(simulator.charges) == len(calls), "one call for each prompt to be written, over all cases and runs"
    failed = [result for result in results if result.score is None]
    assert failed and all(isinstance(candidate_of(result.candidate), Written) for result in failed)
    assert all(tries for _, tries in credit(results).values())
    assert any(re.search(r"Use \d+ words", genome_of(result).head()) for result in results if result.score is not None)


def test_a_breeder_can_be_copied_between_runs() -> None:
    made = breeder(writer=True)
    twin = copy.deepcopy(made)
    twin.learn(told(MOTHER, origin={"parents": [1], "by": "reflect"}), True)
    assert made.bandit.standing["reflect"] == (0.0, 0.0)
