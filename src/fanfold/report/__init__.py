"""What a run came to: its figures for programs and people, and one self-contained HTML file."""

from fanfold.report.metrics import Metric, metrics
from fanfold.report.page import write_report

__all__ = ["Metric", "metrics", "write_report"]
