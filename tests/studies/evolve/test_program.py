"""Programs of several prompts: whose call a call was; demonstrations never show the case that is scored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanfold.calls import Call, Reply
from fanfold.models import model
from fanfold.studies.evolve.program import demonstrations, prompts_of, turns_of, with_demonstrations
from fanfold.studies.evolve.strategy import Demonstrations
from fanfold.types import Ok, Outcome, Result, Trial

PROMPTS = {"extract": "Which city?", "answer": "Which country is the city in?"}
MODELS = ("simulated/gpt-4o-mini", "simulated/claude-sonnet-4-5", "simulated/gemini-2.5-flash")


def called(messages: Any, said: str, name: str = MODELS[0], **more: Any) -> tuple[Call, Reply]:
    return model(name).call(messages, **more), Reply(text=said)


@pytest.mark.parametrize("name", MODELS)
def test_a_call_belongs_to_the_prompt_it_begins_with_in_every_protocol(name: str) -> None:
    turns = turns_of([called("Which city?\n\nText: Rome!\nCity:", " Rome ", name)], PROMPTS)
    assert [(turn.prompt, turn.asked, turn.said) for turn in turns] == [("extract", "Text: Rome!\nCity:", "Rome")]
    assert turns[0].shown == "\n\nText: Rome!\nCity: Rome"


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_may_be_the_system_prompt(name: str) -> None:
    turn = turns_of([called("Rome!", "Italy", name, system=PROMPTS["answer"])], PROMPTS)[0]
    assert (turn.prompt, turn.asked) == ("answer", "Rome!") and turn.shown == "\n\nInput: Rome!\nOutput: Italy"


def test_a_prompt_may_have_places_for_its_input() -> None:
    prompts = {"extract": "Find the city in {text} now.\nCity:"}
    turn = turns_of([called("Find the city in a {b} c now.\nCity:", "Rome")], prompts)[0]
    assert turn.asked.strip() == "a {b} c" and turn.shown == "Find the city in a {{b}} c now.\nCity: Rome\n\n"
    parts = with_demonstrations(prompts, {"extract": [("1", turn.shown)]})
    filled = prompts_of(parts)["extract"].format(text="Oslo")
    assert filled == "Find the city in a {b} c now.\nCity: Rome\n\nFind the city in Oslo now.\nCity:"


def test_a_call_with_a_longer_prompt_is_not_that_of_its_beginning() -> None:
    assert turns_of([called("Say it.\nNow", "x")], {"a": "Say", "b": "Say it."})[0].prompt == "b"


def test_a_call_with_none_of_the_prompts_is_nobodys() -> None:
    assert turns_of([called("Something else", "x")], PROMPTS) == []


def test_no_prompt_shows_the_case_that_it_is_scored_on() -> None:
    parts = with_demonstrations(PROMPTS, {"extract": [("1", "\nA: a"), ("2", "\nB: b")], "answer": []})
    assert prompts_of(parts)["extract"] == "Which city?\nA: a\nB: b"
    assert prompts_of(parts, without="1")["extract"] == "Which city?\nB: b"
    assert prompts_of(parts)["answer"] == PROMPTS["answer"] and demonstrations(parts, "answer") == []


def told(number: int, parts: dict[str, str], right: set[str]) -> Result[Any]:
    outcomes: dict[str, Outcome] = {
        case: Ok(1.0, {"turns": [{"prompt": name, "shown": f"\n{name} {case}"} for name in PROMPTS]})
        if case in right
        else Ok(0.0, {})
        for case in "abcdef"
    }
    return Result(Trial(number, parts, {}), len(right) / 6, outcomes)


def test_demonstrations_are_those_that_were_offered_and_never_proposed_twice() -> None:
    search = Demonstrations(tuple(PROMPTS), 2, PROMPTS)
    search.begin(0)
    assert search.ask(4) == [PROMPTS] and search.ask(4) == []
    search.tell(told(0, PROMPTS, {"a", "b"}))
    proposed = search.ask(12)
    shown = {case for parts in proposed for name in PROMPTS for case, _ in demonstrations(parts, name)}
    assert len(proposed) > 5 and shown == {"a", "b"}
    assert len({json.dumps(parts) for parts in proposed}) == len(proposed)
    assert all(len(demonstrations(parts, name)) <= 2 for parts in proposed for name in PROMPTS)


def test_a_demonstration_that_helps_is_shown_more_and_more() -> None:
    search = Demonstrations(tuple(PROMPTS), 2, PROMPTS)
    search.begin(0)
    search.ask(1)
    search.tell(told(0, PROMPTS, {"a", "b", "c"}))
    counts = []
    for round in range(12):
        parts = search.ask(1)[0]
        helps = any(case == "a" for case, _ in demonstrations(parts, "answer"))
        counts.append(helps)
        search.tell(told(round + 1, parts, {"a", "b", "c", "d", "e"} if helps else {"a"}))
    assert sum(counts[6:]) >= 5


def test_a_program_that_is_never_right_ends_the_search() -> None:
    search = Demonstrations(tuple(PROMPTS), 2, PROMPTS)
    search.begin(0)
    search.ask(1)
    search.tell(told(0, PROMPTS, set()))
    assert search.ask(4) == []
