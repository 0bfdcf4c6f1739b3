"""What a provider's protocol has to say for itself, so that everything else is written once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from fanfold.simulator.answers import Prompt, Written
from fanfold.simulator.limits import Account, Refused
from fanfold.simulator.wire import ApiError, Json, Request, Response


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


class Dialect(Protocol):
    """One provider's way to ask, answer and fail."""

    name: str

    def key_of(self, request: Request) -> str:
        """The API key, or an ApiError."""

    def failure(self, error: ApiError, serial: str) -> Response:
        """An error in the provider's shape."""

    def headers(self, serial: str) -> dict[str, str]:
        """What every good reply carries."""

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        """The state of the limits."""

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        """The error of a request above a limit."""

    def no_such_model(self, model: str) -> ApiError:
        """The error of an unknown model."""

    def model_of(self, body: Json) -> str:
        """The model asked for, or an ApiError."""

    def read(self, endpoint: str, body: Json) -> Prompt:
        """Validate a request strictly, as the provider does, or raise an ApiError."""

    def render(self, endpoint: str, body: Json, prompt: Prompt, written: list[Written], stamp: Stamp) -> Json:
        """The body of a good reply."""


def rfc3339(wall: float, *, up: bool = False) -> str:
    """A time of day as Anthropic writes it; whole seconds, rounded up on demand."""
    seconds = math.ceil(wall) if up else math.floor(wall)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """A span as OpenAI writes it: 4ms, 8.64s, 6m0s, 1h0m30s."""
    if seconds < 1:
        return f"{max(0, math.ceil(seconds * 1000 - 1e-6))}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000 - 1e-6) / 1000, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{round(rest, 3):g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
