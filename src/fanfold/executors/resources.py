"""What each call asks of the place where it runs: `gpu=1,memory=8G,licence=2`."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from fanfold.errors import ConfigError

#: By name: `cpu` and `gpu` are numbers of them, `memory` is bytes, every other name is the cluster's own.
Resources: TypeAlias = Mapping[str, float]
#: As people give them.
Given: TypeAlias = "str | Mapping[str, float | str] | None"

#: The variable by which CUDA is told which GPUs a process sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_USUAL = {"cpu": "cpu", "cpus": "cpu", "gpu": "gpu", "gpus": "gpu", "mem": "memory", "memory": "memory"}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parsed(resources: Given) -> dict[str, float]:
    """Resources as numbers, from a text such as "gpu=1,memory=8G" or from a mapping."""
    if resources is None:
        return {}
    if isinstance(resources, str):
        pairs = [part.partition("=")[::2] for part in resources.split(",") if part.strip()]
    else:
        pairs = [(str(name), f"{value}") for name, value in resources.items()]
    amounts: dict[str, float] = {}
    for name, text in pairs:
        name = _known(name.strip())
        amount = _AMOUNT.fullmatch(text.strip())
        if not _NAME.fullmatch(name) or amount is None or (amount[2] and name != "memory"):
            raise ConfigError(
                f"resources: {f'{name}={text}'!r} cannot be used; write NAME=N with a number above 0, as in "
                "gpu=1,memory=8G"
            )
        amounts[name] = float(amount[1]) * _UNITS[amount[2].upper()]
        if not amounts[name]:
            raise ConfigError(f"resources: {name}=0 asks for nothing; leave it out")
    return amounts


def _known(name: str) -> str:
    """The usual ones under any spelling: GPU, gpus, mem."""
    return _USUAL.get(name.lower(), name)


def shown(resources: Resources) -> str:
    """As people write them."""
    return ", ".join(
        f"{name}={_bytes(value) if name == 'memory' else f'{value:g}'}" for name, value in resources.items()
    )


def _bytes(value: float) -> str:
    unit = next((unit for unit in "TGMK" if value >= _UNITS[unit]), "")
    return f"{value / _UNITS[unit]:.3g}{unit}"


def fits(wanted: Resources, offered: Resources) -> int:
    """How many calls that each want this much run at once where so much is offered."""
    return min((int(offered.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()), default=0)


def check(wanted: Resources, places: Iterable[Resources], what: str) -> None:
    """Refuse what no single place can give, and name what there is."""
    places = list(places)
    if any(fits(wanted, place) for place in places):
        return
    kinds: dict[str, int] = {}
    for place in places:
        text = shown(
            {name: place[name] for name in sorted(place) if name in wanted or name in ("cpu", "gpu", "memory")}
        )
        kinds[text] = kinds.get(text, 0) + 1
    there = "; ".join(f"{count} with {text or 'none of that'}" for text, count in kinds.items()) or "none"
    raise ConfigError(f"no {what} can give one evaluation {shown(wanted)}. There are: {there}")


def gpu_shares(wanted: Resources, slots: int) -> list[str]:
    """For worker processes of this machine: which GPUs each may see, as CUDA_VISIBLE_DEVICES says it."""
    if others := sorted(wanted.keys() - {"gpu"}):
        raise ConfigError(
            f"resources: worker processes cannot be given {', '.join(others)}, only gpu; use ray:N, dask:ADDRESS or "
            "slurm:N"
        )
    gpus, share = visible_gpus(), wanted["gpu"]
    if share > 1 and share != int(share):
        raise ConfigError(f"resources: gpu={share:g} must be a whole number, or a part of one GPU such as 0.5")
    if share > 1:
        groups = [gpus[start : start + int(share)] for start in range(0, len(gpus) - int(share) + 1, int(share))]
    else:
        groups = [[gpu] for _ in range(math.floor(1 / share + 1e-9)) for gpu in gpus]
    if len(groups) < slots:
        fewer = f"ask for {len(groups)}" if groups else "run it where CUDA shows some, on a cluster, or without"
        raise ConfigError(f"{slots} worker(s) with gpu={share:g} each, but this machine has {len(gpus)} GPUs: {fewer}")
    return [",".join(group) for group in groups[:slots]]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by index or name."""
    told = os.environ.get(VISIBLE)
    if told is not None:
        return [gpu.strip() for gpu in told.split(",") if gpu.strip() and gpu.strip() != "-1"]
    there = len(list(Path("/dev").glob("nvidia[0-9]*"))) or len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if not there and (smi := shutil.which("nvidia-smi")) is not None:  # a container may show neither
        try:
            listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.SubprocessError):
            return []
        there = sum(line.startswith("GPU ") for line in listed.splitlines())
    return [str(number) for number in range(there)]
