"""Parameters of a request: what a model does not take is left out and said, and what a server refuses is learnt."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from fanfold.capabilities import EFFORTS, Capabilities
from fanfold.errors import ConfigError, nearest

#: How servers say that they do not have a parameter, or not with a value that is not the default.
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|deprecated|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|"
    r"extra inputs|no longer|not available|not enabled|cannot both|only the default",
    re.IGNORECASE,
)
#: Where some protocols keep parameters, beside the request itself.
_NESTED = ("generationConfig", "thinkingConfig", "inferenceConfig")
#: Parameters without which a reply would be of no use: a model that does not take one fails the call.
ESSENTIAL = ("response_format", "tools", "tool_choice", "n", "logprobs", "top_logprobs")
#: The two names of the output limit: one is never left out for want of the other.
LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


def fitted(
    parameters: Mapping[str, Any], known: Collection[str], takes: Capabilities
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The parameters that a model takes, and the names of the others.

    `max_tokens` is the visible text: the limit that is sent has room for reasoning too.  `stop` is never missing: see
    `cut`.  A parameter that is not `known` to the provider stays, and is refused by it; so is an essential one that the
    model does not take.
    """
    if not parameters:
        return {}, ()
    effort = parameters.get("reasoning_effort")
    if effort == "off":
        effort = "none"
        parameters = {**parameters, "reasoning_effort": effort}
    if effort is not None and effort not in EFFORTS:
        raise ConfigError(f"reasoning_effort must be one of {', '.join(EFFORTS)}, not {effort!r}{nearest(effort, ())}")
    kept: dict[str, Any] = {}
    dropped = []
    for name, value in parameters.items():
        if value is None:
            continue
        if not takes.takes(name, value, effort) or (name in _WISHES and name not in known):
            if name in ESSENTIAL:
                raise ConfigError(_lacking(name, takes, effort))
            if name not in _WISHES:
                dropped.append(name)
            continue
        kept[name] = takes.room(_whole(value), effort) if name == "max_tokens" else value
    return kept, tuple(dropped)


#: The tokens of a reply that are reserved where its request sets no limit.
UNLIMITED = 4096


def passed_on(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """What goes into a request's body as it is; only what would change how the reply is read is refused."""
    if "stream" in extra:
        raise ConfigError("extra cannot have 'stream': use `async for piece in model.stream(...)`")
    return extra


def most_tokens(parameters: Mapping[str, Any], body: Mapping[str, Any]) -> int:
    """The most tokens that the reply may have, as far as the request says; some servers take -1 for any number."""
    limit = parameters.get("max_tokens", body.get("max_tokens"))
    each = 0 if limit is None else _whole(limit)
    return (each if each > 0 else UNLIMITED) * int(parameters.get("n") or 1)


def _whole(limit: Any) -> int:
    try:
        return int(limit)
    except (TypeError, ValueError):
        raise ConfigError(f"max_tokens must be a whole number, not {limit!r}") from None


#: Parameters that no provider has to have: a reply is cut here too, and most cache prompts without being asked.
_WISHES = ("stop", "cache")


def _lacking(name: str, takes: Capabilities, effort: str | None) -> str:
    what = f"this model does not take {name}"
    return f"{what} while it reasons: add reasoning_effort='none'" if takes.takes(name, None, "none") else what


def cut(text: str, stop: str | Sequence[str]) -> str | None:
    """The text before the first stop sequence, where a model that has no such parameter wrote on; None: it did not."""
    body = text.lstrip()
    ends = [at for at in map(body.find, [stop] if isinstance(stop, str) else stop) if at >= 0]
    return body[: min(ends)] if ends else None


def refused_parameters(error: Mapping[str, Any], names: Collection[str]) -> tuple[str, ...]:
    """Which of these parameters, by the names of the protocol, an error says the model does not take."""
    text = f"{error.get('code') or ''} {error.get('message') or ''}"
    if not _UNSUPPORTED.search(text):
        return ()
    told = re.split(r"[.\[]", str(error.get("param") or ""))[0]
    named = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    return tuple(dict.fromkeys([*([told] if told in names else []), *sorted(named, key=text.rfind, reverse=True)]))


def places(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a request that hold parameters."""
    inner = [request[name] for name in _NESTED if isinstance(request.get(name), dict)]
    return [request, *(place for part in inner for place in places(part))]


def without(body: str, names: Collection[str]) -> str:
    """A request's body without these parameters; an output limit takes its other name instead."""
    request = msgspec.json.decode(body)
    for place in places(request):
        for name in names:
            value = place.pop(name, None)
            if value is not None and name in LIMITS:
                place.setdefault(LIMITS[name], value)
    return msgspec.json.encode(request).decode()
