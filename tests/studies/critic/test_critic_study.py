"""What the study promises as a whole: settings that are checked, a summary, batch mode, and an honest planted world."""

from __future__ import annotations

import importlib
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.config import describe, from_mapping
from fanfold.errors import CallFailed, ConfigError, OnlyFailures
from fanfold.ledger import TrialRow
from fanfold.prompting.genome import Genome
from fanfold.rehearsal import estimate, rehearse
from fanfold.studies.critic import (
    ActorCriticParams,
    CriticConfig,
    EvolutionaryParams,
    RewardWeights,
    queries_of,
    run_options,
    study,
)
from fanfold.studies.critic.conclusion import slope
from fanfold.studies.critic.evaluator import CriticEvaluator
from fanfold.studies.critic.features import CUES, cues
from fanfold.studies.critic.feedback import ModelJudge
from fanfold.studies.critic.queries import BUILT_IN, load_queries
from fanfold.studies.critic.shown import answers, guess_of, headline
from fanfold.studies.critic.simulated import (
    NOISE,
    WORDINGS,
    kind_of,
    planted_feedback,
    planted_queries,
    preference,
    respond,
)
from fanfold.studies.critic.strategy import CriticStrategy
from fanfold.studies.critic.terminal import Human, OnPage
from fanfold.types import Failed, Ok, Result, Trial

SIMULATED: dict[str, Any] = {"model": "simulated/critic", "feedback": "simulated", "bootstrap_queries": 4}


# -- settings ------------------------------------------------------------------------------------------------------


def test_the_documented_parameters_have_their_documented_defaults() -> None:
    assert vars(EvolutionaryParams()) == {
        "population_size": 10, "elite_size": 2, "mutation_rate": 0.3, "crossover_rate": 0.5,
        "evolution_interval": 5, "min_improvement": 0.01, "patience": 5,
    }  # fmt: skip
    assert vars(ActorCriticParams()) == {"num_candidates": 5, "update_interval": 10, "exploration": 0.1}
    assert list(vars(RewardWeights()).values()) == [1.0, 0.8, 0.3, -0.001, -1.0]
    assert CriticConfig().bootstrap_queries == 20


