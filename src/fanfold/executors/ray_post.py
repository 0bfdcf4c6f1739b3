"""How workers of Ray reach the run they work for: they ask a mailbox, and the driver collects what is in it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import itertools
from typing import TYPE_CHECKING, Any

from fanfold.executors.parcels import Fetch
from fanfold.executors.processes import answered
from fanfold.executors.questions import Questions
from fanfold.executors.worker import dumps, loads, settle

if TYPE_CHECKING:
    import concurrent.futures


class RayPost:
    """The driver's side of the mailbox: takes what workers ask, and sends the replies."""

    def __init__(self, ray: Any) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        # On the driver's own node: it must not be lost with any other.
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0, max_concurrency=100_000, scheduling_strategy=here)(RayMailbox)
        self.mailbox = actor.remote()
        self._ray = ray
        self.questions = Questions()
        #: Large data that workers have fetched, by name: put once.
        self._put: dict[str, Any] = {}
        self._collecting = asyncio.create_task(self._collect(), context=contextvars.Context())

    async def close(self) -> None:
        self._collecting.cancel()
        await asyncio.wait([self._collecting])
        try:
            self._ray.kill(self.mailbox)
        except Exception:
            pass  # Ray is gone, and the mailbox with it

    async def _collect(self) -> None:
        while True:
            try:
                letters = await asyncio.wrap_future(self.mailbox.take.remote().future())
            except self._ray.exceptions.RayError:
                return  # workers that ask are told by Ray that the mailbox is gone
            for letter, number, request in letters:
                if letter is None:
                    self.questions.tell(number, request)
                else:
                    self.questions.ask(number, functools.partial(self._answer, letter, request))

    async def _answer(self, letter: int, request: bytes) -> None:
        asked = loads(request)
        if not isinstance(asked, Fetch):
            self.mailbox.reply.remote(letter, await answered(request))
            return
        if asked.name not in self._put:
            self._put[asked.name] = self._ray.put(await answered(request))
        self.mailbox.reply.remote(letter, [self._put[asked.name]])  # in a list it stays a reference


class RayMailbox:
    """Where workers leave what they ask of their run, and wait for the reply.  An actor, so it needs no locks."""

    def __init__(self) -> None:
        self._letters: asyncio.Queue[tuple[int | None, int, bytes]] = asyncio.Queue()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, call: int, request: bytes) -> Any:
        letter = next(self._numbers)
        reply = self._waiting[letter] = asyncio.get_running_loop().create_future()
        self._letters.put_nowait((letter, call, request))
        return await reply

    async def tell(self, trip: int, report: bytes) -> None:
        self._letters.put_nowait((None, trip, report))

    async def take(self) -> list[tuple[int | None, int, bytes]]:
        letters = [await self._letters.get()]
        while not self._letters.empty():
            letters.append(self._letters.get_nowait())
        return letters

    async def reply(self, letter: int, body: Any) -> None:
        waiting = self._waiting.pop(letter, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)


def ask_mailbox(mailbox: Any, call: int, request: Any) -> concurrent.futures.Future[Any]:
    """Ask the run through the mailbox; the reply comes in the future."""
    from concurrent.futures import Future

    reply: Future[Any] = Future()

    def arrived(letter: Future[Any]) -> None:
        if (error := letter.exception()) is not None:
            reply.set_exception(error)
            return
        body = letter.result()
        if isinstance(body, list):  # where large data is
            import ray

            body = ray.get(body[0])
        settle(reply, body)

    mailbox.ask.remote(call, dumps(request)).future().add_done_callback(arrived)
    return reply
