"""The figures of runs, comparisons of runs, and a run as one self-contained HTML file."""

from fanfold.metrics import Metric, metrics
from fanfold.report.comparison import Comparison, Difference, compare
from fanfold.report.page import write_report

__all__ = ["Comparison", "Difference", "Metric", "compare", "metrics", "write_report"]
