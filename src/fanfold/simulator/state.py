"""What all dialects share: clock, serial numbers, faults, limits, the bill, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fanfold.encoding import derive_seed, digest, encode
from fanfold.simulator.answers import Author, Completion, ModelRequest, content_tokens, spoil
from fanfold.simulator.billing import Billing, Charge
from fanfold.simulator.config import Latency, SimulatorConfig
from fanfold.simulator.dialect import Dialect, Stamp
from fanfold.simulator.faults import ANSWER, FaultPlan, Faults
from fanfold.simulator.limits import Account
from fanfold.simulator.wire import ApiError, Json


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Where a request to a model came from: whose it is, and which line of which batch, if any."""

    owner: str
    sample: str = "0"
    batch: str | None = None
    custom_id: str | None = None


class SimulatorState:
    """The state of one simulator, all of it in memory, all times those of the running loop."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config = config
        self.author = Author(config)
        self._anchor: float | None = None
        self._nonce = digest(str(config.seed), str(config.epoch or time.time_ns())).hex()[:8]
        self._serial = 0
        self.reset()

    def reset(self) -> None:
        """Forget charges, limits in use and batches on their way; faults are those of the settings again."""
        for task in getattr(self, "_tasks", ()):
            task.cancel()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accounts: dict[tuple[str, str], Account] = {}
        self._times = random.Random(derive_seed(self.config.seed, "times"))
        self.billing = Billing()
        #: What the prompt cache holds.
        self._heads: set[bytes] = set()
        self.plan = FaultPlan(self.config.faults, None)

    def set_faults(self, faults: Faults) -> None:
        """Replace everything that is to go wrong; their times count from now."""
        self.plan = FaultPlan(faults, self.now())

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self, at: float | None = None) -> float:
        """The provider's time of day, in seconds since 1970, now or at a time of the loop."""
        if self._anchor is None:
            epoch = self.config.epoch
            self._anchor = (time.time() - self.now() if epoch is None else epoch) + self.config.clock_skew
        return self._anchor + (self.now() if at is None else at)

    def serial(self) -> str:
        self._serial += 1
        return f"{self._nonce}{self._serial:016x}"

    def account(self, owner: str, model: str) -> Account:
        account = self._accounts.get((owner, model))
        if account is None:
            limits = self.config.model_limits.get(model, self.config.limits)
            account = self._accounts[owner, model] = Account(limits, self.now())
        return account

    def draw_time(self, latency: Latency, tokens: int = 0) -> float:
        return latency.draw(self._times, tokens)

    def stream(self, *identity: str) -> random.Random:
        """A stream of random numbers of its own for one purpose."""
        return random.Random(derive_seed(self.config.seed, *identity))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background until it ends or the simulator is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop everything in the background."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check_model(self, dialect: Dialect, body: Json) -> str:
        """The model a request is for, if it exists."""
        model = dialect.model_of(body)
        if self.config.models and model not in self.config.models:
            raise dialect.no_such_model(model)
        return model

    async def generate(
        self, dialect: Dialect, endpoint: str, body: Json, prompt: ModelRequest, origin: RequestOrigin
    ) -> tuple[Json, int]:
        """Answer a valid request and charge for it: the body of the reply, and the tokens written.

        A request is charged as soon as it is answered, before any latency, because a provider does not give the money
        back to a client that stopped waiting.
        """
        key = body_key(body)
        written = await self._write(prompt, body, key, origin)
        if self.plan.faults.faults:
            fault = self.plan.draw(ANSWER, "line" if origin.batch else "generate", self.now())
            if fault is not None:
                written = [spoil(answer, fault.kind) for answer in written]
        output = sum(answer.tokens for answer in written)
        cached, stored = self._prompt_cache(dialect, body, prompt, origin.owner)
        in_batch = origin.batch is not None
        stamp = Stamp(self.serial(), self.wall(), in_batch, cached, stored, self.config.usage)
        self.billing.charges.append(
            Charge(
                key=key,
                sample=origin.sample,
                at=stamp.created,
                provider=dialect.name,
                model=prompt.model,
                input_tokens=prompt.input_tokens,
                output_tokens=output,
                price="batch" if origin.batch else "realtime",
                owner=origin.owner,
                batch=origin.batch,
                custom_id=origin.custom_id,
                cached_tokens=cached,
                written_tokens=stored,
            )
        )
        return dialect.render(endpoint, body, prompt, written, stamp), output

    def _prompt_cache(self, dialect: Dialect, body: Json, prompt: ModelRequest, owner: str) -> tuple[int, int]:
        """Input tokens read from, and (where that counts) written to, the cache of what prompts begin with."""
        if self.config.prompt_cache is None or not dialect.caches(body):
            return 0, 0
        head = prompt.messages[:-1]
        size = sum(content_tokens(message.get("content")) for message in head) + content_tokens(body.get("system"))
        if size < max(1, self.config.prompt_cache):
            return 0, 0
        key = digest(owner, prompt.model, encode([body.get("system"), list(head)]))
        if key in self._heads:
            return size, 0
        self._heads.add(key)
        return 0, size if dialect.counts_stored_prompts else 0

    async def _write(self, prompt: ModelRequest, body: Json, key: str, origin: RequestOrigin) -> list[Completion]:
        try:
            return await self.author.write(prompt, body, key, origin.sample)
        except ApiError:
            raise
        except Exception as error:
            # A mistake in a user's answer function should be read by that user, not hidden behind a bare 500.
            text = f"the simulator's answer function failed: {type(error).__name__}: {error}"
            raise ApiError(500, text, type="server_error") from error


def body_key(body: Mapping[str, Any]) -> str:
    """A hash that equal request bodies share."""
    return digest(encode(body)).hex()


@functools.lru_cache(1024)
def owner_of(key: str) -> str:
    """How the simulator remembers an API key without keeping it."""
    return digest("owner", key).hex()[:12]
