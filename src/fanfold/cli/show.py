"""`fanfold runs`, `fanfold show` and `fanfold report`: look at what a ledger holds."""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.output import (
    duration,
    echo,
    examples,
    ledger_option,
    machine_readable,
    number,
    output_options,
    print_json,
    run_argument,
    say,
    shortened,
    table,
)
from fanfold.texts import pretty

if TYPE_CHECKING:
    from fanfold.ledger import RunInfo, RunView, TrialRow
    from fanfold.summary import Section, Summary


@click.command(epilog=examples("fanfold runs", "fanfold runs --ledger runs.db --json"))
@ledger_option
@click.option("--upgrade", is_flag=True, help="Bring a ledger of an older version up to date first.")
@output_options
def runs(ledger: str, upgrade: bool) -> None:
    """List the runs of a ledger, newest first."""
    from fanfold.ledger import Ledger, RunView

    with Ledger(ledger, readonly=not upgrade) as opened:
        views = [(info, RunView(opened, info.id)) for info in opened.runs()]
        listed = [(info, view.status, bool(view.costs().simulated)) for info, view in views]
    if machine_readable():
        print_json([_run_as_json(info, status) | {"simulated": simulated} for info, status, simulated in listed])
    if not listed:
        say(f"{ledger} has no runs yet: start one with `fanfold run`")
        return
    head = ["name", "status", "trials", "evaluations", "failures", "best", "cost", "elapsed", "started"]
    rows = [_run_as_row(info, status, simulated) for info, status, simulated in listed]
    say(table(head, rows, right=head[2:8]))


def _run_as_row(info: RunInfo, status: str, simulated: bool) -> list[str]:
    cost = f"{cost_of(info)} (simulated)" if simulated else cost_of(info)
    counts = [str(info.trials), str(info.evaluations), str(info.failures), number(info.best), cost]
    return [info.name, status, *counts, duration(info.elapsed), _when(info.created)]


def cost_of(info: RunInfo) -> str:
    """What a run's evaluations cost; an unknown cost is called unknown, not 0."""
    if not info.unpriced:
        return number(info.cost)
    return f"{number(info.cost)} and {info.unpriced} unknown" if info.cost else "unknown"


def _run_as_json(info: RunInfo, status: str) -> dict[str, Any]:
    names = (
        "trials",
        "evaluations",
        "failures",
        "best",
        "cost",
        "unpriced",
        "elapsed",
        "reason",
        "created",
        "updated",
        "meta",
    )
    return {"name": info.name, "status": status, **{name: getattr(info, name) for name in names}}


@click.command(
    short_help="Say what a run found, what failed, and how fast it was.",
    epilog=examples("fanfold show last", "fanfold show first-try --trials 10", "fanfold show last --prometheus"),
)
@run_argument
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="List the N best trials too.")
@click.option("--prometheus", is_flag=True, help="Print the counts of model calls as Prometheus text instead.")
@ledger_option
@output_options
def show(name: str, trials: int | None, prometheus: bool, ledger: str) -> None:
    """Say what RUN searched, what it found, what failed, and how fast it was."""
    from fanfold.ledger import RunView

    with RunView.open(ledger, name) as view:
        if prometheus:
            from fanfold.models.prometheus import prometheus as as_prometheus

            echo(as_prometheus(view.name, view.calls()), nl=False)
        elif machine_readable():
            print_json(_as_json(view, trials or 1))
        else:
            _say(view, trials, f"{view.name} --ledger {shlex.quote(ledger)}")


def _say(view: RunView, trials: int | None, where: str) -> None:
    from fanfold.cli.models import say_calls
    from fanfold.plugins import presentation_of

    summary = view.summary()
    _say_head(view)
    if summary is None or not presentation_of(view.info.meta).chooses:
        _say_best(view)
    say_summary(summary)
    if trials:
        best = list(view.trials(order="best", which="complete", count=trials, blobs=False))
        say(f"\nThe {len(best)} best trials")
        rows = [[str(row.number), number(row.score), shortened(pretty(row.candidate), 90)] for row in best]
        say(table(["trial", "score", "candidate"], rows, right=["trial", "score"]))
    if failures := view.failures():
        say("\nFailures")
        rows = [
            [kind.kind, str(kind.count), f"trial {kind.trial}, {kind.case}", shortened(kind.message)]
            for kind in failures
        ]
        say(table(["kind", "count", "first", "message"], rows, ["count"]))
    say_calls(view.calls())
    for line in view.costs().lines():
        say(line)
    say(f"\nResume: fanfold resume {where}\nExport: fanfold export {where} -o {view.name}.csv")


def _say_head(view: RunView) -> None:
    from fanfold.report import metrics

    info, identity = view.info, view.info.identity
    say(f"{info.name}: {view.status}{f' ({info.reason})' if info.reason else ''}")
    target = f" from {info.meta['target']}" if "target" in info.meta else ""
    cases = view.progress().cases
    say(f"Searched by {identity.get('strategy')} over {cases} cases{target}, seed {identity.get('seed')}")
    say(", ".join(f"{metric.label} {metric.text}" for metric in metrics(view) if metric.value is not None))
    say_headline(info.meta, view.summary())


