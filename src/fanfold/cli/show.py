"""`fanfold runs`, `fanfold show` and `fanfold report`: look at what a ledger holds."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.output import (
    NARROWEST,
    complete_run,
    duration,
    echo,
    examples,
    ledger_flag,
    ledger_option,
    machine_readable,
    newest_run_argument,
    number,
    output_options,
    print_json,
    say,
    screen_width,
    shortened,
    table,
)
from fanfold.errors import ConfigError, nearest
from fanfold.texts import count, pretty

if TYPE_CHECKING:
    from fanfold.ledger import RunInfo, RunView, TrialRow
    from fanfold.summary import Section, Summary


#: The beginning of a cell that is a number, perhaps with its interval, or not known.
_FIGURE = re.compile(r"[-+]?\d[\d.,e+-]*( \S+){0,2}$|-$")

#: How many runs are listed unless a number is given; the others are a page further.
PAGE = 50


@click.command(
    epilog=examples(
        "fanfold runs", "fanfold runs --all", "fanfold runs --limit 0", "fanfold runs --ledger runs.db --json"
    )
)
@ledger_option
@click.option("--all", "every", is_flag=True, help="List the runs that belong to another one, too.")
@click.option(
    *("--limit", "most"),
    type=click.IntRange(min=0),
    metavar="N",
    help=f"List the N newest; 0: all.  [default: {PAGE}; with --json: all]",
)
@click.option("--before", metavar="RUN", shell_complete=complete_run, help="List runs older than RUN: the next page.")
@click.option("--upgrade", is_flag=True, help="Bring a ledger of an older version up to date first.")
@output_options
def runs(ledger: str, every: bool, most: int | None, before: str | None, upgrade: bool) -> None:
    """List the runs of a ledger, newest first.

    A run that belongs to another one, such as one on held-out cases, is counted under it.
    """
    from fanfold.ledger import Ledger, RunView

    with Ledger(ledger, readonly=not upgrade) as opened:
        first = None if before is None else opened.named(before)
        if machine_readable():
            print_json([_run_as_json(info, RunView(opened, info.id)) for info in opened.runs(first, most or -1)])
            return
        rows, page = [], opened.run_rows(first, (PAGE if most is None else most) or -1)
        for info, helpers in page:
            mark = f" (+{len(helpers)})" if helpers and not every else ""
            rows.append(_run_as_row(info, RunView(opened, info.id), f"{info.name}{mark}"))
            beside = helpers if every else []
            rows += [_run_as_row(helper, RunView(opened, helper.id), f"  {helper.name}") for helper in beside]
        total, older = opened.run_count(), bool(page) and bool(opened.run_rows(page[-1][0].id, 1))
    if not rows:
        older_than = "" if before is None else f" older than {before}"
        say(f"{ledger} has no runs{older_than or ' yet: start one with `fanfold run`'}")
        return
    head = ["name", "status", "best", "trials", "evaluations", "failures", "cost", "time", "started"]
    say(table(head, rows, right=head[2:8], least=("started", "evaluations", "failures", "time")))
    if older:
        further = f"fanfold runs --before {page[-1][0].name}{ledger_flag(ledger)}"
        say(f"\n{len(page):,} of {total:,} runs. Older ones: {further}")


def _run_as_row(info: RunInfo, view: RunView, name: str) -> list[str]:
    from fanfold.metrics import cost_of

    paid = cost_of(view)
    cost = paid.text.partition(" (")[0].partition(", ")[0]
    counts = [f"{info.trials:,}", f"{info.evaluations:,}", f"{info.failures:,}"]
    best = number(info.objective.natural(info.best))
    cost += " (simulated)" if paid.simulated else ""
    return [name, view.status, best, *counts, cost, duration(info.elapsed), _when(info.created)]


def _run_as_json(info: RunInfo, view: RunView) -> dict[str, Any]:
    names = (
        "trials",
        "evaluations",
        "failures",
        "best",
        "elapsed",
        "reason",
        "created",
        "updated",
        "meta",
    )
    facts = {name: getattr(info, name) for name in names} | {"best": info.objective.natural(info.best)}
    money = view.costs()
    paid = {"cost": view.cost(), "unpriced": money.unpriced, "simulated": bool(money.simulated)}
    return {"name": info.name, "status": view.status, **facts, **paid}


@click.command(
    short_help="Say what a run found, what failed, and how fast it was.",
    epilog=examples(
        "fanfold show last",
        "fanfold show first-try --trials 10",
        "fanfold show last --section lineage     (how the winner came about)",
        "fanfold show last --failure 1           (the most frequent failure, with its traceback)",
        "fanfold show last --cell 3:0            (trial 3 on case 0: model calls, replies, traceback)",
    ),
)
@newest_run_argument
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="List the N best trials too.")
@click.option("--cell", metavar="TRIAL:CASE", help="Show one evaluation instead: data, model calls, traceback.")
@click.option("--failure", type=click.IntRange(min=1), metavar="N", help="Show the Nth failure of the list instead.")
@click.option("--section", metavar="TITLE", help="Show one part of what was found instead, in short: lineage, say.")
@click.option("--prometheus", is_flag=True, help="Print the counts of model calls as Prometheus text instead.")
@ledger_option
@output_options
def show(
    name: str,
    trials: int | None,
    cell: str | None,
    failure: int | None,
    section: str | None,
    prometheus: bool,
    ledger: str,
) -> None:
    """Say what RUN searched, what it found, what failed, and how fast it was."""
    from fanfold.ledger import RunView

    with RunView.open(ledger, name) as view:
        if prometheus:
            from fanfold.models.prometheus import prometheus as as_prometheus

            echo(as_prometheus(view.name, view.calls()), nl=False)
        elif cell is not None or failure is not None:
            from fanfold.cli.cells import say_cell, say_failure

            where = f"{view.name}{ledger_flag(ledger)}"
            say_cell(view, cell) if cell is not None else say_failure(view, failure or 1, where)
        elif section is not None:
            _say_part(view, section)
        elif machine_readable():
            print_json(_as_json(view, trials or 1))
        else:
            _say(view, trials, f"{view.name}{ledger_flag(ledger)}")


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
        natural, shown = view.info.objective.natural, presentation_of(view.info.meta)
        rows = [[str(row.number), number(natural(row.score)), shown.brief_of(row.candidate)] for row in best]
        say(table(["trial", "score", "candidate"], rows, right=["trial", "score"]))
    if failures := view.failure_groups():
        say(f"\nFailures (fanfold show {where} --failure 1)")
        rows = []
        for place, group in enumerate(failures, 1):
            trial, _, case = group.cells[0]
            rows.append([str(place), group.kind, f"{group.count:,}", f"{trial}:{case}", shortened(group.message)])
        say(table(["#", "kind", "count", "first", "message"], rows, ["#", "count"]))
    say_calls(view.calls())
    for line in view.costs().lines():
        say(line)
    say(f"\n{_resume(view, where)}\nExport: fanfold export {where} -o {view.name}.csv")


def _say_part(view: RunView, title: str) -> None:
    summary = view.summary()
    sections = {} if summary is None else {section.title.casefold(): section for section in summary.sections}
    chosen = sections.get(title.casefold())
    if chosen is None:
        raise ConfigError(f"{view.name} has no section {title!r}{nearest(title.casefold(), sections)}")
    if machine_readable():
        print_json(asdict(chosen))
    else:
        say_section(replace(chosen, text=chosen.brief, rows=()) if chosen.brief else chosen)


def _resume(view: RunView, where: str) -> str:
    """What continues a run: a command, or a call in the program that began it."""
    meta = view.info.meta
    if isinstance(how := meta.get("continue"), str):
        return f"Continue: {how}"
    if isinstance(meta.get("target"), str) or "belongs_to" in meta:
        return f"Resume: fanfold resume {where}"
    return f"Resume: study.run(run={view.name!r}, ledger={str(view.ledger.path)!r}) in the program that started it"


def _say_head(view: RunView) -> None:
    from fanfold.plugins import presentation_of
    from fanfold.report import metrics
    from fanfold.stop import explained

    info, identity = view.info, view.info.identity
    sentence = explained(info.reason, presentation_of(info.meta).unit) if view.status != "interrupted" else ""
    say(f"{info.name}: {view.status}{f'. {sentence}' if sentence else ''}")
    target = f" from {info.meta['target']}" if "target" in info.meta else ""
    cases = count(view.progress().cases, "case")
    say(f"Searched by {identity.get('strategy')} over {cases}{target}, seed {identity.get('seed')}")
    figures = ", ".join(f"{metric.label} {metric.text}" for metric in metrics(view) if metric.value is not None)
    say(textwrap.fill(figures, screen_width(), break_on_hyphens=False))
    say_headline(info.meta, view.summary())


def _say_best(view: RunView) -> None:
    from fanfold.plugins import described, presentation_of
    from fanfold.types import Failed

    best = next(view.trials(order="best", which="complete", count=1, blobs=False), None)
    unit = presentation_of(view.info.meta).unit
    if best is None:
        say(f"\nNo {unit or 'trial'} has a complete result yet")
        return
    natural = view.info.objective.natural
    score = number(natural(best.score))
    say(f"\nBest: {score}, trial {best.number}" if unit is None else f"\nThe first {unit}")
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
        rows.append([case, number(natural(outcome.score)), shortened(words, 80)])
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


def say_summary(summary: Summary | None) -> None:
    """The sections of a study's conclusion."""
    for section in summary.sections if summary is not None else ():
        if section.text or section.rows or section.curves:
            say_section(section)


