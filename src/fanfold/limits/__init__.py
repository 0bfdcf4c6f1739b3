"""How fast a shared resource may be used: requests, tokens and calls in flight, told or found."""

from fanfold.limits.limiter import Limiter, Permit
from fanfold.limits.values import PRESETS, Limits, Quota, limits_of

__all__ = ["PRESETS", "Limiter", "Limits", "Permit", "Quota", "limits_of"]
