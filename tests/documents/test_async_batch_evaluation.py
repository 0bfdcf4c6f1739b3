"""Everything `async_batch_evaluation.md` shows runs, with only the import lines changed, and does what it says."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blocks import DOCUMENTS, ENVIRONMENT, MODULES, Block, blocks_of, filled, ported, run
from hypothesis import given, settings
from hypothesis import strategies as st

import fanfold.legacy
from fanfold.errors import CallFailed, ConfigError, FanfoldError
from fanfold.events import Event, TrialTold
from fanfold.legacy import (
    AsyncEvaluationPipeline,
    AsyncEvolutionConfig,
    AsyncEvolutionController,
    AsyncLLMInterface,
    EvolutionConfig,
    EvolutionController,
    PerformanceBenchmark,
    PromptGenome,
)
from fanfold.legacy.evolution import best_of, generations_of, population_of
from fanfold.legacy.pipeline import fitness, study_of, task_of
from fanfold.legacy.settings import default_model
from fanfold.prompting.genome import Genome
from fanfold.prompting.words import CROSSOVERS, MOST, WordBreeder, WordRates, as_genome, first_words
from fanfold.strategies import Genetic
from fanfold.studies.prompts import simulated
from fanfold.studies.prompts.objectives import merit
from fanfold.testing import StrategyConformance, run_virtual
from fanfold.types import Ok, Result, Trial

ROOT = Path(__file__).parents[2]
BLOCKS = blocks_of(DOCUMENTS / "async_batch_evaluation.md")
SCRIPTS = {"scripts/test_async_performance.py": "examples/async_performance.py"}


def program(number: int, names: dict[str, Any] | None = None, elided: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a block of the document."""
    block = BLOCKS[number]
    given = {"asyncio": asyncio, **{name: getattr(fanfold.legacy, name) for name in fanfold.legacy.__all__}}
    return run(filled(ported(block.text, MODULES), elided or {}), {**given, **(names or {})}, f"block {number}")


# -- the document's blocks -------------------------------------------------------------------------------------------


def test_every_block_of_the_document_is_run_below() -> None:
    found = [(block.number, block.language) for block in BLOCKS]
    assert found == [(n, "bash" if n in (8, 9) else "python") for n in range(11)]


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda b: str(b.number)
)
def test_only_import_lines_differ_from_the_document(block: Block) -> None:
    old, new = block.text.splitlines(), ported(block.text, MODULES).splitlines()
    assert len(old) == len(new)
    assert all(a == b or a.lstrip().startswith(("from ", "import ")) for a, b in zip(old, new))
    assert not re.search(r"^\s*(from|import)\s+(src|scripts|prompt_rl)\b", "\n".join(new), re.M)


