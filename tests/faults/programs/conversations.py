"""Many short conversations, and the memory they took: run in a process of its own, whose memory is nobody else's."""

from __future__ import annotations

import resource
import sys

from fanfold import Case, Study, Sweep
from fanfold.limits import Limits
from fanfold.models.model import Model
from fanfold.models.providers.openai import OpenAI
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Simulator, SimulatorConfig


def converse(count: int) -> int:
    """Run so many conversations, without the provider's own books; the most kilobytes this process had in memory."""
    simulator = Simulator(SimulatorConfig(answer=lambda *_: "yes"))
    simulator.billing.charges.append = lambda charge: None  # type: ignore[method-assign]
    way = SimulatedTransport(simulator)
    model = Model("gpt-6-luna", OpenAI(), "http://api.test/v1", Limits(), None, connect=lambda: way, key="k")

    async def talk(candidate: int, case: Case) -> float:
        first = await model.generate(f"question {candidate}", max_tokens=5)
        dialogue = [{"role": "user", "content": f"{candidate}"}, {"role": "assistant", "content": first.text}]
        return float(len((await model.generate([*dialogue, {"role": "user", "content": "and"}], max_tokens=5)).text))

    Study(Sweep(lambda: iter(range(count))), talk).run("async:64").ledger.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(converse(int(sys.argv[1])))