def say_section(section: Section) -> None:
    """A section with its title, text, chart and table."""
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


def rows_table(section: Section, most: int | None = None, width: int = 0, narrowest: int = NARROWEST) -> str:
    """The table of a section, or its first rows, in at most so many columns; figures are never cut."""
    from fanfold.summary import cell_text

    rows = [[cell_text(cell) for cell in row] for row in section.rows[:most]]
    columns = {column: [row[at] for row in section.rows] for at, column in enumerate(section.columns)}
    numeric = [name for name, cells in columns.items() if all(c is None or isinstance(c, int | float) for c in cells)]
    figures = [name for name, cells in columns.items() if all(_FIGURE.match(cell_text(cell)) for cell in cells)]
    return table(list(section.columns), rows, numeric, width, whole=figures, narrowest=narrowest)


def _as_json(view: RunView, trials: int) -> dict[str, Any]:
    from dataclasses import asdict

    from fanfold.report import metrics

    best = [_trial_as_json(view, row) for row in view.trials(order="best", which="complete", count=trials, blobs=False)]
    calls, summary = view.calls(), view.summary()
    models = [
        {**asdict(model), "latency": {f"p{q * 100:g}": s for q, s in model.latency.items()}} for model in calls.models
    ]
    return {
        **_run_as_json(view.info, view),
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

    natural = view.info.objective.natural
    cases = {
        case: {"failure": outcome.kind, "message": outcome.message}
        if isinstance(outcome, Failed)
        else {"score": natural(outcome.score)}
        for case, outcome in view.outcomes(row.number).items()
    }
    return {"trial": row.number, "score": natural(row.score), "candidate": row.candidate, "cases": cases}


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@click.command(
    short_help="Write a run as one self-contained HTML file.",
    epilog=examples("fanfold report last", "fanfold report first-try -o first-try.html"),
)
@newest_run_argument
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
