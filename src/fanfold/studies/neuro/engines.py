"""Where and how networks are trained at once: the engines by name, which one fits this machine, and a table of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fanfold.errors import ConfigError, MissingExtra
from fanfold.executors import usable_cores

EngineName: TypeAlias = Literal[
    "auto", "measured", "sequential", "threads", "processes", "streams", "graph", "fused", "cpu+gpu"
]
#: Networks in a group of the engines that train many as one, where nothing else is said.
GROUP = 128


@dataclass(frozen=True)
class TrainingEngine:
    """How networks are trained: on which executor, by which devices, and how many as one.

    `together` is what a group of networks becomes: `each` trains them one after another, `fused` stacks those of a
    family one after another, `graph` does so with many at once, each step a CUDA graph.
    """

    name: str
    executor: str
    devices: tuple[str, ...] = ("cpu",)
    together: Literal["each", "fused", "graph"] = "each"
    group: int = 1

    @property
    def calls(self) -> int:
        """How many calls train at once."""
        return int(self.executor.partition(":")[2] or 1)


def has_gpu() -> bool:
    # Before the GPU is first used: as many queues as there are lanes, or work of one waits for another's.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "neuro", "training networks") from error
    return torch.cuda.is_available()


def engine(name: EngineName, device: str = "auto", concurrent: int | None = None) -> TrainingEngine:
    """The engine of that name.  `auto` is the CUDA graph where there is a GPU, and threads on the cores elsewhere."""
    gpu = has_gpu()
    if device == "cuda" and not gpu:
        raise ConfigError("device='cuda': PyTorch sees no GPU here; use device='cpu', or 'auto'")
    on_gpu = gpu if device == "auto" else device == "cuda"
    where = ("cuda",) if on_gpu else ("cpu",)
    if name == "auto":
        name = "graph" if on_gpu else "threads" if usable_cores() > 1 else "sequential"
    if name in ("streams", "cpu+gpu") and not on_gpu:
        raise ConfigError(f"engine={name!r} needs a GPU that PyTorch sees; use 'threads' or 'processes' here")
    many = concurrent or (4 if on_gpu else usable_cores())
    match name:
        case "sequential":
            return TrainingEngine(name, "inline", where)
        case "threads" | "streams" | "processes":
            kind = "processes" if name == "processes" else "threads"
            return TrainingEngine(name, f"{kind}:{many}", where)
        case "graph" | "fused":
            return TrainingEngine(name, "inline", where, name, concurrent or GROUP)
        case "cpu+gpu":
            return TrainingEngine(name, f"threads:{many}", ("cuda",) + ("cpu",) * (many - 1))
    raise ConfigError(f"there is no engine {name!r}")


def engine_apart(name: EngineName, device: str, concurrent: int | None, workers: int) -> TrainingEngine:
    """The engine of workers that have a GPU each; this process need not see one.

    On the device `cpu`, workers stand for GPUs.
    """
    on_gpu, count = device != "cpu", concurrent or GROUP
    name = ("graph" if on_gpu else "sequential") if name == "auto" else name
    if name not in ("graph", "fused", "sequential"):
        raise ConfigError(f"engine={name!r} has workers of its own: with gpus, use 'graph', 'fused' or 'sequential'")
    together: Literal["each", "fused", "graph"] = "each" if name == "sequential" else name
    return TrainingEngine(name, f"processes:{workers}", ("cuda",) if on_gpu else ("cpu",), together, count)


class Devices:
    """Devices of which each is used by one call at a time; a call takes the first that is free."""

    def __init__(self, names: Sequence[str], uses: Callable[[str], int]) -> None:
        self._free = threading.Condition()
        self._left = [name for name in dict.fromkeys(names) for _ in range(uses(name))]

    def take(self) -> str:
        with self._free:
            while not self._left:
                self._free.wait()
            return self._left.pop(0)

    def give(self, name: str) -> None:
        with self._free:
            self._left.insert(0, name)
            self._free.notify()
