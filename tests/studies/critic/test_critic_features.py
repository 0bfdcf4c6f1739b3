"""What the critic sees: a fixed number of bounded numbers, the same on every machine, linear where it must be."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.prompting.genome import Genome
from fanfold.studies.critic.features import CUES, NAMES, SHAPE, combined, cues, features, shape, situation, style

PROMPT = Genome(("You help.",), ("Be kind.",), (), ("Answer in bullet points.",))
STEPS = "1. Boil water.\n2. Add the leaves.\n3. Wait."


@pytest.mark.slow
@given(st.text(max_size=300), st.text(max_size=300))
def test_any_texts_give_so_many_finite_numbers_of_moderate_size(query: str, response: str) -> None:
    numbers = features(PROMPT, query, response)
    assert len(numbers) == len(NAMES) == len(set(NAMES))
    assert all(math.isfinite(number) and abs(number) <= 30 for number in numbers)


def test_there_are_few_enough_for_quick_updates() -> None:
    assert len(NAMES) < 180


def test_the_shape_tells_steps_from_bullets_from_prose() -> None:
    looks = {name: dict(zip(SHAPE, shape("How do I make tea?", text))) for name, text in {
        "steps": STEPS, "bullets": "- green\n- black", "prose": "Tea is nice. It is warm."}.items()}  # fmt: skip
    assert [looks[name]["steps"] for name in looks] == [1.0, 0.0, 0.0]
    assert [looks[name]["bullets"] for name in looks] == [0.0, 1.0, 0.0]
    assert [looks[name]["prose"] for name in looks] == [0.0, 0.0, 1.0]


def test_cues_tell_kinds_of_questions_apart() -> None:
    def kinds(query: str) -> set[str]:
        return {name for name, value in zip(CUES, cues(query)) if value}

    assert {"how to", "question"} <= kinds("How do I bake bread?")
    assert {"compare"} <= kinds("Tea versus coffee")
    assert {"feel", "personal"} <= kinds("I feel lonely.")
    assert "write" not in kinds("What is a mortgage?")
    assert kinds("Bread") == set()


def test_an_unclosed_or_deep_json_is_no_error() -> None:
    assert features(PROMPT, "q", "[" * 5000)
    assert dict(zip(SHAPE, shape("q", '{"a": 1}')))["json"] == 1.0


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([STEPS, "Yes.", "- a\n- b!", "Perhaps not, because it depends."]), min_size=1, max_size=5)
)
def test_the_mean_style_stands_for_all_responses(responses: list[str]) -> None:
    query = "How do I make tea?"
    styles = [style(query, response) for response in responses]
    mean = [sum(column) / len(styles) for column in zip(*styles)]
    each = [features(PROMPT, query, response) for response in responses]
    expected = [sum(column) / len(each) for column in zip(*each)]
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(combined(PROMPT, situation(query), mean), expected))


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    code = (
        "import json; from fanfold.studies.critic.features import features; "
        "from fanfold.prompting.genome import Genome; "
        f"print(json.dumps(features(Genome(('You help.',), ('Be kind.',)), 'How do I make tea?', {STEPS!r})))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert json.loads(told[0]) == features(Genome(("You help.",), ("Be kind.",)), "How do I make tea?", STEPS)
