"""What all calls to one model share on an event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fanfold.flights import Call
from fanfold.limits import Limiter
from fanfold.models.breaker import Breaker
from fanfold.models.parameters import without
from fanfold.models.transport import Transport
from fanfold.sharing import Lease

#: Tokens assumed for a reply of unknown length, until the model has shown how long its replies are.
OUTPUT_GUESS = 256


@dataclass(slots=True)
class ModelLine:
    """A model's transport and limiter on one event loop."""

    transport: Transport
    limiter: Limiter
    #: The loop it is on; gives None once the line is closed.
    loop: Callable[[], Any]
    breaker: Breaker = field(default_factory=Breaker)
    #: Running mean of output tokens.
    output: float = OUTPUT_GUESS
    #: Parameters that the server refused, by their names in the protocol.
    refused: set[str] = field(default_factory=set)
    #: Its part of the limits, where they are shared.
    lease: Lease | None = None

    def sendable(self, call: Call) -> str:
        """The body of a call, without what the server has refused."""
        return without(call.body, self.refused) if self.refused else call.body
