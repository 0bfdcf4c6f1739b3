"""What a prompt in sections promises: text survives, input goes where it belongs, and differences can be told."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.prompting.genome import SECTIONS, Genome, difference, distance, render
from fanfold.strategies.reflective import ShownCase, Written

SHOTS = {"rome": ("We met in Rome.", "Rome"), "oslo": ("Oslo was cold.", "Oslo")}

PIECES = st.sampled_from(
    ["You are a poet.", "Name the city", "e.g. Rome", "Think step by step!", "Answer only in JSON:", '{"a": 1}', "A.",
     "1. Read", "\n", "\n\n", "- be short\n", "  ", "東京です。", "Really?", '"Stop."', "\t", "\r\n", "...",
     "no\u2028line", "{input}"]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=120), st.lists(PIECES, max_size=14).map(" ".join))
CLAUSES = st.lists(
    st.sampled_from(["Name the city.", "Be brief.", "\n- no JSON", "Think", "Text: {input}"]), max_size=4
)
GENOMES = st.builds(
    Genome,
    **{name: CLAUSES.map(tuple) for name in SECTIONS},
    examples=st.lists(st.sampled_from(["rome", "oslo", "lima"]), max_size=3, unique=True).map(tuple),
    labels=st.tuples(st.sampled_from(["Input", "Q:", ""]), st.sampled_from(["Output", "A", ""])),
)


@pytest.mark.slow
@settings(max_examples=500)
@given(TEXTS)
@example("")
@example("\n\n \n")
@example("Dr. Who asks: name it. Now.")
def test_the_text_of_a_plain_prompt_survives_up_to_white_space(text: str) -> None:
    genome = Genome.of(text)
    assert genome.head().split() == text.split()
    assert Genome.of(genome.head()).head() == genome.head()
    assert genome.words == len(text.split())


@pytest.mark.slow
@given(TEXTS.filter(lambda text: "{input}" in text), st.text(max_size=30))
def test_a_prompt_with_a_slot_is_filled_as_its_text_would_be(text: str, said: str) -> None:
    assert render(Genome.of(text), said, {}).split() == text.replace("{input}", said).split()


def test_lines_stay_lines_and_sentences_become_clauses() -> None:
    text = "Name the city. Be brief.\n- no JSON\n\nNow go on"
    genome = Genome.of(text)
    assert genome.instruction == ("Name the city.", "Be brief.", "\n- no JSON", "\n\nNow go on")
    assert genome.head() == text


def test_a_prompt_is_put_into_its_sections() -> None:
    genome = Genome.of("You are a geographer. Name the city. Let's think step by step. Answer with one word.")
    assert genome == Genome(
        ("You are a geographer.",), ("Name the city.",), ("Let's think step by step.",), ("Answer with one word.",)
    )
    assert Genome.of("Name it. You are a poet.").instruction == ("Name it.", "You are a poet.")


def test_abbreviations_and_numbering_end_no_clause() -> None:
    assert Genome.of("Name a city, e.g. Rome, or vs. Oslo.").clauses == ("Name a city, e.g. Rome, or vs. Oslo.",)
    assert Genome.of("1. Read it.\n2. Name it.").clauses == ("1. Read it.", "\n2. Name it.")


def test_clauses_that_end_without_a_mark_are_kept_apart() -> None:
    assert (
        Genome(instruction=("Name the city", "Be brief", "Go.", "Now.")).head() == "Name the city\nBe brief\nGo. Now."
    )


def test_a_prompt_is_head_examples_and_the_labelled_input() -> None:
    genome = Genome(instruction=("Name the city.",), examples=("oslo", "rome"), labels=("Text", "City"))
    assert render(genome, "I like Lima.", SHOTS) == (
        "Name the city.\n\nText: Oslo was cold.\nCity: Oslo\n\nText: We met in Rome.\nCity: Rome\n\n"
        "Text: I like Lima.\nCity:"
    )


def test_a_prompt_without_words_still_has_its_labels() -> None:
    assert render(Genome(), "Lima", {}) == "Input: Lima\nOutput:"


def test_labels_that_bring_their_own_mark_or_nothing_get_no_colon() -> None:
    assert render(Genome(labels=("Q:", "=>")), "Lima", {}) == "Q: Lima\n=>"
    assert render(Genome(labels=("", "")), "Lima", {}) == "Lima"
    assert (
        render(Genome(labels=("", "="), examples=("rome",)), "1 + 1", {"rome": ("2 + 2", "4")})
        == "2 + 2\n= 4\n\n1 + 1\n="
    )


def test_examples_stand_before_the_slot_and_share_its_labels() -> None:
    genome = Genome.of("Name the city.\n\nText: {input}\nCity:")
    assert genome.labels == ("Text", "City") and len(genome.format) == 1
    shown = Genome(genome.role, genome.instruction, (), genome.format, ("rome",), genome.labels)
    assert render(shown, "Lima.", SHOTS) == "Name the city.\n\nText: We met in Rome.\nCity: Rome\n\nText: Lima.\nCity:"
    assert Genome.of("Text: {input}\nCity:", ("A", "B")).labels == ("A", "B")


def test_an_input_that_looks_like_a_slot_is_not_filled_again() -> None:
    assert render(Genome.of("Echo {input} now."), "{input}{input}", {}) == "Echo {input}{input} now."
    assert render(Genome(), "{input}", {}) == "Input: {input}\nOutput:"
    assert render(Genome(instruction=('Say {"x": {y}}.',)), "a", {}).startswith('Say {"x": {y}}.')


def test_white_space_of_the_input_is_its_own() -> None:
    assert render(Genome(), "  def f():\n    pass  ", {}) == "Input:   def f():\n    pass  \nOutput:"


def test_an_example_that_may_not_be_shown_is_named() -> None:
    with pytest.raises(ConfigError, match="'lima', which is not among"):
        render(Genome(examples=("lima",)), "x", SHOTS)


@pytest.mark.parametrize(
    "fields",
    [{"instruction": "Name the city."}, {"examples": ["a"]}, {"labels": ("a",)}, {"cue": ("  ",)}, {"role": (1,)}],
)
def test_what_is_no_prompt_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Genome(**fields)  # type: ignore[arg-type]


def test_what_a_model_cannot_write_is_refused() -> None:
    with pytest.raises(ConfigError, match="known: paraphrase"):
        Written("improve", (Genome(),))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="more parents than 1"):
        Written("combine", (Genome(),))


@pytest.mark.slow
@given(GENOMES, GENOMES)
def test_candidates_come_back_from_a_ledger_as_they_were(a: Genome, b: Genome) -> None:
    written = Written("combine", (a, b), (ShownCase("i", "e", "s"),), 3)
    assert msgspec.convert(decode(encode(a)), Genome) == a
    assert msgspec.convert(decode(encode(written)), Written[Genome]) == written
    assert hash(a) == hash(msgspec.convert(decode(encode(a)), Genome))


@pytest.mark.slow
@given(GENOMES, GENOMES)
def test_distance_is_symmetric_within_bounds_and_nothing_to_oneself(a: Genome, b: Genome) -> None:
    assert distance(a, a) == 0
    assert 0 <= distance(a, b) == distance(b, a) <= 1


def test_distance_sees_words_examples_order_and_labels() -> None:
    base = Genome(instruction=("Name the city.",), examples=("rome", "oslo"))
    other = Genome(instruction=("Be brief",), examples=("lima",), labels=("Text", "City"))
    assert distance(base, other) == 1
    turned = Genome(instruction=("Name the city.",), examples=("oslo", "rome"))
    one_word = Genome(instruction=("Name the town.",), examples=("rome", "oslo"))
    two_words = Genome(instruction=("Name a town.",), examples=("rome", "oslo"))
    assert 0 < distance(base, turned) < distance(base, one_word) < distance(base, two_words) < 1
    moved = Genome(cue=("Name the city.",), examples=("rome", "oslo"))
    assert distance(base, moved) == 0, "a model reads the same text"


def test_the_difference_of_two_prompts_is_a_diff_by_clauses() -> None:
    a = Genome(instruction=("Name the city.", "Be brief."), examples=("rome",))
    b = Genome(instruction=("Name the city.", "Be clear."), examples=("rome", "oslo"), labels=("Text", "City"))
    lines = difference(a, b).splitlines()
    assert lines[:2] == ["--- before", "+++ after"]
    assert {"-Be brief.", "+Be clear.", "-[labels] Input / Output", "+[labels] Text / City", "+[example] oslo"} <= set(
        lines
    )
    assert " Name the city." in lines and difference(a, a) == ""
