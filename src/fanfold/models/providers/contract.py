"""The contract `Provider`: everything Fanfold knows about one provider, in one class."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fanfold.addresses import check_address, check_recipient, check_scheme
from fanfold.calls import Reply
from fanfold.capabilities import Capabilities, capabilities_of
from fanfold.context import here
from fanfold.errors import CallFailed, ConfigError, nearest
from fanfold.limits import Limits, Quota
from fanfold.models.http import Http
from fanfold.models.parameters import ESSENTIAL, refused_parameters
from fanfold.models.pricing import Price, price_of
from fanfold.models.providers.reading import error_in, request_id, retry_after
from fanfold.models.transport import Transport
from fanfold.redaction import dotenv

if TYPE_CHECKING:
    from fanfold.models.batch.protocol import BatchProtocol
    from fanfold.simulator.dialect import Dialect

#: A text, or a dialogue in the form of OpenAI's chat protocol: `{"role": ..., "content": ...}` each.  The roles are
#: system, user, assistant (also with `tool_calls`; `parts` is what its provider wants back) and tool (a result).
#: Content is a text, or a list of parts such as `{"type": "text", "text": ...}` and those that `image` makes.
Messages: TypeAlias = str | Sequence[Mapping[str, Any]]

#: The kinds of failure that `Provider.error_kind` may give, and what a person can do about them.
ERROR_KINDS = {
    "auth": "check the API key",
    "billing": "check credit and spending limits at the provider",
    "not-found": "check the model's name and the base URL",
    "bad-request": "",
    "rate-limit": "",
    "overloaded": "",
    "server": "",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how one model is asked: what `model()` makes a `Model` of.

    `limits` replace those of the caller, and `timeout` is the least that a call gets.  A `raw` model continues a text
    as it is, without a chat format.
    """

    provider: Provider
    url: str
    key: str | None = field(default=None, repr=False)
    price: Price | None = None
    limits: Limits | None = None
    timeout: float = 0.0
    raw: bool = False
    connect: Callable[[], Transport] = Http


