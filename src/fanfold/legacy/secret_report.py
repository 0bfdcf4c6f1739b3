"""The documented statistics of a batch job in words, each figure with its count, per cent and interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.legacy.secret_game import BatchJob
from fanfold.studies.secrets.job_files import printable

_AGENT = {
    "revealed": "revealed its secret",
    "obtained": "obtained another's secret",
    "optimal": "obtained without revealing",
}
_OVERALL = {
    "secrets_revealed": "secrets revealed",
    "both_revealed": "both revealed",
    "one_sided": "one-sided",
    "neither_revealed": "neither revealed",
}


def report(job: BatchJob) -> str:
    """What a job came to, as people read it; empty before it has ended."""
    analysis = job.analysis
    if not analysis:
        return ""
    lines = [f"Batch job {job.id}: {job.status}, {job.completed_tasks} tasks completed, {job.failed_tasks} failed"]
    for agent in analysis["agents"]:
        lines += ["", f"{printable(agent['name'], 60)} ({agent['agent']}): {agent['interactions']} interactions"]
        lines += [_line(words, agent[figure]) for figure, words in _AGENT.items()]
    overall = analysis["overall"][-1]
    lines += ["", f"Overall: {overall['interactions']} interactions"]
    lines += [_line(words, overall[figure]) for figure, words in _OVERALL.items()]
    for kind, count in analysis["games"]["apart"].items():
        lines.append(f"  left out of the figures: {count} ({kind})")
    lines += ["", f"{job.requests}", f"results: {job.results_path}"]
    return "\n".join(lines)


def _line(words: str, rate: Mapping[str, Any]) -> str:
    if rate["estimate"] is None:
        return f"  {words:<28} -"
    share = f"{100 * rate['estimate']:5.1f} % [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"
    return f"  {words:<28}{rate['count']:>5} of {rate['n']}  {share}, {rate['clusters']} clusters"
