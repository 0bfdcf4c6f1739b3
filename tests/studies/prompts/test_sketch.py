"""A sketch of the search space holds: choices are made, pinned parts stay, and no prompt that breaks a rule is sent."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.cli.trust import reached
from fanfold.errors import ConfigError
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.prompting.genome import SLOT, Genome
from fanfold.prompting.material import Material, Part, broken_rules, faults, mend
from fanfold.prompting.operators import CHOICES, OPERATORS
from fanfold.prompting.sketch import bank_of, sketch_of
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.simulated import solver, writer

PIN = "Never ask for a PIN. Be brief."
TEMPLATE = (
    "You are {choice: a clerk | a {formal} teller}. {pinned: " + PIN + "} Name the city. {choice: Think first. | }"
)


# -- the text ---------------------------------------------------------------------------------------------------------


def test_a_template_is_a_prompt_with_parts_that_are_chosen_or_pinned() -> None:
    genome, parts = sketch_of(TEMPLATE)
    assert genome.head() == f"You are a clerk. {PIN} Name the city. Think first."
    assert [part.wordings for part in parts] == [
        ("You are a clerk.", "You are a {formal} teller."),
        (PIN,),
        ("Think first.", ""),
    ]


def test_a_list_in_toml_is_a_choice() -> None:
    genome, parts = sketch_of(["Name the city.", ["Be brief.", "Take your time."], "{pinned: No JSON.}"])
    assert genome.head() == "Name the city. Be brief. No JSON."
    assert [part.wordings for part in parts] == [("Be brief.", "Take your time."), ("No JSON.",)]


@pytest.mark.parametrize(
    "text",
    [
        'Reply with {"choice": [1, 2], "pinned": true}.',
        "Text: {input}\nCity:",
        "Fill {name: x} in, or {a | b}.",
        'Use f"{value:.2f}".',
    ],
)
def test_other_braces_mean_themselves(text: str) -> None:
    genome, parts = sketch_of(text)
    assert genome == Genome.of(text) and parts == ()


def test_the_place_of_the_input_stays_outside_and_choices_may_stand_beside_it() -> None:
    genome, parts = sketch_of("Find it.\n{choice: Text | Sentence}: {input}\nCity:")
    assert [part.wordings for part in parts] == [("\nText: {input}\nCity:", "\nSentence: {input}\nCity:")]
    assert SLOT in genome.head()
    with pytest.raises(ConfigError, match="put that outside the mark"):
        sketch_of("{pinned: Text: {input}}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{choice: a | b", "not closed"),
        ("{choice: | }", "says nothing"),
        ("{choise: a | b}", "did you mean 'choice'"),
        ("{pined: a}", "did you mean 'pinned'"),
        ("{choice: a | b | c | d}" * 4, "more than 64 wordings"),
    ],
)
def test_a_mark_that_cannot_be_read_is_explained(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sketch_of(text)


def test_a_clause_bank_comes_from_a_table_a_toml_file_or_lines(tmp_path: Path) -> None:
    bank = {"role": ("You are a clerk.",), "instruction": ("Name the city.",)}
    (tmp_path / "a.txt").write_text("You are a clerk.\n\nName the city.\n")
    (tmp_path / "a.toml").write_text("[clauses]\nrole = ['You are a clerk.']\ninstruction = ['Name the city.']\n")
    assert bank_of(bank) == bank_of(str(tmp_path / "a.txt")) == bank_of(str(tmp_path / "a.toml")) == bank
    for wrong, said in (
        ({"rule": ["a"]}, "no section 'rule'; did you mean 'role'"),
        ({"role": "a"}, "must be a list"),
        ({}, "holds none"),
        ("nowhere.txt", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            bank_of(wrong)


# -- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_operator_breaks_a_rule_and_choices_are_made() -> None:
    words, parts = sketch_of(TEMPLATE)
    bank = {"instruction": ("Please answer.", "Say the city.", "Look closely."), "format": ("One word.",)}
    rules: dict[str, Any] = {"must": ("re:[Cc]ity",), "never": ("please",), "parts": parts}
    material = Material(bank, (("Text", "City"),), ("a", "b", "c"), 3, 40, words=words, **rules)
    rng = random.Random(0)
    seen = set()
    genome = mend(words, material)
    for _ in range(2000):
        name, operator = rng.choice([*OPERATORS.items(), *CHOICES.items()])
        genome = operator(genome, material, rng)
        assert not faults(genome, material), (name, genome)
        assert PIN in genome.head() and "please" not in genome.head().lower()
        seen.add(("You are a clerk" in genome.head(), "Think first." in genome.head()))
    assert len(seen) >= 3


def test_what_breaks_a_rule_is_named_and_mended_where_that_can_be() -> None:
    material = Material(
        {"format": ("Reply in JSON.",)},
        parts=(Part("instruction", (PIN,)),),
        must=("re:JSON|YAML", "Cite sources."),
        never=("re:(?i)chain of thought",),
    )
    genome = Genome(instruction=("Show your Chain of Thought.",))
    assert len(broken_rules(genome, material)) == 4
    mended = mend(genome, material)
    assert broken_rules(mended, material) == []
    assert mended.head() == f"{PIN} Reply in JSON. Cite sources."
    with pytest.raises(ConfigError, match="not a regular expression"):
        Material(must=("re:(",))
    with pytest.raises(ConfigError, match="alone have 7 words"):
        Material(most_words=5, parts=(Part("role", (PIN,)),))


# -- whole searches ---------------------------------------------------------------------------------------------------

SENT: list[str] = []
SIZES: dict[str, Any] = {"train": 12, "validation": 6, "held_out": 8, "model": ("simulated/gpt-6-luna",)}


def spy(name: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """The planted solver, and a writer that forgets what is pinned and says what must never be said."""
    text = str(messages[-1]["content"])
    if "You improve prompts" in text:
        assert f"Keep this word for word: {PIN}" in text and "It must never say: please" in text
        changed = writer(name, messages, params, rng)
        return re.sub(r"<prompt>\n", "<prompt>\nPlease be kind. ", changed.replace(PIN, ""))
    SENT.append(text)
    return solver(name, messages, params, rng)


def spied(name: str) -> Model:
    transport = SimulatedTransport(Simulator(SimulatorConfig(answer=spy)))
    return replace(model(name), connect=lambda: transport)


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [
        {"search": "guided"},
        {"search": "random"},
        {"search": "genetic"},
        {"search": "genetic", "writer": "simulated/gpt-6-sol"},
        {"search": "reflective", "writer": "simulated/gpt-6-sol"},
    ],
    ids=["guided", "random", "genetic", "genetic and writer", "reflective"],
)
@pytest.mark.parametrize("sketch", [{"template": TEMPLATE}, {"pinned": PIN}], ids=["template", "pinned"])
def test_every_prompt_that_is_sent_keeps_the_rules(search: dict[str, Any], sketch: dict[str, Any]) -> None:
    SENT.clear()
    config = PromptsConfig(task="city", trials=24, never="please", must="re:[Cc]ity|place", **SIZES, **search, **sketch)
    run = study(config, make=spied).run("async:8")
    heads = {text.split("\n\n")[0] for text in SENT}
    assert len(heads) > 3 and run.summary.figures["held_out"]["accuracy"] is not None
    for text in SENT:
        assert PIN in " ".join(text.split()) and "please" not in text.lower()
    if "template" in sketch:
        assert {"You are a clerk." in head for head in heads} == {True, False}
        assert {"Think first." in head for head in heads} == {True, False}


@pytest.mark.slow
def test_a_clause_bank_of_ones_own_replaces_the_built_in_one() -> None:
    SENT.clear()
    own = {"instruction": ("Which town?", "Find the town."), "format": ("Only its name.",)}
    config = PromptsConfig(task="city", clauses=own, seeds=("Which town?",), trials=16, **SIZES)
    study(config, make=spied).run("async:8")
    built_in = {clause for bank in study(config).evaluate.task.clauses.values() for clause in bank}
    assert not any(clause in text for text in SENT for clause in built_in)
    assert any("Find the town." in text for text in SENT)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"must": "re:XYZ"}, "no prompt can keep the rules: it must say 're:XYZ'"),
        ({"pinned": "Say please.", "never": "please"}, "no prompt can keep the rules: it must never say 'please'"),
        ({"template": "{choise: a | b}"}, "did you mean 'choice'"),
        ({"template": "@nowhere.txt"}, "template: nowhere.txt cannot be read"),
        ({"pinned": "a", "form": "words"}, "leave out form = words"),
        ({"pinned": "a b c", "max_words": 2}, "alone have 3 words"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused_before_the_first_call(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study(PromptsConfig(task="city", **SIZES, **settings))


def test_what_a_file_says_is_recorded_and_a_recorded_run_does_not_read_files_unasked(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    config = PromptsConfig(template=f"@{tmp_path / 'prompt.txt'}", grader="numeric:tolerance=1")
    assert config.template == TEMPLATE and config.grader == {"kind": "numeric", "tolerance": 1.0}
    (tmp_path / "pin.txt").write_text(f"\ufeff{PIN}", encoding="utf-8")  # as editors of Windows write it
    for pinned, text in ((f"@{tmp_path / 'pin.txt'}", PIN), ((f"@{tmp_path / 'pin.txt'}", "b"), (PIN, "b"))):
        assert PromptsConfig(pinned=pinned).pinned == text
    for fields in (
        {"template": "@/etc/hostname"},
        {"pinned": ["@/etc/hostname"]},
        {"grader": "json:schema=@/etc/hostname"},
    ):
        assert [*reached(tmp_path / "a.db", {"target": "prompts", "fields": fields})]
    assert not [*reached(tmp_path / "a.db", {"target": "prompts", "fields": {"never": ["re:please"]}})]


@pytest.mark.slow
def test_a_sketch_comes_from_the_shell_and_from_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    (tmp_path / "bank.txt").write_text("Which town?\n")
    (tmp_path / "a.toml").write_text(
        "study = 'prompts'\nmodel = ['simulated/gpt-6-luna']\ntrials = 6\nnever = ['please', 're:(?i)kindly']\n"
        f"template = ['Name the city.', ['Be brief.', 'Think.'], '{{pinned: {PIN}}}']\n"
        "[clauses]\nrole = ['You are a clerk.']\n"
    )
    flags = "prompts --model simulated/gpt-6-luna --trials 6 --template @prompt.txt --clauses bank.txt --never please"
    for target in (flags, "a.toml"):
        ran = CliRunner().invoke(cli, ["run", *target.split(), "--ledger", "a.db", "--run", target[:3]])
        assert ran.exit_code == 0, ran.output
        out = json.loads(CliRunner().invoke(cli, ["prompt", target[:3], "--ledger", "a.db", "--json"]).stdout)
        assert PIN in out["prompt"]
        again = CliRunner().invoke(cli, ["resume", target[:3], "--ledger", "a.db", "--max-trials", "8"])
        assert again.exit_code == 0, again.output
