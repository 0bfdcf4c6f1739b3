"""`fanfold runs`, `fanfold show` and `fanfold report`: look at what a ledger holds."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.output import (
    duration,
    echo,
    examples,
    first_line,
    ledger_option,
    machine_readable,
    number,
    output_options,
    print_json,
    run_argument,
    say,
    table,
)

if TYPE_CHECKING:
    from fanfold.ledger import RunInfo
    from fanfold.models.telemetry import CallFacts
    from fanfold.report import RunFacts, TrialRow
    from fanfold.summary import Summary
    from fanfold.types import Outcome


@click.command(epilog=examples("fanfold runs", "fanfold runs --ledger runs.db --json"))
@ledger_option
@click.option("--upgrade", is_flag=True, help="Bring a ledger of an older version up to date first.")
@output_options
def runs(ledger: str, upgrade: bool) -> None:
    """List the runs of a ledger, newest first."""
    from fanfold.ledger import Ledger
    from fanfold.report import status_of

    with Ledger(ledger, readonly=not upgrade) as opened:
        found = [(info, status_of(opened.path, info)) for info in opened.runs()]
    if machine_readable():
        print_json([_run_as_json(info, status) for info, status in found])
    if not found:
        say(f"{ledger} has no runs yet: start one with `fanfold run`")
        return
    head = ["name", "status", "trials", "evaluations", "failures", "best", "cost", "elapsed", "started"]
    rows = [_run_as_row(info, status) for info, status in found]
    say(table(head, rows, right=head[2:8]))


def _run_as_row(info: RunInfo, status: str) -> list[str]:
    counts = [str(info.trials), str(info.evaluations), str(info.failures), number(info.best), cost_of(info)]
    return [info.name, status, *counts, duration(info.elapsed), _when(info.created)]


def cost_of(info: RunInfo) -> str:
    """What a run's evaluations cost; what is not known is not called 0."""
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
    from dataclasses import asdict

    from fanfold.cli.models import say_calls
    from fanfold.ledger import Ledger
    from fanfold.models import telemetry
    from fanfold.report import facts, find_run

    with Ledger(ledger, readonly=True) as opened:
        run = facts(opened, find_run(opened, name), trials or 1)
        calls = telemetry.CallFacts.of(opened, run.info.id)
    if prometheus:
        from fanfold.models.prometheus import prometheus as scraped

        echo(scraped(run.info.name, calls), nl=False)
        return
    if machine_readable():
        print_json({**_facts_as_json(run), **_calls_as_json(calls), "money": asdict(run.money)})
        return
    _say_head(run)
    _say_best(run)
    say_summary(run.summary)
    if trials:
        say(f"\nThe {len(run.top)} best trials")
        rows = [[str(row.number), number(row.score), first_line(pretty(row.candidate), 90)] for row in run.top]
        say(table(["trial", "score", "candidate"], rows, right=["trial", "score"]))
    if run.failures:
        say("\nFailures")
        rows = [[each.kind, str(each.count), f"trial {each.trial}, {each.case}"] for each in run.failures]
        messages = [first_line(each.message) for each in run.failures]
        say(
            table(["kind", "count", "first", "message"], [[*row, text] for row, text in zip(rows, messages)], ["count"])
        )
    say_calls(calls)
    for line in run.money.lines():
        say(line)
    where = f"{run.info.name} --ledger {shlex.quote(ledger)}"
    say(f"\nResume: fanfold resume {where}\nExport: fanfold export {where} -o {run.info.name}.csv")


