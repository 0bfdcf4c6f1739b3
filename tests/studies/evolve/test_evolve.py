"""A text gets better by what its evaluator says; what a candidate does is its own failure; nothing is paid twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from evolve_world import START, WANTED, evaluate, now, reader, simulated, writes

from fanfold import ConfigError, evolve
from fanfold.errors import Interrupted
from fanfold.ledger import RunView
from fanfold.metrics import metrics
from fanfold.models import model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.rehearsal import rehearse
from fanfold.simulator import Latency
from fanfold.studies.evolve.api import evolve_async
from fanfold.studies.evolve.config import EvolveConfig
from fanfold.studies.evolve.study import Subject, evolving
from fanfold.tasks.sandbox import missing, run_code


def test_a_text_is_improved_by_what_the_evaluator_says() -> None:
    writer, _ = simulated(reader)
    best = evolve(START, evaluate, writer=writer, calls=20, executor="threads:2")
    assert best.score == 1.0 and best.start_score == 0.25 and all(word in best.text for word in WANTED)
    figures = best.run.summary.figures  # type: ignore[union-attr]
    assert figures["winner"]["texts"] == best.parts and figures["texts_tried"] <= 11


class Scores:
    def __call__(self, text: str) -> tuple[float, str]:
        return evaluate(text)


def test_an_evaluator_may_be_a_class_which_is_made_once() -> None:
    writer, _ = simulated(reader)
    assert evolve(START, Scores, writer=writer, calls=20, executor="threads:2").score == 1.0


def test_a_rewritten_text_ends_its_last_line_as_the_start_did(tmp_path: Path) -> None:
    writer, _ = simulated(reader)
    output = tmp_path / "best.txt"
    best = evolve(f"{START}\n", evaluate, writer=writer, calls=20, executor="threads:2", output=str(output))
    assert best.text.endswith("\n") and not best.text.endswith("\n\n") and output.read_text() == best.text


def test_a_writer_that_gives_the_whole_text_changes_its_block_alone() -> None:
    head, tail = "keep\n# EVOLVE-BLOCK-START\n", "# EVOLVE-BLOCK-END\nkeep\n"

    def whole(name: str, messages: Any, parameters: Any, rng: Any) -> str:
        return writes(f"{head}{now(messages)} {rng.choice(WANTED)}\n{tail}".replace("keep", "lost"))

    writer, _ = simulated(whole)
    best = evolve(f"{head}{START}\n{tail}", evaluate, writer=writer, calls=30, executor="threads:2")
    assert best.score > best.start_score and best.text.startswith(head) and best.text.endswith(tail)
    assert best.text.count("EVOLVE-BLOCK") == 2 and "lost" not in best.text


async def scored_later(text: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    score, feedback = evaluate(text)
    return {"score": score, "feedback": feedback}


def test_a_coroutine_function_is_awaited_and_asynchronous_code_may_wait_for_it_all() -> None:
    writer, _ = simulated(reader)
    best = asyncio.run(evolve_async(START, scored_later, writer=writer, calls=20))
    assert best.score == 1.0


@pytest.mark.slow
def test_every_executor_gives_the_same_search() -> None:
    def searched(executor: str) -> tuple[str, str]:
        writer, _ = simulated(reader)
        best = evolve(START, evaluate, writer=writer, calls=14, executor=executor)
        return best.run.trace, best.text

    assert searched("threads:1") == searched("threads:4") == searched("processes:2")


def by_case(parts: dict[str, str], case: dict[str, str]) -> tuple[float, str]:
    right = case["word"] in parts[case["part"]]
    return float(right), "right" if right else f"missing: {case['word']}"


@pytest.mark.slow
def test_several_parts_are_improved_together_on_cases() -> None:
    writer, _ = simulated(reader)
    cases = [{"part": part, "word": word} for part in ("one", "two") for word in WANTED]
    best = evolve({"one": "a", "two": "b"}, by_case, cases=cases, writer=writer, calls=450, executor="threads:4")
    assert best.score == 1.0 and all(word in text for text in best.parts.values() for word in WANTED)
    with pytest.raises(ConfigError, match="several texts"):
        _ = best.text


@pytest.mark.slow
def test_held_out_cases_are_seen_by_start_and_winner_only() -> None:
    writer, _ = simulated(reader)
    seen: list[str] = []

    def score(text: str, word: str) -> tuple[float, str]:
        seen.append(word)
        return float(word in text), f"missing: {word}"

    cases = [f"{word}{number}" for word in "ab" for number in range(10)]
    best = evolve("x", score, cases=cases, writer=writer, calls=80, executor="threads:1")
    held_out = best.run.summary.figures["held_out"]  # type: ignore[union-attr]
    assert held_out["n"] == 5 and len(set(seen[-10:])) == 5 and set(seen[-10:]).isdisjoint(seen[:-10])


def test_the_held_out_score_of_a_run_is_that_of_its_best_text(tmp_path: Path) -> None:
    writer, _ = simulated(reader)
    best = evolve(
        "x",
        lambda text, case: len(text) / 100,
        cases=range(20),
        writer=writer,
        calls=50,
        executor="threads:4",
        ledger=tmp_path / "l.db",
        run="it",
    )
    figures = best.run.summary.figures["held_out"]  # type: ignore[union-attr]
    with RunView.open(tmp_path / "l.db", "it") as view:
        shown = {metric.key: metric.value for metric in metrics(view)}
    assert shown["held_out"] == figures["winner"] == len(best.text) / 100 > figures["start"] == 0.01


def test_rows_of_a_frame_are_cases_and_those_that_repeat_are_left_out() -> None:
    pandas = pytest.importorskip("pandas")
    seen: list[str] = []

    def program(prompts: dict[str, str], case: dict[str, Any]) -> str:
        seen.append(case["text"])
        return "a"

    rows = [{"text": f"t{n % 25}", "answer": "ab"[n % 5 == 0]} for n in range(60)]
    how: dict[str, Any] = {"grader": "exact", "calls": 100, "executor": "threads:1"}
    best = evolve({"it": "Say a."}, program, cases=pandas.DataFrame(rows), **how)
    assert len(set(seen)) == 25 and best.start_score == pytest.approx(0.8, abs=0.1)
    held_out = best.run.summary.figures["held_out"]  # type: ignore[union-attr]
    notes = " ".join(map(str, best.run.view.notes()))  # type: ignore[union-attr]
    assert held_out["n"] == 6 and "35 of the cases repeat another" in notes


@pytest.mark.parametrize(
    "answer", [lambda *request: "Sure!", lambda *request: request[3].choice(["Sure!", writes(now(request[1])), ""])]
)
@pytest.mark.slow
def test_a_writer_that_writes_nonsense_is_counted_and_the_start_stays(answer: Any) -> None:
    writer, _ = simulated(answer)
    best = evolve(START, by_word, cases=WANTED, writer=writer, calls=200, executor="threads:2")
    assert best.text == START and best.score == best.start_score
    ways = best.run.summary.figures["ways"]["reflect"]  # type: ignore[union-attr]
    assert 20 <= ways[0] == ways[2] < 30  # it is not asked forever
    assert f"the writer wrote no usable text {ways[0]} times" in best.run.summary.sections[0].text  # type: ignore[union-attr]


def test_a_search_whose_every_new_text_fails_says_so() -> None:
    def picky(text: str) -> float:
        if text != START:
            raise ValueError("unknown keyword")
        return 1.0

    best = evolve(START, picky, writer=simulated(reader)[0], calls=10, executor="threads:1")
    words = best.run.summary.sections[0].text  # type: ignore[union-attr]
    assert "could be scored: ValueError: unknown keyword" in words and words.startswith("none of the ")


def by_word(text: str, word: str) -> float:
    return float(word in text)


def test_the_writer_is_shown_what_it_tried_in_vain() -> None:
    asked: list[str] = []

    def stubborn(name: str, messages: Any, parameters: Any, rng: Any) -> str:
        asked.append(messages[-1]["content"])
        return writes(f"{now(messages)} up{len(asked)}")

    evolve(START, evaluate, writer=simulated(stubborn)[0], calls=10, executor="threads:1", window=1)
    assert "up1" in asked[1] and "scored 0.25 where its parent has 0.25" in asked[1] and "up2" in asked[2]


DOES = {
    "raises": "raise ValueError('no such thing')",
    "exits": "import os; os._exit(3)",
    "leaves": "import sys; sys.exit(0)",
    "hangs": "while True: pass",
    "prints": "print('a' * 10_000)",
    "swallows": "[0] * 10**15",
}


def executed(text: str) -> float:
    names: dict[str, Any] = {}
    exec(text, names)
    return float(names["x"])


@pytest.mark.slow
def test_a_text_that_misbehaves_is_its_own_failure(capfd: pytest.CaptureFixture[str]) -> None:
    turns = itertools.count()

    def misbehaves(name: str, messages: Any, parameters: Any, rng: Any) -> str:
        turn = next(turns)
        return writes(
            f"{now(messages)}\nx += 1" if turn % 2 else f"{list(DOES.values())[turn // 2 % len(DOES)]}\nx = 0"
        )

    best = evolve("x = 1", executed, writer=simulated(misbehaves)[0], calls=26, executor="processes:2", timeout=6.0)
    failures = [failed.kind for result in best.run.results() for failed in result.failures.values()]
    assert set(failures) == {"error", "timeout", "worker-died"} and failures.count("error") == 3
    assert best.score > 2 and set(best.text.splitlines()) == {"x = 1", "x += 1"}
    assert "aaa" not in capfd.readouterr().out


async def waits(text: str) -> tuple[float, str]:
    return evaluate(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "executor"), [(waits, "async:4"), (evaluate, "threads:4"), (evaluate, "processes:2")]
)
def test_the_time_that_the_writer_takes_is_not_its_texts(scores: Any, executor: str) -> None:
    writer, _ = simulated(reader, latency=Latency(1.2, 0.0, 0.0))
    best = evolve(START, scores, writer=writer, calls=6, executor=executor, timeout=0.9)
    assert not [failed for result in best.run.results() for failed in result.failures.values()]
    assert best.score > 0.25


@pytest.mark.slow
def test_what_a_text_prints_in_a_worker_is_feedback_for_the_writer(tmp_path: Path) -> None:
    asked: list[str] = []

    def remembers(name: str, messages: Any, parameters: Any, rng: Any) -> str:
        asked.append(messages[-1]["content"])
        return writes(f"{now(messages)}\nx += 1")

    evolve("x = 1\nprint('hello', 'writer')", executed, writer=simulated(remembers)[0], calls=3, executor="processes:1")
    assert asked and all("hello writer" in text and "Score: 1\n" in text for text in asked)


# -- first contact ----------------------------------------------------------------------------------------------------


def no_score(text: str) -> Any:
    return "0.7"


def broken(text: str) -> float:
    raise KeyError("weights")


@pytest.mark.parametrize(
    ("function", "words"), [(broken, "(?s)starts from.*KeyError: 'weights'.*in broken"), (no_score, "returned '0.7'")]
)
def test_an_evaluator_that_fails_on_the_start_ends_it_before_the_writer_is_paid(function: Any, words: str) -> None:
    writer, simulator = simulated(reader)
    with pytest.raises(ConfigError, match=words):
        evolve(START, function, writer=writer, calls=20, executor="threads:1")
    assert simulator.billing.charges == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"writer": None}, "writer is missing"),
        ({"calls": 2}, "too few"),
        ({"cases": []}, "cases is empty"),
        ({"cases": [1, 2]}, "takes one argument"),
        ({"cal": 3}, "did you mean 'calls'"),
        ({"text": ""}, "text is empty"),
        ({"text": {"a": 3}}, "texts by name"),
        ({"text": Path(__file__)}, r"not PosixPath.*: of a file, give Path.NAME.\.read_text"),
        ({"text": __file__}, r"test_evolve.py' is the name of a file: give its text, as in Path.NAME.\.read_text"),
        ({"grader": "exact"}, "needs cases"),
        ({"writer": "nobody/x"}, "nobody"),
        ({"output": "/nowhere/at/all/best.txt"}, "there is no folder /nowhere/at/all"),
        ({"output": "/tmp"}, "is a folder"),
        ({"text": {"a": "x", "b": "y"}, "output": __file__}, "is a file, and there are several texts"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_evaluated(changes: dict[str, Any], words: str) -> None:
    called: list[str] = []

    def counted(text: str) -> float:
        called.append(text)
        return 0.0

    given: dict[str, Any] = {"text": START, "writer": "simulated/w", "calls": 20, **changes}
    with pytest.raises(ConfigError, match=words):
        evolve(given.pop("text"), counted, executor="threads:1", **given)
    assert called == []


def test_a_writer_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        evolve(START, evaluate, writer="openai/gpt-4o-mini", executor="threads:1")


def test_a_text_larger_than_the_writer_reads_or_writes_is_refused() -> None:
    room = model("simulated/gpt-4o-mini").capabilities
    assert room.context is not None and room.output is not None
    with pytest.raises(ConfigError, match=r"writes at most.*EVOLVE-BLOCK-START"):
        evolve("x" * (4 * room.output + 400), evaluate, writer="simulated/gpt-4o-mini", executor="threads:1")
    with pytest.raises(ConfigError, match="reads at most"):
        evolve("x" * (4 * room.context + 400), evaluate, writer="simulated/gpt-4o-mini", executor="threads:1")


@pytest.mark.parametrize(
    ("rows", "words"),
    [([{"text": "x", "right": "y"}], "answer_field .fields: text, right"), (["x"], "cases as dicts")],
)
def test_a_grader_needs_to_know_the_answer(rows: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        evolve({"p": "Say it."}, lambda prompts, case: "x", cases=rows, grader="exact", calls=20)


def test_the_last_prompt_can_show_what_it_should_have_replied_and_the_others_only_what_was_right() -> None:
    """A program that is never right at first: it shouts, unless it was shown that it should not."""

    def shouts(name: str, messages: Any, parameters: Any, rng: Any) -> str:
        request = messages[-1]["content"]
        word = request.rsplit("Word: ", 1)[1].split("\n")[0]
        return word if request.startswith("Repeat") or request.count("Word: ") > 2 else word.upper()

    voice, _ = simulated(shouts)

    async def program(prompts: dict[str, str], case: dict[str, str]) -> str:
        heard = await voice.generate(f"{prompts['hear']}\nWord: {case['word']}\nHeard:")
        return (await voice.generate(f"{prompts['say']}\nWord: {heard.text}\nSaid:")).text

    cases = [{"word": word, "answer": word} for word in ("ant", "bee", "cat", "dog", "elk", "fox")]
    prompts = {"hear": "Repeat.", "say": "Say it."}
    grader = {"kind": "exact", "case": True}
    found = evolve(prompts, program, cases=cases, grader=grader, calls=80)
    assert found.start_score == 0.0 and found.score == 1.0
    assert found.parts["say"].count("Word: ") >= 2 and "ANT" not in found.parts["say"]
    first = next(found.run.results())
    offered = [turn["prompt"] for outcome in first.outcomes.values() for turn in outcome.data["turns"]]  # type: ignore[union-attr]
    assert offered == ["say"] * 6


def test_a_program_that_changes_a_reply_shows_only_what_came_out_right() -> None:
    voice, _ = simulated(lambda *request: "word")

    async def program(prompts: dict[str, str], case: dict[str, str]) -> str:
        return f"{(await voice.generate(prompts['say'] + case['text'])).text}{case['end']}"

    cases = [{"text": " a", "end": "", "answer": "word"}, {"text": " b", "end": "s", "answer": "word"}]
    found = evolve({"say": "Say"}, program, cases=cases, grader="exact", calls=10)
    offered = {case: outcome.data["turns"] for case, outcome in next(found.run.results()).outcomes.items()}  # type: ignore[union-attr]
    assert [len(offered["1"]), len(offered["2"])] == [1, 0]


def test_a_program_gives_an_answer_or_the_reply_with_it() -> None:
    planted, _ = simulated(lambda name, messages, parameters, rng: messages[-1]["content"][-1])
    cases = [{"text": letter, "answer": letter} for letter in "abcd"]

    async def whole(prompts: Any, case: Any) -> Any:
        return await planted.generate(f"{prompts['it']}{case['text']}")

    async def forgotten(prompts: Any, case: Any) -> None:
        await planted.generate(f"{prompts['it']}{case['text']}")

    assert evolve({"it": "Repeat: "}, whole, cases=cases, grader="exact", calls=20).start_score == 1
    with pytest.raises(ConfigError, match="the program returned None, and not an answer to grade"):
        evolve({"it": "Repeat: "}, forgotten, cases=cases, grader="exact", calls=20)


def test_a_rehearsal_writes_no_file(tmp_path: Path) -> None:
    subject = Subject({"text": START}, scored_later, writer="simulated/writer")
    study = evolving(EvolveConfig(calls=6, output=str(tmp_path / "best.txt")), subject)
    forecast = rehearse(study, "async:4")
    assert forecast.trials > 1 and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_case_on_which_the_evaluator_fails_may_count_instead() -> None:
    def picky(text: str, word: str) -> float:
        if word not in text:
            raise LookupError(f"missing: {word}")
        return 1.0

    how: dict[str, Any] = {"cases": WANTED, "calls": 60, "executor": "threads:2"}
    with pytest.raises(ConfigError, match="starts from on case 2"):
        evolve(START, picky, writer=simulated(reader)[0], **how)
    best = evolve(START, picky, writer=simulated(reader)[0], failed_score=-1.0, **how)
    assert best.start_score == -0.5 and best.score == 1.0  # the words of the error led the writer


# -- durable ----------------------------------------------------------------------------------------------------------


def slow(text: str) -> tuple[float, str]:
    time.sleep(0.05)
    return evaluate(text)


@pytest.mark.slow
def test_a_run_that_was_stopped_continues_and_pays_nothing_twice(tmp_path: Path) -> None:
    writer, simulator = simulated(lambda *request: reader(*request) if request[3].random() < 0.3 else writes("nothing"))
    how: dict[str, Any] = {"writer": writer, "calls": 60, "executor": "threads:2", "ledger": tmp_path / "runs.db"}

    def watch(event: Any) -> None:
        if type(event).__name__ == "TrialTold" and event.result.number == 6 and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    stopped: list[bool] = []
    with pytest.raises(Interrupted):
        evolve(START, slow, watch=watch, **how)
    paid = len(simulator.billing.charges)
    assert 0 < paid < 29
    best = evolve(START, slow, watch=watch, **how)
    again = evolve(START, slow, **how)
    assert again.run.id == best.run.id and again.text == best.text
    assert simulator.billing.duplicates() == {}
    fresh, _ = simulated(lambda *request: reader(*request) if request[3].random() < 0.3 else writes("nothing"))
    assert evolve(START, slow, writer=fresh, calls=60, executor="threads:2").run.trace == best.run.trace


@pytest.mark.slow
def test_the_writer_can_work_in_batches_at_half_price(tmp_path: Path) -> None:
    writer, _ = simulated(reader)
    batches = BatchExecutor("openai@processes:2", poll=0.05)
    best = evolve(START, evaluate, writer=writer, calls=30, executor=batches, ledger=tmp_path / "runs.db")
    assert best.score == 1.0
    with RunView.open(tmp_path / "runs.db", best.run.id) as view:
        assert view.batches()


@pytest.mark.skipif(bool(missing()), reason="the sandbox lacks a guard here")
@pytest.mark.slow
def test_evaluators_run_code_of_models_in_the_sandbox() -> None:
    assert run_code("def double(x):\n    return 2 * x", "double([1, 2])") == [1, 2, 1, 2]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_code("x = 0", "1 / x")
    with pytest.raises(RuntimeError, match=r"too (long|much)"):
        run_code("while True: pass", "1", seconds=0.5)
    with pytest.raises(RuntimeError, match=r"PermissionError|not permitted|OSError"):
        run_code("import socket", "socket.socket()")