class Provider(ABC):
    """One provider of models.  Subclass it, and name the subclass in the entry-point group `fanfold.providers`.

    The name of the entry point is the prefix of its models (`acme/large`) and of its batches (`batch:acme`).  Instances
    are pure: no I/O, no state.  `fanfold.testing.ProviderConformance` is the suite to run against one.
    """

    #: What ids of its models begin with, in ledgers too, so it never changes; usually the entry point's name.
    name: ClassVar[str]
    default_url: ClassVar[str]
    #: The environment variables of its key ("": it needs none) and of another address.
    key_variable: ClassVar[str]
    url_variable: ClassVar[str]
    #: What to set for a key, where it takes more than one variable.
    key_help: ClassVar[str] = ""
    #: Sampling parameters that its models take, and their names in its protocol.
    parameters: ClassVar[Mapping[str, str]]
    #: Prices beyond Fanfold's own table, by the name of the model.
    prices: ClassVar[Mapping[str, Price]] = {}
    #: What its models take, beyond Fanfold's own table, by the name of the model.
    models: ClassVar[Mapping[str, Capabilities]] = {}
    #: What a request says to have its reply streamed as server-sent events; None: its replies come at once.
    streams: ClassVar[Mapping[str, Any] | None] = None
    #: How it takes calls in batches; None: not at all.
    batches: ClassVar[type[BatchProtocol] | None] = None
    #: How the names of its models begin, as a regular expression; "": they follow no pattern.
    family: ClassVar[str] = ""
    #: Models to name in examples, and to ask where the user names none.
    examples: ClassVar[Sequence[str]] = ()
    #: Whether it stands for any server that speaks its protocol: `base_url` alone chooses it, and its batches, which
    #: such a server may lack, are used only on demand.
    anywhere: ClassVar[bool] = False
    #: Whether its models compute outside this process.
    remote: ClassVar[bool] = True
    #: Options of `model()` that its models have.
    options: ClassVar[Collection[str]] = ()
    #: How users start it, where it is a server on their own machine; such a server works without a key.
    start: ClassVar[str] = ""

    @abstractmethod
    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Path (below the address) and JSON body of a request; `parameters` may hold `system` and `raw` too."""

    @abstractmethod
    def headers(self, key: str | None) -> dict[str, str]:
        """The headers of every request, the key among them."""

    def signed(self, method: str, url: str, body: bytes, key: str | None) -> dict[str, str]:
        """The headers of one request, made each time it is sent: for a key that signs requests instead of going along.

        The default is `headers`.  Whatever sends a request asks this method, so that it may look at all of it.
        """
        return self.headers(key)

    @abstractmethod
    def reply(self, body: Mapping[str, Any]) -> Reply:
        """The reply in a successful body; `malformed()` if it holds none."""

    def delta(self, event: Mapping[str, Any]) -> str:
        """The visible text in one event of a stream."""
        return ""

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The body of the response that the events of a stream amount to; `malformed()` if they have no end."""
        raise NotImplementedError(f"{self.name} streams, and cannot read it")

    @abstractmethod
    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        """The kind of a failure (one of ERROR_KINDS), from the provider's codes rather than its prose."""

    def quota(self, headers: Mapping[str, str]) -> Quota | None:
        """What the headers of a response say about limits; None if nothing."""
        return None

    def dialect(self) -> type[Dialect] | None:
        """How the simulator plays this provider; None: its models cannot be simulated or rehearsed."""
        return None

    def error(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a failed response's body that describes the error; `message` in it is shown to the user."""
        return error_in(body)

    def price(self, model: str) -> Price | None:
        """The price of a model; None where it is not known."""
        return price_of(model, self.prices, self.name)

    def capabilities(self, model: str) -> Capabilities:
        """What a model takes; where nothing is known it is asked, and a refusal teaches."""
        return capabilities_of(model, self.models, self.name)

    def at(self, base_url: str) -> Provider:
        """The provider that speaks for a server at another address than its own."""
        return self

    def home(self) -> str:
        """Its own address, where no other is set."""
        return self.default_url

    def own_key(self) -> str | None:
        """The key that the user has set for it."""
        return setting(self.key_variable)[0]

    def address(self, url: str) -> str:
        """The address that a user means: variables of some providers name the server only."""
        return url

    def owns(self, url: str) -> bool:
        """Whether an address that a file names is the provider's own, so that its key may be sent there."""
        return False

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        """Where a model is asked: the address and the key from the arguments, else from the provider's variables."""
        speaker = self if base_url is None else self.at(base_url)
        url, source = (base_url, None) if base_url else setting(self.url_variable)
        check_unquoted("base_url" if base_url else self.url_variable, url)
        home = self.home()
        url = self.address(url.strip()).rstrip("/") if url else home
        check_address(url)
        check_scheme(url)
        named = "key" if key else self.key_help or self.key_variable
        key = (key or self.own_key() or "").strip() or None  # a key read from a file ends with its line
        check_unquoted(named, key)
        if key is None and url == home and not self.start and here().rehearsal is None:
            from fanfold.models.providers import free_model

            remedy = f"set {self.key_help or self.key_variable}, or use {free_model()}, which needs none"
            raise ConfigError(f"{self.name}/{model} needs an API key: {remedy}")
        if key is not None:
            where = None if source is None else f"{source}: {self.url_variable}"
            check_recipient(url, [url if self.owns(url) else home], self.key_variable, where)
        return Endpoint(speaker, url, key, speaker.price(model))

    def translated(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Sampling parameters under the provider's names; one that it lacks is an error, not silently dropped."""
        body: dict[str, Any] = {}
        for name, value in parameters.items():
            if value is None or name in ("raw", "system", "extra"):
                continue
            if name not in self.parameters:
                meant = nearest(name, self.parameters)
                if name == "stream":
                    meant = ": use model.stream(...)"
                elif "did you mean" not in meant:
                    meant += f"; what belongs in the request as it is goes into extra={{{name!r}: ...}}"
                raise ConfigError(f"{self.name} has no parameter {name!r}{meant}")
            body[self.parameters[name]] = list(value) if isinstance(value, tuple) else value
        return body

    def failure(self, status: int, headers: Mapping[str, str], body: Any) -> CallFailed:
        """The failure that a response with an error status stands for; `body` is its JSON, or its text."""
        error = self.error(body) if isinstance(body, Mapping) else error_in(body)
        kind = self.error_kind(status, error)
        message = str(error.get("message") or "")
        if not message or isinstance(body, str):
            message = f"status {status}{message and f': {message}'}"
        remedy = ERROR_KINDS.get(kind, "")
        id = request_id(headers)
        text = f"{self.name}: {message}{remedy and f' ({remedy})'}{id and f' [request id {id}]'}"
        names = [own for name, own in self.parameters.items() if name not in ESSENTIAL]
        refused = refused_parameters(error, names) if kind == "bad-request" else ()
        return CallFailed(kind, text, retry_after=retry_after(headers), parameters=refused)


def setting(name: str) -> tuple[str | None, str | None]:
    """An environment variable, or its line in `.env` of the current folder; and the file, where it is from one."""
    if value := os.environ.get(name):
        return value, None
    return next(((value, ".env") for variable, value in dotenv() if variable == name), (None, None))


def check_unquoted(name: str, value: str | None) -> None:
    """Refuse quotes around a value, without showing it: nobody's key or address has them."""
    if value is not None and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        raise ConfigError(f"{name} has quotes around its value, as `docker run --env-file` leaves them: take them out")
