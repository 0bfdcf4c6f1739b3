"""Makes model calls with one library, in a process of its own, and prints as JSON what they took.

.venv-peers/litellm/bin/python benchmarks/model_peers.py litellm --url http://127.0.0.1:8089/v1 --calls 500

Needs only the library it measures: `make bench-peers` gives each of the others an environment of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import Stopwatch, stopwatch

MODEL, KEY, MAX_TOKENS = "simulated", "no-key", 200
#: Calls made before the clock starts, so that lazy imports and the like are not measured.
WARM_UP = 50
CASES = 10


class Work:
    """The calls one contender has to make: first `warm`, then, inside `timed()`, all of `texts`."""

    def __init__(self, url: str, calls: int, concurrency: int, folder: Path) -> None:
        self.url = url
        self.concurrency = concurrency
        self.folder = folder
        self.warm = [f"Warm up, and say {number}." for number in range(WARM_UP)]
        self.texts = [f"What follows from {number}?" for number in range(calls)]
        self.failed = 0
        self.watch = Stopwatch()
        #: Seconds of the timed part in which this process could have run and had no core.
        self.waited = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        self.failed, before = 0, _waited()
        with stopwatch() as self.watch:
            yield
        self.waited = _waited() - before

    async def ask_all(self, ask: Callable[[str], Awaitable[Any]]) -> None:
        """Warm up, then make the timed calls, as many at a time as a semaphore of `concurrency` would let through."""
        await self._ask(ask, self.warm)
        with self.timed():
            await self._ask(ask, self.texts)

    async def _ask(self, ask: Callable[[str], Awaitable[Any]], texts: Sequence[str]) -> None:
        todo = iter(texts)

        async def worker() -> None:
            for text in todo:
                try:
                    await ask(text)
                except Exception as error:
                    self.failed += 1
                    print(f"{type(error).__name__}: {error}"[:300], file=sys.stderr)

        await asyncio.gather(*(worker() for _ in range(self.concurrency)))


def _waited() -> float:
    """Seconds the main thread has waited for a core; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


async def fanfold_durable(work: Work) -> None:
    await _fanfold(work, durable=True)


async def fanfold_forgetful(work: Work) -> None:
    await _fanfold(work, durable=False)


async def _fanfold(work: Work, durable: bool) -> None:
    from fanfold.calls import CallBroker
    from fanfold.context import enter
    from fanfold.ledger import Commits, Ledger
    from fanfold.models import model

    asked = model(f"openai/{MODEL}", base_url=work.url, key=KEY)
    ledger = Ledger(work.folder / "calls.db") if durable else None
    commits = Commits(ledger) if ledger is not None else None
    broker = CallBroker(ledger, commits)
    enter(broker=broker)
    await work.ask_all(lambda text: asked.generate(text, max_tokens=MAX_TOKENS))
    await broker.close()
    if commits is not None and ledger is not None:
        commits.close()
        [(kept,)] = ledger.read("SELECT count(*) FROM call")
        work.failed += max(0, len(work.warm) + len(work.texts) - kept)
        ledger.close()


