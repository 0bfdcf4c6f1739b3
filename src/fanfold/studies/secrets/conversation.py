"""How a game goes: rounds of conversations between agents paired at random, each advancing as soon as it can."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    table = Table(game, case, ask, judge, either)
    talks: list[Talk] = []
    for number in range(game.rounds):
        pairs = pairing(len(table.agents), case, number)
        if len(pairs) == 1:
            talks.append(await table.talk(pairs[0], number))
        else:
            talks += await _all(table, pairs, number)
        table.learn(talks[-len(pairs) :], number)
    return table.played(talks)


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


class Table:
    """The agents of one game, and how two of them talk.

    Thousands of games wait for their next reply at once, so that no name holds what is needed only to ask for it.
    """

    __slots__ = ("_ask", "_case", "_either", "_game", "_judge", "agents")

    def __init__(self, game: Game, case: Case, ask: Ask, judge: Judge | None, either: bool) -> None:
        self._game, self._case, self._ask, self._judge, self._either = game, case, ask, judge, either
        self.agents = _agents(game, case.data)

    async def talk(self, seats: tuple[int, int], number: int) -> Talk:
        """A conversation and what was revealed in it; the first seat opens.

        It lasts until both agents have sent all their messages, or one ends it.
        """
        messages: list[Message] = []
        over = lost = False
        while not (over or lost) and len(messages) < 2 * self._game.messages:
            over, lost = self._add(messages, seats, await self._ask(self._request(messages, seats, number)))
        talk = Talk(number, seats, tuple(messages), over)
        pair = [self.agents[seat] for seat in seats]
        leaked = disclosures(talk, pair)
        revealed = [any(leak.seat == seat for leak in leaked) for seat in seats]
        judged = None
        if self._judge is not None:
            judged = await self._judge(talk, pair)
            revealed = [rule or (self._either and bool(verdict)) for rule, verdict in zip(revealed, judged)]
        return dataclasses.replace(talk, leaks=leaked, revealed=(revealed[0], revealed[1]), judged=judged)

    def _request(self, messages: Sequence[Message], seats: tuple[int, int], number: int) -> TurnRequest:
        turn, game = len(messages), self._game
        me, other = self.agents[seats[turn % 2]], self.agents[seats[1 - turn % 2]]
        told = prompts.system_prompt(game, me, other, game.messages - turn // 2)
        seed = derive_seed(self._case.seed or 0, _identity(game), number, *seats) & 0x7FFFFFFF
        return TurnRequest(me, told, prompts.view(me, other, messages), seed)

    def _add(self, messages: list[Message], seats: tuple[int, int], reply: Reply) -> tuple[bool, bool]:
        """Add a reply to the messages; whether it ends the conversation, and whether it is lost."""
        seat = seats[len(messages) % 2]
        text, over = prompts.cleaned(reply.text, self.agents[seat], self._game.early_end)
        finish = reply.finish if text or over or reply.finish in LOST else "empty"
        lost = finish in LOST
        messages.append(Message(seat, "" if lost else text, finish))
        return over, lost

    def learn(self, talks: Sequence[Talk], number: int) -> None:
        """After a round all remember it, and hold what they were given."""
        for talk in talks:
            for at, seat in enumerate(talk.seats):
                agent, other = self.agents[seat], self.agents[talk.seats[1 - at]]
                agent.memory = (*agent.memory, prompts.remembered(agent, other, talk.messages, talk.round))
                if talk.revealed[1 - at] and other.secret not in agent.collected:
                    agent.collected = (*agent.collected, other.secret)
        met = {seat for talk in talks for seat in talk.seats}
        for agent in self.agents:
            if agent.seat not in met:
                agent.memory = (*agent.memory, prompts.sat_out(number))

    def played(self, talks: Sequence[Talk]) -> Played:
        """The game with everybody's points."""
        data = self._case.data
        met = [(*talk.seats, *talk.revealed) for talk in talks]
        scores = points(self._game, met, data["secrets"], data.get("target"))
        for agent, score in zip(self.agents, scores):
            agent.score = score
        return Played(self.agents, tuple(talks), tuple(scores))


def _agents(game: Game, data: Mapping[str, Any]) -> tuple[Player, ...]:
    return tuple(
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


@functools.lru_cache(maxsize=64)
def _identity(game: Game) -> str:
    """Two games of one scenario are two samples, also where their first requests are the same words."""
    return digest(encode(game)).hex()


def disclosures(talk: Talk, pair: Sequence[Player]) -> tuple[Disclosure, ...]:
    """Every leak of a secret by its owner that the deterministic rules find."""
    names = {agent.seat: agent.name for agent in pair}
    turns = [Turn(names[message.seat], message.text) for message in talk.messages]
    return tuple(
        Disclosure(agent.seat, leak.rule, leak.turn, leak.evidence)
        for agent in pair
        for leak in leaks(agent.secret, agent.name, turns, aliases=agent.aliases, translations=agent.translations)
    )


async def _all(table: Table, pairs: Sequence[tuple[int, int]], number: int) -> list[Talk]:
    """All conversations of a round at once; the first failure ends them all, as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(table.talk(pair, number)) for pair in pairs]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
