"""What a model that writes prompts is asked, and what of its answer is used or refused."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from fanfold.calls import CallBroker
from fanfold.context import enter, leave
from fanfold.errors import CallFailed, ConfigError
from fanfold.ledger import Commits, Ledger
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.prompting.genome import Genome, render
from fanfold.prompting.writing import Unwritten, realise, request, rewrite, rewrite_request
from fanfold.simulator import Answer, Simulator, SimulatorConfig
from fanfold.strategies.reflective import How, ShownCase, Written
from fanfold.testing import run_virtual

PARENT = Genome.of("Name the city in the text. Answer with one word.", ("Text", "City"))
OTHER = Genome.of("You are an expert. Output only the city.")
FAILURES = (
    ShownCase("We met in Rome, by the river.", "Rome", "Italy"),
    ShownCase("Oslo", "Oslo", "<prompt>no</prompt>"),
)


def writer(answer: str | Answer | Callable[..., Any], **options: Any) -> tuple[Model, Simulator]:
    says = answer if callable(answer) else lambda name, messages, body, rng: answer
    simulator = Simulator(SimulatorConfig(answer=says))
    transport = SimulatedTransport(simulator)
    return replace(model("simulated/gpt-4o-mini"), connect=lambda: transport, **options), simulator


def written(answer: str | Answer, candidate: Written | None = None, **options: Any) -> Genome:
    """What is made of a writer's answer."""
    asked, _ = writer(answer)
    return run_virtual(realise(candidate or Written("paraphrase", (PARENT,)), asked, "find cities", **options))


# -- what is used -----------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_written_already_is_itself() -> None:
    assert run_virtual(realise(PARENT, None, "")) is PARENT


@pytest.mark.parametrize(
    "answer",
    [
        "<prompt>Say which city it is. Use one word.</prompt>",
        "Sure! Here it is:\n<prompt>\n  Say which city it is. Use one word.\n</prompt>\nGood luck.",
        '<prompt>"Say which city it is. Use one word."</prompt>',
        '<prompt>\n"""\nSay which city it is. Use one word.\n"""\n</prompt>',
        "<prompt>\n```text\nSay which city it is. Use one word.\n```\n</prompt>",
        "I put it between <prompt> and </prompt>: <prompt>Say which city it is. Use one word.</prompt>",
    ],
)
def test_the_prompt_is_read_out_of_the_answer(answer: str) -> None:
    genome = written(answer)
    assert genome.instruction == ("Say which city it is.",) and genome.format == ("Use one word.",)


def test_examples_and_labels_are_those_of_the_first_parent() -> None:
    first = replace(PARENT, examples=("e2", "e1"))
    genome = written("<prompt>Which city?</prompt>", Written("combine", (first, OTHER)))
    assert genome == Genome(instruction=("Which city?",), examples=("e2", "e1"), labels=("Text", "City"))


def test_quotes_that_belong_to_the_prompt_stay() -> None:
    assert written('<prompt>"Yes" or "no"</prompt>').head() == '"Yes" or "no"'


def test_a_slot_is_kept() -> None:
    parent = Genome.of("Name the city.\nText: {input}\nCity:")
    genome = written("<prompt>Which city?\nText: {input}\nCity:</prompt>", Written("paraphrase", (parent,)))
    assert render(genome, "Rome!", {}) == "Which city?\n\nText: Rome!\nCity:"


def test_a_slot_that_the_writer_dropped_comes_back() -> None:
    parent = Genome.of("Be quick. Name the city in {input} now.")
    request = Written("paraphrase", (parent,))
    genome = written("<prompt>Which city?</prompt>", request)
    assert render(genome, "Rome!", {}) == "Which city?\n\nName the city in Rome! now."
    with pytest.raises(Unwritten, match="gave none"):
        written("I cannot.", request)


# -- any text ---------------------------------------------------------------------------------------------------------

CODE = {"main": "def f(x):\n    return x", "notes": "none"}


