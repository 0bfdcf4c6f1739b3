"""The neuro study: a genetic search over network architectures, each trained by backpropagation, many at once.

A candidate is a genome (and a parent's weights where it inherits them), cases are rungs of more and more epochs, and a
cell is the network trained up to a rung.
"""

from pathlib import Path
from typing import Any

from fanfold.plugins import Starter, StudyPlugin
from fanfold.studies.neuro.config import NeuroConfig
from fanfold.studies.neuro.genome import Conv, Dense, Individual, NetworkGenome, Shape
from fanfold.studies.neuro.shown import presentation
from fanfold.studies.neuro.space import NetworkSpace
from fanfold.studies.neuro.study import calibrate, run_options, study
from fanfold.tables import ENDINGS

Config = NeuroConfig

__all__ = ["Config", "Conv", "Dense", "Individual", "NetworkGenome", "NetworkSpace", "NeuroConfig", "Shape"]
__all__ += ["calibrate", "plugin", "run_options", "study"]


def _inferred(path: str) -> dict[str, Any]:
    """What a file is as a dataset: a table and arrays by their ending, else a folder of images."""
    if ":" in path or ENDINGS.get(Path(path).suffix.lower(), "txt") != "txt":
        return {"dataset": path}
    return {"dataset": f"{'arrays' if path.endswith('.npz') else 'folder'}:{path}"}


plugin = StudyPlugin(
    NeuroConfig,
    study,
    run_options,
    calibrate=calibrate,
    packages=("numpy", "torch"),
    shown=presentation,
    starter=Starter(
        "Find a neural network for your table or your images.",
        {"trials": 12, "epochs": 9},
        data="dataset",
        infer=_inferred,
        offer={
            "predict": ["price"],
            "objectives": ["accuracy", "parameters"],
            "engine": "measured",
            "device": "cuda",
            "target": 0.97,
        },
    ),
)
