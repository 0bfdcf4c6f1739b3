"""Everything `parallel_evaluations.md` shows runs, with only the import line changed, and does what it says."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blocks import DOCUMENTS, MODULES, blocks_of, filled, ported, run
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy")

from fanfold.errors import ConfigError
from fanfold.legacy import prompt_rl
from fanfold.legacy.prompt_rl import (
    ActorCriticParams,
    Candidate,
    CompositeReward,
    EvolutionaryParams,
    FeedbackAggregator,
    FlowStepResult,
    HybridOptimizationFlow,
    LearnedActor,
    LearnedCritic,
    PromptPopulation,
    RewardWeights,
    TrainingConfig,
    TrainingLoop,
    generate_candidates,
    generate_candidates_parallel,
    map_parallel,
    run_parallel,
    score_batch_parallel,
)
from fanfold.models import model
from fanfold.studies.critic.feedback import read

BLOCKS = blocks_of(DOCUMENTS / "parallel_evaluations.md")
#: What the document's author left out of a line with `...`.
ELIDED = {"for ...]": "for prompt_i, query_j, response_ij in triples]"}

PROMPTS = ["You are brief.", "You are thorough. Give numbers.", "You are warm.", "Answer in steps."]
TRIPLES = [(prompt, f"Why is {n}?", f"Because of {n}.") for n, prompt in enumerate(PROMPTS * 5)]


def taught() -> LearnedCritic:
    """A critic that has learnt to like long responses."""
    critic = LearnedCritic()
    for n in range(1, 31):
        critic.update("You are brief.", "Why?", "Because. " * n, min(1.0, n / 30))
    return critic


# -- the document ------------------------------------------------------------------------------------------------------


def test_the_document_has_one_block_and_it_scores_triples_in_order_on_eight_threads() -> None:
    (block,) = BLOCKS
    text = ported(block.text, MODULES)
    assert "from fanfold.legacy.prompt_rl import score_batch_parallel" in text
    critic = taught()
    left = run(filled(text, ELIDED), {"critic": critic, "triples": TRIPLES})
    assert left["items"] == TRIPLES
    assert left["scores"] == [critic.score(*triple) for triple in TRIPLES]
    assert len(set(left["scores"])) > 1


def test_every_name_and_signature_of_the_document_is_there() -> None:
    text = (DOCUMENTS / "parallel_evaluations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)\(", text)) - {"fn", "score_fn", "min"}
    assert named == {
        "HybridOptimizationFlow", "ActorCriticParams", "generate_candidates", "generate_candidates_parallel",
        "map_parallel", "run_parallel", "score_batch_parallel",
    }  # fmt: skip
    assert named <= set(prompt_rl.__all__)
    sequential = list(inspect.signature(generate_candidates).parameters.items())
    parallel = list(inspect.signature(generate_candidates_parallel).parameters.items())
    assert parallel[:-1] == sequential  # the same signature ...
    assert parallel[-1][0] == "max_workers" and parallel[-1][1].default is None  # ... plus max_workers
    for helper in (map_parallel, run_parallel, score_batch_parallel):
        assert inspect.signature(helper).parameters["max_workers"].default is None


# -- threads -----------------------------------------------------------------------------------------------------------


class Crowd:
    """A backend that notes how many of its calls were under way at once, and waits for company."""

    def __init__(self, company: int = 1) -> None:
        self.most = self._now = 0
        self._company = company
        self._changed = threading.Condition()

    def generate(self, system_prompt: str, query: str, *, max_tokens: int, temperature: float) -> str:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._company, timeout=60)
        if self._company == 1:
            time.sleep(0.002)
        with self._changed:
            self._now -= 1
        return f"{system_prompt}|{query}|{max_tokens}|{temperature}"


class Fragile(Crowd):
    """A backend that cannot be called by two threads at once, and says so."""

    thread_safe = False


def test_candidates_come_in_the_order_of_the_system_prompts() -> None:
    expected = [f"{prompt}|Why?|64|0.2" for prompt in PROMPTS]
    assert generate_candidates(Crowd(), PROMPTS, "Why?", 64, 0.2) == expected
    assert generate_candidates_parallel(Crowd(4), PROMPTS, "Why?", 64, 0.2, max_workers=4) == expected
    assert generate_candidates_parallel(Crowd(), [], "Why?") == []


@pytest.mark.parametrize(("prompts", "workers", "together"), [(2, None, 2), (9, None, 4), (9, 6, 6), (9, 1, 1)])
def test_so_many_run_at_once_and_without_a_number_at_most_four(
    prompts: int, workers: int | None, together: int
) -> None:
    crowd = Crowd(together)
    generate_candidates_parallel(crowd, [str(n) for n in range(prompts)], "Why?", max_workers=workers)
    assert crowd.most == together


def test_sequential_generation_has_one_call_under_way() -> None:
    crowd = Crowd()
    generate_candidates(crowd, PROMPTS, "Why?")
    assert crowd.most == 1


def test_a_backend_that_is_not_thread_safe_is_called_by_one_thread_at_a_time_from_everywhere() -> None:
    fragile = Fragile()
    work = [
        threading.Thread(
            target=generate_candidates_parallel, args=(fragile, PROMPTS * 2, "Why?"), kwargs={"max_workers": 4}
        )
        for _ in range(3)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert fragile.most == 1


def test_methods_and_functions_can_be_declared_not_thread_safe_too() -> None:
    class Slotted:
        __slots__ = ("busy", "most")
        thread_safe = False

        def __init__(self) -> None:
            self.busy = self.most = 0

        def score(self, prompt: str, query: str, response: str) -> float:
            self.busy += 1
            self.most = max(self.most, self.busy)
            time.sleep(0.001)
            self.busy -= 1
            return float(len(prompt))

    slotted = Slotted()
    assert score_batch_parallel(slotted.score, TRIPLES, max_workers=8) == [float(len(p)) for p, _, _ in TRIPLES]
    assert slotted.most == 1

    def fn(n: int) -> int:
        assert not fn.busy  # type: ignore[attr-defined]
        fn.busy = True  # type: ignore[attr-defined]
        time.sleep(0.001)
        fn.busy = False  # type: ignore[attr-defined]
        return n

    fn.busy, fn.thread_safe = False, False  # type: ignore[attr-defined]
    assert map_parallel(fn, range(12), max_workers=6) == list(range(12))


@pytest.mark.slow
@given(st.lists(st.integers(), max_size=12), st.one_of(st.none(), st.integers(1, 6)))
def test_results_are_in_the_order_of_the_items(items: list[int], workers: int | None) -> None:
    assert map_parallel(lambda item: item * 2, items, workers) == [item * 2 for item in items]
    assert run_parallel(lambda a, b: (a, b), [(item, -item) for item in items], workers) == [(i, -i) for i in items]


def test_the_first_error_in_order_is_raised_with_its_index_after_those_running_have_finished() -> None:
    finished: list[int] = []
    gate = threading.Barrier(3, timeout=60)

    def fn(item: int) -> int:
        if item < 3:
            gate.wait()
        if item == 2:
            raise ValueError("two")
        time.sleep(0.02)
        if item == 1:
            raise ValueError("one")
        finished.append(item)
        return item

    with pytest.raises(ValueError, match="one") as caught:
        map_parallel(fn, range(40), max_workers=3)
    assert caught.value.item_index == 1  # type: ignore[attr-defined]
    assert "item 1 of 40" in caught.value.__notes__[0]
    assert 0 in finished and len(finished) < 37


def test_a_batch_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_workers"):
        score_batch_parallel(lambda p, q, r: 1.0, TRIPLES, max_workers=0)
    with pytest.raises(ConfigError, match="list of texts"):
        generate_candidates_parallel(Crowd(), "You are brief.", "Why?")
    with pytest.raises(TypeError, match="answered with None") as caught:
        generate_candidates_parallel(lambda prompt, query, **options: None, PROMPTS, "Why?")  # type: ignore[arg-type,return-value]
    assert caught.value.item_index == 0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot answer"):
        generate_candidates(object(), PROMPTS, "Why?")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_critic_and_the_models_bear_eight_threads() -> None:
    critic = taught()
    expected = [critic.score(*triple) for triple in TRIPLES]
    stop = threading.Event()

    def learn() -> None:
        while not stop.is_set():
            critic.update("You are warm.", "Why?", "Because it is so.", 0.5)

    assert score_batch_parallel(critic.score, TRIPLES, max_workers=8) == expected
    teacher = threading.Thread(target=learn)
    teacher.start()
    try:
        busy = score_batch_parallel(critic.score, TRIPLES * 5, max_workers=8)
    finally:
        stop.set()
        teacher.join()
    assert all(0.0 <= score <= 1.0 for score in busy)
    asked = model("simulated/critic", answer="fanfold.studies.critic.simulated:respond")
    many = [f"You are brief. {n}" for n in range(24)]
    assert generate_candidates_parallel(asked, many, "Why?", max_workers=8) == generate_candidates(asked, many, "Why?")


def test_the_critic_is_read_and_taught_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    critic, busy, most = LearnedCritic(), [0], [0]

    def watched(method: Any) -> Any:
        def call(*args: Any) -> Any:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
            time.sleep(0.001)
            found = method(*args)
            busy[0] -= 1
            return found

        return call

    for name in ("predict", "learn", "prefer"):
        monkeypatch.setattr(critic._critic, name, watched(getattr(critic._critic, name)))
    pair = (("You are warm.", "Glad you ask."), ("You are brief.", "No."))
    work: list[tuple[Any, ...]] = [(critic.score, *triple) for triple in TRIPLES[:8]]
    work += [(critic.update, *triple, 0.5) for triple in TRIPLES[:8]] + [(critic.prefer, "Why?", *pair)] * 8
    run_parallel(lambda fn, *args: fn(*args), work, max_workers=8)
    assert most == [1] and critic.lessons == 16


def test_helpers_work_inside_a_running_event_loop() -> None:
    async def inside() -> list[int]:
        return map_parallel(abs, [-1, -2])

    assert asyncio.run(inside()) == [1, 2]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_every_documented_setting_has_its_documented_default() -> None:
    assert vars(EvolutionaryParams()) == {
        "population_size": 10, "elite_size": 2, "mutation_rate": 0.3, "crossover_rate": 0.5, "evolution_interval": 5,
        "min_improvement": 0.01, "patience": 5,
    }  # fmt: skip
    assert vars(ActorCriticParams()) == {
        "num_candidates": 5, "update_interval": 10, "exploration": 0.1, "parallel_eval": False, "max_workers": None,
    }  # fmt: skip
    assert vars(RewardWeights()) == {
        "lambda_feedback": 1.0, "lambda_critic": 0.8, "lambda_coherence": 0.3, "lambda_tokens": -0.001,
        "lambda_safety": -1.0,
    }  # fmt: skip
    config = TrainingConfig()
    assert (config.bootstrap_queries, config.max_queries_per_phase) == (20, None)
    flow = {name: p.default for name, p in inspect.signature(HybridOptimizationFlow).parameters.items()}
    assert {name: flow[name] for name in list(flow)[6:]} == {
        "top_k_prompts": 5, "max_tokens": 512, "temperature": 0.7, "parallel_eval": False, "max_workers": None,
    }  # fmt: skip
    assert [field.name for field in dataclasses.fields(FlowStepResult)] == [
        "query", "system_prompt_used", "prompt_index_used", "response_shown", "candidates", "feedback_score",
        "critic_score", "reward_total", "info", "temperature_used",
    ]  # fmt: skip


def test_a_setting_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="no setting 'paralel_eval'; did you mean 'parallel_eval'"):
        ActorCriticParams(paralel_eval=True)
    with pytest.raises(ConfigError, match="max_workers"):
        ActorCriticParams(max_workers=0)
    with pytest.raises(ConfigError, match="did you mean 'patience'"):
        EvolutionaryParams(patiense=3)
    with pytest.raises(ConfigError, match="top_k_prompts"):
        HybridOptimizationFlow(Crowd(), top_k_prompts=0)


# -- the flow ----------------------------------------------------------------------------------------------------------


def echo(system_prompt: str, query: str, *, max_tokens: int, temperature: float) -> str:
    return f"{system_prompt} ({query})"


@pytest.mark.slow
def test_a_flow_gives_the_same_steps_with_and_without_threads() -> None:
    def steps(parallel_eval: bool) -> list[FlowStepResult]:
        config = TrainingConfig(actor_critic=ActorCriticParams(parallel_eval=parallel_eval, max_workers=4))
        flow = HybridOptimizationFlow.from_config("simulated/critic", config, seed=3, max_tokens=64)
        assert (flow.parallel_eval, flow.max_workers) == (parallel_eval, 4)
        return [
            flow.step(f"How do I mend {n} chairs?", lambda query, response: len(response) % 7 / 6) for n in range(6)
        ]

    assert steps(True) == steps(False)


def test_with_parallel_eval_the_responses_to_a_query_are_generated_together() -> None:
    crowd = Crowd(4)
    flow = HybridOptimizationFlow(crowd, PROMPTS, top_k_prompts=4, parallel_eval=True, max_workers=4)
    step = flow.step("Why?", human_feedback=1.0)
    assert crowd.most == 4
    assert sorted(step.candidates) == sorted(f"{prompt}|Why?|512|0.7" for prompt in PROMPTS)
    assert step.candidates[step.prompt_index_used] == step.response_shown
    assert step.response_shown.startswith(step.system_prompt_used)


def test_feedback_is_asked_about_the_response_that_was_shown_once_it_exists() -> None:
    asked: list[tuple[str, str]] = []

    def feedback(query: str, response: str) -> dict[str, Any]:
        asked.append((query, response))
        return {"rating": 4}

    step = HybridOptimizationFlow(echo, PROMPTS).step("Why?", human_feedback=feedback)
    assert asked == [("Why?", step.response_shown)]
    assert step.feedback_score == 0.75


def test_fitness_of_the_shown_prompt_becomes_nine_tenths_old_and_one_tenth_reward() -> None:
    flow = HybridOptimizationFlow(echo, PROMPTS)
    before = {member.prompt.text: member.fitness for member in flow.population.members}
    step = flow.step("Why?", human_feedback=0.9)
    after = {member.prompt.text: member.fitness for member in flow.population.members}
    shown = step.system_prompt_used
    assert after[shown] == pytest.approx(0.9 * before[shown] + 0.1 * step.reward_total)
    weights = RewardWeights()
    assert step.reward_total == pytest.approx(
        0.9 * weights.lambda_feedback
        + step.critic_score * weights.lambda_critic
        + step.info["coherence"] * weights.lambda_coherence
        + step.info["tokens"] * weights.lambda_tokens
        + step.info["unsafe"] * weights.lambda_safety
    )


def test_prompts_that_were_not_shown_move_by_what_the_critic_expects_but_less() -> None:
    flow = HybridOptimizationFlow(echo, PROMPTS, critic=taught())
    before = {member.prompt.text: member.fitness for member in flow.population.members}
    prompts = [member.prompt.text for member in flow.population.top(4)]
    step = flow.step("Why?", human_feedback=0.9)
    after = {member.prompt.text: member.fitness for member in flow.population.members}
    for prompt, reward in zip(prompts, step.info["rewards"]):
        if prompt != step.system_prompt_used:
            moved = abs(after[prompt] - before[prompt]) / abs(0.1 * (reward - before[prompt]))
            assert 0.0 < moved <= 0.5


def test_what_the_critic_thinks_possible_is_one_truth_about_all_responses() -> None:
    class Drawing(LearnedCritic):
        def __init__(self) -> None:
            super().__init__()
            self.chances: list[float] = []

        def opinion(self, *args: Any) -> dict[str, float]:
            self.chances.append(args[-1].random())
            return {"critic_score": 0.5}

    critic = Drawing()
    flow = HybridOptimizationFlow(echo, PROMPTS, critic=critic)
    flow.step("Why?")
    flow.step("Why?")
    assert len(set(critic.chances[:4])) == len(set(critic.chances[4:])) == 1
    assert critic.chances[0] != critic.chances[4]


def test_without_feedback_nothing_is_learnt_from_it() -> None:
    critic = LearnedCritic()
    step = HybridOptimizationFlow(echo, PROMPTS, critic=critic).step("Why?")
    assert step.feedback_score is None and critic.lessons == 0
    HybridOptimizationFlow(echo, PROMPTS, critic=critic).step("Why?", human_feedback=0.0)
    assert critic.lessons == 1


def test_parts_of_ones_own_are_used() -> None:
    class Fixed:
        def score(self, system_prompt: str, query: str, response: str) -> float:
            return float("warm" in system_prompt)

        def update(self, system_prompt: str, query: str, response: str, feedback: float) -> None:
            self.learnt = (system_prompt, feedback)

    class Best:
        def temperature(self, query: str) -> float:
            return 0.1

        def select(self, query: str, candidates: Sequence[Candidate]) -> int:
            return max(range(len(candidates)), key=lambda at: candidates[at].critic_score)

    critic = Fixed()
    flow = HybridOptimizationFlow(
        echo, PROMPTS, Best(), critic, lambda parts: 7 * parts.feedback, lambda said, response: 0.5, parallel_eval=True
    )
    step = flow.step("Why?", human_feedback="anything")
    assert step.system_prompt_used == "You are warm."
    assert (step.feedback_score, step.reward_total, step.temperature_used) == (0.5, 3.5, 0.1)
    assert critic.learnt == ("You are warm.", 0.5)


def test_an_actor_that_chooses_what_is_not_there_is_an_error() -> None:
    class Wild:
        def select(self, query: str, candidates: Sequence[Candidate]) -> int:
            return len(candidates)

    with pytest.raises(ConfigError, match="the actor chose 4 among 4"):
        HybridOptimizationFlow(echo, PROMPTS, Wild()).step("Why?")


def test_the_actor_can_choose_the_temperature_by_the_query() -> None:
    flow = HybridOptimizationFlow(echo, PROMPTS, LearnedActor(temperatures=(0.2, 0.9)))
    assert {flow.step(f"Why {n}?", human_feedback=0.5).temperature_used for n in range(12)} == {0.2, 0.9}


@pytest.mark.parametrize(
    ("said", "score"),
    [(0.25, 0.25), (True, 1.0), ({"rating": 1}, 0.0), ({"thumbs": True, "acceptance": False}, 1 / 1.5),
     ([0.0, {"rating": 5}], 0.5), (read("rating", 3), 0.5), ({"correction": "one two"}, 1.0)],
)  # fmt: skip
def test_every_kind_of_feedback_becomes_one_score(said: Any, score: float) -> None:
    assert FeedbackAggregator()(said, "one two") == pytest.approx(score)


def test_what_is_no_feedback_is_refused() -> None:
    for nonsense in ("good", 3.0, {"stars": 3}, []):
        with pytest.raises(ConfigError):
            FeedbackAggregator()(nonsense, "one two")


# -- training ----------------------------------------------------------------------------------------------------------


def liked(query: str, response: str) -> float:
    """Feedback that depends on what the prompt made of the response."""
    return 0.9 if "numbered" in response or "steps" in response else 0.1


def trained(**evolution: Any) -> TrainingLoop:
    config = TrainingConfig(
        evolutionary=EvolutionaryParams(population_size=8, **evolution),
        actor_critic=ActorCriticParams(update_interval=4),
        bootstrap_queries=6,
    )
    loop = TrainingLoop(
        HybridOptimizationFlow.from_config(echo, config, ["Answer in numbered steps.", *PROMPTS[:3]]), config
    )
    loop.run([f"How do I build shelf {n}?" for n in range(40)], liked, threshold=0.0)
    return loop


@pytest.mark.slow
def test_training_goes_through_its_phases_and_learns_what_is_liked() -> None:
    loop = trained()
    assert loop.phase == "done"
    assert [step.info["blind"] for step in loop.steps] == [True] * 6 + [False] * 34
    late = [step.feedback_score for step in loop.steps[-15:]]
    early = [step.feedback_score for step in loop.steps[:6]]
    assert sum(late) / 15 > 0.8 > sum(early) / 6  # type: ignore[arg-type]
    best = loop.flow.population.best.prompt.text
    assert "numbered" in best or "steps" in best
    metrics = loop.metrics()
    assert metrics["generations"] == 34 // 5 == len(metrics["diversity"])
    assert len(metrics["fitness"]) == 40 and metrics["satisfaction"] > 0.8 and metrics["variance"] > 0


@pytest.mark.slow
def test_evolution_stops_when_the_best_no_longer_improves_and_shows_it() -> None:
    assert trained(patience=2, min_improvement=10.0).evolution_stopped
    assert not trained(patience=50).evolution_stopped


@pytest.mark.slow
def test_the_actor_learns_from_its_choices_every_so_many_queries() -> None:
    class Counting(LearnedActor):
        updates = 0

        def update(self) -> tuple[float, float]:
            self.updates += 1
            return super().update()

    actor = Counting()
    config = TrainingConfig(actor_critic=ActorCriticParams(update_interval=4), bootstrap_queries=2)
    loop = TrainingLoop(HybridOptimizationFlow(echo, [*PROMPTS, "Answer in numbered steps."], actor), config)
    weights = actor._actor.shows.weights.copy()
    loop.run([f"How do I build shelf {n}?" for n in range(15)], liked)
    assert actor.updates == 13 // 4
    assert (actor._actor.shows.weights != weights).any()


@pytest.mark.slow
def test_training_is_the_same_each_time() -> None:
    assert trained().steps == trained().steps


@pytest.mark.slow
def test_refinement_drops_duplicates_and_the_weak_but_keeps_the_best() -> None:
    loop = trained()
    best = loop.flow.population.best.prompt.text
    assert loop.refine(threshold=100.0) == [best]


def test_no_phase_takes_more_queries_than_allowed() -> None:
    config = TrainingConfig(bootstrap_queries=5, max_queries_per_phase=3)
    loop = TrainingLoop(HybridOptimizationFlow(echo, PROMPTS), config)
    loop.run([f"Why {n}?" for n in range(20)], 0.5)
    assert [step.info["blind"] for step in loop.steps] == [True] * 3 + [False] * 3
    with pytest.raises(ConfigError, match="queries must be a list"):
        loop.run("Why?", 0.5)


def test_prompts_of_ones_own_are_the_population_and_a_config_fills_it_up() -> None:
    assert PromptPopulation(["A b.", "C d.", "A b."]).prompts == ["A b.", "C d."]
    filled_up = PromptPopulation(["A b."], EvolutionaryParams(population_size=6)).prompts
    assert filled_up[0] == "A b." and len(set(filled_up)) == 6
    assert len(PromptPopulation().prompts) == 10


def test_the_package_names_what_the_migration_page_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    for name in prompt_rl.__all__:
        assert f"`{name}" in page, name


def test_the_critic_learns_preferences_too() -> None:
    critic = LearnedCritic()
    for _ in range(8):
        critic.prefer("Why?", ("You are warm.", "Glad you ask! Because of rain."), ("You are brief.", "Rain."))
    assert critic.score("You are warm.", "Why?", "Glad you ask! Because of rain.") > critic.score(
        "You are brief.", "Why?", "Rain."
    )


def test_the_reward_is_the_weighted_sum_of_its_parts() -> None:
    from fanfold.studies.critic.reward import Reward

    assert CompositeReward()(Reward(1.0, 0.5, 1.0, 100, 0.0)) == pytest.approx(1.0 + 0.4 + 0.3 - 0.1)


@pytest.mark.slow
def test_the_helpers_need_no_numpy() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from fanfold.legacy.prompt_rl import generate_candidates_parallel, score_batch_parallel\n"
        "print(score_batch_parallel(lambda p, q, r: len(r), [('p', 'q', 'abc')]))\n"
        "from fanfold.errors import MissingExtra\n"
        "try:\n    from fanfold.legacy.prompt_rl import LearnedCritic\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    scores, complaint = done.stdout.splitlines()
    assert scores == "[3]" and "fanfold[critic]" in complaint
