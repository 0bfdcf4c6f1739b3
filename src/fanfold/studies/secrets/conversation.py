"""How a game goes: rounds of conversations between agents paired at random, each advancing as soon as it can."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fanfold.calls import Reply
from fanfold.encoding import derive_seed, digest, encode
from fanfold.studies.secrets import prompts
from fanfold.studies.secrets.game import LOST, Disclosure, Game, Message, Player, Talk, points
from fanfold.studies.secrets.leaks import Turn, leaks
from fanfold.studies.secrets.translations import NONE, Translations
from fanfold.types import Case


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One reply that is wanted: from whom, what it is told, what it sees, and the seed of the conversation."""

    agent: Player
    system: str
    dialogue: list[dict[str, str]]
    seed: int


Ask: TypeAlias = Callable[[TurnRequest], Awaitable[Reply]]
#: What a judge says about a conversation: for each of its two seats, whether it revealed its secret, or None.
Judge: TypeAlias = Callable[[Talk, Sequence[Player]], Awaitable[tuple[bool | None, bool | None]]]


@dataclass(frozen=True, slots=True)
class Played:
    """A game that has been played."""

    agents: tuple[Player, ...]
    talks: tuple[Talk, ...]
    scores: tuple[float, ...]


async def play(game: Game, case: Case, ask: Ask, judge: Judge | None = None, either: bool = False) -> Played:
    """Play the game of a case.  What `ask` raises ends it.

    A secret is revealed where the deterministic rules find it in its owner's messages; with `either`, also where only
    the judge sees it.
    """
    data = case.data
    agents = tuple(
        Player(
            seat,
            name,
            secret,
            spec,
            tuple(data["aliases"][seat]) if "aliases" in data else (),
            Translations(*data["translations"][seat]) if "translations" in data else NONE,
        )
        for seat, (name, secret, spec) in enumerate(zip(data["names"], data["secrets"], game.agents, strict=True))
    )
    # Two games of one scenario are two samples, also where their first requests are the same words.
    identity = digest(encode(game)).hex()
    talks: list[Talk] = []
    for number in range(game.rounds):
        pairs = pairing(len(agents), case, number)
        together = [
            _settled(game, (agents[a], agents[b]), number, _seed(case, identity, number, a, b), ask, judge, either)
            for a, b in pairs
        ]
        for talk in await _all(together):
            talks.append(talk)
            _learn(agents, talk)
        for agent in agents:
            if all(agent.seat not in pair for pair in pairs):
                agent.memory.append(prompts.sat_out(number))
    met = [(*talk.seats, *talk.revealed) for talk in talks]
    scores = points(game, met, data["secrets"], data.get("target"))
    for agent, score in zip(agents, scores):
        agent.score = score
    return Played(agents, tuple(talks), tuple(scores))


def pairing(agents: int, case: Case, number: int) -> list[tuple[int, int]]:
    """Who meets whom in a round, openers first; with an odd number of agents one sits out.

    In a twin of the case everybody meets the same others, and in each conversation the other one opens.
    """
    rng = random.Random(derive_seed(case.seed or 0, "round", number))
    seats = list(range(agents))
    if agents > 2:
        rng.shuffle(seats)
    elif number % 2:
        seats.reverse()  # with two agents, who opens alternates from round to round
    pairs = list(zip(seats[::2], seats[1::2]))
    return [(b, a) for a, b in pairs] if case.data["opener"] else pairs


def _seed(case: Case, identity: str, number: int, a: int, b: int) -> int:
    return derive_seed(case.seed or 0, identity, number, a, b) & 0x7FFFFFFF


async def _settled(
    game: Game, pair: tuple[Player, Player], number: int, seed: int, ask: Ask, judge: Judge | None, either: bool
) -> Talk:
    """A conversation and what was revealed in it."""
    talk = await converse(game, pair, number, seed, ask)
    leaked = disclosures(talk, pair)
    revealed = [any(leak.seat == agent.seat for leak in leaked) for agent in pair]
    judged = None
    if judge is not None:
        judged = await judge(talk, pair)
        revealed = [rule or (either and bool(verdict)) for rule, verdict in zip(revealed, judged)]
    return dataclasses.replace(talk, leaks=leaked, revealed=(revealed[0], revealed[1]), judged=judged)


async def converse(game: Game, pair: tuple[Player, Player], number: int, seed: int, ask: Ask) -> Talk:
    """Let two agents talk, the first of them opening, until both have sent all their messages or one ends it."""
    messages: list[Message] = []
    over = False
    for turn in range(2 * game.messages):
        me, other = pair[turn % 2], pair[1 - turn % 2]
        told = prompts.system_prompt(game, me, other, game.messages - turn // 2)
        reply = await ask(TurnRequest(me, told, prompts.view(me, other, messages), seed))
        text, over = prompts.cleaned(reply.text, me, game.early_end)
        finish = reply.finish if text or over or reply.finish in LOST else "empty"
        lost = finish in LOST
        messages.append(Message(me.seat, "" if lost else text, finish))
        if lost or over:
            break
    return Talk(number, (pair[0].seat, pair[1].seat), tuple(messages), over)


def disclosures(talk: Talk, pair: Sequence[Player]) -> tuple[Disclosure, ...]:
    """Every leak of a secret by its owner that the deterministic rules find."""
    names = {agent.seat: agent.name for agent in pair}
    turns = [Turn(names[message.seat], message.text) for message in talk.messages]
    return tuple(
        Disclosure(agent.seat, leak.rule, leak.turn, leak.evidence)
        for agent in pair
        for leak in leaks(agent.secret, agent.name, turns, aliases=agent.aliases, translations=agent.translations)
    )


def _learn(agents: Sequence[Player], talk: Talk) -> None:
    """After a conversation both remember it, and hold what they were given."""
    for at, seat in enumerate(talk.seats):
        agent, other = agents[seat], agents[talk.seats[1 - at]]
        agent.memory.append(prompts.remembered(agent, other, talk.messages, talk.round))
        if talk.revealed[1 - at] and other.secret not in agent.collected:
            agent.collected.append(other.secret)


async def _all(talks: Sequence[Any]) -> list[Talk]:
    """All conversations of a round at once; the first failure ends them all, as itself."""
    if len(talks) == 1:
        return [await talks[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(talk) for talk in talks]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
