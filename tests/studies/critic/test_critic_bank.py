"""What the study's prompts are made of: the user's own words, a bank that was asked for, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.prompting.genome import Genome
from fanfold.prompting.material import faults
from fanfold.studies.critic.bank import (
    BUILT_IN,
    NO_LABELS,
    breeder_of,
    clauses_of,
    diversity,
    first_prompts,
    former_prompt,
    material_of,
    prompt_of,
    system_prompt,
)
from fanfold.studies.critic.config import CriticConfig
from fanfold.studies.critic.opening import texts_of

OWN = ("You help bank customers. Never ask for a PIN. Answer in one sentence.", "You are a bank clerk. Be warm.")


def words(text: str) -> set[str]:
    return {word.strip(".,").casefold() for word in text.split()}


def test_the_clauses_are_those_of_the_prompts_unless_a_bank_is_asked_for(tmp_path: Path) -> None:
    own = {clause for section in material_of(OWN).clauses.values() for clause in section}
    assert own == {clause for text in OWN for clause in clauses_of(prompt_of(text))}
    assert material_of(OWN, "builtin").clauses == material_of(()).clauses
    lines, table = tmp_path / "bank.txt", tmp_path / "bank.toml"
    lines.write_text("You are a clerk.\nBe kind.\n\n")
    table.write_text('instruction = ["Be kind."]')
    assert material_of(OWN, str(lines)).clauses["instruction"] == ("Be kind.",)
    assert material_of(OWN, str(table)).clauses == {"instruction": ("Be kind.",)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("none.txt", None, "none.txt cannot be read"), ("none.toml", None, "there is no file"),
     ("odd.toml", 'rôle = ["Be kind."]', "not valid TOML"), ("odd.toml", 'rule = ["Be kind."]', "no section 'rule'"),
     ("odd.toml", 'role = "Be kind."', "must be a list of texts")],
)  # fmt: skip
def test_a_bank_that_cannot_be_used_is_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        material_of(OWN, str(tmp_path / name))


def test_the_first_prompts_are_the_given_ones_and_then_variations_of_them() -> None:
    prompts = first_prompts(10, OWN, material_of(OWN), random.Random(1))
    assert [prompt.text for prompt in prompts[:2]] == list(OWN)
    assert len({prompt.text for prompt in prompts}) == 10
    built_in = {clause for section in material_of(()).clauses.values() for clause in section}
    assert not any(clauses_of(prompt) & built_in for prompt in prompts)


def test_a_prompt_that_allows_few_variations_makes_a_small_population_of_different_ones() -> None:
    prompts = first_prompts(40, ("Hm.",), material_of(("Hm.",)), random.Random(1))
    assert 1 <= len(prompts) < 40 and len({prompt.text for prompt in prompts}) == len(prompts)


@given(st.integers(0, 10**9))
def test_every_composed_prompt_and_every_child_says_something_and_has_no_labels(seed: int) -> None:
    rng, material = random.Random(seed), material_of(())
    prompts = first_prompts(4, (), material, rng)
    assert all(prompt.text and prompt.labels == NO_LABELS and not faults(prompt, material) for prompt in prompts)
    assert len(prompts) == 4 and breeder_of(material).sample(rng).candidate


@given(st.lists(st.sampled_from(["Be brief.", "Why not?", "Use lists", "No: never!"]), min_size=1, max_size=6))
def test_a_plain_prompt_keeps_its_words(parts: list[str]) -> None:
    text = "\n".join(parts)
    assert prompt_of(text).text.split() == text.split()


def test_the_pinned_part_comes_first_and_is_not_part_of_what_evolves() -> None:
    assert system_prompt(prompt_of("Be kind."), " Never ask for a PIN. ") == "Never ask for a PIN.\nBe kind."
    assert system_prompt(Genome(labels=NO_LABELS), "Never.") == "Never." and system_prompt(prompt_of("Hi.")) == "Hi."


def test_a_prompt_of_the_first_version_keeps_its_text() -> None:
    sections = {
        "system_role": ["You help.", "You are kind."], "tone": ["Be warm."], "constraints": [],
        "examples": ["Q: Why? A: So.", "Q: Who? A: Me."], "format": ["Use lists.", "Sum up."],
    }  # fmt: skip
    text = "You help. You are kind.\nBe warm.\nQ: Why? A: So.\nQ: Who? A: Me.\nUse lists. Sum up."
    assert former_prompt(sections).text == text
    assert former_prompt({**sections, "system_role": []}).text == text.partition("\n")[2]


def test_diversity_falls_when_prompts_become_alike() -> None:
    prompts = first_prompts(6, (), material_of(()), random.Random(3))
    assert diversity(prompts) > diversity([prompts[0]] * 3 + prompts[3:]) > diversity([prompts[0]] * 6) == 0.0


def test_the_built_in_bank_has_no_clause_twice() -> None:
    clauses = [clause for section in material_of((), "builtin").clauses.values() for clause in section]
    assert len(set(clauses)) == len(clauses) and BUILT_IN.name == "clauses.toml"


def test_a_prompt_may_be_a_file_and_its_mere_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brief.txt").write_text("\ufeffBe brief.\nAlways.\n", encoding="utf-8")
    (tmp_path / "none.txt").write_text("\n")
    long = f"@ {120 * '回'}", f"{90 * '答'}1.5{90 * '短'}"  # more bytes than the name of a file may have
    assert CriticConfig(prompts=long).prompts == long
    config = CriticConfig(prompts=("@brief.txt", "@you there, be warm.", "No.5"), pinned="@brief.txt")
    assert config.prompts == ("Be brief.\nAlways.", "@you there, be warm.", "No.5")
    assert config.pinned == "Be brief.\nAlways."
    assert texts_of(["@brief.txt"]) == ["Be brief.\nAlways."]
    for prompt, words in (
        ("brief.txt", "write @brief.txt"),
        ("@nowhere.txt", "cannot be read"),
        ("@none.txt", "empty"),
    ):
        with pytest.raises(ConfigError, match=words):
            CriticConfig(prompts=(prompt,))
