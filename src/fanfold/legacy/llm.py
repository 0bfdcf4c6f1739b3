"""The documented interface to a model: batches of prompts answered concurrently, paced, retried and remembered."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.encoding import digest, encode
from fanfold.errors import CallFailed, ConfigError
from fanfold.legacy.performance import Performance, ran
from fanfold.legacy.settings import AsyncEvolutionConfig, EvolutionConfig
from fanfold.legacy.words import PromptGenome, Words
from fanfold.models import Model
from fanfold.strategies import Sweep
from fanfold.study import Study
from fanfold.types import Case, Failed, Ok, Outcome


@dataclass(frozen=True)
class LLMResponse:
    """What became of one prompt: the model's text, or why there is none."""

    prompt: str
    text: str = ""
    finish: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    kind: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class Say:
    """Asks the model with a prompt as it is, and keeps what it says."""

    model: Model
    max_tokens: int
    temperature: float
    system: str | None = None

    @property
    def fingerprint(self) -> str:
        said = [self.model.fingerprint, self.max_tokens, self.temperature, self.system]
        return f"legacy.llm@{digest(encode(said)).hex()[:16]}"

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
    gets none has its `error`, and the others go on.  Equal prompts are asked once.
    """

    def __init__(self, config: EvolutionConfig | None = None, **settings: Any) -> None:
        if config is not None and settings:
            raise ConfigError(f"give a config, or settings such as {sorted(settings)[0]}, not both")
        given = AsyncEvolutionConfig(**settings) if config is None else AsyncEvolutionConfig.of(config)
        self.config = dataclasses.replace(given, max_concurrent_genomes=1)
        self._total = Performance()
        self._models: dict[str, Model] = {}
        self._known: dict[tuple[str, str | None], LLMResponse] = {}

    def asked(self, name: str) -> Model:
        """The model of a name, one for all batches, so that they share its pace."""
        if name not in self._models:
            self._models[name] = self.config.asked(name)
        return self._models[name]

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
        new = [prompt for prompt in dict.fromkeys(prompts) if (prompt, system) not in self._known]
        found = {**self._known, **(await self._answers(new, system) if new else {})}
        self._total = self._total.plus_cached(len(prompts) - len(new))
        if self.config.use_cache:
            self._known = {key: response for key, response in found.items() if response.ok}
        return [found[prompt, system] for prompt in prompts]

    async def evaluate_batch(self, prompts: Sequence[Words], problems: Sequence[Any]) -> list[PromptGenome]:
        """Prompts scored on problems (question and answer each), in their order."""
        from fanfold.legacy.pipeline import AsyncEvaluationPipeline

        pipeline = AsyncEvaluationPipeline(problems=problems, llm=self)
        scored = await pipeline.evaluate_population(prompts)
        self._total = self._total.plus(pipeline.performance)
        return scored

    @property
    def metrics(self) -> dict[str, Any]:
        """Figures of everything asked so far: seconds, throughput, API calls, cache hit rate, failures, retries."""
        return self._total.as_dict()

    async def _answers(self, prompts: Sequence[str], system: str | None) -> dict[tuple[str, str | None], LLMResponse]:
        model = self.asked(self.config.models[0])
        model.line()  # opened here, outside the run, so that its pace outlives the run
        say = Say(model, self.config.max_tokens, self.config.temperature, system)
        study: Study[Any] = Study(Sweep(list(prompts)), say, window=self.config.async_batch_size, name="llm")
        run = await ran(study, self.config, None, f"llm-{secrets.token_hex(6)}")
        with run.ledger:
            self._total = self._total.plus(Performance.of(run))
            results = {result.number: next(iter(result.outcomes.values())) for result in run.results()}
        return {(prompt, system): _response(prompt, results[number]) for number, prompt in enumerate(prompts)}


def _response(prompt: str, outcome: Outcome) -> LLMResponse:
    if isinstance(outcome, Failed):
        return LLMResponse(prompt, error=outcome.message.removeprefix("CallFailed: "), kind=outcome.kind)
    return LLMResponse(prompt, **outcome.data)
