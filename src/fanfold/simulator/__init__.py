"""A strict fake of the model providers at their edge: protocols, limits, latency, faults, and a bill."""

from fanfold.simulator.billing import Billing, Charge, CreatedBatch
from fanfold.simulator.config import Answer, Latency, SimulatorConfig
from fanfold.simulator.core import Simulator, addresses, installed_dialects
from fanfold.simulator.faults import KINDS, OPERATIONS, Fault, Faults
from fanfold.simulator.limits import AccountLimits
from fanfold.simulator.wire import BrokenAnswer, Request, SimulatedResponse
from fanfold.web.server import serve

__all__ = [
    "KINDS",
    "OPERATIONS",
    "AccountLimits",
    "Answer",
    "Billing",
    "BrokenAnswer",
    "Charge",
    "CreatedBatch",
    "Fault",
    "Faults",
    "Latency",
    "Request",
    "SimulatedResponse",
    "Simulator",
    "SimulatorConfig",
    "addresses",
    "installed_dialects",
    "serve",
]