def test_every_setting_has_a_help() -> None:
    assert all(each.help for each in describe(CriticConfig))
    assert all(is_dataclass(each.default_factory) for each in fields(CriticConfig) if not each.metadata)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"evolution": {"population_size": 3}}, "population_size"),
        ({"evolution": {"elite_size": 11}}, "elite_size"),
        ({"evolution": {"mutation_rate": 1.5}}, "mutation_rate must be from 0 to 1"),
        ({"actor_critic": {"num_candidates": 0}}, "num_candidates must be at least 1"),
        ({"actor_critic": {"num_candidates": 1}, "ask": "pair"}, "pair"),
        ({"prompts": ["Be kind."], "ask": "pair", "evolve": False}, "two prompts"),
        ({"reward": {"lambda_tokens": float("inf")}}, "lambda_tokens"),
        ({"temperatures": []}, "temperatures"),
        ({"total": 0}, "total must be at least 1"),
        ({"concurrent": 0}, "concurrent"),
        ({"feedbak": "rules"}, "did you mean 'feedback'"),
        ({"ask": "stars"}, "ask must be"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping(CriticConfig, given_settings)


def test_feedback_that_cannot_be_had_is_refused_before_anything_is_paid() -> None:
    with pytest.raises(ConfigError, match="did you mean 'human'"):
        study(CriticConfig(feedback="humans"))


def test_queries_come_from_lines_or_from_json_lines(tmp_path: Path) -> None:
    lines, records, broken = tmp_path / "q.txt", tmp_path / "q.jsonl", tmp_path / "b.jsonl"
    lines.write_text("Why?\n\n  How? \n")
    records.write_text('{"query": "Who?"}\n"When?"\n')
    broken.write_text('{"query": "Who?"}\n{"query": " "}\n')
    assert load_queries(str(lines)) == ("Why?", "How?")
    assert load_queries(str(records)) == ("Who?", "When?")
    with pytest.raises(ConfigError, match="line 2"):
        load_queries(str(broken))
    with pytest.raises(ConfigError, match="there is no file"):
        load_queries(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match="holds no query"):
        load_queries(str(tmp_path / "empty.txt"))


def test_queries_are_a_column_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "q.csv"
    table.write_text('kind,query\na,"How, now?"\nb,Why?\n')
    assert load_queries(str(table)) == ("How, now?", "Why?")
    table.write_text("question,id\nWhen?,1\n")
    assert load_queries(str(table)) == ("When?",)
    table.write_text("customer,id\nWhen?,1\n")
    with pytest.raises(ConfigError, match=r"line 2 has no query: name its column `query` \(columns: customer, id\)"):
        load_queries(str(table))
    for said in ("7", '" "'):
        (tmp_path / "odd.jsonl").write_text(f'{{"query": {said}}}')
        with pytest.raises(ConfigError, match="line 1: 'query' must be a text that asks something, not "):
            load_queries(str(tmp_path / "odd.jsonl"))
    for name in ("old.csv", "old.txt"):
        (tmp_path / name).write_bytes("query\nWarum fällt der Apfel?\nWie hängt das zusammen?\n".encode("cp1252"))
    assert load_queries(str(tmp_path / "old.csv")) == ("Warum fällt der Apfel?", "Wie hängt das zusammen?")
    with pytest.raises(ConfigError, match="not in UTF-8"):
        load_queries(str(tmp_path / "old.txt"))
    listed = tmp_path / "q.json"
    listed.write_text('[{"query": "Who?"}]')
    assert load_queries(str(listed)) == ("Who?",)


FEEDBACK = """
def liked(query, response):
    return "e" in response

def alone(response):
    return 1.0
"""


@pytest.mark.parametrize("named", ["my_taste:liked", "my_taste.py:liked"])
def test_feedback_comes_from_a_file_in_the_folder(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of an installed package does not look for modules in the current folder, as `python` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "my_taste", raising=False)
    (tmp_path / "my_taste.py").write_text(FEEDBACK)
    run = study(CriticConfig(model="simulated/critic", feedback=named, total=6, bootstrap_queries=2)).run()
    assert run.progress.failures == 0 and run.summary is not None and run.summary.figures["answered"] == 6
    with pytest.raises(ConfigError, match=r"'alone' is called with \(query, response\): too many positional"):
        study(CriticConfig(feedback="my_taste:alone"))


def test_our_own_queries_are_many_and_varied() -> None:
    assert len(set(BUILT_IN)) == len(BUILT_IN) >= 40
    kinds = [tuple(cues(query)) for query in BUILT_IN]
    assert all(sum(kind[i] for kind in kinds) >= 2 for i, name in enumerate(CUES))


def test_as_many_calls_run_at_once_as_there_can_be() -> None:
    assert run_options(CriticConfig(concurrent=3)) == {"executor": "async:15"}


@pytest.mark.slow
def test_the_settings_can_be_read_without_numpy() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from fanfold.studies.critic import CriticConfig, study\n"
        "try:\n    study(CriticConfig())\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtra") and "fanfold[critic]" in done.stdout


# -- the summary ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_summary_says_what_was_found_and_learnt() -> None:
    made = CriticConfig(**SIMULATED, total=30)
    done = study(made).run("async:8")
    assert done.summary is not None
    figures = done.summary.figures
    assert figures["answered"] == 30 and figures["skipped"] == figures["unanswered"] == 0
    assert figures["best_prompt"]["fitness"] == max(row[0] for row in done.summary.sections[2].rows)
    assert len(figures["satisfaction"]) == len(figures["best_fitness"]) == 3
    assert -1 <= figures["critic_rank_correlation"] <= 1
    assert [generation["query"] for generation in figures["generations"]] == [9, 14, 19, 24, 29]
    assert all(0 <= generation["diversity"] <= 1 for generation in figures["generations"])
    assert figures["evolution_stopped"] is False and figures["variance_between_prompts"] > 0
    assert sum(figures["temperatures"].values()) == 30
    assert [section.title for section in done.summary.sections] == [
        "Best prompt", "Satisfaction", "Population", "Generations"
    ]  # fmt: skip
    assert all(len(row) == len(section.columns) for section in done.summary.sections for row in section.rows)


def test_the_slope_is_of_a_trend_and_not_of_a_handful() -> None:
    assert slope([0.1, 0.9, 0.2]) is None
    assert slope([0.01 * i for i in range(30)]) == pytest.approx(0.01)


@pytest.mark.slow
def test_a_run_in_which_nobody_gave_feedback_is_summarised_too() -> None:
    async def silent(query: str, responses: tuple[str, ...]) -> Any:
        raise ValueError("nothing to say")

    done = study(CriticConfig(**SIMULATED, total=3), feedback=silent).run()
    assert done.summary is not None and done.summary.figures["unanswered"] == 3


