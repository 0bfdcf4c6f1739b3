"""The neuro study: a genetic search over network architectures, each trained by backpropagation, many at once.

A candidate is a genome (and a parent's weights where it inherits them), cases are rungs of more and more epochs, and a
cell is the network trained up to a rung.
"""

from fanfold.studies.neuro.config import Config, calibrate, how, study
from fanfold.studies.neuro.genome import Conv, Dense, Genome, Individual, Shape, Space

__all__ = ["Config", "Conv", "Dense", "Genome", "Individual", "Shape", "Space", "calibrate", "how", "study"]