def rewritten(answer: str | Answer, **options: Any) -> str:
    asked, _ = writer(answer)
    return run_virtual(rewrite(Written("reflect", (CODE,), FAILURES, part="main"), asked, **options))


@pytest.mark.parametrize(
    "answer",
    [
        "<rewritten>\n    return x + 1\n</rewritten>",
        "<rewritten>\n```python\n    return x + 1\n```\n</rewritten>",
        "Here:\n```python\n    return x + 1\n```\nDone.",
    ],
)
def test_code_is_read_with_its_indentation(answer: str) -> None:
    assert rewritten(answer) == "    return x + 1"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("I cannot.", "gave none between <rewritten>"),
        ("```\na\n```\n```\nb\n```", "gave none between"),
        ("<rewritten>def f(x):\n  return x</rewritten>", "same words back"),
        (Answer("<rewritten>def", finish="length"), "cut off"),
        (Answer("No.", finish="refusal"), "gave none"),
    ],
)
def test_an_answer_without_a_text_fails_the_candidate(answer: str | Answer, said: str) -> None:
    with pytest.raises(Unwritten, match=said):
        rewritten(answer)


def test_the_request_names_the_part_the_others_and_what_was_tried() -> None:
    tried = (ShownCase("", "", "def f(x): pass", "scored 0 where its parent has 1"),)
    text = rewrite_request(Written("reflect", (CODE,), FAILURES, part="main", tried=tried), "sorts", "program")
    for part in (
        "You improve a program",
        "What it is for: sorts",
        "notes, which stays",
        "The main now",
        "We met in Rome",
    ):
        assert part in text
    assert 'not better (scored 0 where its parent has 1):\n"""\ndef f(x): pass' in text
    assert text.endswith("Put nothing but the new main as a whole between <rewritten> and </rewritten>.")


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "gave none between"),
        ("Name the town, in one word.", "gave none between"),
        ("<prompt>Name the town", "gave none between"),
        ("Name the town</prompt>", "gave none between"),
        ("<prompt> ... </prompt>", "gave none between"),
        ("<prompt>" + "word " * 121 + "</prompt>", "wrote 121 words where 120 are allowed"),
        ("<prompt>Name  the city in\nthe text. Answer with one word.</prompt>", "same words back"),
        ("<prompt>Name the city in {sentence}.</prompt>", r"nobody fills \(\{sentence\}\)"),
        ("<prompt>Name the city in [insert text here].</prompt>", "nobody fills"),
        ("<prompt>Read {input}. Again: {input}.</prompt>", "more than once"),
        (Answer("I will not.", finish="refusal"), "gave none"),
        (Answer("<prompt>Nam", finish="length"), r"gave none between .*cut off"),
        (Answer("", finish="content_filter"), "gave none"),
    ],
)
def test_an_answer_without_a_usable_prompt_fails_the_candidate(answer: str | Answer, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        written(answer)
    assert "gpt-4o-mini was asked to paraphrase a prompt" in str(caught.value) and len(str(caught.value)) < 400
    assert not isinstance(caught.value, ConfigError)


def test_inputs_that_were_shown_must_not_come_back_in_the_prompt() -> None:
    candidate = Written("reflect", (PARENT,), FAILURES)
    with pytest.raises(ValueError, match="quoted one of the inputs"):
        written("<prompt>For We met in Rome, by the river. say Rome.</prompt>", candidate)
    assert written("<prompt>Say Oslo as Oslo.</prompt>", candidate), "a word or two is no quotation"


def test_the_limit_of_words_is_the_callers() -> None:
    with pytest.raises(ValueError, match="wrote 4 words where 3"):
        written("<prompt>Say which city now.</prompt>", most_words=3)


def test_a_writer_that_fails_fails_the_call_and_one_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="no model to reflect a prompt with: name one as the writer"):
        run_virtual(realise(Written("reflect", (PARENT,), FAILURES), None, ""))
    asked, _ = writer("x", timeout=1.0)

    class Down:
        async def request(self, *args: Any, **options: Any) -> Any:
            raise CallFailed("auth", "no")

        async def close(self) -> None: ...

    with pytest.raises(CallFailed):
        run_virtual(realise(Written("expand", (PARENT,)), replace(asked, connect=Down), ""))


