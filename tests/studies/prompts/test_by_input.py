"""Prompts that show each input the examples most like it: chosen, recorded, exported and found by the search."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.likeness import filled, most_alike
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome, difference, outline, render, template
from fanfold.prompting.guided import GuidedPrompts
from fanfold.prompting.material import Material, faults, mend
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.strategies.reflective import Written
from fanfold.studies.prompts import PromptsConfig, study

SHOTS = {
    "a": ("my parcel is late", "shipping"),
    "b": ("the invoice is wrong", "billing"),
    "c": ("the parcel never came", "shipping"),
    "d": ("I forgot my password", "account"),
}


def test_the_most_alike_come_last_and_rare_words_count_more() -> None:
    texts = [shown for shown, _ in SHOTS.values()]
    assert most_alike("a parcel that never came", texts, 2) == [0, 2]
    assert most_alike("passwords", texts, 1) == [3]  # by pieces of the word
    assert sorted(most_alike("", texts, 9)) == [0, 1, 2, 3]
    assert most_alike("anything", [], 3) == []


def test_equally_alike_texts_keep_their_order() -> None:
    assert most_alike("nothing shared", ["x", "y", "z"], 2) == [1, 0]


@pytest.mark.parametrize(
    "genome",
    [
        Genome(examples=tuple(SHOTS)),
        Genome(examples=tuple(SHOTS), nearest=2),
        Genome(
            ("You route tickets.",), ("Name the team.",), examples=tuple(SHOTS), nearest=3, labels=("Ticket", "Team")
        ),
        Genome.of("Name the team.\nTicket: {input}\nTeam:", None),
        replace(Genome.of("Name the team.\nTicket: {input}\nTeam:", None), examples=tuple(SHOTS), nearest=1),
        Genome(examples=("b", "d"), nearest=9, worked=(("an own input", "because of this: billing"),)),
        replace(Genome.of("Read {input}\nAgain: {input}\nTeam:", None), examples=tuple(SHOTS)),
        replace(Genome.of("Read {input}\nAgain: {input}\nTeam:", None), examples=tuple(SHOTS), nearest=2),
    ],
)
def test_a_template_filled_with_an_input_is_the_prompt_that_is_sent(genome: Genome) -> None:
    recorded = json.loads(msgspec.json.encode(template(genome, SHOTS)))
    for text in ("the parcel was opened", "?", "who changed my password?", "{input}"):
        assert filled(recorded, text) == render(genome, text, SHOTS)


@pytest.mark.parametrize("nearest", [{}, {"nearest": 2}])
def test_a_template_takes_any_character_in_an_example(nearest: dict[str, int]) -> None:
    shots = {**SHOTS, "a": ("a\0b\1", "x\0")}
    genome = Genome(("Read\0 it.",), examples=tuple(shots), labels=("Ticket", "Team"), **nearest)
    assert filled(template(genome, shots), "who?") == render(genome, "who?", shots)


def test_a_prompt_that_repeats_the_input_is_exported_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = "Text: {input}\nThe same again: {input}\nCity:"
    config = PromptsConfig(model=("simulated/gpt-4o-mini",), seeds=(said,), trials=1, search="genetic")
    run = study(config).run("async:8", ledger="a.db", run="r")
    run.ledger.close()
    assert run.summary is not None and run.summary.prompt("Oslo?") == said.replace("{input}", "Oslo?")
    module: dict[str, Any] = {}
    exec(CliRunner().invoke(cli, ["prompt", "r", "--ledger", "a.db", "--as", "python"]).stdout, module)
    assert module["prompt"]("Oslo?") == run.summary.prompt("Oslo?")
    assert CliRunner().invoke(cli, ["prompt", "r", "--ledger", "a.db"]).stdout.rstrip("\n") == said


def test_only_the_nearest_are_shown_and_never_the_problem_itself() -> None:
    genome = Genome(examples=tuple(SHOTS), nearest=1, labels=("Ticket", "Team"))
    assert render(genome, "where is my parcel", SHOTS).startswith("Ticket: my parcel is late\nTeam: shipping\n\n")
    own = render(genome.without("a"), SHOTS["a"][0], SHOTS)
    assert own.count("my parcel is late") == 1 and "the parcel never came" in own


def test_prompts_recorded_without_it_stay_the_same() -> None:
    assert b"nearest" not in msgspec.json.encode(Genome(examples=("a",)))
    assert msgspec.convert({"examples": ["a"], "labels": ["Q", "A"]}, Genome).shown == 1


def test_limits_are_about_what_is_shown() -> None:
    material = Material({}, (("Q", "A"),), tuple(SHOTS), 2)
    assert not faults(Genome(examples=tuple(SHOTS), nearest=2), material)
    mended = mend(Genome(examples=tuple(SHOTS), nearest=3), material)
    assert mended.nearest == 2 and mended.examples == tuple(SHOTS)
    assert mend(Genome(examples=tuple(SHOTS)), material).examples == ("a", "b")
    none = replace(material, most_examples=0)
    assert mend(Genome(examples=tuple(SHOTS), nearest=3), none).shown == 0


def test_people_are_told_how_examples_are_chosen() -> None:
    genome = Genome(examples=tuple(SHOTS), nearest=2)
    assert "[the 2 of 4 examples that are most like the input]" in outline(genome, SHOTS)
    assert "the 2 most like the input" in difference(Genome(examples=tuple(SHOTS)), genome)


def test_a_written_child_chooses_its_examples_as_its_parent_does() -> None:
    parent = Genome(instruction=("Name the team.",), examples=tuple(SHOTS), nearest=2)
    recorded = msgspec.json.decode(msgspec.json.encode(Written("shorten", (parent,))))
    assert msgspec.convert(recorded, Written[Genome]).parents[0].nearest == 2


def test_the_search_tries_them_only_where_it_may() -> None:
    for allowed in (True, False):
        search = GuidedPrompts(Material({}, (("Q", "A"),), tuple(SHOTS), 4, by_input=allowed), SHOTS)
        rng = random.Random(0)
        assert any(search._random(rng).nearest for _ in range(50)) == allowed


# -- end to end -------------------------------------------------------------------------------------------------------

TOPICS = {
    "garden": "rose tulip spade seed fern hedge",
    "kitchen": "spoon oven kettle plate whisk tray",
    "harbour": "boat anchor gull pier sail crane",
    "school": "pupil chalk desk lesson pencil essay",
}


def places(path: Path, rows: int = 150) -> Path:
    """Texts whose words tell the place, and no two alike."""
    rng = random.Random(0)
    texts: dict[str, str] = {}
    while len(texts) < rows:
        place = rng.choice([*TOPICS])
        texts.setdefault(" and ".join(rng.sample(TOPICS[place].split(), 4)), place)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("things", "place"), *texts.items()])
    return path


def copying() -> Model:
    """A model that repeats the answer of the last example."""

    def answer(name: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
        blocks = str(messages[-1]["content"]).split("\n\n")
        return blocks[-2].rpartition(": ")[2] if len(blocks) > 1 else "nothing"

    transport = SimulatedTransport(Simulator(SimulatorConfig(answer=answer)))
    return replace(model("simulated/gpt-4o-mini"), connect=lambda: transport)


@pytest.mark.slow
def test_a_search_finds_that_the_nearest_examples_help_and_exports_what_it_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = PromptsConfig(task=str(places(tmp_path / "places.csv")), calls=200)
    work = study(config, make=lambda name: copying())
    run = work.run("async:4", ledger="places.db", run="r")
    assert run.summary is not None
    figures = run.summary.figures
    assert figures["held_out"]["accuracy"] > 0.9 and figures["winner"]["genome"]["nearest"] > 0
    assert figures["nearest_held_out"]["accuracy"] > 0.9 > figures["baseline_held_out"]["accuracy"]
    run.ledger.close()
    module: dict[str, Any] = {}
    exec(CliRunner().invoke(cli, ["prompt", "r", "--ledger", "places.db", "--as", "python"]).stdout, module)
    for text in ("a gull on the pier", "an oven and a fern"):
        assert module["prompt"](text) == run.summary.prompt(text)
        given = CliRunner().invoke(cli, ["prompt", "r", "--ledger", "places.db", "--input", text]).stdout
        assert given.rstrip("\n") == run.summary.prompt(text)
    plain = CliRunner().invoke(cli, ["prompt", "r", "--ledger", "places.db"]).stdout
    assert "examples that are most like the input]" in plain


@pytest.mark.slow
def test_without_them_the_same_model_cannot_do_it(tmp_path: Path) -> None:
    config = PromptsConfig(task=str(places(tmp_path / "places.csv")), calls=200, by_input=False)
    run = study(config, make=lambda name: copying()).run("async:4")
    assert run.summary is not None and run.summary.figures["held_out"]["accuracy"] < 0.5


def test_an_example_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="'z', which is not among"):
        render(Genome(examples=("a", "z"), nearest=1), "text", SHOTS)


@pytest.mark.slow
def test_of_prompts_that_are_always_right_the_cheapest_wins(tmp_path: Path) -> None:
    topic = {word: place for place, words in TOPICS.items() for word in words.split()}

    def answer(name: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
        words = str(messages[-1]["content"]).split("\n\n")[-1].split()
        return next(topic[word] for word in words if word in topic)

    transport = SimulatedTransport(Simulator(SimulatorConfig(answer=answer)))
    knowing = replace(model("simulated/gpt-4o-mini"), connect=lambda: transport)
    config = PromptsConfig(task=str(places(tmp_path / "places.csv")), calls=300, model=("simulated/gpt-4o-mini",))
    run = study(config, make=lambda name: knowing).run("async:4")
    assert run.summary is not None and run.summary.figures["held_out"]["accuracy"] == 1.0
    tokens = {
        result.number: sum(outcome.data["tokens"] for outcome in result.outcomes.values()) / len(result.outcomes)
        for result in run.results()
        if result.complete
    }
    winner = msgspec.convert(run.summary.figures["winner"]["genome"], Genome)
    (number,) = [each.number for each in run.results() if genome_of(each) == winner]
    assert tokens[number] == min(tokens.values()) < max(tokens.values()) / 2
    run.ledger.close()
