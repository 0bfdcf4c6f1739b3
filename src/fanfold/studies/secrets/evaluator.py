"""One evaluation of the study: a whole game, its model calls turn by turn, and what is kept of it."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fanfold.calls import Reply, in_batches
from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.models import Model, model
from fanfold.studies.secrets.conversation import Ask, Judge, Played, TurnRequest, play
from fanfold.studies.secrets.game import LOST, Game, Player, Talk
from fanfold.studies.secrets.leaks import Turn, judge_prompt, read_verdict
from fanfold.types import Blob, Case, Ok

#: What simulated models say in this study.
PLAYER = "fanfold.studies.secrets.simulated:player"
#: Of a judge's answer, and what a local model must have room for beside the messages.
VERDICT_TOKENS, PROMPT_TOKENS = 64, 800
#: What calls of an evaluator wait for, by event loop; not kept in the evaluator, which may travel to another process.
_GATES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[GameEvaluator, asyncio.Semaphore]]
_GATES = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class GameEvaluator:
    """Plays a game (the candidate) in a scenario (the case), and gives the points of its first agent.

    The data of the outcome: `scores` by seat; `talks`, four numbers for each conversation, its two seats (opener first)
    and which of them revealed (1 or 0); `messages`, how many replies there were; `transcript`, a blob with every word;
    and where there are any: `leaks`, each as conversation, seat and rule; `odd`, how many replies ended otherwise than
    they should (`length`, `refusal`, `filter`, `empty`); `judged`, what the judge said about each conversation.
    """

    base_url: str | None = None
    judge: str | None = None
    #: Whether what only the judge sees counts as revealed.
    either: bool = False
    #: The folder for the results, which must be there before anything is paid for.
    results: str | None = None
    #: The most calls at once where one game may have more; none: no limit.  Calls in batches do not count.
    in_flight: int | None = None
    #: What names of models mean that only `models.toml` defines, as JSON.
    definitions: str = ""
    effort: str | None = None

    @property
    def fingerprint(self) -> str:
        effort = f" {self.effort}" if self.effort else ""
        return f"fanfold.secrets/1{encode([self.base_url, self.judge, self.either])}{self.definitions}{effort}"

    def rehearsed(self) -> GameEvaluator:
        """The same without a folder: a rehearsal keeps nothing."""
        return replace(self, results=None)

    async def __call__(self, game: Game, case: Case) -> Ok:
        self._ready  # noqa: B018 - looked at for what it does the first time
        ask, judge = self._voices(game)
        played = await play(game, case, ask, judge, self.either)
        return Ok(played.scores[0], data=kept(played))

    def _voices(self, game: Game) -> tuple[Ask, Judge | None]:
        """Who is asked in a game: the same for all conversations of it, of which thousands may wait at once."""
        if game not in self._asked:
            judge = None if self.judge is None else functools.partial(self._judge, game)
            self._asked[game] = functools.partial(self._ask, game), judge
        return self._asked[game]

    def _ask(self, game: Game, asking: TurnRequest) -> Awaitable[Reply]:
        player = self._model(asking.agent.spec.model, game)
        parameters: dict[str, Any] = {"temperature": game.temperature, "max_tokens": game.max_tokens}
        system = asking.system
        if player.raw:  # a model that continues texts would write the whole conversation; a message is a line
            parameters["stop"] = ["\n"]
        if player.takes("seed"):
            parameters["seed"] = asking.seed
        else:
            # Nothing else tells two conversations that begin with the same words apart, and they are two samples.
            system = f"{system}\n\nConversation {asking.seed:08x}."
        # Not `async`: what is asked with is then gone while the reply is waited for.
        return self._answered(player.generate(asking.dialogue, system=system, **parameters))

    async def _judge(self, game: Game, talk: Talk, pair: Sequence[Player]) -> tuple[bool | None, bool | None]:
        assert self.judge is not None
        judge = self._model(self.judge, game)
        names = {agent.seat: agent.name for agent in pair}
        turns = [Turn(names[message.seat], message.text) for message in talk.messages if message.text]

        async def verdict(agent: Player) -> bool | None:
            question = judge_prompt(agent.secret, turns, agent.name)
            reply = await self._answered(judge.generate(question, temperature=0.0, max_tokens=VERDICT_TOKENS))
            return read_verdict(reply.text) if reply.finish not in LOST else None

        if not in_batches():  # a conversation has one call in flight, also when it is over
            return await verdict(pair[0]), await verdict(pair[1])
        first, second = await asyncio.gather(*map(verdict, pair))
        return first, second

    def _answered(self, reply: Coroutine[Any, Any, Reply]) -> Awaitable[Reply]:
        """The reply, once fewer than `in_flight` others are under way."""
        if self.in_flight is None or in_batches():
            return reply
        gates = _GATES.setdefault(asyncio.get_running_loop(), {})
        return _through(gates.setdefault(self, asyncio.Semaphore(self.in_flight)), reply)

    def _model(self, name: str, game: Game) -> Model:
        if name not in self._models:
            self._models[name] = named(name, self.base_url, game, self.effort)
        return self._models[name]

    @functools.cached_property
    def _asked(self) -> dict[Game, tuple[Ask, Judge | None]]:
        return {}

    @functools.cached_property
    def _models(self) -> dict[str, Model]:
        return {}

    @functools.cached_property
    def _ready(self) -> bool:
        if self.results is not None:
            writable(self.results)
        return True


async def _through(gate: asyncio.Semaphore, reply: Coroutine[Any, Any, Reply]) -> Reply:
    try:
        async with gate:
            return await reply
    finally:
        reply.close()


def named(name: str, base_url: str | None, game: Game, effort: str | None = None) -> Model:
    """The model of that name, made for this game: a simulated one plays it, a local one has room for all messages."""
    longest = PROMPT_TOKENS + 2 * game.messages * (game.max_tokens or 256)
    hints = {"answer": PLAYER, "context": min(8192, max(2048, longest))}
    return model(name, base_url=base_url, parameters={"reasoning_effort": effort}, hints=hints)


def writable(folder: str) -> Path:
    """The folder, made where it is missing; a ConfigError where it cannot be."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"results={folder!r} cannot be made a folder ({error.strerror}): give another one") from error
    return path


