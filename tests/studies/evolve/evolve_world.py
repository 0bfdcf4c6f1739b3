"""A planted text and a writer that reads feedback, for the tests of evolve."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Simulator, SimulatorConfig

Answer = Callable[[str, Sequence[Mapping[str, Any]], Mapping[str, Any], random.Random], str]

#: The text must name these, in any order.
WANTED = ("north", "south", "east", "west")
START = "north"


def evaluate(text: str) -> tuple[float, str]:
    """The share of the wanted words, and which one is missing."""
    missing = [word for word in WANTED if word not in text]
    return 1.0 - len(missing) / len(WANTED), f"missing: {missing[0]}" if missing else "complete"


def now(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text that a writer is asked to rewrite; of two to be joined the first."""
    found = re.search(r'(?:now|1):\n"""\n(.*?)\n"""', messages[-1]["content"], re.DOTALL)
    assert found is not None, messages
    return found[1]


def writes(text: str) -> str:
    return f"<rewritten>\n{text}\n</rewritten>"


def reader(name: str, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any], rng: random.Random) -> str:
    """A writer that adds what the feedback says is missing, where it is shown."""
    missing = re.findall(r"missing: (\w+)", messages[-1]["content"])
    return writes(f"{now(messages)} {missing[-1] if missing else rng.randint(0, 9)}")


def simulated(answer: Answer, **settings: Any) -> tuple[Model, Simulator]:
    """A model behind the simulator, in a real provider's protocol, and the simulator with its bill."""
    simulator = Simulator(SimulatorConfig(answer=answer, **settings))
    transport = SimulatedTransport(simulator)
    return replace(model("simulated/gpt-4o-mini"), connect=lambda: transport), simulator
