"""What the operators promise: whatever they are given, a prompt that keeps to the limits, and sense where there was."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.prompting import synonyms, wording
from fanfold.prompting.genome import SECTIONS, SLOT, Genome
from fanfold.prompting.material import MOST_COPIES, Material, faults, mend
from fanfold.prompting.operators import OPERATORS, crossover

WORDS = re.findall(
    r"\S+",
    "Name the city mentioned in a text and answer with only one careful word, please. do not explain Think step by step"
    ' an expert {input} {x} "yes" 42 JSON: - I’m A über 東京 Output OUTPUT the the read check it\'s e.g. (or) ... !',
)
IDS = ("e1", "e2", "e3", "e4", "e5")


def some_clause(rng: Random) -> str:
    return rng.choice(("", "", "", "\n", "\n\n")) + " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))


def some_section(rng: Random) -> tuple[str, ...]:
    clauses = [some_clause(rng) for _ in range(rng.choice((0, 1, 1, 2, 4)))]
    return tuple(rng.choice(clauses) if rng.random() < 0.3 else clause for clause in clauses)


def some_labels(rng: Random) -> tuple[str, str]:
    return rng.choice(("Input", "Text", "")), rng.choice(("Output", "City", ""))


def some_genome(seed: int) -> Genome:
    """Any prompt, proper or not: too long, examples unknown or twice, several slots, clauses repeated."""
    rng = Random(seed)
    sections: dict[str, Any] = {name: some_section(rng) for name in SECTIONS}
    if rng.random() < 0.15:
        sections = dict.fromkeys(SECTIONS, rng.choice(((), ("Say it.", "Say it."))))
    examples = tuple(rng.choices((*IDS, "unknown"), k=rng.randint(0, 6)))
    return Genome(**sections, examples=examples, labels=some_labels(rng))


def some_material(seed: int) -> Material:
    rng = Random(seed)
    return Material(
        clauses={name: some_section(rng) for name in rng.sample(SECTIONS, rng.randint(0, 4))},
        labels=tuple(some_labels(rng) for _ in range(rng.randint(0, 3))),
        examples=tuple(rng.sample(IDS, rng.randint(0, 5))),
        most_examples=rng.randint(0, 5),
        most_words=rng.choice((1, 3, 10, 30, 80)),
    )


SEEDS = st.integers(0, 2**32)
GENOMES = SEEDS.map(some_genome)
MATERIALS = SEEDS.map(some_material)

MATERIAL = Material(
    clauses={
        "role": ("You are a careful geographer.", "You are a helpful assistant."),
        "instruction": ("Name the city mentioned in the sentence.", "Find the city."),
        "cue": ("Think step by step.",),
        "format": ("Output only the city.", "Answer with one word.", "Do not explain."),
    },
    labels=(("Sentence", "City"), ("Text", "Answer")),
    examples=IDS,
)
GENOME = Genome(
    role=("You are an expert.",),
    instruction=("Read the text carefully and name the city.", "Do not guess."),
    cue=("Think about it.",),
    format=("Answer in one word only.",),
    examples=("e1", "e2", "e3"),
)


def proper(genome: Genome, material: Material) -> None:
    """The limits, written down a second time and not by `faults`."""
    head = genome.head().split()
    assert len(head) <= material.most_words
    assert len(genome.examples) <= material.most_examples
    assert len(set(genome.examples)) == len(genome.examples) and set(genome.examples) <= set(material.examples)
    assert all(count <= MOST_COPIES for count in Counter(clause.strip() for clause in genome.clauses).values())
    assert sum(SLOT in clause for clause in genome.clauses) <= 1
    assert head or any(genome.labels)
    assert all(clause.strip() for clause in genome.clauses)


# -- every operator ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=250)
@given(GENOMES, MATERIALS, SEEDS)
def test_every_operator_gives_a_proper_prompt_whatever_it_is_given(
    genome: Genome, material: Material, seed: int
) -> None:
    for number, operator in enumerate(OPERATORS.values()):
        changed = operator(genome, material, Random(seed + number))
        proper(changed, material)
        assert not faults(changed, material)
        assert changed == operator(genome, material, Random(seed + number)), "the same luck gives the same prompt"


@pytest.mark.slow
@settings(max_examples=150)
@given(GENOMES, MATERIALS, SEEDS)
def test_long_chains_of_operators_and_crossovers_stay_proper(genome: Genome, material: Material, seed: int) -> None:
    rng = Random(seed)
    here = other = mend(genome, material)
    for _ in range(20):
        here = OPERATORS[rng.choice(list(OPERATORS))](crossover(here, other, rng), material, rng)
        other = OPERATORS[rng.choice(list(OPERATORS))](other, material, rng)
        proper(here, material)


@pytest.mark.slow
@settings(max_examples=200)
@given(GENOMES, MATERIALS)
def test_a_proper_prompt_is_not_mended_and_an_improper_one_is(genome: Genome, material: Material) -> None:
    mended = mend(genome, material)
    proper(mended, material)
    assert mend(mended, material) is mended
    assert (mended == genome) == (not faults(genome, material))


def test_an_operator_that_cannot_apply_gives_its_prompt_back() -> None:
    for operator in OPERATORS.values():
        assert operator(Genome(), Material(), Random(0)) == Genome()
    full = replace(GENOME, examples=("e1", "e2", "e3", "e4"))
    assert OPERATORS["example add"](full, MATERIAL, Random(0)) == full
    tight = replace(MATERIAL, most_words=GENOME.words)
    assert OPERATORS["clause insert"](GENOME, tight, Random(0)) == GENOME


@pytest.mark.parametrize("name", list(OPERATORS))
def test_an_operator_that_can_apply_does(name: str) -> None:
    changed = {OPERATORS[name](GENOME, MATERIAL, Random(seed)) for seed in range(40)} - {GENOME}
    assert changed
    for genome in changed:
        assert (genome.examples != GENOME.examples) == name.startswith("example")
        assert (genome.labels != GENOME.labels) == name.startswith("labels")
        assert (genome.clauses != GENOME.clauses) == name.startswith(("clause", "section", "word"))


def changes(name: str, genome: Genome = GENOME) -> list[Genome]:
    made = [OPERATORS[name](genome, MATERIAL, Random(seed)) for seed in range(60)]
    return [changed for changed in made if changed != genome]


def test_clauses_are_inserted_from_the_bank_of_their_section() -> None:
    for changed in changes("clause insert"):
        (new,) = Counter(changed.clauses) - Counter(GENOME.clauses)
        (section,) = [name for name in SECTIONS if getattr(changed, name) != getattr(GENOME, name)]
        assert new in MATERIAL.clauses[section]
    said = replace(GENOME, format=("Output only the city.", "Answer with one word."))
    added = {clause for changed in changes("clause insert", said) for clause in changed.format}
    assert max(Counter(changed.clauses).most_common(1)[0][1] for changed in changes("clause insert", said)) == 1
    assert "Do not explain." in added


def test_clauses_are_deleted_duplicated_replaced_one_at_a_time() -> None:
    before = Counter(GENOME.clauses)
    for changed in changes("clause delete"):
        assert (before - Counter(changed.clauses)).total() == 1 and not Counter(changed.clauses) - before
    for changed in changes("clause duplicate"):
        assert Counter(changed.clauses) - before and len(changed.clauses) == len(GENOME.clauses) + 1
        assert set(changed.clauses) == set(GENOME.clauses)
    for changed in changes("clause replace"):
        assert (before - Counter(changed.clauses)).total() == (Counter(changed.clauses) - before).total() == 1


def test_clauses_that_move_are_neither_lost_nor_changed() -> None:
    for name in ("clause swap", "clause reorder"):
        assert changes(name)
        assert all(Counter(changed.clauses) == Counter(GENOME.clauses) for changed in changes(name))
    for changed in changes("clause reorder"):
        assert all(Counter(getattr(changed, name)) == Counter(getattr(GENOME, name)) for name in SECTIONS)


def test_a_transplant_exchanges_one_section_for_clauses_of_the_bank() -> None:
    for changed in changes("section transplant"):
        (section,) = [name for name in SECTIONS if getattr(changed, name) != getattr(GENOME, name)]
        assert set(getattr(changed, section)) <= set(MATERIAL.clauses[section])


def test_examples_are_added_dropped_swapped_and_reordered() -> None:
    before = Counter(GENOME.examples)
    for name, more, less in (("add", 1, 0), ("drop", 0, 1), ("swap", 1, 1), ("reorder", 0, 0)):
        for changed in changes(f"example {name}"):
            after = Counter(changed.examples)
            assert ((after - before).total(), (before - after).total()) == (more, less)
    added = {changed.examples.index("e4") for changed in changes("example add") if "e4" in changed.examples}
    assert added == {0, 1, 2, 3}, "an example can be added in every place"


@pytest.mark.slow
@settings(max_examples=150)
@given(SEEDS)
def test_the_clause_that_takes_the_input_is_left_alone_and_stays_last(seed: int) -> None:
    rng = Random(seed)
    slotted = Genome.of("Name the city. Be brief. Use one word.\nText: {input}\nCity:")
    here = slotted
    for _ in range(25):
        here = OPERATORS[rng.choice(list(OPERATORS))](here, MATERIAL, rng)
        here = crossover(here, slotted, rng) if rng.random() < 0.3 else here
        assert here.clauses[-1] == "\nText: {input}\nCity:" and here.labels == ("Text", "City")


def test_mending_keeps_the_slot_and_drops_the_rest_first() -> None:
    long = Genome(instruction=("word " * 30, "Text: {input}"), cue=("more " * 9, "one two"))
    mended = mend(long, Material(most_words=5))
    assert mended.clauses == ("Text: {input}",)
    assert mend(long, Material(most_words=16)).clauses == ("Text: {input}", "more " * 9, "one two")
    assert mend(Genome(cue=("one two three",)), Material(most_words=2)).head() == "one two"
    assert mend(Genome(labels=("", "")), Material(labels=(("", ""), ("Text", "City")))).labels == ("Text", "City")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clauses": {"instructions": ("x",)}}, "did you mean 'instruction'"),
        ({"clauses": {"cue": "Think."}}, "tuple of texts"),
        ({"clauses": {"cue": (" ",)}}, "say something"),
        ({"labels": ("Text", "City")}, "pairs"),
        ({"examples": ("a", "a")}, "each once"),
        ({"most_words": 0}, "room"),
    ],
)
def test_material_that_cannot_be_used_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Material(**fields)


# -- crossover --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=200)
@given(GENOMES, GENOMES, MATERIALS, SEEDS)
def test_a_child_of_proper_parents_is_proper_and_made_of_them(
    a: Genome, b: Genome, material: Material, seed: int
) -> None:
    a, b = mend(a, material), mend(b, material)
    child = crossover(a, b, Random(seed))
    proper(child, material)
    assert child == crossover(a, b, Random(seed))
    assert child.labels in (a.labels, b.labels), "labels are a pair of one parent"
    assert set(child.examples) <= {*a.examples, *b.examples}
    known = {word.strip(".!?:;,…").lower() for parent in (a, b) for word in parent.head().split()}
    assert {word.strip(".!?:;,…").lower() for word in child.head().split()} <= known


@pytest.mark.slow
@given(GENOMES, SEEDS)
def test_a_prompt_crossed_with_itself_is_itself(genome: Genome, seed: int) -> None:
    bare = mend(genome, Material(examples=IDS, most_words=500, most_examples=9))
    if not any(SLOT in clause for clause in bare.clauses):
        assert crossover(bare, bare, Random(seed)) == bare


def test_children_take_from_both_parents_at_clause_boundaries_and_inside_single_clauses() -> None:
    a = Genome(role=("You are an expert.",), instruction=("One.", "Two.", "Three."), examples=("e1", "e2"))
    b = Genome(
        role=("You are a poet.",), instruction=("Red.", "Green.", "Blue."), examples=("e3", "e4"), labels=("T", "C")
    )
    children = [crossover(a, b, Random(seed)) for seed in range(300)]
    sections = {child.instruction for child in children}
    assert {a.instruction, b.instruction, ("One.", "Green.", "Blue."), ("One.", "Green.", "Three.")} <= sections
    assert all(len(section) == 3 for section in sections), "aligned cuts keep the length of equal sections"
    assert {child.examples for child in children} >= {("e1", "e2"), ("e3", "e4"), ("e1", "e4"), ("e3", "e2")}
    assert {child.labels for child in children} == {a.labels, b.labels}
    few = replace(a, examples=("e5",))
    many = [
        len(crossover(replace(b, examples=("e1", "e2", "e3", "e4")), few, Random(seed)).examples) for seed in range(500)
    ]
    assert max(many) == 4 and min(many) == 1
    inside = {
        wording.blend("Read the text and name it.", "Find the city in the text!", Random(seed)) for seed in range(9)
    }
    assert inside == {"Read the text!"}
    assert wording.blend("One two.", "Three four.", Random(0)) is None


# -- words ------------------------------------------------------------------------------------------------------------


def test_the_table_of_synonyms_is_large_and_each_entry_has_one_meaning() -> None:
    groups = [
        [entry.strip() for entry in line.split("/")]
        for kind in (synonyms.VERBS, synonyms.NOUNS, synonyms.ADJECTIVES, synonyms.OTHERS)
        for line in kind.strip().splitlines()
    ]
    assert len(groups) >= 150
    assert all(len(group) == len(set(group)) >= 2 for group in groups)
    for kinds in ((synonyms.VERBS, synonyms.OTHERS), (synonyms.NOUNS, synonyms.ADJECTIVES, synonyms.OTHERS)):
        entries = [entry.strip() for entry in re.split("[/\n]", "\n".join(kinds)) if entry.strip()]
        assert [entry for entry, count in Counter(entries).items() if count > 1] == []
    single = {word for group in groups for word in group}
    assert not single & {"yes", "no", "true", "false", "positive", "negative", "not", "never"}


def reached(clause: str, steps: int = 400) -> set[str]:
    """Every wording that a long chain of substitutions meets."""
    rng, found = Random(0), {clause}
    for _ in range(steps):
        clause = wording.edited(clause, wording.substitute, rng) or clause
        found.add(clause)
    return found


def test_substitution_never_leaves_the_meaning() -> None:
    thinks, steps = ("Think", "Reason"), ("step by step", "one step at a time", "stage by stage")
    assert reached("Think step by step.") == {f"{think} {step}." for think in thinks for step in steps}
    assert reached("Answer the question.") == {"Answer the question.", "Answer the query."}
    assert reached("You are an expert.") == {
        f"You are {who}." for who in ("an expert", "a specialist", "a professional")
    }


@pytest.mark.parametrize(
    "clause",
    ["The name of it.", "You answer it.", 'Say "answer with" now.', "the {answer} is 42", "Paris, Rome; Oslo!", "...",
     "I", "Reply the same.", "Correct it."],
)  # fmt: skip
def test_words_are_left_alone_where_a_synonym_would_not_fit(clause: str) -> None:
    assert wording.edited(clause, wording.substitute, Random(0)) is None


@pytest.mark.parametrize(
    ("clause", "other"),
    [
        ("OUTPUT it.", "PRINT it."),
        ("Check it, then go.", "Verify it, then go."),
        ("Give a short answer.", "Give a brief answer."),
        ("Give a short reply: now", "Give a short response: now"),
        ("This is an example, see.", "This is an instance, see."),
        ("An exact answer.", "A precise answer."),
        ("\nFirst read it", "\nFirst go through it"),
        ("Please name it and check it", "Kindly name it and check it"),
        ("Don’t guess", "Do not guess"),
    ],
)
def test_case_articles_marks_and_lines_are_kept(clause: str, other: str) -> None:
    assert other in {wording.edited(clause, wording.substitute, Random(seed)) for seed in range(80)}


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.sampled_from([word for word in WORDS if word.isalpha()]), min_size=1, max_size=12), SEEDS)
def test_word_edits_leave_the_first_capital_the_mark_and_the_sense_of_no(words: list[str], seed: int) -> None:
    clause = f"\nRead {' '.join(words)}!"
    for name, edit in wording.EDITS.items():
        changed = wording.edited(clause, edit, Random(seed))
        if changed is None:
            continue
        assert changed != clause and changed.startswith("\n") and changed.endswith("!")
        assert changed[1] == changed[1].upper()
        before, after = (Counter(text.lower().strip("\n!").split()) for text in (clause, changed))
        gained, lost = (after - before).total(), (before - after).total()
        assert (
            name == "substitute"
            or (gained, lost) == {"insert": (1, 0), "delete": (0, 1), "swap": (0, 0), "duplicate": (1, 0)}[name]
        )
        assert name in ("substitute", "duplicate") or after["not"] == before["not"]


def test_a_negation_is_never_deleted() -> None:
    made = {wording.edited("Do not ever guess.", wording.delete, Random(seed)) for seed in range(50)}
    assert made == {"Do not guess.", "Do not ever."}
    assert wording.edited("Never.", wording.delete, Random(0)) is None


def test_numbers_quotes_and_slots_stay_where_they_are() -> None:
    clause = 'Give 3 words from "a b" as {x}: [y]'
    for edit in (wording.delete, wording.swap, wording.duplicate, wording.substitute):
        for seed in range(30):
            changed = wording.edited(clause, edit, Random(seed)) or clause
            assert [word for word in changed.split() if not word.isalpha()] == ["3", '"a', 'b"', "{x}:", "[y]"]


def test_modifiers_go_before_verbs_that_have_none_and_words_are_not_said_three_times() -> None:
    made = {wording.edited("Read the text and name it.", wording.insert, Random(seed)) for seed in range(200)}
    assert "Carefully read the text and name it." in made and "Read the text and briefly name it." in made
    assert len(made) == 2 * len(synonyms.MODIFIERS)
    assert wording.edited("Please read it.", wording.insert, Random(0)) is None
    assert wording.edited("The text was long.", wording.insert, Random(0)) is None
    assert wording.edited("Very very", wording.duplicate, Random(0)) is None
    assert wording.edited("Several\nlines here", wording.swap, Random(0)) is None


@pytest.mark.parametrize(
    ("word", "before"),
    [("hour", "an"), ("useful", "a"), ("unbiased", "an"), ("one", "a"), ("Expert", "an"), ("plain", "a"), ("", "a")],
)
def test_articles(word: str, before: str) -> None:
    assert synonyms.article(word) == before
