"""Candidates generated one after the other, or several at a time on threads, in the order of the system prompts.

A backend is called from several threads at once, unless it says `thread_safe = False`; see `fanfold.mapping`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from fanfold.errors import ConfigError
from fanfold.mapping import run_parallel, serialised
from fanfold.models import Model
from fanfold.studies.critic.evaluator import answering


@runtime_checkable
class LLMBackend(Protocol):
    """What generates responses.  Must be thread-safe, or have `thread_safe = False`."""

    def generate(self, system_prompt: str, query: str, *, max_tokens: int, temperature: float) -> str: ...


#: A backend, a model of ours or its name, or a function like `LLMBackend.generate`.
AnyLLM = LLMBackend | Model | str | Callable[..., str]


def generate_candidates(
    llm: AnyLLM, system_prompts: Sequence[str], query: str, max_tokens: int = 512, temperature: float = 0.7
) -> list[str]:
    """One response to the query under each system prompt, one after the other."""
    respond = _checked(llm, system_prompts)
    return [respond(prompt, query, max_tokens, temperature) for prompt in system_prompts]


def generate_candidates_parallel(
    llm: AnyLLM,
    system_prompts: Sequence[str],
    query: str,
    max_tokens: int = 512,
    temperature: float = 0.7,
    max_workers: int | None = None,
) -> list[str]:
    """One response to the query under each system prompt, several at a time, in the order of the prompts."""
    respond = _checked(llm, system_prompts)
    items = [(prompt, query, max_tokens, temperature) for prompt in system_prompts]
    return run_parallel(respond, items, max_workers)


def _checked(llm: AnyLLM, system_prompts: Sequence[str]) -> Callable[[str, str, int, float], str]:
    if isinstance(system_prompts, str):
        raise ConfigError(f"system_prompts must be a list of texts, not the text {system_prompts!r:.60}")
    ask = responding(llm)

    def respond(prompt: str, query: str, max_tokens: int, temperature: float) -> str:
        text: Any = ask(prompt, query, max_tokens=max_tokens, temperature=temperature)
        if not isinstance(text, str):
            raise TypeError(f"{llm!r:.80} answered with {text!r:.60} ({type(text).__name__}): return a text")
        return text

    return respond


def responding(llm: AnyLLM) -> Callable[..., str]:
    """The function that asks a backend; calls of one that is not thread-safe follow each other."""
    if isinstance(llm, str):
        llm = answering(llm)
    if isinstance(llm, Model):
        return functools.partial(_ask_model, llm)
    generate = getattr(llm, "generate", llm)
    if not callable(generate):
        raise ConfigError(
            f"{llm!r:.80} cannot answer: give a model, its name, or an object with "
            "generate(system_prompt, query, max_tokens=, temperature=)"
        )
    return serialised(generate)


def _ask_model(model: Model, system_prompt: str, query: str, *, max_tokens: int, temperature: float) -> str:
    reply = model.generate_sync(query, system=system_prompt, max_tokens=max_tokens, temperature=temperature)
    return reply.text