@pytest.mark.slow
def test_of_pairs_it_is_said_which_answer_was_preferred_and_not_how_satisfied_people_are() -> None:
    done = study(CriticConfig(**SIMULATED, ask="pair", total=24)).run()
    assert done.summary is not None
    figures, section = done.summary.figures, done.summary.sections[1]
    assert (section.title, section.columns[1]) == ("Preferred", "A preferred") and "Satisfaction" not in section.text
    assert "first choice was preferred" in (headline(figures) or "") and "24 pairs" in (headline(figures) or "")
    assert all(0.0 <= row[2] <= row[1] <= row[3] <= 1.0 for row in section.rows if row[2] is not None)
    told = [trial for trial in done.view.trials() if trial.origin]
    guesses = [guess.mean for guess in map(guess_of, told) if guess is not None]
    assert [row["score"] for row in answers(done.view)][:2] in ([0.0, 1.0], [1.0, 0.0], [0.5, 0.5])
    curve = section.curves[1].points
    assert curve[0][1] == pytest.approx(statistics.fmean(guesses[:5]), abs=1e-3)


@pytest.mark.slow
def test_feedback_that_only_fails_stops_the_run_before_the_model_is_paid_for_nothing(tmp_path: Path) -> None:
    asked = 0

    async def percent(query: str, responses: tuple[str, ...]) -> float:
        nonlocal asked
        asked += 1
        return 80

    async def share(query: str, responses: tuple[str, ...]) -> float:
        return 0.8

    config, ledger = CriticConfig(**SIMULATED, total=30), tmp_path / "ledger.db"
    with pytest.raises(CallFailed, match=r"5 questions in a row got no feedback.*not 80.*resume"):
        study(config, feedback=percent).run(ledger=ledger, run="r")
    assert asked == 5
    done = study(config, feedback=share).run(ledger=ledger, run="r", retry_failed=True)
    assert done.summary is not None and done.summary.figures["answered"] == 26
    assert done.progress.failures == 0