def _say_best(view: RunView) -> None:
    from fanfold.plugins import described, presentation_of
    from fanfold.types import Failed

    best = next(view.trials(order="best", which="complete", count=1, blobs=False), None)
    unit = presentation_of(view.info.meta).unit
    if best is None:
        say(f"\nNo {unit or 'trial'} has a complete result yet")
        return
    say(f"\nBest: {number(best.score)}, trial {best.number}" if unit is None else f"\nThe first {unit}")
    say_candidate(view.info.meta, best.candidate)
    outcomes = view.outcomes(best.number)
    say(f"\nIts cases{f' (the first 20 of {len(outcomes)})' if len(outcomes) > 20 else ''}")
    describe, rows = presentation_of(view.info.meta).cell, []
    for case, outcome in list(outcomes.items())[:20]:
        if isinstance(outcome, Failed):
            rows.append([case, outcome.kind, ""])
            continue
        section = described(describe, outcome.data)
        words = "" if section is None else section.text or "; ".join(" ".join(map(str, row)) for row in section.rows)
        rows.append([case, number(outcome.score), shortened(words, 80)])
    say(table(["case", "score", ""], rows, ["score"]))


def say_headline(meta: Mapping[str, Any], summary: Summary | None) -> None:
    """The study's own sentence about a run, if it has one."""
    from fanfold.plugins import described, presentation_of

    if summary is not None and (text := described(presentation_of(meta).headline, summary.figures)):
        say(text)


def say_candidate(meta: Mapping[str, Any], candidate: Any) -> None:
    """A candidate as its study shows it, else as the value it is."""
    from fanfold.plugins import described, presentation_of

    section = described(presentation_of(meta).candidate, candidate)
    if section is None:
        say(textwrap.indent(pretty(candidate), "  "))
    else:
        say(textwrap.indent(section.text, "  "))
        _say_rows(section)


def say_summary(summary: Summary | None, *, brief: bool = False) -> None:
    """The sections of a study's conclusion, or what is worth a look right after the run."""
    for section in summary.sections if summary is not None else ():
        if brief and section.brief is not None:
            section = replace(section, text=section.brief, rows=())
        if not (section.text or section.rows or section.curves):
            continue
        if brief and section.brief and "\n" not in section.brief:
            say(f"\n{section.title}: {section.brief}")
            continue
        say(f"\n{section.title}")
        if section.text:
            say(section.text)
        _say_chart(section)
        _say_rows(section)


def _say_chart(section: Section) -> None:
    from fanfold.report.text_chart import text_chart

    if section.curves and (chart := text_chart(section.curves, section.across, sys.stdout.encoding)):
        say(chart)


def _say_rows(section: Section) -> None:
    if section.rows:
        say(rows_table(section))


def rows_table(section: Section, most: int | None = None, width: int = 0) -> str:
    """The table of a section, or its first rows, in at most so many columns."""
    from fanfold.summary import cell_text

    rows = [[cell_text(cell) for cell in row] for row in section.rows[:most]]
    numeric = [
        column
        for at, column in enumerate(section.columns)
        if all(row[at] is None or isinstance(row[at], int | float) for row in section.rows)
    ]
    return table(list(section.columns), rows, numeric, width)


def _as_json(view: RunView, trials: int) -> dict[str, Any]:
    from dataclasses import asdict

    from fanfold.report import metrics

    best = [_trial_as_json(view, row) for row in view.trials(order="best", which="complete", count=trials, blobs=False)]
    calls, summary = view.calls(), view.summary()
    models = [
        {**asdict(model), "latency": {f"p{q * 100:g}": s for q, s in model.latency.items()}} for model in calls.models
    ]
    return {
        **_run_as_json(view.info, view.status),
        **{metric.key: metric.value for metric in metrics(view)},
        "identity": dict(view.info.identity),
        "cases": [case.id for case in view.cases()],
        "best_trial": best[0] if best else None,
        "top": best,
        "failures_by_kind": [asdict(kind) for kind in view.failures()],
        "summary": {} if summary is None else dict(summary.figures),
        "model_calls": models,
        "batches": [asdict(counts) for counts in calls.batches],
        "call_counts": asdict(calls.counts),
        "money": asdict(view.costs()),
    }


def _trial_as_json(view: RunView, row: TrialRow) -> dict[str, Any]:
    from fanfold.types import Failed

    cases = {
        case: {"failure": outcome.kind, "message": outcome.message}
        if isinstance(outcome, Failed)
        else {"score": outcome.score}
        for case, outcome in view.outcomes(row.number).items()
    }
    return {"trial": row.number, "score": row.score, "candidate": row.candidate, "cases": cases}


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@click.command(
    short_help="Write a run as one self-contained HTML file.",
    epilog=examples("fanfold report last", "fanfold report first-try -o first-try.html"),
)
@run_argument
@click.option("-o", "--output", metavar="FILE", help="Where to write it.  [default: RUN.html]")
@ledger_option
@output_options
def report(name: str, output: str | None, ledger: str) -> None:
    """Write RUN as one self-contained HTML file."""
    from fanfold.ledger import RunView
    from fanfold.report import write_report

    with RunView.open(ledger, name) as view:
        run = view.name
        path = write_report(view.ledger, run, output or f"{run}.html")
    if machine_readable():
        print_json({"run": run, "file": str(path)})
    say(f"{path}")
