"""Reflective evolution: whom it rewrites, what it shows, what it joins, and what a child must do to be accepted."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from fanfold import Case, Study
from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.schedules import Acceptance, AllCases, PairedDropping
from fanfold.stop import MaxCalls
from fanfold.strategies import Reflective, Sweep
from fanfold.strategies.front import CaseFront
from fanfold.strategies.reflective import ShownCase, Written, parts_of
from fanfold.testing import ScheduleConformance, StrategyConformance
from fanfold.types import UNWRITTEN, Dropped, Failed, Ok, Outcome, Result, Trial

SEED = {"plan": "plan 0", "answer": "answer 0"}


class TestReflective(StrategyConformance):
    def make(self) -> Reflective:
        return Reflective([SEED])


class TestReflectiveBesideAnother(StrategyConformance):
    def make(self) -> Reflective:
        return Reflective([SEED], beside=Sweep([{"plan": str(n), "answer": str(n)} for n in range(40)]), propose=2)


class TestAcceptance(ScheduleConformance):
    def make(self) -> Acceptance:
        return Acceptance(PairedDropping(2))


def told(
    number: int, parts: Mapping[str, str], scores: Sequence[float], parents: Sequence[int] = (), **data: Any
) -> Result[Any]:
    outcomes: dict[str, Outcome] = {
        str(case): Ok(score, {"input": f"in {case}", "expected": f"right {case}", "said": f"said {case}", **data})
        for case, score in enumerate(scores)
    }
    trial = Trial(number, dict(parts), {"parents": list(parents), "by": "x"})
    return Result(trial, sum(scores) / len(scores), outcomes)


def begun(*results: Result[Any], **options: Any) -> Reflective:
    search = Reflective([SEED], **options)
    search.begin(0)
    assert search.ask(3) == [SEED], "the first text is scored alone"
    assert search.ask(3) == []
    for result in results:
        search.tell(result)
    return search


def test_parents_are_best_on_some_case_and_drawn_by_how_many() -> None:
    front = CaseFront()
    for number, scores in enumerate(([1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0])):
        front.add(told(number, {"a": str(number)}, scores))
    assert {number: len(cases) for number, cases in front.wins.items()} == {1: 3, 2: 1}
    drawn = [front.draw(random.Random(seed)).number for seed in range(400)]
    assert 250 < drawn.count(1) < 350 and drawn.count(1) + drawn.count(2) == 400
    pair = front.pair()
    assert pair is not None and [result.number for result in pair] == [1, 2]
    assert front.pair() is None


def test_the_writer_is_shown_what_failed_and_why_and_what_must_stay() -> None:
    search = begun(told(0, SEED, [1, 0, 1, 0, 1], feedback="the unit is missing"), merging=0.0)
    (request,) = search.ask(1)
    assert isinstance(request, Written) and request.how == "reflect" and request.parents == (SEED,)
    assert {case.input for case in request.failures} == {"in 1", "in 3"}
    assert {case.feedback for case in request.failures} == {"the unit is missing"}
    assert request.kept and {case.input for case in request.kept} <= {"in 0", "in 2", "in 4"}
    origin = search.origin(request)
    assert {**origin, "shown": []} == {"parents": [0], "by": "reflect", "must_beat": [0], "written": True, "shown": []}
    assert {"1", "3"} < set(origin["shown"]), "what the writer was shown is what the child is first tried on"
    assert {request.part for request in search.ask(20)} == {"plan", "answer"}
    assert msgspec.convert(decode(encode(request)), Written[dict[str, str]]) == request


def test_a_single_case_with_any_score_is_always_shown() -> None:
    search = begun(told(0, SEED, [-17.5], feedback="17.5 seconds"))
    (request,) = search.ask(1)
    assert [case.feedback for case in request.failures] == ["17.5 seconds"] and not request.kept


def test_an_exception_is_feedback() -> None:
    failed = Result(Trial(0, SEED), 0.5, {"0": Failed("error", "ZeroDivisionError", "line 3"), "1": Ok(1.0)})
    (request,) = begun(failed).ask(1)
    assert request.failures == (ShownCase("0", "", "", "ZeroDivisionError\nline 3"),)


def test_texts_that_changed_different_parts_are_joined_without_the_writer() -> None:
    search = begun(
        told(0, SEED, [1, 0, 0]),
        told(1, {**SEED, "plan": "plan 1"}, [1, 1, 0], [0]),
        told(2, {**SEED, "answer": "answer 2"}, [1, 0, 1], [0]),
        merging=1.0,
    )
    (merged, combined) = search.ask(2)
    assert merged == {"plan": "plan 1", "answer": "answer 2"}
    assert search.origin(merged) == {"parents": [1, 2], "by": "merge", "must_beat": [1, 2]}
    assert combined.how == "reflect", "a pair is joined once"


def test_texts_that_changed_the_same_part_are_joined_by_the_writer() -> None:
    search = begun(
        told(0, SEED, [1, 0, 0]),
        told(1, {**SEED, "plan": "plan 1"}, [1, 1, 0], [0]),
        told(2, {**SEED, "plan": "plan 2"}, [1, 0, 1], [0]),
        merging=1.0,
    )
    (request,) = search.ask(1)
    assert request.how == "combine" and request.part == "plan"
    assert [parent["plan"] for parent in request.parents] == ["plan 1", "plan 2"]


def test_where_no_first_text_has_a_score_nothing_is_written() -> None:
    search = begun(Result(Trial(0, SEED), None, {"0": Failed("error", "boom")}))
    assert search.ask(3) == []


def test_what_was_written_is_what_is_rewritten() -> None:
    search = begun(told(0, SEED, [1, 0, 0]), merging=0.0)
    (request,) = search.ask(1)
    written = {**SEED, "plan": "written"}
    outcomes: dict[str, Outcome] = {str(case): Ok(1.0, {"parts": written}) for case in range(3)}
    search.tell(Result(Trial(1, request, search.origin(request)), 1.0, outcomes))
    assert parts_of(Result(Trial(1, decode(encode(request))), 1.0, outcomes)) == written
    assert search.ask(1)[0].parents == (written,)
    lost = Result(Trial(2, request), None, {"0": Failed(UNWRITTEN, "nothing")})
    assert parts_of(lost) is None
    search.tell(lost)  # is nobody's parent


def test_the_writer_is_shown_what_it_tried_in_vain() -> None:
    search = begun(told(0, SEED, [1, 0, 1, 0]), merging=0.0, writable=["plan"])
    for number in (1, 2, 3):
        (request,) = search.ask(1)
        outcomes: dict[str, Outcome] = {
            case: Ok(0.0, {"parts": {**SEED, "plan": f"plan {number}"}}) for case in ("0", "1")
        }
        trial = Trial(number, request, search.origin(request))
        search.tell(Result(trial, 0.0, outcomes, "not better"))
    (request,) = search.ask(1)
    why = "scored 0 where its parent has 0.5"
    assert request.tried == (ShownCase("", "", "plan 2", why), ShownCase("", "", "plan 3", why))
    search.tell(Result(Trial(4, request, search.origin(request)), None, {"0": Failed("timeout", "took 9 s")}))
    search.tell(Result(Trial(5, request, search.origin(request)), None, {"0": Failed(UNWRITTEN, "nothing")}))
    assert [case.feedback for case in search.ask(1)[0].tried] == [why, "took 9 s"]


def test_a_writer_that_never_makes_a_better_one_gets_few_proposals() -> None:
    other = Sweep([{"plan": str(n)} for n in range(400)])
    search = Reflective([SEED], beside=other, merging=0.0)
    search.begin(0)
    (first,) = search.ask(4)
    search.tell(told(0, first, [1, 0]))
    kinds = []
    for number in range(1, 201):
        (candidate,) = search.ask(1)
        kinds.append(isinstance(candidate, Written))
        search.tell(Result(Trial(number, candidate, search.origin(candidate)), 0.1, {"0": Ok(0.0)}, "dropped"))
    assert sum(kinds[:20]) > 5 and sum(kinds[100:]) < 34


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="give seeds"):
        Reflective([])
    with pytest.raises(ConfigError, match="share"):
        Reflective([SEED], share=2)
    with pytest.raises(ConfigError, match="first of Acceptance"):
        Acceptance(AllCases(), first=0)


# -- acceptance -------------------------------------------------------------------------------------------------------

CASES = [Case(str(n), n) for n in range(8)]
CHILD = Trial(9, None, {"must_beat": [0]})


def gate(child: Sequence[float], *parents: Sequence[float], then: Any = None) -> tuple[list[str], Any]:
    """The cases that a child ran, and how its row ended."""
    schedule = Acceptance(then or AllCases())
    schedule.begin(0)
    for number, scores in enumerate(parents):
        schedule.tell(told(number, {}, scores))
    plan = schedule.plan(Trial(9, None, {"must_beat": list(range(len(parents)))}), CASES)
    ran: list[str] = []
    chunk = next(plan)
    while True:
        ran += [case.id for case in chunk]
        try:
            chunk = plan.send([Ok(child[case.data]) for case in chunk])
        except StopIteration as end:
            return ran, end.value


def test_a_child_is_first_compared_with_its_parent_on_a_few_cases() -> None:
    parent = [1.0, 1, 1, 1, 1, 1, 0, 0]
    ran, dropped = gate(parent, parent)
    assert len(ran) == 3 and {"6", "7"} <= set(ran), "the parent's failures are among them"
    assert (
        isinstance(dropped, Dropped) and dropped.score == 0.75 and "not better than its parent on 3" in dropped.reason
    )
    assert gate([0.0] * 8, parent)[1].score < 0.75
    ran, dropped = gate([1.0] * 8, parent)
    assert sorted(ran) == [case.id for case in CASES] and dropped is None, "no case twice"


def test_a_child_of_two_must_beat_both() -> None:
    first, second = [1.0] * 4 + [0.0] * 4, [0.0] * 4 + [1.0] * 4
    assert gate(first, first, second)[1] is not None and gate(second, first, second)[1] is not None
    assert gate([1.0] * 8, first, second)[1] is None


def test_an_accepted_child_is_raced_on_the_rest_with_what_is_known() -> None:
    ran, dropped = gate([0, 0, 0, 0, 0, 0, 1, 1], [1.0] * 6 + [0.0] * 2, then=PairedDropping(4))
    assert 3 < len(ran) < 8 and dropped is not None and len(ran) == len(set(ran))


def test_trials_without_parents_are_planned_as_ever() -> None:
    schedule = Acceptance(AllCases())
    schedule.begin(0)
    for origin in (None, {"parents": [0]}, {"must_beat": [5]}):
        assert list(next(schedule.plan(Trial(9, None, origin), CASES))) == CASES


def test_calls_are_evaluations_and_writings() -> None:
    """A row that was to be written takes one call more, and one that was not written takes that call alone."""

    def evaluate(candidate: Any, case: Case) -> Outcome:
        if isinstance(candidate, Written):
            if candidate.sample % 2:
                return Failed(UNWRITTEN, "nothing")
            return Ok(0.5, {"parts": {"plan": str(candidate.sample)}})
        return Ok(0.5, {})

    study: Study[Any] = Study(
        Reflective([{"plan": "x"}]), evaluate, range(4), schedule=AllCases(), stop=MaxCalls(60), window=2
    )
    run = study.run("inline")
    results = list(run.results())
    written = [result for result in results if "how" in result.candidate]
    unwritten = [result for result in written if result.failures]
    assert unwritten and len(unwritten) < len(written)
    calls = sum(len(result.outcomes) for result in results if result not in unwritten) + len(written)
    assert run.progress.told_calls == calls and 55 < calls <= 60