@pytest.mark.parametrize(("number", "preset"), [(0, "balanced"), (1, "conservative"), (2, "aggressive")])
def test_the_documented_configurations_are_the_presets(number: int, preset: str) -> None:
    shown = program(number)["_"]
    more = {"detailed_performance_logging": True} if number == 0 else {}
    assert shown == getattr(AsyncEvolutionConfig, preset)(**more)


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the block of the basic usage leaves behind, and the file its run is kept in."""
    file = tmp_path_factory.mktemp("evolved") / "fanfold.db"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "FANFOLD_LEDGER": str(file)}.items():
            patch.setenv(name, value)
        return program(3)["results"], file


@pytest.mark.slow
def test_the_basic_usage_finds_a_prompt_of_the_target_fitness(evolved: tuple[dict[str, Any], Path]) -> None:
    results, _ = evolved
    assert results["best_fitness"] >= 0.85
    assert results["convergence_reason"].startswith("target")
    assert results["generations"] == len(results["generation_records"]) > 1
    assert results["held_out"]["accuracy"] > 0.6
    assert simulated.hints(results["best_text"]) > max(simulated.hints(seed) for seed in first_words())


@pytest.mark.slow
def test_results_have_every_documented_key(evolved: tuple[dict[str, Any], Path]) -> None:
    results, file = evolved
    assert results["best_genome"].text == results["best_text"]
    assert results["best_genome"].fitness == results["best_fitness"]
    assert results["total_time"] > 0
    first = results["generation_records"][0]
    told = ("generation", "best_fitness", "mean_fitness", "diversity", "convergence_status", "population")
    assert set(told) | {"evaluation_time", "evolution_time"} <= first.keys()
    assert first["population"]["size"] == 50  # never the empty population that "converged" at once
    bests = [record["best_fitness"] for record in results["generation_records"]]
    assert bests == sorted(bests)
    assert sum(record["evaluation_time"] for record in results["generation_records"]) <= results["total_time"] * 1.01
    performance = results["performance"]
    assert performance["api_calls"] == performance["evaluations"] > 0
    assert performance["throughput"] == pytest.approx(performance["evaluations"] / results["total_time"])
    assert (performance["cache_hit_rate"], performance["failures"]) == (0.0, 0)
    assert results["ledger"] == str(file) and file.exists()


@pytest.mark.slow
def test_the_migration_steps_run_in_their_order_and_pay_for_nothing_twice(
    evolved: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, file = evolved
    monkeypatch.setenv("FANFOLD_LEDGER", str(file))
    left = program(6, program(5))
    found: list[dict[str, Any]] = []

    class Noted(AsyncEvolutionController):
        async def run_evolution_async(self, *args: Any, **named: Any) -> dict[str, Any]:
            found.append(await super().run_evolution_async(*args, **named))
            return found[-1]

    class NotedOld(EvolutionController):
        def run_evolution(self, *args: Any, **named: Any) -> dict[str, Any]:
            found.append(super().run_evolution(*args, **named))
            return found[-1]

    program(7, {**left, "AsyncEvolutionController": Noted, "EvolutionController": NotedOld})
    # The sequential controller and both ways of the asynchronous one search alike, on what the file already answers.
    assert [each["best_text"] for each in found] == [results["best_text"]] * 3
    assert [each["performance"]["api_calls"] for each in found] == [0, 0, 0]
    assert [each["performance"]["cache_hit_rate"] for each in found] == [1.0, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
def test_the_documented_benchmark_measures_the_speed_up(capsys: pytest.CaptureFixture[str]) -> None:
    results = program(4)["results"]
    assert results["evaluations"] == 30 * 50
    # One after the other, each answer takes the simulated 0.2 seconds; together the rate limit is what holds.
    assert results["sequential"]["total_time"] == pytest.approx(1500 * 0.2)
    assert 1500 / (3500 / 60) - 1 < results["async"]["total_time"] < 1500 / (3500 / 60) + 1
    assert results["speedup"] > 8 and results["same_accuracies"]
    assert (results["cached"]["api_calls"], results["cached"]["cache_hit_rate"]) == (0, 1.0)
    shown = capsys.readouterr().out
    assert "11.8 times as fast" in shown and "virtual clock" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
def test_a_benchmark_of_ones_own_configuration_runs() -> None:
    elided = {"{...}": "{'population_size': 3, 'num_problems': 5, 'max_concurrent_requests': 2}"}
    results = program(10, elided=elided)["results"]
    assert results["evaluations"] == 15 and results["config"]["max_concurrent_requests"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [8, 9])
def test_the_documented_commands_run(number: int, tmp_path: Path) -> None:
    command = BLOCKS[number].text.strip()
    for old, new in SCRIPTS.items():
        command = command.replace(old, new)
    python, script = shlex.split(command)
    assert python == "python"
    done = subprocess.run(
        [sys.executable, ROOT / script], cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert ("times as fast" if number == 8 else "held-out accuracy") in done.stdout


def test_the_migration_page_has_every_module_name_parameter_and_command() -> None:
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for old, new in MODULES.items():
        assert any(f"`{old}`" in row and f"`{new}`" in row for row in rows), old
    for name in (*fanfold.legacy.__all__, *DEFAULTS, *ASYNC_DEFAULTS):
        assert f"`{name}" in page, name
    for old, new in SCRIPTS.items():
        assert any(old in row and new in row for row in rows), old


# -- settings --------------------------------------------------------------------------------------------------------

DEFAULTS = {
    "population_size": 50, "max_generations": 100, "crossover_rate": 0.8, "mutation_rate": 0.2, "elite_size": 5,
    "tournament_size": 3, "target_fitness": 0.85, "convergence_patience": 20, "fitness_plateau_threshold": 0.001,
    "fitness_plateau_generations": 10, "diversity_threshold": 0.05, "stagnation_threshold": 20,
    "improvement_threshold": 0.01, "semantic_prob": 0.9, "insertion_rate": 0.05, "deletion_rate": 0.05,
    "swap_rate": 0.05, "duplication_rate": 0.02, "max_insertions": 3, "selection_pressure": 1.5, "n_neighbors": 50,
    "max_problems": 100, "temperature": 0.0, "max_tokens": 150, "checkpoint_interval": 10,
    "adaptive_parameters": True, "save_checkpoints": True, "use_cache": True,
}  # fmt: skip
ASYNC_DEFAULTS = {
    "enable_async_evaluation": True, "async_batch_size": 20, "max_concurrent_requests": 10, "genome_batch_size": 10,
    "max_concurrent_genomes": 5, "rate_limit_per_minute": 3500, "async_retry_attempts": 3, "async_base_delay": 1.0,
    "async_max_delay": 60.0, "async_timeout": 30,
}  # fmt: skip


def test_every_documented_parameter_has_its_documented_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    assert {name: getattr(EvolutionConfig(), name) for name in DEFAULTS} == DEFAULTS
    assert {name: getattr(AsyncEvolutionConfig(), name) for name in ASYNC_DEFAULTS} == ASYNC_DEFAULTS
    assert {name: getattr(AsyncEvolutionConfig(), name) for name in DEFAULTS} == DEFAULTS


def test_a_typo_names_the_setting_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="no setting 'populaton_size'; did you mean 'population_size'"):
        AsyncEvolutionConfig(populaton_size=3)
    with pytest.raises(ConfigError, match="did you mean 'num_problems'"):
        PerformanceBenchmark({"num_problem": 3})
    with pytest.raises(ConfigError, match="did you mean 'balanced'"):
        AsyncEvolutionConfig.preset("balancd")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("population_size", "many"), ("population_size", 1), ("mutation_rate", 1.5), ("mutation_rate", 0.0),
     ("target_fitness", float("nan")), ("async_max_delay", float("inf")), ("model", ()), ("model", ("simulated/a", "")),
     ("selection_pressure", 3.0), ("async_timeout", 0), ("selection_method", "luck"), ("rate_limit_per_minute", "x")],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_its_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        AsyncEvolutionConfig(**{setting: value})


def test_the_two_nested_batches_become_slots_a_window_and_a_step() -> None:
    config = AsyncEvolutionConfig.aggressive()
    assert (config.slots, config.window, config.step) == (15 * 8, 15, 30)
    asked = config.asked("simulated/solver")
    assert (asked.limits.in_flight, asked.limits.requests_per_minute, asked.timeout) == (120, 3500, 30)
    one_by_one = dataclasses.replace(config, enable_async_evaluation=False)
    assert (one_by_one.slots, one_by_one.window) == (1, 15)


def test_retries_and_their_pauses_are_the_documented_ones() -> None:
    patience = AsyncEvolutionConfig(async_retry_attempts=3, async_base_delay=1.0, async_max_delay=2.5).again
    passing = CallFailed("server", "busy")
    pauses = [[patience(passing, n) for _ in range(200)] for n in (1, 2, 3)]
    assert all(pause is not None and pause <= most for each, most in zip(pauses, (1.0, 2.0, 2.5)) for pause in each)
    assert max(pauses[0]) > 0.5  # the model's own first pause is at most half a second
    assert patience(passing, 4) is None
    assert patience(CallFailed("auth", "wrong key"), 1) is None
    assert patience(CallFailed("rate-limit", "later", retry_after=2.0), 7) == pytest.approx(2.1, abs=0.4)


def test_the_model_is_the_environments_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_model() == "simulated/solver"
    monkeypatch.delenv("FANFOLD_MODEL")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert default_model() == "local/smollm2"
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert default_model().startswith("openai/")
    monkeypatch.setenv("FANFOLD_RATE_LIMIT", "fast")
    with pytest.raises(ConfigError, match="FANFOLD_RATE_LIMIT"):
        AsyncEvolutionConfig()


# -- evolution -------------------------------------------------------------------------------------------------------


def small(**changes: Any) -> AsyncEvolutionConfig:
    own = {"population_size": 6, "max_generations": 2, "max_problems": 6, "held_out_problems": 4, "elite_size": 2}
    return AsyncEvolutionConfig(**{**own, **changes})


@pytest.mark.slow
def test_an_evolution_goes_on_under_its_name_and_asks_nothing_again() -> None:
    controller = AsyncEvolutionController(small())
    first = controller.run_evolution()
    again = controller.run_evolution(run=first["run"])
    assert again["best_text"] == first["best_text"] and again["run"] == first["run"]
    assert again["performance"]["evaluations"] == first["performance"]["evaluations"]
    assert again["performance"]["api_calls"] == first["performance"]["api_calls"]  # those of the first time
    assert [r["best_fitness"] for r in again["generation_records"]] == [
        r["best_fitness"] for r in first["generation_records"]
    ]


@pytest.mark.slow
def test_an_evolution_that_is_cut_off_goes_on_under_its_name_without_paying_again() -> None:
    controller = AsyncEvolutionController(small(max_generations=3))
    whole = AsyncEvolutionController(small(max_generations=3, ledger="other.db")).run_evolution()
    told = 0

    async def cut_off() -> None:
        nonlocal told
        task = asyncio.current_task()
        assert task is not None

        def watch(event: Event) -> None:
            nonlocal told
            told += isinstance(event, TrialTold)
            if told == 8:
                task.cancel()

        await controller.run_evolution_async(run="mine", watch=watch)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cut_off())
    rest = controller.run_evolution(run="mine")
    assert (rest["best_text"], rest["generations"]) == (whole["best_text"], whole["generations"])
    assert rest["performance"]["api_calls"] <= whole["performance"]["api_calls"] + 10 * 6  # what was in flight


@pytest.mark.slow
def test_without_the_cache_everything_is_asked_again() -> None:
    first, second = (AsyncEvolutionController(small(use_cache=False)).run_evolution() for _ in range(2))
    assert (
        second["performance"]["api_calls"] == first["performance"]["api_calls"] == second["performance"]["evaluations"]
    )


@pytest.mark.slow
def test_two_evolutions_share_a_file_at_the_same_time() -> None:
    controllers = [AsyncEvolutionController(small(seed=seed)) for seed in (1, 2)]

    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(*(controller.run_evolution_async() for controller in controllers))

    found = asyncio.run(both())
    alone = [AsyncEvolutionController(small(seed=seed, ledger="alone.db")).run_evolution() for seed in (1, 2)]
    assert [each["best_text"] for each in found] == [each["best_text"] for each in alone]


@pytest.mark.slow
def test_several_models_are_asked_with_each_prompt() -> None:
    results = AsyncEvolutionController(small(model=("simulated/a", "simulated/b"))).run_evolution()
    assert (
        results["performance"]["evaluations"]
        == 2
        * AsyncEvolutionController(small(model="simulated/a", ledger="one.db")).run_evolution()["performance"][
            "evaluations"
        ]
    )


@pytest.mark.slow
def test_the_log_has_figures_of_each_generation_and_says_what_is_safe(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fanfold.legacy")
    AsyncEvolutionController(small(detailed_performance_logging=True, checkpoint_interval=2)).run_evolution()
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said] == [
        "generation 1",
        "generation 2",
        "generation 2 is safe in fanfold.db",
    ]
    assert "throughput" in said[0] and "evolution_time" in said[0]
    caplog.clear()
    AsyncEvolutionController(small()).run_evolution()
    assert not caplog.records


def test_without_checkpoints_nothing_is_written() -> None:
    results = AsyncEvolutionController(small(save_checkpoints=False)).run_evolution()
    assert results["ledger"] is None and not list(Path.cwd().iterdir())


@pytest.mark.slow
def test_sequential_settings_are_taken_as_they_are() -> None:
    config = EvolutionConfig(population_size=6, max_generations=2, max_problems=6, elite_size=2, held_out_problems=0)
    old = EvolutionController(config).run_evolution()
    new = AsyncEvolutionController(config).run_evolution()
    assert new["best_text"] == old["best_text"] and old["held_out"] is None
    assert EvolutionController(AsyncEvolutionConfig()).config.slots == EvolutionController().config.slots == 1
    assert AsyncEvolutionController(EvolutionConfig()).config.slots == AsyncEvolutionController().config.slots == 50
    with pytest.raises(ConfigError, match="EvolutionConfig"):
        EvolutionController({"population_size": 6})  # type: ignore[arg-type]


def evolution(config: EvolutionConfig) -> Genetic:
    """The search that the settings stand for."""
    strategy = study_of(config, task_of(config)).strategy
    assert isinstance(strategy, Genetic)
    return strategy


@pytest.mark.parametrize(
    "selection", ["tournament", "roulette_wheel", "rank_based", "stochastic_universal_sampling", "elitist"]
)
@pytest.mark.parametrize("crossover", ["single_point", "two_point", "uniform", "semantic_blend"])
def test_every_documented_selection_and_crossover_evolves(selection: Any, crossover: Any) -> None:
    strategy = evolution(small(selection_method=selection, crossover_method=crossover))
    strategy.begin(1)
    asked = strategy.ask(6)
    for number, candidate in enumerate(asked):
        strategy.tell(Result(Trial(number, candidate), number / 10, {}))
    second = strategy.ask(6)
    assert len(second) == 4 and not set(second) & set(asked)  # the two elites are not asked again
    assert any(f"{crossover} crossover" in strategy.origin(candidate)["by"] for candidate in second)


def test_ones_own_seed_prompts_open_the_first_generation() -> None:
    config = small(seed_prompts=("Answer:", "Let's think step by step."))
    strategy = evolution(config)
    strategy.begin(0)
    assert [each.head() for each in strategy.ask(2)] == ["Answer:", "Let's think step by step."]


@pytest.mark.usefixtures("virtual_time")
def test_a_model_that_only_fails_ends_the_evolution_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> str:
        raise RuntimeError("out of order")

    monkeypatch.setattr(simulated, "hinted", broken)
    config = small(model="simulated/broken", simulated_latency=0.01, async_retry_attempts=0)
    with pytest.raises(FanfoldError, match=r"no prompt could be scored.*on problem .*out of order"):
        asyncio.run(AsyncEvolutionController(config).run_evolution_async())


class TestEvolutionAsAStrategy(StrategyConformance):
    def make(self) -> Genetic:
        return evolution(small(max_generations=3))


def told(*accuracies: float, text: str = "Count to number") -> list[Result[Any]]:
    genomes = [Genome(instruction=(f"{text} {at}",)) for at in range(len(accuracies))]
    return [
        Result(Trial(at, genome, {"generation": 1}), score, {"a": Ok(score), "b": Ok(score)})
        for at, (genome, score) in enumerate(zip(genomes, accuracies))
    ]


@pytest.mark.parametrize(
    ("changes", "generations", "reason"),
    [
        ({"target_fitness": 0.4}, 1, "target"),
        ({"diversity_threshold": 0.99}, 1, "diversity"),
        ({"fitness_plateau_generations": 2}, 3, "plateau"),
        ({"convergence_patience": 3}, 4, "patience"),
        ({"stagnation_threshold": 3, "convergence_patience": 30}, 4, "stagnation"),
        ({"max_generations": 2}, 2, "generation limit"),
    ],
)
def test_each_documented_convergence_has_its_reason(changes: dict[str, Any], generations: int, reason: str) -> None:
    quiet = {"target_fitness": 2.0, "diversity_threshold": 0.0, "elite_size": 0, "fitness_plateau_generations": 50}
    chronicle = generations_of(AsyncEvolutionConfig(**{**quiet, **changes}))
    seen = []
    for generation in range(generations):
        for result in told(0.5, 0.4 - generation / 100):
            chronicle.tell(dataclasses.replace(result, trial=dataclasses.replace(result.trial, number=generation * 2)))
        seen.append(chronicle.close())
    assert seen[:-1] == [None] * (generations - 1)
    assert seen[-1] is not None and seen[-1].startswith(reason)
    assert chronicle.records[-1].reason == seen[-1]


def test_the_documented_fitness_weighs_accuracy_consistency_efficiency_diversity_and_length() -> None:
    chronicle = generations_of(AsyncEvolutionConfig(elite_size=0))
    (alone,) = told(0.5, text="word " * 34)  # with its number 35 words: 5 above 30, at 0.01 each
    chronicle.tell(alone)
    chronicle.close()
    best = best_of(chronicle)
    assert best is not None
    assert best.fitness == pytest.approx(0.7 * 0.5 + 0.15 * 1.0 + 0.10 * (1 - 35 / 50) + 0.05 * 0.0 - 0.05)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60)), max_size=6))
def test_the_documented_fitness_is_the_studys_with_the_documented_weights(drawn: list[tuple[float, int]]) -> None:
    names, weights = ("accuracy", "consistency", "efficiency", "diversity", "brevity"), (0.7, 0.15, 0.10, 0.05, 1.0)
    results = [told(score, text="word " * length)[0] for score, length in drawn]
    assert fitness(results) == pytest.approx(merit(names, weights)(results))


def test_an_elite_keeps_its_fitness_whoever_comes_to_stand_beside_it() -> None:
    chronicle = generations_of(AsyncEvolutionConfig(elite_size=1, target_fitness=2.0))
    for generation, text in enumerate(("Count to number", "Sing about the weather in")):
        for at, result in enumerate(told(0.9 if generation == 0 else 0.2, 0.1, text=text)):
            trial = dataclasses.replace(result.trial, number=2 * generation + at)
            chronicle.tell(dataclasses.replace(result, trial=trial))
        chronicle.close()
    first, second = (population_of(record) for record in chronicle.records)
    assert (second["size"], second["elites"]) == (3, 1)
    assert second["fitness_max"] == first["fitness_max"]


def test_a_raced_out_prompt_is_never_the_best() -> None:
    chronicle = generations_of(AsyncEvolutionConfig())
    weak, strong = told(0.3, 0.9)
    chronicle.tell(weak)
    chronicle.tell(dataclasses.replace(strong, dropped="raced out"))
    chronicle.close()
    best = best_of(chronicle)
    assert best is not None and best.accuracy == 0.3


# -- words -----------------------------------------------------------------------------------------------------------

WORDS = ["Read", "check", "the", "final", "number.", "step", "by", "carefully,", "x", "Answer:", "twice"]
texts = st.lists(st.sampled_from(WORDS), max_size=70)
rates = st.floats(0.0, 1.0)


@settings(max_examples=40)
@given(texts, texts, st.sampled_from(sorted(CROSSOVERS)), rates, rates, st.integers(0, 10**6))
@pytest.mark.slow
def test_every_child_has_between_three_and_fifty_words(
    a: list[str], b: list[str], crossover: Any, rate: float, share: float, seed: int
) -> None:
    rates = WordRates(crossover, share, insertion=share, deletion=share, swap=share, duplication=share)
    breeder = WordBreeder(rates, first_words(), first_words(), ("Question", "Answer"), crossover_rate=1.0)
    parents = [Result(Trial(n, as_genome(tuple(each), ("Q", "A"))), 0.5, {}) for n, each in enumerate((a, b))]

    def child() -> Genome:
        return breeder.child(lambda but=None: parents[but is not None], random.Random(seed), rate).candidate

    assert 3 <= len(child().head().split()) <= MOST
    assert child() == child()


def test_with_a_probability_of_one_a_word_is_only_replaced_by_what_means_the_same() -> None:
    rates = WordRates(semantic=1.0, insertion=0.0, deletion=0.0, swap=0.0, duplication=0.0)
    breeder = WordBreeder(rates, first_words(), first_words(), ("Q", "A"), crossover_rate=0.0)
    parent = Result(Trial(0, as_genome(("Give", "a", "short", "answer."), ("Q", "A"))), 0.5, {})
    made = {breeder.child(lambda but=None: parent, random.Random(seed), 1.0).candidate.head() for seed in range(40)}
    assert "Give a short answer." not in made and len(made) > 3
    assert all(re.fullmatch(r"(Provide|Supply) a (brief|concise) (reply|response)\.", text) for text in made)
    fewer = WordBreeder(
        dataclasses.replace(rates, neighbours=1), first_words(), first_words(), ("Q", "A"), crossover_rate=0.0
    )
    assert len({fewer.child(lambda but=None: parent, random.Random(s), 1.0).candidate.head() for s in range(40)}) == 1


# -- pipeline and interface ------------------------------------------------------------------------------------------

PROBLEMS = [("What is 2 + 3?", 5), {"question": "What is 4 + 4?", "answer": 8}]


@pytest.mark.usefixtures("virtual_time")
def test_a_population_comes_back_in_its_order_and_is_remembered() -> None:
    pipeline = AsyncEvaluationPipeline(small(save_checkpoints=False))
    good, bad = "Check the final number step by step, carefully.", "Sing a song"
    population = [bad, good, PromptGenome(("Sing", "a", "song"), generation=7), good.split()]

    async def twice() -> tuple[list[PromptGenome], list[PromptGenome]]:
        first = await pipeline.evaluate_population(population)
        assert pipeline.performance.api_calls == 2 * 6  # equal prompts are asked once
        assert pipeline.performance.cache_hits == 2 * 6
        return first, await pipeline.evaluate_population(population[::-1])

    first, second = asyncio.run(twice())
    assert [each.text for each in first] == [bad, good, bad, good]
    assert first[2].generation == 7
    assert first[1].accuracy > first[0].accuracy and first[1].fitness > first[0].fitness  # type: ignore[operator]
    assert [each.accuracy for each in second] == [each.accuracy for each in first[::-1]]
    assert (pipeline.performance.api_calls, pipeline.performance.cache_hit_rate) == (0, 1.0)


@pytest.mark.usefixtures("virtual_time")
def test_a_benchmark_says_when_a_model_answered_in_two_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solve, calls = simulated.hinted, 0

    def fickle(*args: Any) -> str:
        nonlocal calls
        calls += 1
        return solve(*args) if calls > 40 else "I will not say."

    monkeypatch.setattr(simulated, "hinted", fickle)
    config = {"model": "simulated/fickle", "population_size": 1, "num_problems": 40, "simulated_latency": 0.05}
    benchmark = PerformanceBenchmark(config)
    found = asyncio.run(benchmark.run_comprehensive_benchmark())
    benchmark.print_results_summary()
    assert not found["same_accuracies"] and "do not agree" in capsys.readouterr().out


@pytest.mark.usefixtures("virtual_time")
def test_a_benchmark_without_a_key_says_so_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    benchmark = PerformanceBenchmark({"model": "openai/gpt-6-luna", "population_size": 2, "num_problems": 2})
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        asyncio.run(benchmark.run_comprehensive_benchmark())
    with pytest.raises(ConfigError, match="nothing to print"):
        benchmark.print_results_summary()
    with pytest.raises(ConfigError, match="num_problems is 5000"):
        PerformanceBenchmark({"num_problems": 5000})
    with pytest.raises(ConfigError, match="must be a dict"):
        PerformanceBenchmark({...})  # type: ignore[arg-type]


def test_an_empty_population_is_evaluated_at_once() -> None:
    assert asyncio.run(AsyncEvaluationPipeline(small()).evaluate_population([])) == []


@pytest.mark.usefixtures("virtual_time")
def test_a_failed_request_counts_as_not_solved_and_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    solve, broken = simulated.hinted, [True]

    def sometimes(*args: Any) -> str:
        if broken[0]:
            raise RuntimeError("out of order")
        return solve(*args)

    monkeypatch.setattr(simulated, "hinted", sometimes)
    config = small(simulated_latency=0.02, async_retry_attempts=0, save_checkpoints=False)
    pipeline = AsyncEvaluationPipeline(config)

    async def before_and_after() -> tuple[PromptGenome, PromptGenome]:
        before = await pipeline.evaluate_genome("Check each step carefully, then the final number.")
        assert pipeline.performance.failures == 6
        broken[0] = False
        return before, await pipeline.evaluate_genome("Check each step carefully, then the final number.")

    before, after = asyncio.run(before_and_after())
    assert before.accuracy == 0.0 and (after.accuracy or 0.0) > 0.5


@pytest.mark.usefixtures("virtual_time")
def test_problems_can_be_a_file_in_the_form_of_gsm8k(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "hinted", lambda model, messages, params, rng: "2 + 3 = 5, so the answer is 5.")
    lines = [{"question": f"How many are 2 and {n}?", "answer": f"2 + {n} = {2 + n}\n#### {2 + n}"} for n in range(8)]
    Path("gsm8k.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = small(task="gsm8k.jsonl", held_out_problems=0, max_problems=8, simulated_latency=0.06)
    assert asyncio.run(AsyncEvaluationPipeline(config).evaluate_genome("Add the numbers.")).accuracy == 1 / 8


def test_a_problem_that_is_none_is_refused_by_its_number() -> None:
    with pytest.raises(ConfigError, match="problem 1 is 'why'"):
        AsyncEvaluationPipeline(problems=[*PROBLEMS[:1], "why"])  # type: ignore[list-item]


@pytest.mark.usefixtures("virtual_time")
def test_answers_come_in_the_order_of_the_prompts_and_failures_are_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(model: str, messages: Any, params: Any, rng: Any) -> str:
        if "three" in messages[-1]["content"]:
            raise RuntimeError("three is not for me")
        return f"said {messages[-1]['content']}"

    monkeypatch.setattr(simulated, "hinted", answer)
    llm = AsyncLLMInterface(simulated_latency=0.03, async_retry_attempts=0, save_checkpoints=False)

    async def ask() -> list[Any]:
        answers = await llm.generate_batch(["one", "two", "three", "one"])
        with pytest.raises(CallFailed, match=r"^openai: .*three is not for me"):
            await llm.generate("three")
        assert await llm.generate("two") == "said two"
        return answers

    answers = asyncio.run(ask())
    assert [each.text for each in answers] == ["said one", "said two", "", "said one"]
    assert [each.ok for each in answers] == [True, True, False, True]
    assert "three is not for me" in answers[2].error and answers[2].kind == "server"
    metrics = llm.metrics
    assert (metrics["api_calls"], metrics["failures"], metrics["cache_hits"]) == (2, 2, 2)


@pytest.mark.slow
def test_the_rate_limit_holds_from_one_batch_to_the_next() -> None:
    llm = AsyncLLMInterface(rate_limit_per_minute=60, use_cache=False, save_checkpoints=False)

    async def batches() -> float:
        for batch in range(4):
            await llm.generate_batch([f"{batch} {n}" for n in range(3)])
        return asyncio.get_running_loop().time()

    assert run_virtual(batches()) >= 11 - 1  # twelve requests at one a second


@pytest.mark.slow
def test_the_rate_limit_holds_from_one_population_to_the_next() -> None:
    config = small(rate_limit_per_minute=60, use_cache=False, save_checkpoints=False, max_problems=3)

    async def populations() -> float:
        pipeline = AsyncEvaluationPipeline(config)
        for n in range(4):
            await pipeline.evaluate_population([f"Prompt number {n}"])
        return asyncio.get_running_loop().time()

    assert run_virtual(populations()) >= 11 - 1


@pytest.mark.usefixtures("virtual_time")
def test_prompts_are_evaluated_on_problems_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "hinted", lambda model, messages, params, rng: "it is 5")
    llm = AsyncLLMInterface(save_checkpoints=False, simulated_latency=0.04)
    scored = asyncio.run(llm.evaluate_batch(["Add the numbers."], PROBLEMS))
    assert [each.accuracy for each in scored] == [0.5]
    assert llm.metrics["api_calls"] == 2
    with pytest.raises(ConfigError, match="not both"):
        AsyncLLMInterface(small(), use_cache=False)


@pytest.mark.usefixtures("virtual_time")
def test_a_controller_compares_its_settings_with_the_sequential_way() -> None:
    controller = AsyncEvolutionController(small(simulated_latency=0.1, rate_limit_per_minute=None))
    found = asyncio.run(controller.compare_performance(population_size=3, num_problems=4))
    assert found["sequential"]["total_time"] == pytest.approx(1.2)
    assert found["speedup"] > 2
