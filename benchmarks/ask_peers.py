"""Asks about every row of a file with one library, in a process of its own, and prints as JSON what that took.

.venv-peers/litellm/bin/python benchmarks/ask_peers.py litellm --url http://127.0.0.1:8089/v1 data.jsonl out.jsonl

Each is the job as its documentation shows it.  Needs only the library it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measure import stopwatch

MODEL, KEY, MAX_TOKENS = "gpt-4o-mini", "no-key", 200
#: Calls made before the clock starts, so that lazy imports are not measured.
WARM_UP = 20
Ask = Callable[[Sequence[str]], list[str]]


def openai_sdk(url: str, concurrency: int) -> Ask:
    """AsyncOpenAI, a semaphore and gather."""
    from openai import AsyncOpenAI

    async def ask(texts: Sequence[str]) -> list[str]:
        gate = asyncio.Semaphore(concurrency)
        async with AsyncOpenAI(base_url=url, api_key=KEY) as client:

            async def one(text: str) -> str:
                async with gate:
                    messages: Any = [{"role": "user", "content": text}]
                    reply = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=MAX_TOKENS)
                    return reply.choices[0].message.content or ""

            return await asyncio.gather(*map(one, texts))

    def run(texts: Sequence[str]) -> list[str]:
        try:
            import uvloop
        except ImportError:
            return asyncio.run(ask(texts))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(ask(texts))

    return run


def litellm(url: str, concurrency: int) -> Ask:
    """litellm.batch_completion, which has a thread for each call in flight."""
    import litellm

    litellm.suppress_debug_info = True

    def ask(texts: Sequence[str]) -> list[str]:
        replies = litellm.batch_completion(
            model=f"openai/{MODEL}",
            messages=[[{"role": "user", "content": text}] for text in texts],
            max_tokens=MAX_TOKENS,
            api_base=url,
            api_key=KEY,
            max_workers=concurrency,
        )
        return [reply.choices[0].message.content for reply in replies]

    return ask


def dspy(url: str, concurrency: int) -> Ask:
    """dspy.Parallel over calls of one LM, with its cache as it is by default."""
    import dspy

    lm = dspy.LM(f"openai/{MODEL}", api_base=url, api_key=KEY, max_tokens=MAX_TOKENS)

    def ask(texts: Sequence[str]) -> list[str]:
        parallel = dspy.Parallel(num_threads=concurrency, disable_progress_bar=True)
        with dspy.context(lm=lm):
            return [reply[0] for reply in parallel([(lm, (text,)) for text in texts])]

    return ask


def curator(url: str, concurrency: int) -> Ask:
    """A curator.LLM over a list of prompts, with its cache as it is by default."""
    import litellm.litellm_core_utils.default_encoding  # noqa: F401 - the tokenizer that curator would download
    from bespokelabs import curator

    limits = {"max_requests_per_minute": 1_000_000, "max_tokens_per_minute": 1_000_000_000}
    backend = {"base_url": url, "api_key": KEY, "max_concurrent_requests": concurrency, **limits}

    class Asked(curator.LLM):  # type: ignore[misc, name-defined, unused-ignore]
        def prompt(self, row: dict[str, str]) -> str:
            return row["text"]

        def parse(self, row: dict[str, str], response: str) -> dict[str, str]:
            return {"text": row["text"], "answer": response}

    def ask(texts: Sequence[str]) -> list[str]:
        llm = Asked(
            model_name=MODEL, backend="openai", backend_params=backend, generation_params={"max_tokens": MAX_TOKENS}
        )
        done = llm([{"text": text} for text in texts])
        rows = getattr(done, "dataset", done)
        answers = {row["text"]: row["answer"] for row in rows}
        return [answers[text] for text in texts]

    return ask


CONTENDERS: dict[str, Callable[[str, int], Ask]] = {
    "openai": openai_sdk,
    "litellm": litellm,
    "dspy": dspy,
    "curator": curator,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask about all rows and write them, and print what that took as the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--url", required=True, help="where a simulator listens, with /v1")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    options = parser.parse_args(arguments)
    os.environ.update(
        OPENAI_API_KEY=KEY, OPENAI_BASE_URL=options.url, LITELLM_LOCAL_MODEL_COST_MAP="True", TELEMETRY_ENABLED="false"
    )
    ask = CONTENDERS[options.contender](options.url, options.concurrency)
    if options.warm_up:
        ask([f"Warm up, and say {number}." for number in range(options.warm_up)])
    with stopwatch() as watch:
        rows = [json.loads(line) for line in options.source.read_text().splitlines()]
        answers = ask([f"Translate: {row['text']}" for row in rows])
        lines = [json.dumps({**row, "answer": answer}) + "\n" for row, answer in zip(rows, answers)]
        options.output.write_text("".join(lines))
    print(json.dumps({"cpu_s": watch.cpu, "wall_s": watch.wall}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
