"""The reflective search as a whole: a writer that reads feedback finds planted rules, and nothing is paid twice."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome, render
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.tasks import Grade, Problem, Task
from fanfold.tasks.grading import Contains

#: What a prompt must say for the problems of each kind, among words that do nothing.
RULES = ("ROUND", "METRES", "UPPER", "SIGN", "COMMA", "ZERO")
NOISE = tuple(f"W{n}" for n in range(40))
PROBLEMS = tuple(Problem(f"p{n:03}", f"problem {n} of kind {RULES[n % len(RULES)]}", f"right {n}") for n in range(120))


@dataclass(frozen=True)
class Telling:
    """Grades exactly, and names the rule that the prompt did not give."""

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        rule = problem.input.split()[-1]
        return Grade(float(reply == problem.answer), reply, "" if reply == problem.answer else f"say {rule}")


TASK = Task("planted", PROBLEMS, Telling(), "apply the rules", (("In", "Out"),), {"instruction": NOISE}, ("Answer.",))


def solver(name: str, messages: Sequence[Mapping[str, Any]], params: Any, rng: random.Random) -> str:
    text = str(messages[-1]["content"])
    number, rule = re.findall(r"problem (\d+) of kind (\w+)", text)[-1]
    before = text[: text.rfind(f"problem {number} of")]
    said = re.sub(r"problem \d+ of kind \w+", "", before)
    return f"right {number}" if rule in said.split() else "wrong"


def reading_writer(name: str, messages: Sequence[Mapping[str, Any]], params: Any, rng: random.Random) -> str:
    """Adds a rule that the feedback names, if it is shown any; otherwise a word at random."""
    text = str(messages[-1]["content"])
    prompt = re.findall(r'"""\n(.*?)\n"""', text, re.S)[0].replace("(no words, only the input)", "")
    wanted = [rule for rule in re.findall(r"Feedback: say (\w+)", text) if rule not in prompt.split()]
    return f"<prompt>{prompt} {rng.choice(wanted or [*NOISE, *RULES])}</prompt>"


Says = Callable[..., Any]


def maker(writer: Says = reading_writer) -> tuple[Callable[[str], Model], dict[str, Simulator]]:
    """Models by name, each at a simulator of its own that counts what it is asked."""
    simulators = {
        "solver": Simulator(SimulatorConfig(answer=solver)),
        "writer": Simulator(SimulatorConfig(answer=writer)),
    }

    def make(name: str) -> Model:
        transport = SimulatedTransport(simulators[name])
        return replace(model("simulated/gpt-4o-mini"), name=name, connect=lambda: transport)

    return make, simulators


def config(**changes: Any) -> PromptsConfig:
    sizes: dict[str, Any] = {"examples": 4, "train": 18, "validation": 6, "held_out": 12, "max_examples": 2}
    return PromptsConfig(**{**sizes, "model": ("solver",), "writer": "writer", "trials": 120, **changes})


def calls_to_the_optimum(seed: int, **changes: Any) -> int:
    make, simulators = maker()
    run = study(config(seed=seed, validation=0, **changes), TASK, make).run("async:8")
    assert run.summary is not None
    best = run.best
    assert best is not None and best.score == 1.0, (seed, changes, best and best.score)
    return sum(len(simulator.charges) for simulator in simulators.values())


@pytest.mark.slow
def test_feedback_leads_to_the_optimum_in_fewer_calls_than_breeding_with_the_same_writer() -> None:
    seeds = range(4)
    ours = [calls_to_the_optimum(seed) for seed in seeds]
    bred = [calls_to_the_optimum(seed, search="genetic", trials=600, population=8) for seed in seeds]
    assert sum(ours) < 0.6 * sum(bred), (ours, bred)
    assert sum(one < other for one, other in zip(ours, bred)) >= 3, (ours, bred)


@pytest.mark.slow
def test_a_search_taken_up_again_asks_nothing_twice(tmp_path: Path) -> None:
    traces = []
    for name, parts in (("whole", (40,)), ("halves", (9, 40))):
        make, simulators = maker()
        for trials in parts:
            whole = replace(study(config(trials=trials), TASK, make), conclude=None)
            run = whole.run("async:8", ledger=tmp_path / f"{name}.db", run="r")
        asked = {model: len(simulator.charges) for model, simulator in simulators.items()}
        assert asked["writer"] > 3
        assert sum(asked.values()) == next(run.ledger.read("SELECT count(*) FROM call"))[0], "each call was paid once"
        traces.append(run.trace)
        run.ledger.close()
    assert traces[0] == traces[1]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "threads:2", "processes:2"])
def test_the_search_is_the_same_on_every_executor(executor: str) -> None:
    small = config(model=("simulated/gpt-6-luna",), writer="simulated/writer", trials=16, max_examples=8)
    first, again = (replace(study(small), conclude=None).run(where) for where in ("async:16", executor))
    assert again.trace == first.trace
    assert any("how" in result.candidate and result.score is not None for result in again.results())


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        "I would rather not.",
        "",
        "<prompt></prompt>",
        "<prompt>Answer.</prompt>",
        "<prompt>Fill in {sentence} here.</prompt>",
        "<prompt>" + "word " * 500 + "</prompt>",
    ],
)
def test_a_writer_that_writes_nonsense_costs_its_calls_and_nothing_else(answer: str) -> None:
    make, simulators = maker(lambda *_: answer)
    run = study(config(calls=100, validation=0), TASK, make).run("async:8")
    written = [result for result in run.results() if "how" in result.candidate]
    assert written and len({result.failures[case].kind for result in written for case in result.failures}) <= 1
    assert run.summary is not None and run.summary.figures["winner"] is not None
    assert run.progress.told_calls <= 100
    scored = 100 + 2 * 12 + 12  # held-out problems come on top: winner, first prompt, baseline
    assert sum(len(simulator.charges) for simulator in simulators.values()) <= scored
    (said,) = [section for section in run.summary.sections if section.title == "The writer"]
    assert "never" in said.text


def test_what_the_calls_buy_is_said_first_and_too_few_are_refused() -> None:
    make, _ = maker()
    (remark,) = [remark for remark in study(config(calls=200), TASK, make).remarks if "200 calls" in remark]
    assert re.search(r"about \d+ prompts \(half of them by writer, a call each\)", remark), remark
    with pytest.raises(ConfigError, match="too few for a search"):
        study(config(calls=30), TASK, make)
    with pytest.raises(ConfigError, match="needs a model that writes"):
        config(writer=None, search="reflective")


def reasoner(name: str, messages: Sequence[Mapping[str, Any]], params: Any, rng: random.Random) -> str:
    """Knows every third answer, and the others once it is shown how such an answer is found."""
    text = str(messages[-1]["content"])
    number = int(re.findall(r"problem (\d+) of kind", text)[-1])
    knows = number % 3 == 0 or "because" in text
    return f"it is {number} because of its number, so right {number}." if knows else "no idea"


@pytest.mark.slow
def test_right_answers_of_the_model_itself_become_demonstrations() -> None:
    make, simulators = maker(lambda *_: "nothing")
    simulators["solver"] = Simulator(SimulatorConfig(answer=reasoner))
    run = study(config(trials=60, validation=0), replace(TASK, grader=Contains()), make).run("async:8")
    best = run.best
    assert best is not None and best.score == 1.0 and run.summary is not None
    shown = genome_of(best).worked
    assert shown and all("because" in reply for _, reply in shown)
    assert any((result.trial.origin or {}).get("by") == "own answers" for result in run.results())
    assert run.summary.figures["held_out"]["accuracy"] == 1.0
    assert "because" in run.summary.figures["template"]["before"]


def test_a_problem_is_not_shown_its_own_answer() -> None:
    genome = Genome(worked=(("one", "1 because"), ("two", "2 because")))
    assert "1 because" not in render(genome, "one", {}) and "2 because" in render(genome, "one", {})
    assert "worked" not in encode(Genome())
