"""Functions that the user brings: what they raise is named with their line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fanfold.errors import ConfigError, FanfoldError


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """In here, what fails is the user's function of this name."""
    try:
        yield
    except FanfoldError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"`{what}` raised {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
        ) from error
