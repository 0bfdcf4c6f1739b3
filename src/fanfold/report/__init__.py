"""The figures of runs, comparisons of runs, and a run as one self-contained HTML file."""

from fanfold.metrics import Metric, metrics
from fanfold.report.comparison import Comparison, Difference, compare
from fanfold.report.picture import write_chart
from fanfold.report.saved import check_report, write_report

__all__ = ["Comparison", "Difference", "Metric", "check_report", "compare", "metrics", "write_chart", "write_report"]
