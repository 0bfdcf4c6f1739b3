"""The secret-trading game: its points, who meets whom, what agents are told and see, and how conversations end."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.calls import Reply
from fanfold.errors import CallFailed, ConfigError
from fanfold.studies.secrets import prompts
from fanfold.studies.secrets.conversation import TurnRequest, pairing, play
from fanfold.studies.secrets.game import (
    CONTEXT,
    MODES,
    AgentSpec,
    Game,
    Message,
    Player,
    Scoring,
    points,
    winners,
)
from fanfold.studies.secrets.scenarios import scenarios
from fanfold.types import Case

SPEC = AgentSpec("simulated/gpt")


def game(agents: int = 2, **settings: Any) -> Game:
    return Game((SPEC,) * agents, **{"rounds": 1, "messages": 2, **settings})


def case(agents: int = 2, opener: int = 0, **more: Any) -> Case:
    names = ["Ada", "Bo", "Cleo", "Dov", "Edda"][:agents]
    secrets = ["copper lighthouse", "velvet walrus", "sunken piano", "jade compass", "hollow acorn"][:agents]
    return Case("c", {"scenario": 0, "opener": opener, "names": names, "secrets": secrets, **more}, 7)


class Script:
    """Answers by rule and remembers what was asked."""

    def __init__(self, say: Callable[[TurnRequest], str | Reply]) -> None:
        self.say = say
        self.asked: list[TurnRequest] = []

    async def __call__(self, asking: TurnRequest) -> Reply:
        self.asked.append(asking)
        said = self.say(asking)
        return said if isinstance(said, Reply) else Reply(text=said)


def played(game: Game, case: Case, say: Callable[[TurnRequest], str | Reply]) -> tuple[Any, Script]:
    script = Script(say)
    return asyncio.run(play(game, case, script)), script


def chat(asking: TurnRequest) -> str:
    return f"Hello from {asking.agent.name}, message {len(asking.dialogue)}."


# -- points -----------------------------------------------------------------------------------------------------------

SECRETS = ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize(("gave", "scores"), [((0, 0), [0, 0]), ((1, 1), [1, 1]), ((1, 0), [0, 3]), ((0, 1), [3, 0])])
def test_in_the_standard_mode_only_one_who_reveals_gives_the_other_three_points(gave: Any, scores: Any) -> None:
    assert points(game(), [(0, 1, *map(bool, gave))], SECRETS[:2]) == scores


def test_in_the_retained_mode_a_held_secret_is_worth_agents_over_holders() -> None:
    # s0 is held by two others, s3 by one; nobody else gave anything.
    met = [(0, 1, True, False), (0, 2, True, False), (3, 2, True, False)]
    assert points(game(4, mode="retained"), met, SECRETS) == [0.0, 2.0, 6.0, 0.0]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans()), max_size=20))
def test_all_holders_of_a_retained_secret_share_the_number_of_agents(met: list[Any]) -> None:
    met = [each for each in met if each[0] != each[1]]
    given_away = {each[at] for each in met for at in (0, 1) if each[at + 2]}
    assert sum(points(game(4, mode="retained"), met, SECRETS)) == pytest.approx(4.0 * len(given_away))


def test_in_the_diversity_mode_a_secret_obtained_twice_counts_once() -> None:
    met = [(0, 1, False, True), (0, 1, False, True), (0, 2, False, True)]
    assert points(game(3, mode="diversity"), met, SECRETS[:3]) == [4.0, 0.0, 0.0]


def test_in_the_targeted_mode_the_targeted_secret_is_worth_five_more() -> None:
    met = [(0, 1, False, True), (2, 1, False, True), (0, 2, True, True)]
    assert points(game(3, mode="targeted"), met, SECRETS[:3], "s2") == [7.0, 0.0, 2.0]


def test_every_number_of_the_scoring_can_be_changed() -> None:
    odd = Scoring(nobody=0.5, both=2.0, alone=10.0, given=-1.0, rarity=3.0, distinct=7.0, each=4.0, target=40.0)
    one_sided = [(0, 1, True, False)]
    assert points(game(scoring=odd), [(0, 1, False, False)], SECRETS[:2]) == [0.5, 0.5]
    assert points(game(scoring=odd), [(0, 1, True, True)], SECRETS[:2]) == [2.0, 2.0]
    assert points(game(scoring=odd), one_sided, SECRETS[:2]) == [-1.0, 10.0]
    assert points(game(mode="retained", scoring=odd), one_sided, SECRETS[:2]) == [0.0, 6.0]
    assert points(game(mode="diversity", scoring=odd), one_sided, SECRETS[:2]) == [0.0, 7.0]
    assert points(game(mode="targeted", scoring=odd), one_sided, SECRETS[:2], "s0") == [0.0, 44.0]


def test_the_most_points_win_and_a_tie_is_said() -> None:
    assert winners([1.0, 3.0, 0.0]) == (1,)
    assert winners([2.0, 0.0, 2.0]) == (0, 2)


def test_a_game_needs_two_agents_and_settings_that_make_sense() -> None:
    for settings, says in (
        ({"agents": (SPEC,)}, "at least 2 agents"),
        ({"mode": "standart"}, "standard"),
        ({"rounds": 0}, "rounds"),
        ({"messages": 0}, "messages"),
        ({"temperature": 3.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
    ):
        with pytest.raises(ConfigError, match=says):
            dataclasses.replace(game(), **settings)
    with pytest.raises(ConfigError, match="collected_secrets"):
        AgentSpec("m", context=("collected_secret",))


# -- scenarios and pairs ----------------------------------------------------------------------------------------------


def test_twins_differ_only_in_who_opens() -> None:
    cases = scenarios(20, 2, 5)
    for first, second in zip(cases[::2], cases[1::2]):
        assert first.seed == second.seed
        assert {**first.data, "opener": None} == {**second.data, "opener": None}
        assert (first.data["opener"], second.data["opener"]) == (0, 1)


def test_scenarios_are_a_function_of_the_seed_and_longer_lists_only_add_to_shorter_ones() -> None:
    assert scenarios(30, 3, 1)[:12] == scenarios(12, 3, 1)
    assert scenarios(12, 3, 1) != scenarios(12, 3, 2)


def test_ten_thousand_games_have_ten_thousand_different_secrets() -> None:
    cases = scenarios(10_000, 2, 0)
    assert len({secret for each in cases[::2] for secret in each.data["secrets"]}) == 10_000
    assert len({each.id for each in cases}) == 10_000


@pytest.mark.slow
def test_secrets_are_used_again_rather_than_running_out() -> None:
    cases = scenarios(60_000, 2, 0)
    assert all(len(set(each.data["secrets"])) == 2 for each in cases)


def test_given_secrets_must_be_enough_and_different() -> None:
    assert scenarios(2, 2, 0, secrets=["SECRET1", "SECRET2"])[1].data["secrets"] == ["SECRET1", "SECRET2"]
    for secrets in (["one"], ["one", "one"], ["one", " "], ["blue fox", " Blue  Fox"]):
        with pytest.raises(ConfigError, match="secrets"):
            scenarios(2, 2, 0, secrets=secrets)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"targeted": True, "target": "blue fox"}, "targeted names 'blue fox', which.* did you mean 'Blue Fox'"),
        ({"aliases": {"pear": ["fruit"]}}, "aliases names 'pear', which no agent has as a secret.*Blue Fox, rain$"),
        ({"secrets": (), "aliases": {"pear": ["fruit"]}}, "secrets are drawn"),
    ],
)
def test_what_names_a_secret_that_nobody_has_is_refused(named: dict[str, Any], words: str) -> None:
    given_secrets = {"secrets": ("Blue Fox", "rain", "a third"), **named}
    with pytest.raises(ConfigError, match=words):
        scenarios(2, 2, 0, **given_secrets)
    assert scenarios(2, 2, 0, secrets=("Blue Fox", "rain"), targeted=True, target="rain")[0].data["target"] == "rain"


@given(agents=st.integers(2, 9), number=st.integers(0, 5), seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_in_a_round_everyone_meets_at_most_one_other_and_at_most_one_sits_out(
    agents: int, number: int, seed: int
) -> None:
    one, twin = (Case("c", {"opener": opener}, seed) for opener in (0, 1))
    pairs = pairing(agents, one, number)
    seats = [seat for pair in pairs for seat in pair]
    assert len(seats) == len(set(seats)) == agents - agents % 2
    assert pairing(agents, twin, number) == [(b, a) for a, b in pairs]


def test_over_rounds_agents_meet_at_random() -> None:
    met = Counter(frozenset(pair) for number in range(300) for pair in pairing(4, case(4), number))
    assert len(met) == 6
    assert min(met.values()) > 60  # 100 expected


# -- what agents are told and see -------------------------------------------------------------------------------------


def agents(**spec: Any) -> tuple[Player, Player]:
    chosen = dataclasses.replace(SPEC, **spec)
    return Player(0, "Ada", "copper lighthouse", chosen), Player(1, "Bo", "velvet walrus", chosen)


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_is_told_its_secret_the_scoring_its_turns_and_not_to_write_tags(mode: Any) -> None:
    ada, bo = agents()
    told = prompts.system_prompt(game(mode=mode), ada, bo, 3)
    assert '"copper lighthouse"' in told
    assert "velvet walrus" not in told
    assert "3 more messages" in told
    assert "[Bo]:" in told and "never write a name tag" in told
    assert prompts.rules(game(mode=mode)) in told
    assert len({prompts.rules(game(mode=each)) for each in MODES}) == 4


def test_the_rules_told_are_the_rules_played() -> None:
    assert "3 points" in prompts.rules(game())
    assert "17 points" in prompts.rules(game(scoring=Scoring(alone=17.0)))
    assert "5 points more" in prompts.rules(game(mode="targeted"))
    assert "2 points for every different" in prompts.rules(game(mode="diversity"))


@pytest.mark.parametrize("part", CONTEXT)
def test_what_is_left_out_of_the_context_is_not_shown(part: str) -> None:
    words = {
        "secret": "copper lighthouse",
        "rules": "Rules:",
        "collected_secrets": "jade compass",
        "chat_history": "What you remember",
    }
    ada, bo = agents(context=tuple(each for each in CONTEXT if each != part))
    ada.collected, ada.memory = ["jade compass"], ["Round 1: you sat out."]
    told = prompts.system_prompt(game(), ada, bo, 1)
    assert [word for word in words.values() if word not in told] == [words[part]]


def test_without_chat_history_only_the_last_message_is_seen() -> None:
    ada, bo = agents(context=("secret", "rules"))
    messages = [Message(0, "one"), Message(1, "two"), Message(0, "three"), Message(1, "four")]
    assert prompts.view(ada, bo, messages) == [{"role": "user", "content": "[Bo]: four"}]
    assert prompts.view(bo, ada, messages[:1]) == [{"role": "user", "content": "[Ada]: one"}]


@given(st.integers(0, 9), st.booleans())
def test_each_sees_the_conversation_from_its_own_side(count: int, opens: bool) -> None:
    ada, bo = agents()
    first = 0 if opens else 1
    messages = [Message((first + turn) % 2, f"words {turn}") for turn in range(count)]
    for me, other in ((ada, bo), (bo, ada)):
        seen = prompts.view(me, other, messages)
        if not seen or seen[0] == {"role": "user", "content": prompts.BEGIN}:
            seen = seen[1:]
        for message, shown in zip(messages, seen, strict=True):
            mine = message.seat == me.seat
            assert shown["role"] == ("assistant" if mine else "user")
            assert shown["content"] == (message.text if mine else f"[{other.name}]: {message.text}")


def test_roles_alternate_and_begin_with_the_user_as_providers_want_it() -> None:
    _, script = played(game(messages=3), case(), chat)
    for asking in script.asked:
        roles = [each["role"] for each in asking.dialogue]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


# -- conversations ----------------------------------------------------------------------------------------------------


def test_each_agent_sends_its_messages_in_turn_and_counts_them_down() -> None:
    done, script = played(game(messages=3), case(opener=1), chat)
    assert [message.seat for message in done.talks[0].messages] == [1, 0, 1, 0, 1, 0]
    told = [asking.system for asking in script.asked]
    assert ["3 more messages" in each for each in told] == [True, True, False, False, False, False]
    assert ["1 more message " in each for each in told] == [False, False, False, False, True, True]


def test_a_name_tag_that_the_writer_adds_is_taken_off() -> None:
    done, script = played(game(messages=1), case(), lambda asking: f"[{asking.agent.name}]: [{asking.agent.name}]: hi")
    assert [message.text for message in done.talks[0].messages] == ["hi", "hi"]
    assert script.asked[1].dialogue == [{"role": "user", "content": "[Ada]: hi"}]


def test_an_agent_may_end_the_conversation() -> None:
    done, script = played(game(messages=5), case(), lambda asking: "bye [END]" if len(asking.dialogue) == 3 else "hm")
    assert [message.text for message in done.talks[0].messages] == ["hm", "hm", "bye"]
    assert done.talks[0].ended
    assert all("[END]" in asking.system for asking in script.asked)


def test_a_goodbye_without_words_is_a_goodbye_and_not_an_empty_reply() -> None:
    done, _ = played(game(), case(), lambda asking: "[END]")
    assert [message.finish for message in done.talks[0].messages] == ["stop"]
    assert done.talks[0].ended


@pytest.mark.parametrize("thought", ["<think>My secret is copper lighthouse. [END]</think>\n\n", "so it is</think>"])
def test_nobody_hears_what_a_model_thought_before_it_spoke(thought: str) -> None:
    done, script = played(game(), case(), lambda asking: f"{thought}[Ada]: hello")
    assert [message.text for message in done.talks[0].messages][::2] == ["hello"] * 2
    assert done.talks[0].revealed == (False, False)
    assert all("think" not in message["content"] for asking in script.asked for message in asking.dialogue)


def test_without_early_end_the_marker_is_neither_offered_nor_obeyed() -> None:
    done, script = played(game(messages=2, early_end=False), case(), lambda asking: "so [END]")
    assert len(done.talks[0].messages) == 4
    assert not done.talks[0].ended
    assert all("[END]" not in asking.system for asking in script.asked)


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        (Reply(text="", finish="refusal", refusal="I will not say that my secret is copper lighthouse."), "refusal"),
        (Reply(text="half a mess", finish="filter"), "filter"),
        (Reply(text="  ", finish="stop"), "empty"),
        (Reply(text="", finish="length"), "empty"),
    ],
)
def test_a_reply_without_usable_words_is_no_message_and_ends_the_conversation(reply: Reply, finish: str) -> None:
    done, script = played(game(), case(), lambda asking: reply)
    assert done.talks[0].messages == (Message(0, "", finish),)
    assert len(script.asked) == 1
    assert done.talks[0].revealed == (False, False)


def test_a_message_that_is_cut_off_counts_as_said_and_is_marked() -> None:
    done, _ = played(game(messages=1), case(), lambda asking: Reply(text="my secret is", finish="length"))
    assert [(each.text, each.finish) for each in done.talks[0].messages] == [("my secret is", "length")] * 2


def test_a_failed_call_fails_the_game_as_itself_also_among_several_conversations() -> None:
    def say(asking: TurnRequest) -> str:
        if asking.agent.name == "Dov":
            raise CallFailed("server", "out of order")
        return "hello"

    for count in (2, 4):
        with pytest.raises(CallFailed, match="out of order"):
            asyncio.run(play(game(4, rounds=count), case(4), Script(say)))


def test_what_is_revealed_decides_the_points() -> None:
    def say(asking: TurnRequest) -> str:
        return f"my secret is {asking.agent.secret}" if asking.agent.name == "Bo" else "I keep mine."

    done, _ = played(game(), case(), say)
    assert done.talks[0].revealed == (False, True)
    assert done.scores == (3.0, 0.0)
    assert {(leak.seat, leak.rule) for leak in done.talks[0].leaks} == {(1, "verbatim")}


def test_what_the_other_says_is_no_leak_of_mine() -> None:
    done, _ = played(
        game(),
        case(),
        lambda asking: "Is it copper lighthouse?" if asking.agent.name == "Bo" else "I will not say.",
    )
    assert done.talks[0].leaks == ()


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_the_odd_one_sits_out_and_is_told_so() -> None:
    done, script = played(game(3, rounds=4, messages=1), case(3), chat)
    assert len(done.talks) == 4
    for number in range(3):
        (out,) = {0, 1, 2} - set(done.talks[number].seats)
        later = [asking.system for asking in script.asked if asking.agent.seat == out]
        assert any(f"Round {number + 1}: you sat out" in told for told in later)


@pytest.mark.parametrize("memory", ["long", "short"])
def test_only_a_long_memory_holds_earlier_rounds(memory: Any) -> None:
    spec = dataclasses.replace(SPEC, memory=memory)
    script = Script(chat)
    asyncio.run(play(Game((spec, spec), rounds=2, messages=1), case(), script))
    told = script.asked[2].system
    assert ("[Bo]: Hello from Bo" in told or "[Ada]: Hello from Ada" in told) == (memory == "long")
    assert ("[You]: Hello from" in told) == (memory == "long")


def test_a_secret_obtained_is_held_from_then_on() -> None:
    def say(asking: TurnRequest) -> str:
        return f"my secret is {asking.agent.secret}" if asking.agent.name == "Bo" else "hm"

    done, script = played(game(rounds=2, messages=1, mode="diversity"), case(), say)
    told = [asking.system for asking in script.asked if asking.agent.name == "Ada"]
    assert ['you hold: "velvet walrus"' in each for each in told] == [False, True]
    assert done.scores == (2.0, 0.0)


def test_the_pairs_of_a_round_converse_at_the_same_time() -> None:
    async def main() -> None:
        barrier = asyncio.Barrier(2)

        async def ask(asking: TurnRequest) -> Reply:
            async with asyncio.timeout(5):
                await barrier.wait()  # passes only while both conversations wait for an answer
            return Reply(text="hm")

        await play(game(4, messages=2), case(4), ask)

    asyncio.run(main())


def test_conversations_have_seeds_of_their_own_and_a_game_always_the_same_ones() -> None:
    first, second = game(4, rounds=3, messages=1), game(4, rounds=3, messages=1, temperature=0.1)
    seeds = []
    for each in (first, first, second):
        _, script = played(each, case(4), chat)
        seeds.append({asking.seed for asking in script.asked})
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) == 6  # two conversations in each of three rounds
    assert seeds[0].isdisjoint(seeds[2])


def test_a_judge_counts_only_where_it_is_listened_to() -> None:
    async def yes(talk: Any, pair: Any) -> tuple[bool, bool]:
        return True, False

    for either, revealed in ((False, (False, False)), (True, (True, False))):
        done = asyncio.run(play(game(), case(), Script(chat), yes, either))
        assert done.talks[0].revealed == revealed
        assert done.talks[0].judged == (True, False)


def test_other_words_for_a_secret_count_where_they_are_given() -> None:
    told = case(aliases=[["the beacon on the cliff"], []])
    done, _ = played(game(), told, lambda asking: "Mine is the beacon on the cliff.")
    assert done.talks[0].revealed == (True, False)


@pytest.mark.slow
def test_a_game_that_waits_for_a_reply_holds_no_request() -> None:
    """Ten thousand games may wait at once: what they asked with is theirs no more."""

    async def main() -> None:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def ask(request: TurnRequest) -> asyncio.Future[Any]:
            return waiting

        game = Game((AgentSpec("x/x"), AgentSpec("y/y")), rounds=1)
        playing = asyncio.ensure_future(play(game, scenarios(1, 2, 0)[0], ask))
        await asyncio.sleep(0)
        assert not playing.done()
        requests = [each for each in gc.get_objects() if isinstance(each, TurnRequest)]
        assert not [each for each in requests if each.agent.spec.model in ("x/x", "y/y")]  # other tests may leave some
        playing.cancel()

    asyncio.run(main())
