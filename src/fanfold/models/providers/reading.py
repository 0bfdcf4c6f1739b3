"""What provider modules share: dialogues to send, and headers, times and token counts to read."""

from __future__ import annotations

import datetime
import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.errors import CallFailed, ConfigError

MAX_RETRY_AFTER = 300.0


def as_dialogue(messages: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as a list, checked."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    dialogue = [dict(message) for message in messages]
    if not dialogue:
        raise ConfigError("a model cannot be asked without any message")
    for number, message in enumerate(dialogue):
        if message.get("role") not in ("system", "user", "assistant", "tool", "developer") or "content" not in message:
            raise ConfigError(
                f"message {number} needs a role (system, user or assistant) and content: {message!r:.100}"
            )
    return dialogue


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `retry-after` (seconds, or a date), capped; nonsense is None."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if not text:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            moment = http_date(text)
            if moment is None:
                continue
            # By the clock that the date was read from: ours may be wrong by more than the wait.
            now = http_date(headers.get("date", ""))
            seconds = moment - (time.time() if now is None else now)
        if math.isnan(seconds):
            continue
        return min(max(seconds, 0.0), MAX_RETRY_AFTER)
    return None


def http_date(text: str) -> float | None:
    """The moment, in seconds since 1970, that a header such as `Date` names; nonsense is None."""
    try:
        moment = email.utils.parsedate_to_datetime(text)
        # Every HTTP date is in UTC, also one that does not say so.
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str | None) -> float | None:
    """Seconds of a text such as "8.64s", "4ms", "1m30s"."""
    if not text:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def number(text: str | None) -> float | None:
    """A finite, non-negative number, or None."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def tokens(usage: Any, name: str) -> int | None:
    """A count of a reply's usage; None where the provider does not say it."""
    value = usage.get(name) if type(usage) is dict else None
    return value if type(value) is int and value >= 0 else None


def estimated(text: str) -> int:
    """Tokens of a text, where nobody counted them: one for every four characters begun."""
    return -(-len(text) // 4)


def malformed(provider: str, what: str) -> CallFailed:
    return CallFailed("malformed", f"{provider} sent a reply that cannot be read: {what}")