def kept(played: Played) -> dict[str, Any]:
    """What the ledger keeps of a game: little, because it stays in memory, for every game, until the run ends."""
    talks = played.talks
    odd = Counter(message.finish for talk in talks for message in talk.messages if message.finish != "stop")
    data: dict[str, Any] = {
        "scores": [int(score) if score.is_integer() else score for score in played.scores],
        "talks": [number for talk in talks for number in (*talk.seats, *map(int, talk.revealed))],
        "messages": sum(len(talk.messages) for talk in talks),
        "transcript": Blob.of(encode([asdict(talk) for talk in talks]).encode()),
    }
    optional = {
        "leaks": [[at, leak.seat, leak.rule] for at, talk in enumerate(talks) for leak in talk.leaks],
        "odd": dict(odd),
        "judged": [[None if each is None else int(each) for each in talk.judged or ()] for talk in talks],
    }
    return data | {name: value for name, value in optional.items() if any(value)}


def met(data: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """The conversations of an outcome's data: two seats, and which of them revealed."""
    numbers = iter(data["talks"])
    return list(zip(numbers, numbers, numbers, numbers))


def deeds(data: Mapping[str, Any], agents: int) -> tuple[list[int], list[int]]:
    """In how many conversations each seat revealed, and in how many it obtained."""
    revealed, obtained = [0] * agents, [0] * agents
    for a, b, gave_a, gave_b in met(data):
        revealed[a] += gave_a
        revealed[b] += gave_b
        obtained[a] += gave_b
        obtained[b] += gave_a
    return revealed, obtained
