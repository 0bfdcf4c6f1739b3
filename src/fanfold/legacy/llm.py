"""The documented interface to a model: batches of prompts answered concurrently, paced, retried and remembered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.encoding import digest, encode
from fanfold.errors import CallFailed, ConfigError
from fanfold.legacy.performance import Performance, StudyRuns
from fanfold.legacy.pipeline import AsyncEvaluationPipeline, PromptGenome, Words
from fanfold.legacy.settings import AsyncEvolutionConfig, EvolutionConfig
from fanfold.models import Model
from fanfold.strategies import Sweep
from fanfold.study import Study
from fanfold.types import Case, Failed, Ok, Outcome


@dataclass(frozen=True)
class LLMResponse:
    """The result of one prompt: the model's text, or why there is none."""

    prompt: str
    text: str = ""
    finish: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    kind: str | None = None

    @classmethod
    def of(cls, prompt: str, outcome: Outcome) -> LLMResponse:
        if isinstance(outcome, Failed):
            return cls(prompt, error=outcome.message.removeprefix("CallFailed: "), kind=outcome.kind)
        return cls(prompt, **outcome.data)

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class Say:
    """An evaluator that asks the model with a prompt as it is, and keeps what it says."""

    model: Model
    max_tokens: int
    temperature: float
    system: str | None = None

    @property
    def fingerprint(self) -> str:
        settings = [self.model.fingerprint, self.max_tokens, self.temperature, self.system]
        return f"legacy.llm@{digest(encode(settings)).hex()[:16]}"

    async def __call__(self, prompt: str, case: Case) -> Ok:
        reply = await self.model.generate(
            prompt, system=self.system, max_tokens=self.max_tokens, temperature=self.temperature
        )
        tokens = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
        return Ok(1.0, {"text": reply.text, "finish": reply.finish, **tokens})


class AsyncLLMInterface:
    """Asks a model with many prompts at a time.  Settings are those of `AsyncEvolutionConfig`.

    `max_concurrent_requests` are in flight, `async_batch_size` of a batch are taken up at a time, and
    `rate_limit_per_minute` holds from one batch to the next.  Answers come in the order of the prompts; a prompt that
    gets none has its `error`, and the others continue.  Equal prompts are asked once.
    """

    def __init__(self, config: EvolutionConfig | None = None, **settings: Any) -> None:
        if config is not None and settings:
            raise ConfigError(f"give a config, or settings such as {sorted(settings)[0]}, not both")
        config = AsyncEvolutionConfig(**settings) if config is None else AsyncEvolutionConfig.of(config)
        self.config = dataclasses.replace(config, max_concurrent_genomes=1)
        self._runs = StudyRuns(self.config)
        self._total = Performance()

    async def generate(self, prompt: str, system: str | None = None) -> str:
        """The answer to one prompt; raises CallFailed where there is none."""
        response = (await self.generate_batch([prompt], system))[0]
        if response.error is not None:
            raise CallFailed(response.kind or "error", response.error)
        return response.text

    async def generate_batch(self, prompts: Sequence[str], system: str | None = None) -> list[LLMResponse]:
        """The answers to many prompts, in their order."""
        if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
            raise ConfigError(f"prompts must be a list of texts, not {prompts!r:.80}")
        if not prompts:
            return []
        config = self.config
        say = Say(config.asked(config.models[0]), config.max_tokens, config.temperature, system)
        study: Study[Any] = Study(Sweep(list(prompts)), say, window=config.async_batch_size)
        results, performance = await self._runs.results(study, "llm")
        self._total += performance
        return [LLMResponse.of(prompt, result.outcomes["0"]) for prompt, result in zip(prompts, results)]

    async def evaluate_batch(self, prompts: Sequence[Words], problems: Sequence[Any]) -> list[PromptGenome]:
        """Prompts scored on problems (question and answer each), in their order."""
        pipeline = AsyncEvaluationPipeline(problems=problems, llm=self)
        scored = await pipeline.evaluate_population(prompts)
        self._total += pipeline.performance
        return scored

    @property
    def metrics(self) -> dict[str, Any]:
        """Figures of everything asked so far: seconds, throughput, API calls, cache hit rate, failures, retries."""
        return self._total.as_dict()