@pytest.mark.parametrize("feedback", ["human", "page"])
def test_a_rehearsal_asks_no_person(feedback: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for person in (Human, OnPage):
        monkeypatch.setattr(person, "__call__", lambda *_: pytest.fail("a person was asked"))
    config = CriticConfig(model="openai/m", feedback=feedback, total=6, bootstrap_queries=2)
    assert rehearse(study(config), "async:5").calls == 6 * 5


@pytest.mark.slow
def test_a_judge_can_be_rehearsed_although_its_made_up_replies_say_nothing() -> None:
    config = CriticConfig(model="simulated/critic", feedback="judge:simulated/judge", total=12, bootstrap_queries=2)
    assert rehearse(study(config), "async:5").calls == 12 * (5 + 1)
    assert estimate(study(config), "async:5").expected.calls == 12 * (5 + 1)


@pytest.mark.slow
def test_now_and_then_no_feedback_does_not_stop_a_run() -> None:
    said: list[int] = []

    async def moody(query: str, responses: tuple[str, ...]) -> float:
        said.append(len(said))
        if len(said) % 8:
            raise ValueError("not now")
        return 0.5

    done = study(CriticConfig(**SIMULATED | {"bootstrap_queries": 2}, total=4), feedback=moody).run()
    assert done.summary is not None and done.summary.figures["unanswered"] == 4
    said[:] = [0] * 7  # the eighth answer is the first one asked for
    done = study(CriticConfig(**SIMULATED, total=16), feedback=moody).run()
    assert done.summary is not None and done.summary.figures["answered"] == 2


def test_tries_at_one_question_are_not_taken_for_questions() -> None:
    asked = 0

    async def slow_to_answer(query: str, responses: tuple[str, ...]) -> float:
        nonlocal asked
        asked += 1
        if asked % 7:
            raise ValueError("not yet")
        return 0.5

    config = CriticConfig(**SIMULATED | {"bootstrap_queries": 1}, total=2, concurrent=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("random.uniform", lambda low, high: 0.0)  # no wait between the tries
        done = replace(study(config, feedback=slow_to_answer), retries=6).run()
    assert done.summary is not None and done.summary.figures["answered"] == 2 and asked == 14


def test_what_the_critic_expected_is_said_of_the_answer_that_was_shown_where_another_failed() -> None:
    config = CriticConfig(model="simulated/critic", actor_critic=ActorCriticParams(num_candidates=3), total=1)
    search = CriticStrategy(config, ("How do I dry herbs?",))
    search.begin(1)
    (asked,) = search.ask(1)
    texts = {2: "Because.", 1: "Hang them up in small bunches. Then wait for two weeks."}
    outcomes = {f"slot-{slot}": Ok(0.0, data={"text": text, "tokens": 4}) for slot, text in texts.items()}
    search.tell(Result(Trial(0, asked), 0.0, {"slot-0": Failed("error", "no"), **outcomes}, None))
    (show,) = search.ask(1)
    row = TrialRow(1, None, None, None, None, None, 0, msgspec.to_builtins(show), search.origin(show))
    assert guess_of(row) == pytest.approx(search.memory.waiting[0].guess(), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("llama", "http://127.0.0.1:9/v1"),
        ("org/llama", "http://127.0.0.1:9/v1"),
        ("ollama/llama", "http://127.0.0.1:11434/v1"),
    ],
)
def test_a_judge_and_a_writer_of_another_provider_are_asked_there(name: str, address: str) -> None:
    evaluate = CriticEvaluator("qwen", f"judge:{name}", base_url="http://127.0.0.1:9/v1", writer=name)
    assert isinstance(evaluate.judged, ModelJudge)
    assert evaluate.judged.asked.url == evaluate.writing().url == address


@pytest.mark.slow
def test_a_run_whose_failures_were_evaluated_again_is_summarised(tmp_path: Path) -> None:
    broken = True

    async def judge(query: str, responses: tuple[str, ...]) -> float:
        if broken and len(responses[0]) % 3 == 0:
            raise ValueError("no digit")
        return 0.9 if len(responses[0]) > 150 else 0.1

    config, ledger = CriticConfig(**SIMULATED, total=20), tmp_path / "ledger.db"
    first = study(config, feedback=judge).run(ledger=ledger, run="r")
    assert first.summary is not None and 0 < first.summary.figures["unanswered"] < 20
    broken = False
    done = study(config, feedback=judge).run(ledger=ledger, run="r", retry_failed=True)
    assert done.summary is not None and done.progress.failures == 0
    late = first.summary.figures["unanswered"]
    assert f"({late} got it later, which taught nothing)" in done.summary.sections[1].text


class Blanks:
    """A model that thinks until its tokens are used up."""

    asked = 0

    async def generate(self, *messages: Any, **parameters: Any) -> Any:
        self.asked += 1
        return SimpleNamespace(text=" \n", finish="length", output_tokens=128)


def test_a_model_that_says_nothing_is_not_paid_for_every_query(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blanks = Blanks()
    monkeypatch.setattr(CriticEvaluator, "asked", blanks)
    with pytest.raises(OnlyFailures, match=r"nothing but blanks \(length\): 128 tokens were too few"):
        study(CriticConfig(**SIMULATED, total=60)).run(ledger=tmp_path / "ledger.db", run="r")
    assert blanks.asked < 60  # of 300


@pytest.mark.slow
def test_a_run_that_got_all_its_feedback_too_late_says_so(tmp_path: Path) -> None:
    broken = True

    async def judge(query: str, responses: tuple[str, ...]) -> float:
        if broken:
            raise ValueError("no digit")
        return 0.5

    config, ledger = CriticConfig(**SIMULATED, total=3), tmp_path / "ledger.db"
    study(config, feedback=judge).run(ledger=ledger, run="r")
    broken = False
    done = study(config, feedback=judge).run(ledger=ledger, run="r", retry_failed=True)
    assert done.summary is not None
    assert "all 3 answers got their feedback too late" in done.summary.sections[0].text


# -- batch mode ----------------------------------------------------------------------------------------------------


# -- the planted world ---------------------------------------------------------------------------------------------


def worth(prompt: Genome, queries: list[str], temperature: float = 0.3) -> dict[str, float]:
    """What the answers under a prompt are worth, by kind of query."""
    rng, found = random.Random(4), {kind: [] for kind in WORDINGS}  # type: ignore[var-annotated]
    for query in queries:
        messages = [{"role": "system", "content": prompt.text}, {"role": "user", "content": query}]
        text = respond("m", messages, {"temperature": temperature}, rng)
        found[kind_of(query)].append(preference(query, text))
    return {kind: statistics.fmean(values) for kind, values in found.items()}


@pytest.mark.slow
def test_no_prompt_is_best_for_every_kind_of_query() -> None:
    queries = planted_queries(150, 1)
    steps = worth(Genome(format=("Answer in numbered steps.",)), queries)
    brief = worth(
        Genome(
            instruction=("Answer in one or two short sentences.",),
            format=("Begin with the answer itself in one line.",),
        ),
        queries,
    )
    warm = worth(
        Genome(instruction=("Be warm and encouraging.",), format=("End with a question that moves the reader on.",)),
        queries,
    )
    points = worth(Genome(format=("Answer in bullet points.",)), queries)
    vivid = worth(Genome(instruction=("Be playful and vivid.",)), queries)
    best = {kind: max(range(5), key=lambda i: (steps, brief, warm, points, vivid)[i][kind]) for kind in WORDINGS}
    assert best == {"instruct": 0, "fact": 1, "comfort": 2, "compare": 3, "create": 4}


@pytest.mark.slow
def test_queries_are_of_all_kinds_and_not_always_to_be_told_by_their_words() -> None:
    queries = planted_queries(500, 1)
    signs = {"instruct": "how to", "fact": "fact", "compare": "compare", "comfort": "feel", "create": "write"}
    shows = [dict(zip(CUES, cues(query)))[signs[kind_of(query)]] for query in queries]
    assert {kind: sum(kind_of(query) == kind for query in queries) for kind in WORDINGS} == dict.fromkeys(WORDINGS, 100)
    assert 0.6 < statistics.fmean(shows) < 0.92


@pytest.mark.slow
def test_feedback_is_noisy_about_the_true_preference_and_always_the_same() -> None:
    query = "How do I get started with a kite?"
    texts = [f"{i}. Check the kite once more." for i in range(400)]
    errors = [planted_feedback(query, text) - preference(query, text) for text in texts]
    assert planted_feedback(query, texts[0]) == planted_feedback(query, texts[0])
    assert abs(statistics.fmean(errors)) < 0.03
    assert 0.7 * NOISE < statistics.pstdev(errors) < 2 * NOISE


@pytest.mark.slow
@given(st.text(max_size=80), st.text(max_size=200))
def test_any_text_has_a_preference_and_gets_feedback(query: str, response: str) -> None:
    assert 0.0 <= preference(query, response) <= 1.0
    assert 0.0 <= planted_feedback(query, response) <= 1.0


@pytest.mark.slow
def test_warm_sampling_obeys_less() -> None:
    rng = random.Random(1)
    messages = [
        {"role": "system", "content": "Answer in numbered steps."},
        {"role": "user", "content": "What is a kite?"},
    ]
    obeyed = [sum("1." in respond("m", messages, {"temperature": t}, rng) for _ in range(300)) for t in (0.0, 1.0)]
    assert obeyed[0] > obeyed[1] + 30


def test_planted_queries_are_used_when_the_planted_reader_judges() -> None:
    assert queries_of(CriticConfig(**SIMULATED, total=5, seed=2)) == tuple(planted_queries(5, 2))
    assert queries_of(CriticConfig(model="simulated/critic")) == BUILT_IN


# -- the benchmark -------------------------------------------------------------------------------------------------


@pytest.fixture
def benchmark() -> Iterator[Any]:
    before = list(sys.path)
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    yield importlib.import_module("critic")
    sys.path[:] = before


@pytest.mark.slow
def test_the_benchmark_runs_on_tiny_sizes_and_compares_all(benchmark: Any) -> None:
    *worlds, gains, ranks = benchmark.measure(replace(benchmark.TINY, queries=16))
    assert [len(table.lines) for table in worlds] == [8] * 3
    judged = [line.name for line in worlds[0].lines if line.target is not None]
    assert judged == [benchmark.RANDOM, benchmark.FIXED, benchmark.GREEDY, benchmark.LINUCB]
    assert all(
        -1 <= sample <= 1 for table in worlds for line in table.lines for sample in line.values["regret"].samples
    )
    assert len(gains.lines) == len(ranks.lines) == 3


def test_the_benchmarks_worlds_are_not_those_that_settings_were_chosen_in(benchmark: Any) -> None:
    assert not set(benchmark.WORLDS.values()) & set(benchmark.TUNING.values())
    by_kind = benchmark.World(*benchmark.WORLDS["by kind of query"], 1)
    queries = benchmark.planted_queries(60, 1)
    best = {max(benchmark.PROMPTS, key=lambda p: by_kind.worth(q, by_kind.answer(p, q))) for q in queries}
    assert len(best) > 3  # no prompt is the best for every query


@pytest.mark.slow
def test_a_bandit_that_is_told_learns_and_one_that_is_not_does_not(benchmark: Any) -> None:
    world, queries = benchmark.World("steady", 101, 1), benchmark.planted_queries(300, 1)
    fixed, chance = (statistics.fmean(f(world, queries).worth) for f in (benchmark.best_fixed, benchmark.at_random))
    for told in (benchmark.epsilon_greedy(world, queries, 0.1), benchmark.linucb(world, queries, 0.3)):
        assert chance + 0.1 < statistics.fmean(told.worth[150:]) <= fixed + 0.1
