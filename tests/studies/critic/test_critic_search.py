"""What the search promises: feedback after the response, the same search everywhere, nothing paid or asked twice."""

from __future__ import annotations

import io
import itertools
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import msgspec
import pytest

from fanfold.errors import CallFailed, ConfigError, ReplayDivergence
from fanfold.ledger import Ledger
from fanfold.models import Model
from fanfold.running import Run
from fanfold.stop import MaxTrials
from fanfold.strategy import Strategy
from fanfold.studies.critic import ActorCriticParams, CriticConfig, Generate, Show, Step, queries_of, study
from fanfold.studies.critic.bank import clauses_of, prompt_of
from fanfold.studies.critic.conclusion import replayed
from fanfold.studies.critic.evaluator import Write, step_of
from fanfold.studies.critic.feedback import Feedback, read
from fanfold.studies.critic.simulated import planted_feedback, preference, respond
from fanfold.studies.critic.strategy import CriticStrategy
from fanfold.studies.critic.terminal import Human, NobodyThere
from fanfold.testing.strategies import StrategyConformance
from fanfold.types import Failed, Ok, Outcome, Result, Trial


def config(**changes: Any) -> CriticConfig:
    settings: dict[str, Any] = {"model": "simulated/critic", "feedback": "simulated", "total": 16, "seed": 3}
    return CriticConfig(**{**settings, "bootstrap_queries": 4, **changes})


def begun(**changes: Any) -> CriticStrategy:
    made = config(**changes)
    search = CriticStrategy(made, queries_of(made))
    search.begin(3)
    return search


