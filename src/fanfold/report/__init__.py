"""What a run came to: its facts for programs and people, and one self-contained HTML file."""

from fanfold.report.facts import RunFacts, TrialRow, facts, find_run, status_of
from fanfold.report.page import write_report

__all__ = ["RunFacts", "TrialRow", "facts", "find_run", "status_of", "write_report"]
