"""A strict fake of the model providers at their edge: protocols, limits, latency, faults, and a bill."""

from fanfold.simulator.books import Books, Charge, CreatedBatch
from fanfold.simulator.config import Answer, Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.faults import KINDS, OPERATIONS, Fault, Faults
from fanfold.simulator.limits import Limits
from fanfold.simulator.server import serve
from fanfold.simulator.wire import Broken, Request, Response

__all__ = [
    "KINDS",
    "OPERATIONS",
    "Answer",
    "Books",
    "Broken",
    "Charge",
    "CreatedBatch",
    "Fault",
    "Faults",
    "Latency",
    "Limits",
    "Request",
    "Response",
    "Simulator",
    "SimulatorConfig",
    "serve",
]
