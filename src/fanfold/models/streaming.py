"""Replies while they are written: server-sent events become pieces of text, and in the end an ordinary response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.calls import ask
from fanfold.errors import CallFailed, FanfoldError
from fanfold.executors.base import home
from fanfold.flights import Call, Onlooker, Reply
from fanfold.models.http_exchange import Response
from fanfold.models.providers.contract import Messages, Provider
from fanfold.models.requests import usable
from fanfold.models.transport import Transport
from fanfold.redaction import redact

if TYPE_CHECKING:
    from fanfold.models.model import Model


class TextStream:
    """The text of a reply, piece by piece; `reply` is the whole of it, once the last piece has come.

    It is recorded and paid as every call is.  A reply from the ledger, from a batch or to a call in a worker process is
    one piece.
    """

    def __init__(self, model: Model, messages: Messages, parameters: dict[str, Any]) -> None:
        self._model, self._messages, self._parameters = model, messages, parameters
        self._reply: Reply | None = None

    @property
    def reply(self) -> Reply:
        if self._reply is None:
            raise FanfoldError("the reply is not complete: iterate over the stream to its end first")
        return self._reply

    async def __aiter__(self) -> AsyncIterator[str]:
        model, parameters = self._model, {**self._model.defaults, **self._parameters}
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        call = model.call(self._messages, **self._parameters)
        if home() is None:
            # The broker's loop may be that of another thread.
            watch = Onlooker(lambda piece: loop.call_soon_threadsafe(queue.put_nowait, piece))
            call = msgspec.structs.replace(call, watch=watch)
        task = asyncio.ensure_future(ask(model, call))
        task.add_done_callback(lambda done: queue.put_nowait(None))
        stop = parameters.get("stop") or ()
        stops = [stop] if isinstance(stop, str) else list(stop)
        # Where the model itself does not stop, what may be the beginning of a stop sequence waits for the rest.
        held = max((len(text) for text in stops), default=1) - 1
        text = shown = ""
        try:
            while (piece := await queue.get()) is not None:
                text += piece
                if not any(sequence in text for sequence in stops):
                    ready = text[len(shown) : len(text) - held]
                    shown += ready
                    if ready:
                        yield ready
            self._reply = usable(await task, model.id, parameters)
        finally:
            task.cancel()  # the call itself is carried through: it is paid for
        final = self._reply.text
        rest = final[len(shown) :] if final.startswith(shown) else final.lstrip()[len(shown.lstrip()) :]
        if rest:
            yield rest


def interrupted(call: Call, error: CallFailed) -> CallFailed:
    """The failure of a call; where a person has seen the first words, trying again would show other ones."""
    if call.watch is None or not call.watch.seen:
        return error
    return CallFailed("interrupted", f"the reply broke off after its first words: {error}", sent=error.sent)


def to_stream(body: str, provider: Provider) -> bytes:
    """The body of a request whose reply is to be streamed."""
    return msgspec.json.encode({**msgspec.json.decode(body), **(provider.streams or {})})


async def streamed(
    transport: Transport, provider: Provider, call: Call, headers: Mapping[str, str], body: bytes, deadline: float
) -> Response:
    """Send a request, pass on the text as it comes, and give the response as if it had come at once."""
    assert call.watch is not None
    if provider.streams is None:
        return await transport.request("POST", call.endpoint, headers, body, deadline=deadline)
    reader = _Events(provider, call.watch)
    response = await transport.stream(call.endpoint, headers, body, reader.feed, deadline=deadline)
    if response.status != 200:
        return response
    if not reader.events:
        return Response(200, response.headers, bytes(reader.received))  # a server that does not stream
    return Response(200, response.headers, msgspec.json.encode(provider.assembled(reader.events)))


def unasked(provider: Provider, body: bytes) -> Mapping[str, Any] | None:
    """What a stream amounts to that nobody asked the server for; None if it is not a complete stream."""
    if provider.streams is None or not body.lstrip().startswith(b"data:"):
        return None
    reader = _Events(provider, Onlooker(lambda _: None))
    try:
        reader.feed(body + b"\n")
        return provider.assembled(reader.events)
    except (ValueError, CallFailed):
        return None


class _Events:
    """Reads server-sent events: their JSON is kept, their text passed on."""

    def __init__(self, provider: Provider, watch: Onlooker) -> None:
        self._provider, self._watch = provider, watch
        self.received = bytearray()
        self._read = 0
        self.events: list[Mapping[str, Any]] = []

    def feed(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\n", self._read)) >= 0:
            line = bytes(self.received[self._read : end]).strip()
            self._read = end + 1
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(redact(line[5:].decode(errors="replace")), strict=False)
            if isinstance(event, dict):
                self.events.append(event)
                if text := self._provider.delta(event):
                    self._watch(text)
