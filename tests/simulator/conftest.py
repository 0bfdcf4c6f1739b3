"""A simulator to talk to without sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulator_talk import Talk

from fanfold.simulator import Simulator, SimulatorConfig


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Make a simulator without sockets and talk to it: `talk(limits=..., latency=...)`."""
    return lambda **settings: Talk(Simulator(SimulatorConfig(**settings)))