# -- what is asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", get_args(How))
def test_the_request_says_what_there_is_and_what_is_wanted(how: How) -> None:
    failures = FAILURES if how == "reflect" else ()
    parents = (PARENT, OTHER) if how == "combine" else (PARENT,)
    text = request(Written(how, parents, failures), "Find the city.", 80)
    assert "The task: Find the city." in text and "at most 80 words" in text
    assert all(f'"""\n{parent.head()}\n"""' in text for parent in parents)
    assert "'Text'" in text and "'City'" in text
    assert all(part in text for failure in failures for part in (failure.input, failure.expected, failure.said))
    assert text.rstrip().endswith("between <prompt> and </prompt>.")


def test_the_request_shows_the_feedback_and_what_is_right_already() -> None:
    failures, kept = (ShownCase("2 + 2", "4", "four", "say digits"),), (ShownCase("1 + 1", "2", "2"),)
    text = request(Written("reflect", (PARENT,), failures, kept=kept), "")
    assert "Mistake 1\nInput: 2 + 2\nRight answer: 4\nThe model said: four\nFeedback: say digits" in text
    assert "Right already 1\nInput: 1 + 1\nRight answer: 2\nThe model said: 2" in text


def test_requests_for_different_things_are_different() -> None:
    texts = {request(Written(how, (PARENT, OTHER)), "") for how in get_args(How)}
    assert len(texts) == len(get_args(How)) and not any("The task" in text for text in texts)
    assert "{input} stands for the input" in request(Written("expand", (Genome.of("Do {input}"),)), "")
    assert "(no words, only the input)" in request(Written("expand", (Genome(),)), "")


def test_a_model_that_continues_text_is_led_into_the_answer() -> None:
    seen: list[dict[str, Any]] = []

    def says(name: str, messages: Any, body: dict[str, Any], rng: Random) -> str:
        seen.append(dict(body))
        return "\nSay which city.</prompt> And more <prompt>nonsense"

    asked, _ = writer(says, raw=True)
    assert run_virtual(realise(Written("paraphrase", (PARENT,), sample=3), asked, "")).head() == "Say which city."
    (body,) = seen
    assert body["prompt"].endswith("<prompt>\n") and body["stop"] == ["</prompt>"] and body["seed"] == 3
    cut, _ = writer(Answer("Say which city it is and", finish="length"), raw=True)
    with pytest.raises(ValueError, match="cut off"):
        run_virtual(realise(Written("paraphrase", (PARENT,)), cut, ""))


def with_ledger(path: Path, body: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        ledger = Ledger(path)
        commits = Commits(ledger)
        broker = CallBroker(ledger, commits)
        before = enter(broker=broker)
        try:
            return await body()
        finally:
            leave(before)
            await broker.close()
            await commits.flush()
            commits.close()
            ledger.close()

    return run_virtual(main())


def test_the_same_sample_is_asked_once_and_another_one_again(tmp_path: Path) -> None:
    count = itertools.count(2)

    def says(name: str, messages: Any, body: Any, rng: Random) -> str:
        assert body["temperature"] == 0.7
        return f"<prompt>Say it {next(count)} times.</prompt>"

    asked, simulator = writer(says)

    async def body() -> list[str]:
        made = [await realise(Written("paraphrase", (PARENT,), sample=n), asked, "cities") for n in (1, 1, 2)]
        return [genome.head() for genome in made]

    first = with_ledger(tmp_path / "l.db", body)
    assert first[0] == first[1] != first[2] and len(simulator.charges) == 2
    assert with_ledger(tmp_path / "l.db", body) == first and len(simulator.charges) == 2
