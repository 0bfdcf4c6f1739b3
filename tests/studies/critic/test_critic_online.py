"""A critic inside an application: questions and feedback from several processes, at any time, in one file."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fanfold.errors import CallFailed, ConfigError, UnknownShow
from fanfold.ledger import RunView
from fanfold.studies.critic import ActorCriticParams, Critic, CriticConfig, application, study
from fanfold.studies.critic.learner import FeedbackLearner
from fanfold.studies.critic.shown import answers, overview
from fanfold.studies.critic.simulated import planted_queries, qualities

PROMPTS = ["Answer with numbered steps.", "Be warm and friendly.", "Answer in one short sentence."]


def begin(path: Path, **settings: Any) -> Critic:
    return Critic.open(path, **{"model": "simulated/critic", "prompts": PROMPTS, **settings})


def other_process(code: str, *arguments: object, check: bool = True) -> str:
    """What a program in another process prints."""
    script = "import os, signal, sys\nfrom fanfold.studies.critic import Critic\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def rows(path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(path) as db:
        return db.execute(sql).fetchall()


def knowledge(critic: Critic) -> Any:
    """All that a critic's regression has learnt."""
    return critic._learner.search.critic.state()


# -- asking and telling -----------------------------------------------------------------------------------------------


def test_a_question_is_answered_by_one_of_the_prompts_and_feedback_is_learnt(tmp_path: Path) -> None:
    async def chat() -> None:
        critic = begin(tmp_path / "app.db")
        shown = await critic.ask("How do I dry herbs?")
        assert shown.prompt in PROMPTS
        assert shown.text
        assert critic.status() == {"shows": 1, "answered": 0, "open": 1}
        await critic.tell(shown.id, rating=4)
        assert critic.status() == {"shows": 1, "answered": 1, "open": 0}
        critic.close()

    asyncio.run(chat())


