"""A run as one self-contained HTML file: no scripts, nothing loaded from elsewhere, every value escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from fanfold.errors import ConfigError
from fanfold.files import replacing
from fanfold.ledger import Ledger, MatrixSlice, RunView, TrialRow
from fanfold.metrics import metrics
from fanfold.plugins import Presentation, described, presentation_of
from fanfold.redaction import redact
from fanfold.report.chart import line_chart, score_chart
from fanfold.summary import Section, cell_text
from fanfold.texts import number

TOP = 30
MOST_CASES = 60
MOST_TEXT = 4000

_STYLE = (Path(__file__).parent / "style.css").read_text()
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(ledger: Ledger | str | Path, run_name: str, path: str | Path) -> Path:
    """Write the report of a run to `path`, and return the path."""
    path = Path(path)
    if not isinstance(ledger, Ledger):
        with Ledger(ledger, readonly=True) as opened:
            return write_report(opened, run_name, path)
    text = page(RunView.open(ledger, run_name))
    try:
        with replacing(path) as file:
            file.write(redact(text).encode(errors="backslashreplace"))
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}; give another file") from error
    return path


def page(view: RunView) -> str:
    """The whole document."""
    info, best = view.info, list(view.trials(order="best", which="complete", count=TOP, blobs=False))
    name, presented, summary = escape(info.name), presentation_of(info.meta), view.summary()
    headline = None if summary is None else described(presented.headline, summary.figures)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{name} · Fanfold</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{name}</h1>",
        f"<p>{escape(view.status)}{escape(f': {info.reason}') if info.reason else ''}</p>",
        *([f"<p>{escape(headline)}</p>"] if headline else []),
        _numbers(view),
        *(f"<p>{escape(line)}</p>" for line in view.costs().lines()),
        *([] if presented.chooses and summary is not None else _best(best, presented)),
        *_summary(summary.sections if summary is not None else ()),
        "<h2>Scores in the order of telling</h2>",
        f'<div class="box">{score_chart(view, info.trials)}</div>',
        *_heat(view, best),
        *_failures(view),
        "<h2>Settings</h2>",
        f"<pre>{_pretty({'identity': dict(info.identity), 'started as': dict(info.meta)})}</pre>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _numbers(view: RunView) -> str:
    cells = (f"<div><span>{escape(metric.label)}</span><b>{escape(metric.text)}</b></div>" for metric in metrics(view))
    return f'<div class="numbers">{"".join(cells)}</div>'


def _best(trials: Sequence[TrialRow], presented: Presentation) -> list[str]:
    if not trials:
        return ["<h2>Best candidate</h2>", "<p>No trial has finished completely.</p>"]
    head = f"<h2>Best candidate <small>trial {trials[0].number}</small></h2>"
    section = described(presented.candidate, trials[0].candidate)
    if section is None:
        return [head, f"<pre>{_pretty(trials[0].candidate)}</pre>"]
    return [head, *_summary([replace(section, title="")])]


def _summary(sections: Iterable[Section]) -> list[str]:
    """The sections of a study's conclusion."""
    parts = []
    for section in sections:
        if not (section.text or section.rows or section.curves):
            continue
        if section.title:
            parts.append(f"<h2>{escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<pre>{escape(section.text)}</pre>")
        if chart := line_chart(section.curves, section.across):
            parts.append(f'<div class="box">{chart}</div>')
        if section.rows:
            head = "".join(f"<th>{escape(column)}</th>" for column in section.columns)
            rows = "".join(
                "<tr>" + "".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) + "</tr>"
                for row in section.rows
            )
            parts.append(f'<div class="box"><table><tr>{head}</tr>{rows}</table></div>')
    return parts


def _heat(view: RunView, best: Sequence[TrialRow]) -> list[str]:
    """Candidates by cases, coloured within each case from its lowest to its highest score."""
    if not best:
        return []
    count = view.progress().cases
    matrix = view.matrix([row.number for row in best], range(min(count, MOST_CASES)))
    head = "".join(f"<th>{escape(case)}</th>" for case in matrix.cases)
    more = f"<p>The first {MOST_CASES} of {count} cases.</p>" if count > MOST_CASES else ""
    return [
        f"<h2>The best {len(best)} trials by case</h2>{more}",
        f'<div class="box"><table class="heat"><tr><th>trial</th><th>score</th>{head}</tr>',
        *_heat_rows(matrix, best),
        "</table></div>",
    ]


def _heat_rows(matrix: MatrixSlice, best: Sequence[TrialRow]) -> Iterable[str]:
    scales = [_scale(column) for column in zip(*matrix.cells)]
    for row, cells in zip(best, matrix.cells):
        shown = "".join(_heat_cell(cell, scale) for cell, scale in zip(cells, scales))
        yield f"<tr><td>{row.number}</td><td>{number(row.score)}</td>{shown}</tr>"


def _heat_cell(cell: float | str | None, scale: tuple[float, float]) -> str:
    if cell is None:
        return '<td class="none">–</td>'
    if isinstance(cell, str):
        return f'<td class="failed">{escape(cell)}</td>'
    low, high = scale
    # Halves, because the difference of two scores may be more than a float can hold.
    share = (cell / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
    red, green, blue = (round(a + (b - a) * share) for a, b in ((244, 120), (233, 190), (205, 245)))
    return f'<td class="cell" style="background:rgb({red},{green},{blue})">{number(cell)}</td>'


def _scale(cells: Iterable[float | str | None]) -> tuple[float, float]:
    scores = [cell for cell in cells if isinstance(cell, int | float)]
    return (min(scores), max(scores)) if scores else (0.0, 0.0)


def _failures(view: RunView) -> list[str]:
    failures = view.failures()
    if not failures:
        return []
    rows = (
        f"<tr><td>{escape(kind.kind)}</td><td>{kind.count}</td><td>trial {kind.trial}, {escape(kind.case)}</td>"
        f"<td>{escape(_short(kind.message))}</td></tr>"
        for kind in failures
    )
    head = "<tr><th>kind</th><th>count</th><th>first</th><th>its message</th></tr>"
    return ["<h2>Failures</h2>", f'<div class="box"><table>{head}', *rows, "</table></div>"]


def _pretty(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return escape(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} … ({len(text):,} characters)"