def answered(step: Step, broken: set[int] = frozenset()) -> dict[str, Outcome]:  # type: ignore[assignment]
    """What an evaluation of a step gives, without an engine; the slots in `broken` fail."""
    import random

    if isinstance(step, Show):
        responses = [shown.response for shown in step.shown]
        scores = [planted_feedback(step.query, response) for response in responses]
        return {"slot-0": Ok(scores[0] if len(scores) == 1 else float(scores[0] > scores[1]))}
    outcomes: dict[str, Outcome] = {}
    for slot, (prompt, temperature) in enumerate(zip(step.prompts, step.temperatures)):
        messages = [{"role": "system", "content": prompt.text}, {"role": "user", "content": step.query}]
        text = respond("m", messages, {"temperature": temperature}, random.Random(f"{prompt.text}{step.query}"))
        ok = Ok(0.0, {"text": text, "finish": "stop", "tokens": len(text) // 4})
        outcomes[f"slot-{slot}"] = Failed("server", "down") if slot in broken else ok
    return outcomes


def drive(search: CriticStrategy, most: int = 10_000, number: int = 0) -> list[Step]:
    """Ask and tell with the search's own window, in order."""
    asked: list[Step] = []
    waiting: list[Trial[Step]] = []
    while len(asked) < most:
        for step in search.ask(search.window - len(waiting)):
            waiting.append(Trial(number + len(asked), step))
            asked.append(step)
        if not waiting:
            break
        trial = waiting.pop(0)
        search.tell(Result(trial, 0.0, answered(trial.candidate)))
    return asked


class TestConformance(StrategyConformance):
    """With results that hold no responses, which must be survived."""

    trials = 40

    def make(self) -> Strategy[Any]:
        made = config(total=30)
        return CriticStrategy(made, queries_of(made))


# -- one step ------------------------------------------------------------------------------------------------------


def test_feedback_is_asked_for_after_the_responses_exist_and_about_one_of_them() -> None:
    search = begun()
    (asked,) = search.ask(1)
    assert isinstance(asked, Generate) and len(set(asked.prompts)) == 5
    outcomes = answered(asked)
    search.tell(Result(Trial(0, asked), 0.0, outcomes))
    (shown,) = search.ask(1)
    assert isinstance(shown, Show) and shown.number == asked.number
    (one,) = shown.shown
    assert outcomes[f"slot-{one.slot}"].data["text"] == one.response  # type: ignore[union-attr]
    assert (asked.prompts[one.slot], asked.temperatures[one.slot]) == (one.prompt, one.temperature)


@pytest.mark.slow
def test_fitness_of_the_shown_moves_by_feedback_and_of_the_others_by_what_is_expected_but_less() -> None:
    search = begun(total=60)
    drive(search, most=80)
    (asked,) = search.ask(1)
    assert isinstance(asked, Generate)
    search.tell(Result(Trial(0, asked), 0.0, answered(asked)))
    (shown,) = search.ask(1)
    assert isinstance(shown, Show)
    evidence = {member.prompt: member.evidence for member in search.population.members}
    fitness = {member.prompt: (member.fitness, member.guessed) for member in search.population.members}
    waiting, before = search.memory.waiting[shown.number], search.memory.rewards / search.memory.answered
    search.tell(Result(Trial(1, shown), 0.9, {"slot-0": Ok(0.9)}))
    reward = search.memory.records[-1].reward
    expected = waiting.candidates[waiting.chosen[0]].reward(0.9).total(search.config.reward)
    assert reward == pytest.approx(expected)
    change = search.memory.rewards / search.memory.answered - before
    for member in search.population.members:
        gained = member.evidence - evidence[member.prompt]
        if member.prompt == shown.shown[0].prompt:
            old, guessed = fitness[member.prompt]
            assert gained == 1.0
            assert member.fitness == pytest.approx(0.9 * (old + guessed * change) + 0.1 * reward)
        elif member.prompt in asked.prompts:
            assert 0.0 < gained <= 0.5
        else:
            assert gained == 0.0


def test_responses_that_failed_are_left_out_of_the_choice() -> None:
    search = begun()
    (asked,) = search.ask(1)
    search.tell(Result(Trial(0, asked), None, answered(asked, broken={0, 1, 3, 4})))
    (shown,) = search.ask(1)
    assert isinstance(shown, Show) and shown.shown[0].slot == 2


@pytest.mark.parametrize("data", [None, {}, {"text": "  "}, {"text": 5}, "text"])
def test_a_query_without_any_response_is_skipped(data: Any) -> None:
    search = begun(total=2)
    (asked,) = search.ask(1)
    outcomes: dict[str, Outcome] = {f"slot-{i}": Ok(0.0, data) for i in range(4)}
    search.tell(Result(Trial(0, asked), None, {**outcomes, "slot-4": Failed("server", "down")}))
    (following,) = search.ask(1)
    assert isinstance(following, Generate) and following.number == 1
    assert search.memory.skipped == 1 and not search.done


def test_a_response_without_feedback_teaches_nothing() -> None:
    search = begun(total=1)
    (asked,) = search.ask(1)
    search.tell(Result(Trial(0, asked), 0.0, answered(asked)))
    (shown,) = search.ask(1)
    before = search.critic.state()
    search.tell(Result(Trial(1, shown), None, {"slot-0": Failed("error", "the judge was silent")}))
    assert search.critic.state() == before
    assert search.memory.unanswered == 1 and search.done and list(search.ask(1)) == []


# -- phases --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bootstrap_shows_every_prompt_in_turn_before_evolution_begins() -> None:
    search = begun(total=40, bootstrap_queries=20)
    drive(search, most=40)
    assert all(member.evidence > 0 and member.born == 0 for member in search.population.members)
    assert search.population.generations == []
    drive(search)
    assert [generation.query for generation in search.population.generations] == [25, 30, 35, 40]


@pytest.mark.slow
def test_the_actor_learns_every_so_many_answers() -> None:
    search = begun(total=21, actor_critic=ActorCriticParams(update_interval=7))
    weights = []
    while asked := search.ask(1):
        search.tell(Result(Trial(0, asked[0]), 0.0, answered(asked[0])))
        if isinstance(asked[0], Show):
            weights.append(search.actor.shows.weights.tolist())
    changes = [number for number, (a, b) in enumerate(itertools.pairwise(weights), start=2) if a != b]
    assert changes == [7, 14, 21]


@pytest.mark.slow
def test_a_random_actor_and_an_absent_critic_are_what_they_say() -> None:
    blind = begun(actor="random")
    drive(blind)
    assert all(record.probability == pytest.approx(0.2) for record in blind.memory.records)
    simple = begun(critic=False)
    drive(simple)
    assert simple.critic.count == 0
    assert {record.expected for record in simple.memory.records} == {0.5}


@pytest.mark.slow
def test_without_evolution_the_first_prompts_stay() -> None:
    search = begun(total=30, evolve=False, fitness_threshold=-9.0)
    first = {member.prompt for member in search.population.members}
    drive(search)
    assert {member.prompt for member in search.population.members} == first


@pytest.mark.slow
def test_in_the_end_what_is_unfit_is_dropped_and_the_best_remains() -> None:
    search = begun(fitness_threshold=99.0)
    drive(search)
    assert search.done and len(search.population.members) == 1


@pytest.mark.slow
def test_preferences_between_two_teach_the_critic_and_credit_both() -> None:
    search = begun(total=12, ask="pair")
    shown = [step for step in drive(search) if isinstance(step, Show)]
    assert all(len(step.shown) == 2 and step.shown[0].slot != step.shown[1].slot for step in shown)
    assert search.critic.pairs == 12 and search.critic.count == 0
    assert search.memory.answered == 12


def test_of_two_the_preferred_is_credited_with_a_success_and_the_other_with_a_failure() -> None:
    search = begun(ask="pair", total=2)
    (asked,) = search.ask(1)
    search.tell(Result(Trial(0, asked), 0.0, answered(asked)))
    (shown,) = search.ask(1)
    assert isinstance(shown, Show)
    waiting = search.memory.waiting[shown.number]
    search.tell(Result(Trial(1, shown), 1.0, {"slot-0": Ok(1.0)}))
    rewards = [waiting.candidates[each].reward(said) for each, said in zip(waiting.chosen, (1.0, 0.0))]
    totals = [reward.total(search.config.reward) for reward in rewards]
    for shown_one, total in zip(shown.shown, totals):
        member = search.population.find(shown_one.prompt)
        assert member is not None and member.evidence == 1.0
        assert member.fitness == pytest.approx(0.9 * totals[0] + 0.1 * total)  # the first reward is the first guess


RULE = "Never ask for a PIN."
OWN = ("You help bank customers. Answer in numbered steps.", "You are a bank clerk. Be warm. Explain the reasons.")


@pytest.mark.slow
@pytest.mark.parametrize("evolve", [True, False])
def test_the_users_own_prompts_are_what_evolves_and_the_pinned_part_is_in_every_one(
    evolve: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems: list[str] = []

    generate = Model.generate

    async def noted(self: Model, query: str, **options: Any) -> Any:
        systems.append(options["system"])
        return await generate(self, query, **options)

    monkeypatch.setattr(Model, "generate", noted)
    done = study(config(total=30, prompts=OWN, pinned=RULE, evolve=evolve)).run()
    assert len(systems) >= 30 and all(system.startswith(f"{RULE}\n") for system in systems)
    parts = {clause for text in OWN for clause in clauses_of(prompt_of(text))}
    said = {clause for system in systems for clause in clauses_of(prompt_of(system.removeprefix(RULE)))}
    assert (said == parts) if not evolve else all(words(clause) <= words(" ".join(OWN)) for clause in said)
    assert (len(set(systems)) > len(OWN)) == evolve
    assert done.summary is not None and done.summary.figures["best_prompt"]["text"].startswith(RULE)


def words(text: str) -> set[str]:
    return {word.strip(".") for word in text.split()}


@pytest.mark.slow
def test_a_writer_is_shown_what_nobody_liked_and_its_prompts_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    generate = Model.generate

    async def writing(self: Model, query: str, **options: Any) -> Any:
        if "writer" not in self.name:
            return await generate(self, query, **options)
        asked.append(query)
        useful = "<rewritten>Be warm and encouraging. End with a question.</rewritten>"
        return SimpleNamespace(text=useful if len(asked) > 1 else "I would rather not.", finish="stop")

    monkeypatch.setattr(Model, "generate", writing)
    made = config(total=30, prompts=OWN, writer="simulated/writer", pinned=RULE)
    ledger = tmp_path / "ledger.db"
    done = study(made).run("async:5", ledger=ledger, run="r")
    steps = [step_of(result.candidate) for result in done.results()]
    writes = [step for step in steps if isinstance(step, Write)]
    assert len(writes) == len(asked) >= 3 and writes[0].failures
    assert writes[0].failures[0].said in asked[0] and RULE not in asked[0]
    assert [isinstance(r.outcomes["slot-0"], Failed) for r in done.results() if "failures" in r.candidate][:2] == [
        True,
        False,
    ]
    new = prompt_of("Be warm and encouraging. End with a question.")
    assert any(new in step.prompts for step in steps if isinstance(step, Generate))
    done.ledger.close()
    before = list(asked)
    again = study(made).run("async:5", ledger=ledger, run="r")
    assert asked == before and again.trace == done.trace
    assert again.summary is not None and again.summary.figures["answered"] == 30


def test_a_writer_that_nobody_knows_is_refused_and_one_that_is_never_asked_is_said() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        study(config(writer="nobody/knows")).run()
    assert "never asked" in study(config(prompts=OWN, writer="simulated/writer", evolve=False)).remarks[0]


def test_where_prompts_come_from_and_what_feedback_is_worth_is_said() -> None:
    assert ["built-in clauses" in line for line in study(config()).remarks] == [True]
    assert not study(config(prompts=OWN)).remarks
    assert ["by rule is weak" in line for line in study(config(prompts=OWN, feedback="rules")).remarks] == [True]


def test_a_short_list_of_queries_is_gone_through_again_with_new_samples() -> None:
    made = config(total=7)
    search = CriticStrategy(made, ("Why?", "How?", "Who?"))
    search.begin(1)
    steps = [step for step in drive(search) if isinstance(step, Generate)]
    assert [(step.query, step.sample) for step in steps] == [
        ("Why?", 0), ("How?", 0), ("Who?", 0), ("Why?", 1), ("How?", 1), ("Who?", 1), ("Why?", 2)
    ]  # fmt: skip


# -- the same everywhere -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("cut", [1, 8, 17, 40])
def test_a_saved_search_goes_on_as_if_nothing_had_happened(cut: int, concurrent: int) -> None:
    def trace(saved_after: int | None) -> list[bytes]:
        search, waiting, steps, told = begun(total=24, concurrent=concurrent), [], [], 0
        while True:
            for step in search.ask(search.window - len(waiting)):
                waiting.append(step)
                steps.append(msgspec.json.encode(step))
            if not waiting:
                return steps
            step = waiting.pop(0)
            search.tell(Result(Trial(0, step), 0.0, answered(step)))
            told += 1
            if told == saved_after:
                state, search = search.save(), begun(total=24, concurrent=concurrent)
                search.load(state)

    assert trace(cut) == trace(None)


def run(made: CriticConfig, executor: str = "inline", **how: Any) -> Run[Any]:
    return replace(study(made), conclude=None).run(executor, **how)


@pytest.mark.slow
@pytest.mark.parametrize("concurrent", [1, 4])
def test_the_same_search_on_every_executor(concurrent: int) -> None:
    made = config(concurrent=concurrent)
    traces = {run(made, executor).trace for executor in ("inline", "async:3", "async:32")}
    assert len(traces) == 1


@pytest.mark.slow
def test_another_seed_is_another_search() -> None:
    assert run(config(seed=1)).trace != run(config(seed=2)).trace


@pytest.mark.slow
@pytest.mark.parametrize("stopped_after", [9, 57])  # before and after the first snapshot
def test_an_interrupted_run_goes_on_and_asks_nobody_twice(tmp_path: Path, stopped_after: int) -> None:
    asked: list[str] = []

    async def source(query: str, responses: tuple[str, ...]) -> Feedback:
        asked.append(responses[0])
        return read("score", planted_feedback(query, responses[0]))

    made = config(total=32, concurrent=2)
    whole = replace(study(made, feedback=source), conclude=None)
    straight = whole.run("async:8")
    there, asked[:] = list(asked), []
    ledger = tmp_path / "ledger.db"
    replace(whole, stop=MaxTrials(stopped_after)).run("async:8", ledger=ledger, run="r").ledger.close()
    resumed = whole.run("async:8", ledger=ledger, run="r")
    assert resumed.trace == straight.trace
    assert sorted(asked) == sorted(there)


@pytest.mark.slow
def test_the_search_can_be_rebuilt_from_the_ledger() -> None:
    made = config(concurrent=2)
    done = run(made)
    rebuilt = replayed(made, queries_of(made), done)
    assert rebuilt.done and rebuilt.memory.answered == made.total
    told = [result for result in done.results() if msgspec.convert(result.candidate, Step).slots == 1]
    assert [record.feedback for record in rebuilt.memory.records] == [result.score for result in told]


@pytest.mark.slow
def test_a_search_that_is_not_the_recorded_one_is_not_rebuilt() -> None:
    made = config()
    done = run(made)
    with pytest.raises(ReplayDivergence, match="trial 0 of run"):
        replayed(made, [query + "!" for query in queries_of(made)], done)


@pytest.mark.slow
def test_the_ledger_says_what_was_said_and_what_the_critic_had_expected() -> None:
    shows = [result for result in run(config(ask="rating")).results() if result.candidate["type"] == "show"]
    assert len(shows) == 16
    for result in shows:
        data = result.outcomes["slot-0"].data  # type: ignore[union-attr]
        assert data["kind"] == "rating" and data["raw"] in (1, 2, 3, 4, 5)
        assert data["score"] == (data["raw"] - 1) / 4 == result.score
        assert len(result.trial.origin["expected"]) == 5 and 0 < result.trial.origin["probability"][0] <= 1


@pytest.mark.slow
def test_when_the_person_leaves_the_run_stops_and_goes_on_later_where_it_was(tmp_path: Path) -> None:
    screens: list[io.StringIO] = []

    def person(lines: int) -> Human:
        reader = io.StringIO("3\n" * lines)

        def opened(stack: ExitStack) -> tuple[IO[str], IO[str]]:
            screens.append(io.StringIO())
            return reader, screens[-1]

        return Human("rating", opened)

    made = config(feedback="human", ask="rating", total=6, bootstrap_queries=2)
    ledger = tmp_path / "ledger.db"
    with pytest.raises(CallFailed, match="run it again under the same name"):
        study(made, feedback=person(2)).run(ledger=ledger, run="r")
    done = study(made, feedback=person(4)).run(ledger=ledger, run="r")
    assert done.summary is not None and done.summary.figures["answered"] == 6
    assert done.progress.failures == 0
    asked = sum("How good" in screen.getvalue() for screen in screens)
    assert asked == 3 + 4  # two answers, the one that never came, and the remaining four


def test_nothing_is_paid_for_where_nobody_can_be_asked_and_what_is_finished_still_opens(tmp_path: Path) -> None:
    reader = io.StringIO("3\n" * 3)

    def person(stack: ExitStack) -> tuple[IO[str], IO[str]]:
        return reader, io.StringIO()

    def nobody(stack: ExitStack) -> tuple[IO[str], IO[str]]:
        raise NobodyThere("there is no terminal")

    made, ledger = config(feedback="human", ask="rating", total=3, bootstrap_queries=1), tmp_path / "ledger.db"
    with pytest.raises(CallFailed, match="no terminal"):
        study(made, feedback=Human("rating", nobody)).run(ledger=ledger, run="r")
    with Ledger(ledger) as opened:
        assert not opened.runs()
    done = study(made, feedback=Human("rating", person)).run(ledger=ledger, run="r")
    assert study(made, feedback=Human("rating", nobody)).run(ledger=ledger, run="r").trace == done.trace


def ahead_of_its_group(**changes: Any) -> float:
    """By how much what is shown is better than the mean of the responses it was chosen from, once there is evidence."""
    search, gains, group = begun(total=120, bootstrap_queries=20, **changes), [], 0.0
    while asked := search.ask(1):
        step, outcomes = asked[0], answered(asked[0])
        search.tell(Result(Trial(0, step), 0.0, outcomes))
        if isinstance(step, Generate):
            texts = [outcome.data["text"] for outcome in outcomes.values() if isinstance(outcome, Ok)]
            group = sum(preference(step.query, text) for text in texts) / len(texts)
        elif step.number >= 60:
            gains.append(preference(step.query, step.shown[0].response) - group)
    return sum(gains) / len(gains)


@pytest.mark.slow
def test_what_is_shown_becomes_better_than_what_it_was_chosen_from_and_by_chance_it_does_not() -> None:
    seeds = range(1, 3)  # one run says little: the gain of single seeds reaches from 0.06 to 0.17
    learnt = sum(ahead_of_its_group(seed=seed) for seed in seeds) / len(seeds)
    chance = sum(ahead_of_its_group(seed=seed, actor="random") for seed in seeds) / len(seeds)
    assert learnt > 0.03
    assert abs(chance) < 0.03


@pytest.mark.slow
def test_a_prompt_that_is_the_best_for_one_kind_of_query_is_missed_and_a_double_is_not() -> None:
    search = begun(total=60, fitness_threshold=-9.0)
    drive(search, most=100)
    members = search.population.members
    missed, promise = search._outlook(members)
    assert set(missed) == {member.prompt.text for member in members}
    assert min(missed.values()) >= 0.0 < max(missed.values())
    best = max(members, key=lambda member: missed[member.prompt.text])
    double = replace(best, prompt=replace(best.prompt, role=("You are the double.",)))
    again, _ = search._outlook([*members, double])
    assert again[best.prompt.text] < missed[best.prompt.text]
    assert promise(best.prompt) < 1.0
