"""Every study shows its runs in its own terms: a headline, its candidates and its cells, read from a ledger."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fanfold.config import from_mapping
from fanfold.errors import ConfigError, LedgerError
from fanfold.ledger import Ledger, RunView
from fanfold.plugins import Presentation, described, find_study, presentation_in
from fanfold.summary import Section

KEPT = Path(__file__).parents[1] / "data" / "ledgers-0.1.0"
RUNS: dict[str, dict[str, Any]] = {
    "secrets": {"models": ("simulated/talker", "simulated/keeper"), "num_interactions": 4, "results": None},
    "workflow": {"total_episodes": 100, "max_episodes_per_workflow": 100, "fresh_episodes": 16, "results": None},
    "neuro": {
        "trials": 3,
        "population": 2,
        "epochs": 1,
        "rungs": 1,
        "max_batches": 2,
        "results": None,
        "baselines": "no",
    },
    "rl": {"total_episodes": 40, "fresh_episodes": 8, "results": None},
}
SAYS = {
    "secrets": ("secrets revealed in", "standard, rounds: 1", "points: "),
    "workflow": ("on fresh episodes, compliance", "visit 0, at most 100 episodes", "compliance"),
    "rl": ("on fresh episodes", "by version 0, to learn from", "mean return"),
    "neuro": ("test accuracy", "conv ", "accuracy"),
}


def ran(name: str, folder: Path, **fields: Any) -> RunView:
    """A small run of a study, as its pages read it."""
    plugin = find_study(name)
    config = plugin.config(**fields)
    executor = "inline" if name in ("rl", "workflow", "neuro") else "async:2"
    meta = {"target": name}
    plugin.build(config).run(ledger=str(folder / "a.db"), run="first", executor=executor, meta=meta).ledger.close()
    return RunView.open(folder / "a.db", "first")


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_a_run_is_shown_as_data(name: str, tmp_path: Path) -> None:
    shown = find_study(name).shown
    with ran(name, tmp_path, **RUNS[name]) as view:
        summary, trial, evaluation = view.summary(), view.trial(0), next(view.evaluations())
        assert summary is not None and shown.headline and shown.candidate and shown.cell
        headline, candidate, cell = SAYS[name]
        assert headline in (shown.headline(summary.figures) or "")
        assert candidate in shown.candidate(trial.candidate).text
        section = shown.cell(evaluation.data)
        assert cell in section.text or cell in [row[0] for row in section.rows]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_without_a_result_has_no_headline(name: str) -> None:
    shown = find_study(name).shown
    assert shown.headline is not None and shown.headline({}) is None


@pytest.mark.slow
def test_a_prompt_is_shown_with_the_words_of_its_examples(tmp_path: Path) -> None:
    shown = find_study("prompts").shown
    with ran("prompts", tmp_path, model=("simulated/small",), trials=6, train=8, held_out=6, validation=4) as view:
        row = next(row for row in view.trials() if row.candidate["examples"])
        section, *_ = shown.trial_sections(view, row)
        assert "(input of" not in section.text and "(answer of" not in section.text
        answers = {case.id: case.data["answer"] for case in view.cases()}
        assert any(answers[id] in section.text for id in row.candidate["examples"] if id in answers)
        assert section.text.count("{input}") == 1
        assert f"Examples: {row.candidate['examples'][0]} " in shown.text_of(row.candidate)
        assert len(shown.brief_of(row.candidate)) <= 80 and "example" in shown.brief_of(row.candidate)
        [answer] = shown.evaluation_sections(view, next(view.evaluations()))
        assert [name for name, _ in answer.rows[:3]] == ["input", "expected", "said"]
        with sqlite3.connect(tmp_path / "a.db") as database:  # as while the run was running
            database.execute("DELETE FROM summary")
        best, accuracy = described(shown.overview, view) or ()
        assert best.title == "Prompt" and "(input of" not in best.text and accuracy.rows[0][0] == "best so far"


@pytest.mark.slow
def test_a_finished_search_for_prompts_shows_where_its_winner_stands(tmp_path: Path) -> None:
    shown = find_study("prompts").shown
    with ran("prompts", tmp_path, model=("simulated/small",), trials=6, train=8, held_out=6, validation=4) as view:
        summary = view.summary()
        assert summary is not None and described(shown.overview, view) == ()
        assert kinds(summary.sections)["Accuracy, with 95 % intervals"] == ["intervals"]


@pytest.mark.slow
def test_a_game_is_shown_as_a_conversation_with_its_leaks_marked(tmp_path: Path) -> None:
    shown = find_study("secrets").shown
    with ran("secrets", tmp_path, **{**RUNS["secrets"], "pairings": "all", "num_interactions": 6}) as view:
        leaky = next(row for row in view.evaluations() if row.data.get("leaks"))
        _, talk, *_ = shown.evaluation_sections(view, leaky)
        [drawing] = talk.drawings
        marked = [(message, mark) for message in drawing.data["messages"] for mark in message["marks"]]
        secrets = view.cases()[leaky.position].data["secrets"]
        assert marked and all(any(secret in person for person in drawing.data["people"]) for secret in secrets)
        for message, mark in marked:
            words = message["text"][mark["start"] : mark["end"]]
            assert (
                words.casefold() in [str(leak[3]).casefold() for leak in talk.rows] and mark["why"] in message["note"]
            )
        summary = view.summary()
        assert summary is not None
        assert kinds(summary.sections) == {"Models": ["intervals"], "Pair matrix": ["grid"]}
        assert shown.brief_of(view.trial(0).candidate) == "simulated/talker vs simulated/talker"


def kinds(sections: Iterable[Section]) -> dict[str, list[str]]:
    """What is drawn under each title."""
    drawn = {section.title: [drawing.kind for drawing in section.drawings] for section in sections}
    return {title: own for title, own in drawn.items() if own}


@pytest.mark.slow
def test_a_training_of_a_workflow_is_shown_with_its_curves_and_an_episode(tmp_path: Path) -> None:
    shown = find_study("workflow").shown
    with ran("workflow", tmp_path, **RUNS["workflow"]) as view:
        sections = shown.trial_sections(view, view.trial(0))
        assert [curve.name for section in sections for curve in section.curves] == 2 * [
            "episodes learnt from",
            "held-out episodes",
        ]
        [episode] = [section for section in sections if section.drawings]
        [drawing] = episode.drawings
        steps = drawing.data["steps"]
        assert len(drawing.data["nodes"]) == 13 and len(steps) == 100 and len(steps[0]["states"]) == 13
        assert {move["who"] for step in steps for move in step["moves"]} == {"red", "blue"}
        assert list(drawing.data["states"]) == sorted(drawing.data["states"])  # from good to bad
        assert f"{sum(step['value'] for step in steps):.1f}" in episode.text
        summary = view.summary()
        assert summary is not None
        assert kinds(summary.sections) == {
            "The same fresh episodes, with the same workflow": ["intervals"],
            "Trainings": ["scatter"],
            "Beliefs": ["intervals", "grid"],
            "An episode": ["replay"],
        }


def test_a_watched_episode_is_the_one_that_is_scored(tmp_path: Path) -> None:
    from fanfold.studies.workflow.cage2.rules import Cage2Game
    from fanfold.studies.workflow.episodes import collect_single_episode, initial_policy
    from fanfold.studies.workflow.watching import watched
    from fanfold.tensors import unpack

    policy = initial_policy(seed=3)
    episode = collect_single_episode(policy, 7, seed=11)
    steps = watched(unpack(policy), Cage2Game(), None, False, 11, 7).data["steps"]
    assert sum(step["value"] for step in steps) == pytest.approx(episode.total_reward)


def test_a_network_is_shown_layer_by_layer_and_with_what_it_takes_for_what(tmp_path: Path) -> None:
    shown = find_study("neuro").shown
    with ran("neuro", tmp_path, **RUNS["neuro"]) as view:
        network, figures, accuracy, loss = shown.trial_sections(view, view.trial(0))
        layers = network.drawings[0].data["layers"]
        assert tuple(layers[0]["shape"]) == (1, 8, 8) and tuple(layers[-1]["shape"]) == (10,)
        counted = dict(figures.rows)["parameters"]
        norms = sum(2 * layer["shape"][0] for layer in layers if "batch norm" in layer["note"])  # kept, not trained
        assert sum(layer["parameters"] for layer in layers) == counted + norms
        assert accuracy.up == "validation accuracy" and len(loss.curves[0].points) == 1
        summary = view.summary()
        assert summary is not None
        assert kinds(summary.sections) == {
            "Best network": ["layers"],
            "Mistakes on the test part": ["grid", "images"],
            "Accuracy and size": ["scatter"],
        }
        [mistakes] = [section for section in summary.sections if section.title == "Mistakes on the test part"]
        grid, images = mistakes.drawings
        assert all(sum(line) == pytest.approx(1.0) for line in grid.data["values"])
        assert len(images.data["images"]) == 24 and all(image["wrong"] for image in images.data["images"])


def test_a_study_that_raises_breaks_no_page() -> None:
    def broken(*values: Any) -> Any:
        yield Section("Fine")
        raise RuntimeError("no")

    shown = Presentation(trial=broken, evaluation=broken, text=broken, brief=broken, written=broken)
    row: Any = type("Row", (), {"candidate": {"x": 1.5, "kind": "a"}, "data": {}})
    view: Any = None
    assert shown.trial_sections(view, row) == shown.evaluation_sections(view, row) == ()
    assert shown.candidate_of(view, row) == row.candidate
    assert shown.brief_of(row.candidate) == "x 1.5, kind a"
    assert shown.text_of(row.candidate) == '{\n  "kind": "a",\n  "x": 1.5\n}'


def test_answers_of_an_application_are_judged_from_the_page(tmp_path: Path) -> None:
    from fanfold.studies.critic import Critic

    shown, path = find_study("critic").shown, tmp_path / "a.db"
    assert shown.feedback is not None and shown.tell is not None and shown.overview is not None
    with Critic.open(path, model="simulated/critic", prompts=["Be brief.", "Be warm."], name="app") as critic:
        one, two = critic.ask_sync("How do I keep basil?"), critic.ask_sync("Tea or coffee?", show=2)
    with RunView.open(path, "app") as view:
        waiting, *_ = shown.overview(view)
        assert [row[0] for row in waiting.rows] == [0, 1]
        forms = [shown.feedback(view, 0), shown.feedback(view, 1)]
    assert [form and (form.query, form.answers, form.ask) for form in forms] == [
        (one.query, one.texts, "rating"),
        (two.query, two.texts, "preference"),
    ]
    shown.tell(path, "app", 0, 5)
    shown.tell(path, "app", 1, "B")
    with pytest.raises(ConfigError, match="'A', 'B' or 'tie'"):
        shown.tell(path, "app", 1, "C")
    with RunView.open(path, "app") as view:
        assert (view.trial(0).score, view.trial(1).score) == (1.0, 0.0)
        answer, judged = shown.trial_sections(view, view.trial(0))
        assert answer.drawings[0].data["messages"][1]["text"] == one.text and "feedback was 1.00" in judged.text
        satisfaction, preferred = shown.overview(view)
        assert satisfaction.rows[0][:2] == (1, 1.0) and len(satisfaction.curves[0].low) == 1
        assert preferred.rows[0][:2] == (1, 0.0)  # of the pair answer B
    with Critic.open(path, name="app") as critic:
        assert critic.status() == {"shows": 2, "answered": 2, "open": 0}


def test_what_a_writer_wrote_is_shown_and_not_what_it_was_asked(tmp_path: Path) -> None:
    shown, examples = find_study("evolve").shown, Path(__file__).parents[2] / "examples"
    files = {"file": (str(examples / "evolve_solver.py"),), "evaluator": str(examples / "evolve_score.py")}
    with ran("evolve", tmp_path, **files, writer="simulated/writer", calls=6) as view:
        row = next(row for row in view.trials() if "how" in row.candidate)
        wrote = shown.text_of(shown.candidate_of(view, row))
        assert "SPARE" in wrote and wrote != shown.text_of(shown.candidate_of(view, view.trial(0)))
        assert shown.brief_of(row.candidate).startswith("reflect: SPARE = 30 / OPEN = 2")
        text, how, measured = shown.trial_sections(view, row)
        assert text.text == wrote and "learn from" in how.text and measured.columns == ("case", "worst")


@pytest.mark.slow
def test_a_helper_run_is_shown_as_the_run_that_it_belongs_to(tmp_path: Path) -> None:
    with ran("prompts", tmp_path, model=("simulated/small",), trials=4, train=6, held_out=4, validation=4) as view:
        helpers = {helper.name for helper in view.siblings()}
        assert helpers and all(presentation_in(helper) == presentation_in(view) for helper in view.siblings())


@pytest.mark.slow
@pytest.mark.parametrize("ask", ["rating", "pair"])
def test_a_run_waits_for_feedback_that_is_given_on_its_page(ask: str, tmp_path: Path) -> None:
    shown, path = find_study("critic").shown, tmp_path / "a.db"
    assert shown.feedback is not None and shown.tell is not None and shown.overview is not None
    small = {"actor_critic": {"num_candidates": 2}, "total": 2, "feedback": "page", "ask": ask}
    config = from_mapping(find_study("critic").config, {"model": "simulated/critic", **small})
    study = find_study("critic").build(config)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(study.run, "async:2", ledger=str(path), run="page", meta={"target": "critic"})
        judged: list[int] = []
        while len(judged) < 2:
            assert not running.done(), running.result()
            with contextlib.suppress(LedgerError), RunView.open(path, "page") as view:
                for question in view.questions():
                    if (number := question.value["trial"]) not in judged:
                        form, [waiting] = shown.feedback(view, number), list(shown.overview(view))[:1]
                        assert form is not None and form.ask == ("preference" if ask == "pair" else ask)
                        assert waiting.title == "Waiting for feedback" and waiting.rows[0][0] == number
                        with pytest.raises(ConfigError, match="feedback must be"):
                            shown.tell(path, "page", number, "nonsense")
                        shown.tell(path, "page", number, "A" if ask == "pair" else 4)
                        judged.append(number)
            time.sleep(0.05)
        done = running.result()
    done.ledger.close()
    with RunView.open(path, "page") as view:
        assert [view.trial(number).score for number in judged] == ([1.0, 1.0] if ask == "pair" else [0.75, 0.75])
        assert view.questions() == [] and shown.feedback(view, judged[0]) is None
    with pytest.raises(ConfigError, match="does not wait for feedback"):
        shown.tell(path, "page", judged[0], 5)


@pytest.mark.slow
def test_runs_of_a_study_are_compared_in_its_own_terms(tmp_path: Path) -> None:
    shown = find_study("prompts").shown
    assert shown.compare is not None
    with ran("prompts", tmp_path, model=("simulated/small",), trials=4, train=6, held_out=4, validation=4) as view:
        [section] = shown.compare([view, view])
        assert [row[0] for row in section.rows[-3:]] == ["first, train", "first, validation", "first, held-out"]
        assert [drawing.kind for drawing in section.drawings] == ["intervals"]


@pytest.mark.parametrize("kept", sorted(KEPT.glob("*.db.gz")), ids=lambda path: path.name.partition(".")[0])
def test_a_run_of_version_0_1_0_has_its_pages(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(gzip.decompress(kept.read_bytes()))
    with Ledger(tmp_path / "a.db") as ledger:
        for info in ledger.runs():
            view = RunView.open(ledger, info.name)
            shown, row = presentation_in(view), view.trial(0)
            cell = next(view.evaluations(trials=[0], failed=False))
            assert shown.brief_of(shown.candidate_of(view, row)) and shown.text_of(row.candidate)
            if shown.trial is not None and shown.evaluation is not None:
                assert [*shown.trial(view, row)] and [*shown.evaluation(view, cell)]
