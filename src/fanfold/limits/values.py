"""What can be said about limits: by the user (`Limits`, the presets) and by a server's reply (`Quota`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from fanfold.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast a resource may be used.  None means not told: it is then learnt, or not limited.

    Limits are upper bounds: what a server's replies say, or its refusals show, can only lower them.  `burst` is how
    many seconds of a rate may go at once after a pause; it is below one second because a server that allows a burst of
    a second refuses what the network delivers closer together than it was sent.  With `adaptive=False` only what is
    told here, and a server's Retry-After, holds anything back.  `shared` is the address of a Redis or Valkey server by
    which all who name it keep these limits together.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    input_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    in_flight: int | None = None
    adaptive: bool = True
    burst: float = 0.5
    #: It may hold a password.
    shared: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if name in ("adaptive", "shared") or value is None:
                continue
            if name == "burst":
                if not 0 <= value < math.inf:
                    raise ConfigError(f"burst={value!r} is not a number of seconds: give 0 or more")
            elif not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r} is not a limit: give a number above 0, or None if unknown")
        if self.in_flight is not None and self.in_flight < 1:
            raise ConfigError(f"in_flight={self.in_flight!r} lets nothing through: give 1 or more")


@dataclass(frozen=True, slots=True)
class Quota:
    """What the headers of a reply said.  None means not said.  Limits are per minute, resets in seconds from now."""

    requests_limit: float | None = None
    requests_remaining: float | None = None
    requests_reset: float | None = None
    tokens_limit: float | None = None
    tokens_remaining: float | None = None
    tokens_reset: float | None = None
    input_tokens_limit: float | None = None
    input_tokens_remaining: float | None = None
    input_tokens_reset: float | None = None
    output_tokens_limit: float | None = None
    output_tokens_remaining: float | None = None
    output_tokens_reset: float | None = None


PRESETS: Mapping[str, Limits] = MappingProxyType(
    {
        "adaptive": Limits(),
        "conservative": Limits(requests_per_minute=2000, in_flight=5 * 3),
        "balanced": Limits(requests_per_minute=3500, in_flight=10 * 5),
        "aggressive": Limits(requests_per_minute=3500, in_flight=15 * 8, burst=5.0),
    }
)


def limits_of(value: str | Limits | None) -> Limits:
    """The limits a user means: a preset's name, limits as they are, or None for `adaptive`."""
    if value is None:
        return PRESETS["adaptive"]
    if isinstance(value, Limits):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"limits must be a preset's name or Limits(requests_per_minute=...), not {value!r:.80}")
    if value not in PRESETS:
        raise ConfigError(f"there are no limits named {value!r}{nearest(value, PRESETS)}")
    return PRESETS[value]
