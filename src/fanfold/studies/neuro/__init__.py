"""The neuro study: a genetic search over network architectures, each trained by backpropagation, many at once.

A candidate is a genome (and a parent's weights where it inherits them), cases are rungs of more and more epochs, and a
cell is the network trained up to a rung.
"""

from dataclasses import replace

from fanfold.plugins import StudyPlugin, World
from fanfold.studies.neuro.config import Config, calibrate, run_options, study
from fanfold.studies.neuro.genome import Conv, Dense, Genome, Individual, Shape, Space

__all__ = [
    "Config",
    "Conv",
    "Dense",
    "Genome",
    "Individual",
    "Shape",
    "Space",
    "calibrate",
    "plugin",
    "run_options",
    "study",
]

plugin = StudyPlugin(
    Config,
    study,
    run_options,
    calibrate=calibrate,
    packages=("numpy", "torch"),
    world=lambda config: World(replace(config, results=None)),
)