def _say_head(run: RunFacts) -> None:
    info, identity = run.info, run.info.identity
    say(f"{info.name}: {run.status}{f' ({info.reason})' if info.reason else ''}, started {_when(info.created)}")
    target = f" from {info.meta['target']}" if "target" in info.meta else ""
    say(f"Searched by {identity.get('strategy')} over {len(run.cases)} cases{target}, seed {identity.get('seed')}")
    cost = f", cost {cost_of(info)}" if info.cost or info.unpriced else ""
    say(
        f"{info.trials} trials ({run.dropped} dropped early), {info.evaluations} evaluations ({run.reused} reused), "
        f"{info.failures} failures{cost}"
    )
    ran = info.evaluations - run.reused
    each = f", {1000 * run.busy / ran:.3g} ms each" if ran else ""
    say(f"{duration(info.elapsed)}, {run.per_second:.1f} evaluations a second{each}")


def _say_best(run: RunFacts) -> None:
    best = run.best
    if best is None:
        say("\nNo trial has a complete result yet")
        return
    say(f"\nBest: {number(best.score)}, trial {best.number}")
    say(pretty(best.candidate))
    shown = list(best.outcomes.items())[:20]
    say(f"\nIts cases{f' (the first 20 of {len(best.outcomes)})' if len(best.outcomes) > 20 else ''}")
    say(table(["case", "score"], [[case, _outcome(outcome)] for case, outcome in shown], ["score"]))


def say_summary(summary: Summary | None) -> None:
    """The sections of a study's conclusion."""
    from fanfold.summary import cell_text

    for section in summary.sections if summary is not None else ():
        say(f"\n{section.title}")
        if section.text:
            say(section.text)
        if section.rows:
            rows = [[cell_text(cell) for cell in row] for row in section.rows]
            numeric = [
                column
                for at, column in enumerate(section.columns)
                if all(row[at] is None or isinstance(row[at], int | float) for row in section.rows)
            ]
            say(table(list(section.columns), rows, right=numeric))


def _outcome(outcome: Outcome) -> str:
    from fanfold.types import Failed

    return outcome.kind if isinstance(outcome, Failed) else number(outcome.score)


def pretty(candidate: Any) -> str:
    """A candidate for people: one line for each key of a dict, anything else as JSON or as the text it is."""
    import json

    if isinstance(candidate, str):
        return f"  {candidate}"
    if isinstance(candidate, dict) and candidate:
        width = max(len(key) for key in candidate)
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in candidate.items()}
        return "\n".join(f"  {key.ljust(width)} = {value}" for key, value in values.items())
    return f"  {json.dumps(candidate)}"


def _facts_as_json(run: RunFacts) -> dict[str, Any]:
    from dataclasses import asdict

    best = None if run.best is None else _trial_as_json(run.best)
    return {
        **_run_as_json(run.info, run.status),
        "identity": dict(run.info.identity),
        "cases": [case.id for case in run.cases],
        "best_trial": best,
        "top": [_trial_as_json(row) for row in run.top],
        "failures_by_kind": [asdict(each) for each in run.failures],
        "dropped": run.dropped,
        "reused": run.reused,
        "evaluations_per_second": run.per_second,
        "summary": {} if run.summary is None else dict(run.summary.figures),
    }


def _calls_as_json(calls: CallFacts) -> dict[str, Any]:
    from dataclasses import asdict

    models = [
        {**asdict(each), "latency": {f"p{q * 100:g}": s for q, s in each.latency.items()}} for each in calls.models
    ]
    return {
        "model_calls": models,
        "batches": [asdict(each) for each in calls.batches],
        "call_counts": asdict(calls.counts),
    }


def _trial_as_json(row: TrialRow) -> dict[str, Any]:
    from fanfold.types import Failed

    cases = {
        case: {"failure": each.kind, "message": each.message} if isinstance(each, Failed) else {"score": each.score}
        for case, each in row.outcomes.items()
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
    from fanfold.ledger import Ledger
    from fanfold.report import find_run, write_report

    with Ledger(ledger, readonly=True) as opened:
        info = find_run(opened, name)
        path = write_report(opened, info.name, output or f"{info.name}.html")
    if machine_readable():
        print_json({"run": info.name, "file": str(path)})
    say(f"{path}")