def test_of_two_answers_one_can_be_preferred(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db") as critic:
        shown = critic.ask_sync("How do I dry herbs?", show=2)
        assert len(shown.texts) == len(set(shown.prompts)) == 2
        critic.tell_sync(shown.id, preferred="B")
        second, first = (dict(critic.ranking())[shown.prompts[at]] for at in (1, 0))
        assert second > first


@pytest.mark.slow
def test_feedback_is_told_from_a_process_that_only_tells(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    critic = begin(path)
    shown = critic.ask_sync("How do I dry herbs?")
    other_process("Critic.open(sys.argv[1]).tell_sync(sys.argv[2], thumbs=True)", path, shown.id)
    assert critic.status()["answered"] == 1
    assert dict(critic.ranking())[shown.prompt] == max(fitness for _, fitness in critic.ranking())


@pytest.mark.slow
def test_a_process_killed_between_ask_and_tell_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    begin(path).close()
    code = """
        shown = Critic.open(sys.argv[1]).ask_sync("How do I dry herbs?")
        print(shown.id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    id = other_process(code, path, check=False)
    code = """
        Critic.open(sys.argv[1]).tell_sync(sys.argv[2], reward=0.9)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    other_process(code, path, id, check=False)
    with Critic.open(path) as critic:
        assert critic.status() == {"shows": 1, "answered": 1, "open": 0}


@pytest.mark.slow
def test_an_application_killed_at_any_time_keeps_every_question_and_all_feedback(tmp_path: Path) -> None:
    path, rng = tmp_path / "app.db", random.Random(5)
    begin(path).close()
    script = """
        import sys
        from fanfold.studies.critic import Critic
        critic = Critic.open(sys.argv[1])
        for number in range(10_000):
            shown = critic.ask_sync(f"How do I dry {sys.argv[2]} {number} herbs?")
            print("asked", shown.id, flush=True)
            critic.tell_sync(shown.id, rating=1 + number % 5)
            print("told", shown.id, flush=True)
    """
    asked, told = set(), set()
    for life in range(6):
        command = [sys.executable, "-c", textwrap.dedent(script), str(path), str(life)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(rng.randint(1, 60)):
            verb, id = process.stdout.readline().split()
            (asked if verb == "asked" else told).add(id)
        process.kill()
        for line in process.communicate()[0].splitlines():
            verb, id = line.split()
            (asked if verb == "asked" else told).add(id)
    with Critic.open(path) as critic:
        status = critic.status()
        # The last of each life may be in the file though nobody was told so.
        assert len(asked) <= status["shows"] <= len(asked) + 6
        assert len(told) <= status["answered"] <= len(told) + 6
        for id in asked:
            critic.tell_sync(id, rating=3)
        assert critic.status()["answered"] >= len(asked)


def test_the_last_feedback_counts(tmp_path: Path) -> None:
    changed, straight = begin(tmp_path / "changed.db"), begin(tmp_path / "straight.db")
    for critic, told in ((changed, (1, 5)), (straight, (5,))):
        first = critic.ask_sync("How do I dry herbs?")
        later = critic.ask_sync("Why is the sky blue?")
        critic.tell_sync(first.id, rating=told[0])
        critic.tell_sync(later.id, rating=3)
        for rating in told[1:]:
            critic.tell_sync(first.id, rating=rating)
    assert changed.status() == straight.status() == {"shows": 2, "answered": 2, "open": 0}
    expected = [critic._learner.search.critic._xy for critic in (changed, straight)]
    assert expected[0] == pytest.approx(expected[1], abs=1e-12)
    stored = [
        rows(tmp_path / f"{name}.db", "SELECT score FROM trial ORDER BY number") for name in ("changed", "straight")
    ]
    assert stored[0] == stored[1] == [(1.0,), (0.5,)]


def test_telling_the_same_again_changes_nothing(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db") as critic:
        shown = critic.ask_sync("How do I dry herbs?")
        critic.tell_sync(shown.id, rating=2)
        before = (knowledge(critic), critic.ranking())
        critic.tell_sync(shown.id, rating=2)  # a client that got no reply tries again
        assert (knowledge(critic), critic.ranking()) == before


@pytest.mark.parametrize(
    "id", ["", "nonsense", "7-0123456789abcdef", "0-0123456789abcdef", "-1-0123456789abcdef", None]
)
def test_an_unknown_id_is_an_error_that_says_so(tmp_path: Path, id: Any) -> None:
    with begin(tmp_path / "app.db") as critic:
        critic.ask_sync("How do I dry herbs?")  # its number is 0, and its key is not all of these digits
        with pytest.raises(UnknownShow, match=r"there is no show .* tell with the id of what `ask` returned"):
            critic.tell_sync(id, rating=4)
        assert critic.status()["answered"] == 0


@pytest.mark.parametrize(
    ("show", "feedback", "problem"),
    [
        (1, {"rating": 7}, "rating feedback must be a number from 1 to 5, not 7"),
        (1, {"reward": "good"}, "must be a number from 0 to 1"),
        (1, {"preferred": "A"}, "one answer was shown, and preferred was said"),
        (1, {}, "nothing was said: give rating=, reward=, thumbs="),
        (1, {"stars": 3}, "stars was said"),
        (2, {"rating": 3}, "two answers were shown, and rating was said: give preferred="),
        (2, {"preferred": "C"}, "must be 'A', 'B' or 'tie'"),
    ],
)
def test_feedback_that_makes_no_sense_is_refused_and_not_kept(
    tmp_path: Path, show: int, feedback: dict[str, Any], problem: str
) -> None:
    with begin(tmp_path / "app.db") as critic:
        shown = critic.ask_sync("How do I dry herbs?", show=show)
        with pytest.raises(ConfigError, match=problem):
            critic.tell_sync(shown.id, **feedback)
        assert rows(tmp_path / "app.db", "SELECT count(*) FROM evaluation") == [(0,)]


def test_a_question_must_be_one(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db") as critic:
        with pytest.raises(ConfigError, match="query must be a text"):
            critic.ask_sync("  ")
        with pytest.raises(ConfigError, match="show=3 is not possible with 2 candidates"):
            critic.ask_sync("How do I dry herbs?", show=3)


def test_an_answer_that_does_not_come_is_an_error_and_no_show(tmp_path: Path) -> None:
    class Silent:
        async def generate(self, *prompt: str, **parameters: Any) -> Any:
            raise CallFailed("overloaded", "come back later")

    with begin(tmp_path / "app.db") as critic:
        vars(critic)["_model"] = Silent()
        with pytest.raises(CallFailed, match="come back later"):
            critic.ask_sync("How do I dry herbs?")
        assert critic.status()["shows"] == 0
        assert not critic._learner.search.memory.generating


def test_nobody_waits_for_a_model_without_end_and_what_came_in_time_is_shown(tmp_path: Path) -> None:
    class Slow:
        def __init__(self, quick: int) -> None:
            self.quick = quick

        async def generate(self, query: str, **parameters: Any) -> Any:
            self.quick -= 1
            if self.quick < 0:
                await asyncio.sleep(60)
            return SimpleNamespace(text="In time.", output_tokens=2)

    with begin(tmp_path / "app.db", timeout=0.05) as critic:
        vars(critic)["_model"] = Slow(1)
        assert critic.ask_sync("How do I dry herbs?").text == "In time."
        for show in (1, 2):
            vars(critic)["_model"] = Slow(show - 1)
            with pytest.raises(CallFailed, match=r"has not answered within 0.05 s") as failed:
                critic.ask_sync("How do I dry herbs?", show=show)
            assert failed.value.passing
        assert critic.status()["shows"] == 1
    with pytest.raises(ConfigError, match="timeout must be seconds above 0"):
        begin(tmp_path / "app.db", timeout=0)


def test_pairs_are_not_taken_for_satisfaction(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db") as critic:
        for at in range(4):
            critic.tell_sync(critic.ask_sync(f"How do I dry herbs {at}?", show=2).id, preferred="B")
        critic.tell_sync(critic.ask_sync("Why is the sky blue?").id, rating=5)
    with RunView.open(tmp_path / "app.db", "critic") as view:
        satisfied, preferred = overview(view)
    assert (satisfied.title, satisfied.rows[-1][:2]) == ("Satisfaction", (1, 1.0))
    assert (preferred.title, preferred.rows[-1][:2]) == ("Preferred", (4, 0.0))


def test_every_answer_that_was_shown_can_be_exported_with_what_was_said(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db", pinned="Be polite.") as critic:
        one, two = critic.ask_sync("How do I dry herbs?"), critic.ask_sync("Why is the sky blue?", show=2)
        critic.tell_sync(one.id, rating=4, thumbs=True)
        critic.tell_sync(two.id, preferred="B")
        critic.ask_sync("Nobody judges this?")
    with RunView.open(tmp_path / "app.db", "critic") as view:
        table = list(answers(view))
    told = [(row["trial"], row["answer"], row["feedback"], row["said"], row["score"]) for row in table]
    assert told[0] == (0, "", "several", "rating: 4; thumbs: True", 0.875)
    assert told[1:] == [(1, "A", "preference", "B", 0.0), (1, "B", "preference", "B", 1.0), (2, "", None, None, None)]
    assert [row["text"] for row in table[:3]] == [one.text, *two.texts]
    assert [row["prompt"] for row in table[:3]] == [one.prompt, *two.prompts]
    assert all(0.0 <= row["expected"] <= 1.0 for row in table)


# -- several processes, and time --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_that_ask_at_once_share_numbers_calls_and_feedback(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    critic = begin(path, prompts=PROMPTS[:1], temperatures=(0.7,))
    code = """
        import asyncio
        critic = Critic.open(sys.argv[1])
        async def chat():
            for shown in await asyncio.gather(*(critic.ask(f"How do I dry {n} herbs?") for n in range(25))):
                print(shown.id)
                await critic.tell(shown.id, rating=4)
        asyncio.run(chat())
    """
    script = "import sys\nfrom fanfold.studies.critic import Critic\n" + textwrap.dedent(code)
    processes = [
        subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len({*printed[0], *printed[1]}) == 50
    assert critic.status() == {"shows": 50, "answered": 50, "open": 0}
    assert rows(path, "SELECT count(*), count(DISTINCT key) FROM payment") == [(25, 25)]


@pytest.mark.slow
def test_a_thousand_questions_with_late_feedback_are_all_learnt_and_opened_again(tmp_path: Path) -> None:
    path, rng = tmp_path / "app.db", random.Random(3)
    critic = begin(path)
    told: set[str] = set()

    async def chat() -> None:
        waiting: list[str] = []
        for start in range(0, 1000, 50):
            queries = planted_queries(1000, 7)[start : start + 50]
            shown = await asyncio.gather(*(critic.ask(query) for query in queries))
            waiting += [each.id for each in shown if rng.random() < 0.7]  # some are never judged
            rng.shuffle(waiting)
            waiting, due = waiting[:60], waiting[60:]
            told.update(due)
            await asyncio.gather(*(critic.tell(id, reward=rng.random()) for id in due))

    asyncio.run(chat())
    assert len(told) > 600
    assert critic.status() == {"shows": 1000, "answered": len(told), "open": 1000 - len(told)}
    with Critic.open(path) as again:  # the first is still open, and never said goodbye
        assert again.status() == critic.status()
        assert again.ranking() == critic.ranking()
        assert knowledge(again) == knowledge(critic)


@pytest.mark.slow
def test_a_checkpoint_spares_most_of_the_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "app.db"
    critic = begin(path)
    for n in range(120):
        critic.tell_sync(critic.ask_sync(f"How do I dry {n} herbs?").id, rating=3)
    lessons = []
    take = FeedbackLearner._take
    monkeypatch.setattr(FeedbackLearner, "_take", lambda self, number: (lessons.append(number), take(self, number))[1])
    with Critic.open(path) as again:
        assert 0 < len(lessons) <= 25
        assert again.ranking() == critic.ranking()
    lessons.clear()
    with Critic.open(path):  # the one before was closed
        assert lessons == []


@pytest.mark.slow
def test_a_checkpoint_of_another_version_is_learnt_again_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with begin(path) as critic:
        for n in range(10):
            critic.tell_sync(critic.ask_sync(f"How do I dry {n} herbs?").id, rating=1 + n % 5)
        before = (critic.ranking(), critic.status(), knowledge(critic))
    with sqlite3.connect(path) as db:
        (state,) = db.execute("SELECT state FROM snapshot").fetchone()
        saved = {**json.loads(state), "version": "older"}
        saved["search"]["members"][0]["fitness"] = 9.0  # which would mean something else today
        db.execute("UPDATE snapshot SET state = ?", (json.dumps(saved).encode(),))
    with Critic.open(path) as again:
        assert (again.ranking(), again.status(), knowledge(again)) == before
    with sqlite3.connect(path) as db:
        db.execute("UPDATE snapshot SET state = x'00'")
    with Critic.open(path) as again:
        assert (again.ranking(), again.status(), knowledge(again)) == before


def test_shows_that_nobody_judges_expire_but_can_still_be_told(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db", expires=0.0) as critic:
        shown = critic.ask_sync("How do I dry herbs?")
        assert critic.status() == {"shows": 1, "answered": 0, "open": 0}
        critic.tell_sync(shown.id, rating=5)
        assert critic.status() == {"shows": 1, "answered": 1, "open": 0}


def test_questions_at_once_do_not_all_try_the_same_prompt(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db", candidates=1) as critic:
        shown = [critic.ask_sync(f"How do I dry {n} herbs?") for n in range(6)]  # no feedback in between
        assert sorted(each.prompt for each in shown) == sorted(PROMPTS * 2)


@pytest.mark.slow
def test_a_taste_that_changes_is_followed(tmp_path: Path) -> None:
    """Numbered steps are liked for 300 questions, and then warmth."""
    critic, rng = begin(tmp_path / "app.db"), random.Random(0)
    rewards: list[float] = []

    async def chat() -> None:
        for number, query in enumerate(planted_queries(600, 0)):
            shown = await critic.ask(query)
            seen = qualities(query, shown.text)
            liked = (seen["steps"] - seen["warm"]) * (1 if number < 300 else -1)
            rewards.append(min(1.0, max(0.0, 0.5 + 0.4 * liked + rng.gauss(0.0, 0.1))))
            await critic.tell(shown.id, reward=rewards[-1])

    asyncio.run(chat())
    assert critic.config.half_life == 200
    before, after, at_last = (sum(rewards[at : at + 50]) / 50 for at in (250, 300, 550))
    assert before > 0.7
    assert after < 0.6  # it cannot know
    assert at_last > 0.7


# -- opening ----------------------------------------------------------------------------------------------------------


def test_a_critic_begins_with_a_model_and_prompts(tmp_path: Path) -> None:
    for missing in ({"model": None}, {"prompts": None}, {"prompts": []}):
        with pytest.raises(ConfigError, match=r"there is no critic 'critic' .* give model= and prompts="):
            begin(tmp_path / "app.db", **missing)
    with pytest.raises(ConfigError, match="prompts must be a list of texts"):
        begin(tmp_path / "app.db", prompts="Be brief.")
    with pytest.raises(ConfigError, match="prompts must be a list of texts, and one of them is None"):
        begin(tmp_path / "app.db", prompts=["Be brief.", None])
    with pytest.raises(ConfigError, match="max_tokenz"):
        begin(tmp_path / "app.db", max_tokenz=3)
    with pytest.raises(ConfigError, match="writer is a setting of the study"):
        begin(tmp_path / "app.db", writer="simulated/writer")
    with pytest.raises(ConfigError, match="nobody/knows"):
        begin(tmp_path / "app.db", model="nobody/knows")
    assert not list(tmp_path.iterdir())  # nothing is left of what could not work


def test_a_closed_critic_says_so(tmp_path: Path) -> None:
    critic = begin(tmp_path / "app.db")
    critic.close()
    critic.close()
    with pytest.raises(ConfigError, match=r"this critic is closed: Critic.open\(.*\) opens it again"):
        critic.ask_sync("How do I dry herbs?")


@pytest.mark.slow
def test_the_pinned_part_is_in_every_prompt_however_they_evolve(tmp_path: Path) -> None:
    path, rule = tmp_path / "app.db", "Never ask for a PIN."
    with begin(path, pinned=rule, evolve=True, bootstrap_queries=2, candidates=3) as critic:
        shown = [critic.ask_sync(f"How do I open {n} accounts?") for n in range(40)]
        for n, each in enumerate(shown):
            critic.tell_sync(each.id, rating=1 + n % 5)
        shown += [critic.ask_sync(f"How do I close {n} accounts?") for n in range(10)]
        assert len(critic.ranking()) > len(PROMPTS)
    assert len({each.prompt for each in shown}) > 3
    assert all(rule in each.prompt for each in shown)
    sent = [text for (text,) in rows(path, "SELECT request FROM call")]
    assert sent
    assert all(rule in text for text in sent)


def test_settings_are_remembered_and_some_may_change(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    settings: dict[str, Any] = {"temperatures": (0.2, 0.4), "reward": {"lambda_tokens": 0.0}}
    begin(path, max_tokens=64, **settings).close()
    begin(path, **settings).close()
    with Critic.open(path) as critic:
        assert (critic.config.model, critic.config.max_tokens) == ("simulated/critic", 64)
    with Critic.open(path, max_tokens=32) as critic:
        assert critic.config.max_tokens == 32
    with pytest.raises(ConfigError, match=r"temperatures was .* cannot change"):
        Critic.open(path, temperatures=(0.9,))
    with Critic.open(path) as critic:
        assert critic.config.max_tokens == 32


@pytest.mark.slow
def test_a_prompt_that_evolution_replaced_does_not_join_again_at_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.db"
    monkeypatch.setattr(application, "CHECKPOINT", 20)
    with begin(path, evolve=True) as critic:
        for at in range(60):
            shown = critic.ask_sync(f"How do I dry herbs {at}?")
            critic.tell_sync(shown.id, reward=qualities(shown.query, shown.text)["warm"])
        learnt = critic.ranking()
        assert not set(PROMPTS) <= {prompt for prompt, _ in learnt}  # one at least was replaced
        with Critic.open(path) as reopened:
            assert reopened.ranking() == learnt
    with begin(path, prompts=[*PROMPTS, "Answer in verse."]) as critic:
        assert len(critic.ranking()) == len(learnt) + 1
    with begin(path, prompts=PROMPTS[1:]) as critic:
        assert not {PROMPTS[0], "Answer in verse."} & {prompt for prompt, _ in critic.ranking()}
        critic.ask_sync("How do I dry herbs?")
    with begin(path) as critic:  # given up and taken again
        assert PROMPTS[0] in {prompt for prompt, _ in critic.ranking()}


def test_a_new_prompt_joins_and_one_that_is_no_longer_given_leaves(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with begin(path) as critic:
        for n in range(4):
            critic.tell_sync(critic.ask_sync(f"How do I dry {n} herbs?").id, rating=5)
        worth = dict(critic.ranking())
    with begin(path, prompts=[*PROMPTS[1:], "Answer like a pirate."]) as critic:
        ranking = dict(critic.ranking())
        assert ranking.keys() == {*PROMPTS[1:], "Answer like a pirate."}
        assert ranking[PROMPTS[1]] == worth[PROMPTS[1]]
    with Critic.open(path) as critic:
        assert dict(critic.ranking()).keys() == ranking.keys()
        critic.tell_sync(critic.ask_sync("Why is the sky blue?").id, rating=5)


def test_a_critic_that_began_with_one_prompt_asks_two_once_there_are_two(tmp_path: Path) -> None:
    with begin(tmp_path / "app.db", prompts=PROMPTS[:1]) as critic:
        assert critic.config.actor_critic.num_candidates == 1
    with begin(tmp_path / "app.db", prompts=(prompt for prompt in PROMPTS)) as critic:
        assert len(critic.ask_sync("How do I dry herbs?", show=2).texts) == 2


@pytest.mark.parametrize("given", [{"num_candidates": 3}, ActorCriticParams(num_candidates=3, exploration=0.3)])
def test_settings_of_the_choice_say_how_many_prompts_answer(tmp_path: Path, given: Any) -> None:
    with begin(tmp_path / "app.db", prompts=[*PROMPTS, "Answer in verse."], actor_critic=given) as critic:
        assert critic.config.actor_critic.num_candidates == 3
    with Critic.open(tmp_path / "app.db", actor_critic=ActorCriticParams(exploration=0.2)) as critic:
        assert critic.config.actor_critic == ActorCriticParams(num_candidates=3, exploration=0.2)
    with begin(tmp_path / "new.db", evolve=True, evolution={"population_size": 6}) as critic:
        assert critic.config.evolution.population_size == len(critic.ranking()) == 6


def test_two_answers_of_one_prompt_are_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    begin(tmp_path / "app.db").close()
    with (
        begin(tmp_path / "app.db", prompts=PROMPTS[:1]) as critic,
        pytest.raises(ConfigError, match="need two prompts"),
    ):
        critic.ask_sync("How do I dry herbs?", show=2)
    assert rows(tmp_path / "app.db", "SELECT count(*) FROM call") == [(0,)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": {"a": "Be brief.", "b": "Be warm."}}, "a list of texts, not the mapping"),
        ({"candidates": 0}, "num_candidates must be at least 1, not 0"),
        ({"candidates": "2"}, "num_candidates must be a whole number, not '2'"),
        ({"timeout": "60"}, "timeout must be seconds above 0, or None, not '60'"),
        ({"expires": "1h"}, "expires must be seconds of at least 0, not '1h'"),
    ],
)
def test_prompts_and_candidates_that_cannot_be_meant_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        begin(tmp_path / "app.db", **settings)
    assert not (tmp_path / "app.db").exists()


def test_of_two_processes_that_begin_a_critic_at_once_both_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, create = tmp_path / "app.db", application.create_run

    def later(*arguments: Any) -> int:
        monkeypatch.undo()
        begin(path).close()  # the other process, between our look and our write
        return create(*arguments)

    monkeypatch.setattr(application, "create_run", later)
    with begin(path) as critic:
        assert critic.ask_sync("How do I dry herbs?").text
    assert rows(path, "SELECT count(*) FROM run") == [(1,)]


def test_a_run_of_a_study_is_not_taken_for_an_application(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    study(CriticConfig(model="simulated/critic", total=2)).run(ledger=path, run="critic")
    with pytest.raises(ConfigError, match="is a run of a study: give another name="):
        begin(path)
    with begin(path, name="helpdesk") as critic:
        assert critic.ask_sync("How do I dry herbs?").text


@pytest.mark.slow
def test_the_shell_shows_what_an_application_has_learnt(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with begin(path) as critic:
        critic.tell_sync(critic.ask_sync("How do I dry herbs?").id, rating=5)
        critic.ask_sync("Why is the sky blue?")

    def shell(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fanfold", *map(str, words), "--ledger", str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    shown = shell("show", "critic").stdout
    assert "2 shows, 1 with feedback, 1 open" in shown
    assert all(prompt in shown for prompt in PROMPTS)
    assert f"Continue: fanfold critic serve {path}" in shown and "fanfold resume" not in shown
    assert shell("export", "critic", "-o", tmp_path / "out.csv").returncode == 0
    assert "How do I dry herbs?" in (tmp_path / "out.csv").read_text()
    assert shell("report", "critic", "-o", tmp_path / "report.html").returncode == 0
    refused = shell("resume", "critic")
    assert refused.returncode == 2
    assert "belongs to an application" in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_a_critic_does_not_cross_a_fork(tmp_path: Path) -> None:
    code = """
        critic = Critic.open(sys.argv[1], model="simulated/critic", prompts=["Be brief."])
        critic.ask_sync("How do I dry herbs?")
        if os.fork() == 0:
            try:
                critic.ask_sync("Why?")
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
    """
    assert "opened before the process forked: open one in each process" in other_process(code, tmp_path / "app.db")


def test_a_forked_process_asks_in_a_file_that_was_not_open_before(tmp_path: Path) -> None:
    begin(tmp_path / "app.db").close()
    code = """
        Critic.open(sys.argv[1], model="simulated/critic", prompts=["Be brief."]).ask_sync("How do I dry herbs?")
        if os.fork() == 0:
            signal.alarm(20)  # the child had no thread that answers
            print(Critic.open(sys.argv[2]).ask_sync("Why?").id.partition("-")[0], flush=True)
            os._exit(0)
        os.wait()
    """
    assert other_process(code, tmp_path / "other.db", tmp_path / "app.db") == "0"


def test_a_file_that_was_open_before_a_fork_is_not_written_by_the_child(tmp_path: Path) -> None:
    """SQLite takes the locks of the parent for the child's own: what the child wrote could be lost."""
    code = """
        critic = Critic.open(sys.argv[1], model="simulated/critic", prompts=["Be brief."])
        if os.fork() == 0:
            try:
                Critic.open(sys.argv[1])
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            os._exit(0)
        os.wait()
        print(critic.status()["shows"])
    """
    refused, shows = other_process(code, tmp_path / "app.db").splitlines()
    assert refused.startswith("LedgerError") and "was open when this process forked" in refused
    assert shows == "0"