async def fanfold_study(work: Work) -> None:
    """Ten cases a candidate; the ledger keeps the calls, the evaluations and the trials."""
    from fanfold import Case, Study, Sweep
    from fanfold.models import model

    async def search(texts: Sequence[str], name: str) -> int:
        asked = model(f"openai/{MODEL}", base_url=work.url, key=KEY)

        async def evaluate(candidate: str, case: Case) -> float:
            reply = await asked.generate(f"{case.data}: {candidate}", max_tokens=MAX_TOKENS)
            return float(len(reply.text))

        candidates = list(texts[: len(texts) // CASES])
        window = max(2 * work.concurrency // CASES, 4)
        study = Study(Sweep(candidates), evaluate, cases=range(CASES), window=window, name=name)
        run = await study.run_async(f"async:{work.concurrency}", ledger=work.folder / f"{name}.db")
        run.ledger.close()
        return len(candidates) * CASES - run.progress.evaluations + run.progress.failures

    await search(work.warm, "warm")
    with work.timed():
        work.failed = await search(work.texts, "timed")


async def openai_sdk(work: Work) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=work.url, api_key=KEY, max_retries=0) as client:
        await work.ask_all(
            lambda text: client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=MAX_TOKENS
            )
        )


async def litellm(work: Work) -> None:
    import litellm

    litellm.suppress_debug_info = True
    await work.ask_all(
        lambda text: litellm.acompletion(
            model=f"openai/{MODEL}",
            messages=[{"role": "user", "content": text}],
            max_tokens=MAX_TOKENS,
            api_base=work.url,
            api_key=KEY,
            num_retries=0,
            max_retries=0,
        )
    )


async def langchain(work: Work) -> None:
    from langchain_openai import ChatOpenAI

    chat: Any = ChatOpenAI(model=MODEL, base_url=work.url, api_key=KEY, max_retries=0, max_tokens=MAX_TOKENS)
    how = {"max_concurrency": work.concurrency}
    await chat.abatch(work.warm, config=how)
    with work.timed():
        replies = await chat.abatch(work.texts, config=how, return_exceptions=True)
        work.failed = sum(isinstance(reply, Exception) for reply in replies)


def dspy(work: Work) -> None:
    import dspy

    lm = dspy.LM(f"openai/{MODEL}", api_base=work.url, api_key=KEY, cache=False, num_retries=0, max_tokens=MAX_TOKENS)

    class Ask(dspy.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def forward(self, question: str) -> Any:
            return dspy.Prediction(answer=lm(question)[0])

    def evaluate(texts: Sequence[str]) -> int:
        examples = [dspy.Example(question=text).with_inputs("question") for text in texts]
        metric = lambda example, prediction, trace=None: bool(prediction.answer)  # noqa: E731
        judge = dspy.Evaluate(devset=examples, metric=metric, num_threads=work.concurrency, display_progress=False)
        return len(texts) - sum(bool(score) for _, _, score in judge(Ask()).results)

    with dspy.context(lm=lm):
        evaluate(work.warm)
        with work.timed():
            work.failed = evaluate(work.texts)


async def inspect_model(work: Work) -> None:
    from inspect_ai.model import GenerateConfig, get_model

    config = GenerateConfig(max_connections=work.concurrency, max_retries=0, max_tokens=MAX_TOKENS)
    options = {"base_url": work.url, "api_key": KEY, "responses_api": False}
    async with get_model(f"openai/{MODEL}", config=config, **options) as asked:
        await work.ask_all(asked.generate)


def inspect_eval(work: Work) -> None:
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    def run(texts: Sequence[str]) -> int:
        task = Task(dataset=[Sample(text, target="the") for text in texts], solver=generate(), scorer=includes())
        (log,) = evaluate(
            task,
            model=f"openai/{MODEL}",
            model_base_url=work.url,
            model_args={"api_key": KEY, "responses_api": False},
            max_connections=work.concurrency,
            max_samples=work.concurrency,
            max_retries=0,
            max_tokens=MAX_TOKENS,
            log_dir=str(work.folder),
            display="none",
        )
        return len(texts) - (log.results.completed_samples if log.results is not None else 0)

    run(work.warm)
    with work.timed():
        work.failed = run(work.texts)


CONTENDERS: dict[str, Callable[[Work], Any]] = {
    "fanfold-durable": fanfold_durable,
    "fanfold-forgetful": fanfold_forgetful,
    "fanfold-study": fanfold_study,
    "openai": openai_sdk,
    "litellm": litellm,
    "langchain": langchain,
    "dspy": dspy,
    "inspect-model": inspect_model,
    "inspect-eval": inspect_eval,
}


def measure(name: str, url: str, calls: int, concurrency: int) -> dict[str, Any]:
    """Let one contender make its calls here, on uvloop where that is installed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Work(url, calls, concurrency, Path(folder))
        loop = "its own"
        if inspect.iscoroutinefunction(CONTENDERS[name]):
            factory, loop = loop_factory()
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(CONTENDERS[name](work))
        else:
            CONTENDERS[name](work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return {
        "calls": calls,
        "failed": work.failed,
        "cpu_s": work.watch.cpu,
        "wall_s": work.watch.wall,
        "waited_s": work.waited,
        "peak_mb": peak,
        "loop": loop,
    }


def loop_factory() -> tuple[Callable[[], asyncio.AbstractEventLoop] | None, str]:
    """What makes the event loop, and its name: uvloop's, or the standard one where it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None, "asyncio"
    return uvloop.new_event_loop, "uvloop"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one contender, and print what it took as the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--url", required=True, help="where a simulator listens, with /v1")
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=100)
    options = parser.parse_args(arguments)
    os.environ.update(OPENAI_API_KEY=KEY, LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false")
    print(json.dumps(measure(options.contender, options.url, options.calls, options.concurrency)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
