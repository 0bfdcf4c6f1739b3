"""The whole prompts study on simulated models: it finds planted prompts, holds its promises, and says what it found."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold import RunView
from fanfold.cli import cli
from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.local import default_in_flight
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome, render
from fanfold.strategies.pareto import fronts
from fanfold.studies.prompts import PromptsConfig, run_options, study
from fanfold.studies.prompts.objectives import OBJECTIVES, merit, points_of
from fanfold.studies.prompts.simulated import quality, traits
from fanfold.tasks import load
from fanfold.types import Ok, Result, Trial

MODEL = "simulated/gpt-6-luna"


def small(**changes: Any) -> PromptsConfig:
    settings: dict[str, Any] = {"model": (MODEL,), "trials": 30, "population": 8, "train": 16, "validation": 8}
    return PromptsConfig(**{**settings, "held_out": 20, **changes})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ledger = tmp_path_factory.mktemp("prompts") / "l.db"
    run = study(PromptsConfig(model=(MODEL,), trials=60, held_out=40)).run("async:32", ledger=ledger, run="r")
    yield run, ledger
    run.ledger.close()


@pytest.mark.slow
def test_a_search_from_weak_seeds_finds_a_prompt_that_is_better_on_problems_it_never_saw(searched: Any) -> None:
    figures = searched[0].summary.figures
    assert figures["held_out"]["n"] == 40
    assert figures["gain"] >= 0.25
    assert figures["gain_p"] < 0.05
    assert figures["held_out"]["low"] <= figures["held_out"]["accuracy"] <= figures["held_out"]["high"]
    assert figures["overfit"] == pytest.approx(figures["train"]["accuracy"] - figures["held_out"]["accuracy"])


@pytest.mark.slow
def test_held_out_problems_are_asked_only_at_the_end_and_never_shown(searched: Any) -> None:
    run, _ = searched
    split = load("city").split(seed=0, examples=8, train=24, validation=24, held_out=40)
    held = {problem.input for problem in split.held_out}
    main = run.ledger.run("r").id
    asked = [request for (request,) in run.ledger.read("SELECT request FROM call WHERE run = ?", (main,))]
    assert len(asked) > 100
    assert not [request for request in asked for text in held if text in json.loads(request)["messages"][0]["content"]]
    # A problem that is scored is asked once, and never shown with its answer above.
    scored = {problem.input for problem in split.train}
    texts = [json.loads(request)["messages"][0]["content"] for request in asked]
    assert all(sum(text.count(shown) for text in texts) for shown in scored)
    assert not [shown for text in texts for shown in scored if text.count(shown) > 1]
    assert [text for text in texts if sum(shown in text for shown in scored) > 1]  # to others it may be shown


@pytest.mark.slow
def test_racing_saves_calls_and_the_summary_counts_them(searched: Any) -> None:
    run, _ = searched
    calls = run.summary.figures["calls"]
    ran = run.progress.told_evaluations - run.progress.reused
    assert calls["full"] == 60 * 24
    assert calls["saved"] == calls["full"] - ran > 0
    facts = run.view.calls()
    assert calls["made"] == facts.counts.calls


@pytest.mark.slow
def test_the_lineage_of_the_winner_goes_back_to_one_without_parents(searched: Any) -> None:
    run, _ = searched
    (lineage,) = [section for section in run.summary.sections if section.title == "Lineage"]
    assert lineage.rows[-1][3] == "-"
    assert (
        genome_of(next(r for r in run.results() if r.number == lineage.rows[0][0])).head()
        == (run.summary.figures["winner"]["text"])
    )


@pytest.mark.slow
def test_no_prompt_is_scored_twice_on_a_problem(searched: Any) -> None:
    run, _ = searched
    main = run.ledger.run("r").id
    ran = "SELECT count(*), count(DISTINCT key) FROM evaluation WHERE run = ? AND reused = 0"
    evaluated, distinct = run.ledger.one(ran, (main,))
    assert evaluated == distinct > 0


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "async:3", "batch:auto"])
def test_the_search_is_the_same_everywhere(executor: str) -> None:
    config = small(trials=12, validation=0, held_out=4)
    where = BatchExecutor("auto", poll=0.05) if executor == "batch:auto" else executor
    first = study(config).run("async:64")
    again = study(config).run(where)
    assert again.trace == first.trace
    assert again.summary is not None and first.summary is not None
    assert again.summary.figures["held_out"] == first.summary.figures["held_out"]


@pytest.mark.slow
def test_a_search_taken_up_again_pays_for_nothing_twice(tmp_path: Path) -> None:
    ledger = tmp_path / "l.db"
    whole = study(small(trials=20)).run("async:32", ledger=tmp_path / "whole.db", run="r")
    study(small(trials=9)).run("async:32", ledger=ledger, run="r")
    again = study(small(trials=20)).run("async:32", ledger=ledger, run="r")
    assert again.trace == whole.trace
    counts = [next(run.ledger.read("SELECT count(*) FROM call"))[0] for run in (again, whole)]
    # The shorter search had finalists of its own, which may have been other prompts.
    assert counts[1] <= counts[0] <= counts[1] + 3 * 8 + 2 * 20


@pytest.mark.slow
def test_a_model_that_writes_is_asked_once_for_a_prompt_and_its_prompts_take_part() -> None:
    run = study(small(writer="simulated/writer", trials=40)).run("async:32")
    ways = {str((result.trial.origin or {}).get("by")) for result in run.results()}
    written = ways & {"paraphrase", "shorten", "reflect", "combine", "expand"}
    assert written
    asked = next(run.ledger.read("SELECT count(*) FROM call WHERE model LIKE '%writer'"))[0]
    assert 0 < asked == len({encode(r.candidate) for r in run.results() if "how" in r.candidate})
    scored = [r for r in run.results() if "how" in r.candidate and r.score is not None]
    assert scored and all(isinstance(genome_of(result), Genome) for result in scored)


@pytest.mark.slow
def test_several_models_are_scored_side_by_side() -> None:
    names = (MODEL, "simulated/claude-haiku-5-5")
    run = study(small(model=names, trials=10)).run("async:32")
    assert run.best is not None and len(run.best.outcomes) == 2 * 16
    (section,) = [each for each in run.summary.sections if "each model" in each.title]  # type: ignore[union-attr]
    assert [row[0] for row in section.rows] == list(names)
    models = {name for (name,) in run.ledger.read("SELECT DISTINCT model FROM call")}
    assert models == set(names)


@pytest.mark.slow
def test_a_search_for_several_objectives_ends_with_a_front() -> None:
    run = study(small(objectives=("accuracy", "length"), trials=24)).run("async:32")
    (front,) = [each for each in run.summary.sections if "Pareto" in each.title]  # type: ignore[union-attr]
    points = [row[1:] for row in front.rows]
    assert points and not [
        (a, b) for a in points for b in points if a != b and all(x >= y for x, y in zip(a, b, strict=True))
    ]


@pytest.mark.slow
def test_a_steady_search_waits_for_nobody_and_ends_as_well() -> None:
    run = study(small(steady=True, trials=24)).run("async:16")
    assert run.progress.told == 24 and run.summary is not None


@pytest.mark.slow
def test_it_stops_at_the_target() -> None:
    run = study(small(target=0.5, trials=200)).run("async:32")
    assert run.best is not None and (run.best.score or 0) >= 0.5 and run.progress.told < 200


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": ("accurracy",)}, "accuracy"),
        ({"objectives": ("length",)}, "must name accuracy"),
        ({"weights": (1.0, 2.0)}, "2 weights for 1 objectives"),
        ({"model": ()}, "local/smollm2"),
        ({"model": (MODEL, MODEL)}, "twice"),
        ({"trials": 0}, "trials must be at least 1"),
        ({"train": 0}, "train must be above 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)


def test_too_many_problems_wanted_is_said_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="too few"):
        study(small(train=10_000))


@pytest.mark.slow
def test_seeds_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text("Name the city.\n---\nWhich city?\nOne word.\n---\n")
    asked = study(small(seeds_file=str(path))).strategy
    asked.begin(0)
    (opening,) = asked.ask(1)  # all examples, before anything else
    asked.tell(Result(Trial(0, opening), 0.5, {"0": Ok(0.5)}))
    first, second = asked.ask(2)
    assert isinstance(first, Genome) and first.head() == "Name the city."
    assert isinstance(second, Genome) and "One word." in second.head()
    with pytest.raises(ConfigError, match="cannot be read"):
        study(small(seeds_file=str(tmp_path / "nothing.txt")))
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        study(small(seeds_file=str(path)))


def test_a_preset_decides_how_many_calls_are_in_flight() -> None:
    assert run_options(small(preset="balanced")) == {"executor": "async:50"}
    assert run_options(small(concurrent=7)) == {"executor": "async:7"}
    assert run_options(PromptsConfig()) == {"executor": f"async:{default_in_flight()}"}


# -- objectives -------------------------------------------------------------------------------------------------------


def _result(number: int, score: float, words: int, scores: tuple[float, ...] = ()) -> Result[Any]:
    genome = Genome(instruction=(" ".join(["word"] * words),))
    outcomes = {str(at): Ok(value) for at, value in enumerate(scores)}
    return Result(Trial(number, genome), score, outcomes)


def test_of_two_equally_accurate_prompts_the_shorter_is_the_better_parent() -> None:
    long, short, worse = _result(0, 0.8, 30), _result(1, 0.8, 5), _result(2, 0.7, 1)
    merits = merit(("accuracy",), None)([long, short, worse])
    assert merits[1] > merits[0] > merits[2]


def test_the_documented_fitness_is_the_weighted_sum_less_the_penalty() -> None:
    objectives = ("accuracy", "consistency", "efficiency", "brevity")
    result = _result(0, 0.5, 40, (1.0, 1.0, 0.0, 0.0))
    value = merit(objectives, (0.7, 0.2, 0.1, 1.0))([result])[0]
    # Halves of the cases differ as much as they can: consistency 0; 40 of 50 words: efficiency 0.2; 10 too many: -0.1.
    assert value == pytest.approx(0.7 * 0.5 + 0.2 * 0.0 + 0.1 * 0.2 - 0.1)


def test_who_is_dominated_by_nobody_comes_before_everyone_else() -> None:
    results = [_result(0, 0.9, 20), _result(1, 0.5, 2), _result(2, 0.4, 30), _result(3, 0.7, 10)]
    order = merit(("accuracy", "length"), None)(results)
    assert min(order[0], order[1], order[3]) > order[2]
    assert list(fronts(points_of(results, ("accuracy", "length")))) == [[0, 1, 3], [2]]


def test_every_objective_gives_one_number_for_each_result() -> None:
    results = [_result(0, 0.9, 20, (1.0, 0.0)), _result(1, 0.5, 2, (0.0, 0.0))]
    for name, objective in OBJECTIVES.items():
        assert len(objective(results)) == 2, name
        assert list(objective([])) == [], name


# -- the planted world ------------------------------------------------------------------------------------------------


def test_a_better_prompt_solves_more_in_the_planted_world() -> None:
    task = load("city")
    helpful, harmful = traits(task)
    assert not set(helpful) & set(harmful)
    best = Genome(instruction=helpful, examples=("a", "b", "c"), labels=task.labels[0])
    shots = dict.fromkeys("abc", ("We met in Rome.", "Rome"))

    def worth(genome: Genome) -> float:
        before, _, after = render(genome, "\0", shots).partition("\0")
        return quality(task, before, after)

    spoiled = dataclasses.replace(best, format=harmful)
    assert worth(best) > 0.85 > worth(spoiled) + 0.3
    assert worth(Genome.of("Where?")) < 0.2


# -- the shell --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shell_ends_with_the_prompt_its_accuracy_and_what_it_took(tmp_path: Path) -> None:
    ledger, report = str(tmp_path / "l.db"), tmp_path / "r.html"
    fields = ["--model", MODEL, "--trials", "16", "--train", "12", "--validation", "6", "--held-out", "10"]
    run = ["run", "prompts", *fields, "--ledger", ledger, "--run", "r", "--report", str(report)]
    done = CliRunner().invoke(cli, run)
    assert done.exit_code == 0, done.output
    for words in ("Prompt", "held-out accuracy", "saved by dropping prompts early"):
        assert words in done.output
    shown = CliRunner().invoke(cli, ["show", "r", "--ledger", ledger]).output
    titles = ("Accuracy, with 95 % intervals", "Lineage", "Against the first prompt", "Held-out problems", "Gain")
    for words in (*titles, "Expected regret"):
        assert words not in done.output and words in shown and words in report.read_text()
    as_json = CliRunner().invoke(cli, ["show", "r", "--ledger", ledger, "--json"])
    assert json.loads(as_json.output)["summary"]["held_out"]["n"] == 10


@pytest.mark.slow
def test_a_file_of_ones_own_problems_is_searched_too(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    config = small(task=str(path), trials=4, population=3, train=8, validation=4, held_out=8, examples=4)
    run = study(config).run("async:8")
    assert run.progress.told == 4 and run.progress.failures == 0


@pytest.mark.slow
def test_the_export_names_the_parameters_that_each_provider_got(tmp_path: Path) -> None:
    models = ("simulated/gpt-6-luna", "simulated/claude-haiku-5-5", "simulated/gpt-4o-mini")
    run = study(small(model=models, trials=2, reasoning_effort="low")).run(ledger=tmp_path / "l.db", run="r")
    found = run.summary.figures["template"]["requests"]
    sent = [json.loads(request) for (request,) in run.ledger.read("SELECT request FROM call")]
    for name in models:
        told = {field: value for field, value in found[name].items() if field != "url"}
        own = [body for body in sent if body["model"] == name.partition("/")[2]]
        assert own and all({**told, "messages": body["messages"]} == body for body in own), name
        assert found[name]["url"].startswith("http")
    assert found[models[0]]["max_completion_tokens"] > 4000 and "temperature" not in found[models[0]]


@pytest.mark.slow
def test_held_out_problems_see_the_prompts_in_the_order_of_earlier_versions(tmp_path: Path) -> None:
    config = PromptsConfig(task="sentiment", model=("simulated/gpt-4o-mini",), trials=4)
    study(config).run(ledger=tmp_path / "l.db", run="r").ledger.close()
    with RunView.open(tmp_path / "l.db", "r.held-out-4") as view:
        nearest = [result.candidate.get("nearest", 0) for result in view.results()]
    assert nearest == [0, 0, 8], "a resumed run of a version without the nearest examples has two"
