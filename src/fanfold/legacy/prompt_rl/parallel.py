"""Candidates generated and triples scored several at a time on threads, with results in the order of the items.

`max_workers=None` means `min(number of items, 4)`.  If a call raises, no further one is started, those running finish,
and the exception of the first failing item is raised with a note of its index (also as its `item_index`).

Functions and backends are called from several threads at once.  One that cannot bear that says so by an attribute
`thread_safe = False` (its own, or that of the object it is a method of): its calls then happen one after the other.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from fanfold import mapping
from fanfold.errors import ConfigError
from fanfold.models import Model
from fanfold.studies.critic.evaluator import answering

T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class LLMBackend(Protocol):
    """What generates responses.  Must be thread-safe, or have `thread_safe = False`."""

    def generate(self, system_prompt: str, query: str, *, max_tokens: int, temperature: float) -> str: ...


#: A backend, a model of ours or its name, or a function like `LLMBackend.generate`.
AnyLLM = LLMBackend | Model | str | Callable[..., str]


def map_parallel(fn: Callable[[T], R], items: Sequence[T], max_workers: int | None = None) -> list[R]:
    """`[fn(item) for item in items]`, several at a time."""
    return mapping.map_parallel(serialised(fn), items, max_workers)


def run_parallel(fn: Callable[..., R], items: Sequence[tuple[Any, ...]], max_workers: int | None = None) -> list[R]:
    """`[fn(*item) for item in items]`, several at a time."""
    return mapping.run_parallel(serialised(fn), items, max_workers)


def score_batch_parallel(
    score_fn: Callable[[str, str, str], float], items: Sequence[tuple[str, str, str]], max_workers: int | None = None
) -> list[float]:
    """The scores of `(system_prompt, query, response)` triples, several at a time."""
    return mapping.score_batch_parallel(serialised(score_fn), items, max_workers)


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
    return mapping.run_parallel(respond, items, max_workers)


def _checked(llm: AnyLLM, system_prompts: Sequence[str]) -> Callable[[str, str, int, float], str]:
    if isinstance(system_prompts, str):
        raise ConfigError(f"system_prompts must be a list of texts, not the text {system_prompts!r:.60}")
    ask = responding(llm)

    def respond(prompt: str, query: str, max_tokens: int, temperature: float) -> str:
        said: Any = ask(prompt, query, max_tokens=max_tokens, temperature=temperature)
        if not isinstance(said, str):
            raise TypeError(f"{llm!r:.80} answered with {said!r:.60} ({type(said).__name__}): return a text")
        return said

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


_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()
#: For owners that no lock can be kept for: they share this one.
_shared_lock = threading.RLock()


def serialised(fn: Callable[..., R]) -> Callable[..., R]:
    """The function itself; or, where it says that it is not thread-safe, one whose calls follow each other.

    All calls of one object wait for the same lock, also those of different methods and from different batches.
    """
    owner = getattr(fn, "__self__", fn)
    if getattr(fn, "thread_safe", True) and getattr(owner, "thread_safe", True):
        return fn
    lock = _lock_of(owner)

    def call(*args: Any, **named: Any) -> R:
        with lock:
            return fn(*args, **named)

    return call


def _lock_of(owner: Any) -> Any:
    with _locks_lock:
        try:
            return _locks.setdefault(owner, threading.RLock())
        except TypeError:  # neither hashed nor referred to weakly
            return _shared_lock
