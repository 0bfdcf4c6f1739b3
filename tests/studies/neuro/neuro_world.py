"""What tests of trained networks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fanfold.studies.neuro.genome import AUGMENTED, BLOCKS, CHOSEN, DENSE_BLOCKS, DENSE_NORMS, HEADS, SCHEDULES
from fanfold.studies.neuro.space import NetworkSpace
from fanfold.studies.neuro.training import TrainedNetwork
from fanfold.tensors import unpack

#: Settings of a search for networks without the newer genes, which engines can stack.
PLAIN: dict[str, Any] = {name: getattr(NetworkSpace(), name) for name in (*CHOSEN.values(), "blocks", "dense_blocks")}
PLAIN["handmade"] = False


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Import it to run a file's tests on one thread of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def apart(one: TrainedNetwork, other: TrainedNetwork) -> float:
    """The largest difference in a tensor or a moment, over its largest number."""
    mine, theirs = unpack(one.state), unpack(other.state)
    assert list(mine) == list(theirs)
    return max(float(np.abs(mine[name] - theirs[name]).max() / max(np.abs(mine[name]).max(), 1e-9)) for name in mine)


def everything(space: NetworkSpace) -> NetworkSpace:
    """The space with every choice of the newer genes."""
    return replace(
        space,
        blocks=BLOCKS,
        dense_blocks=DENSE_BLOCKS,
        heads=HEADS,
        dense_norms=DENSE_NORMS,
        attentions=(0, 3, 8),
        schedules=SCHEDULES,
        decays=(0.0, 0.1),
        smoothings=(0.0, 0.1),
        augments=AUGMENTED,
    )
