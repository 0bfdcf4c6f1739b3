"""What a provider's protocol has to say for itself, so that everything else is written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from fanfold.simulator.answers import Completion, ModelRequest
from fanfold.simulator.limits import Account, Refused
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

if TYPE_CHECKING:
    from fanfold.simulator.state import SimulatorState

#: Answers a request of the owner of a key.
Work: TypeAlias = Callable[[Request, str], SimulatedResponse | Awaitable[SimulatedResponse]]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What identifies one reply: a serial number, when it was made, and whether it belongs to a batch.

    With `cached` and `stored`, the input tokens that were read from and written to the prompt cache; without `usage` it
    says nothing about tokens.
    """

    serial: str
    created: float
    batch: bool = False
    cached: int = 0
    stored: int = 0
    usage: bool = True


class Dialect(ABC):
    """One provider's way to ask, answer and fail, and its batches, played inside one simulator.

    The defaults are plain: override what the provider does in its own way.
    """

    name: ClassVar[str]
    #: The paths that generate text, unless `generates` knows better; what else there is, `route` knows.
    endpoints: ClassVar[Collection[str]] = ()
    #: What its paths begin with, which it does not see itself: the provider's own beginning, or one that tells it from
    #: another provider's at a simulator of many dialects.
    mount: ClassVar[str] = ""
    #: Whether it answers what no dialect claims.
    fallback: ClassVar[bool] = False
    #: Whether the provider tells a refusal from other text.
    refuses: ClassVar[bool] = True
    #: Whether writing to the prompt cache is counted, and charged, apart.
    counts_stored_prompts: ClassVar[bool] = False

    def __init__(self, state: SimulatorState) -> None:
        self.state = state

    def speaks(self, request: Request) -> bool:
        """Whether a request is written in this dialect."""
        return request.path in self.endpoints

    @classmethod
    def mounted(cls, path: str) -> str:
        """Where the path of the provider's own address is at a simulator of many dialects."""
        return path if path.startswith(f"{cls.mount}/") else cls.mount + path

    def plain(self, request: Request) -> Request:
        """A request with the path that the dialect's own tables know, where the provider's real one differs."""
        return request

    def generates(self, request: Request) -> bool:
        """Whether a request asks a model for text."""
        return request.method == "POST" and request.path in self.endpoints

    def route(self, request: Request) -> tuple[str, Work] | None:
        """What another request is for (one of faults.OPERATIONS), and what answers it; None: there is no such URL."""
        return None

    # -- requests ----------------------------------------------------------------------------------------------------

    def key_of(self, request: Request) -> str:
        """The API key, or an ApiError."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(401, "no API key: send the header Authorization: Bearer KEY")
        return key.strip()

    def body_of(self, request: Request) -> Json:
        """The body of a request for text; where the model is in the path, with the model."""
        return read_json(request.body)

    def model_of(self, body: Json) -> str:
        """The model asked for, or an ApiError."""
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ApiError(400, "you must provide a model parameter")
        return model

    @abstractmethod
    def read(self, endpoint: str, body: Json) -> ModelRequest:
        """Validate a request strictly, as the provider does, or raise an ApiError."""

    def caches(self, body: Json) -> bool:
        """Whether the beginning of this prompt goes into the prompt cache."""
        return True

    # -- responses ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        """The body of a good reply."""

    def events(self, endpoint: str, body: Json, value: Json) -> list[Json] | None:
        """The events as which a reply is streamed; None: the provider, or the simulator, does not stream it."""
        return None

    def headers(self, serial: str) -> dict[str, str]:
        """The headers of every good reply."""
        return {}

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        """The state of the limits."""
        return {}

    # -- errors ------------------------------------------------------------------------------------------------------

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        """An error in the provider's shape."""
        return reply({"error": {"message": error.message, "code": error.code}}, error.status, error.headers)

    def wrong_key(self) -> ApiError:
        return ApiError(401, "the API key is not valid", code="invalid_api_key")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(404, f"there is no model {model}", code="model_not_found")

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        """The error of a request above a limit."""
        return ApiError(429, f"rate limit of {model}: {refused.bucket.limit:.0f} {refused.bucket.name} per minute")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        """The error of an account without money, in realtime or in a line of a batch."""
        return ApiError(429, "there is no credit left", code="insufficient_quota")

    def mishap(self, status: int, text: str) -> ApiError:
        """The error that a fault asks for."""
        return ApiError(status, text)
