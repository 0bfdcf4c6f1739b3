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
from fanfold.plugins import Presentation, described, presentation_of
from fanfold.redaction import redact
from fanfold.report.chart import line_chart, score_chart
from fanfold.report.metrics import metrics
from fanfold.summary import Section, cell_text
from fanfold.texts import number

TOP = 30
MOST_CASES = 60
MOST_TEXT = 4000

_STYLE = """
:root { color-scheme: light dark; --bg: #fbfbfa; --card: #fff; --ink: #1d2127; --soft: #626b76; --line: #dfe2e6;
  --accent: #0b6bcb; --dot: #9aa4b1; --bad: #c2303a; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --card: #1c2026; --ink: #e6e9ed; --soft: #98a2ae;
  --line: #30363e; --accent: #6cb2ff; --dot: #5d6875; --bad: #ff7b84; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 70rem; background: var(--bg); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .25rem 0; color: var(--soft); }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.numbers div, pre, .box { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
.numbers div { padding: .6rem .8rem; }
.numbers b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.numbers span, small { color: var(--soft); font-size: .82rem; }
pre { padding: .8rem 1rem; margin: 0; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.box { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; min-width: 34rem; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--line); } svg .dot { fill: var(--dot); opacity: .6; }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg path.c0 { stroke: #2a6fdb; } svg path.c1 { stroke: #d9602b; } svg path.c2 { stroke: #2f9e6e; }
svg path.c3 { stroke: #a14fc4; } svg path.c4 { stroke: #b08a1e; } svg path.c5 { stroke: #5b6b7a; }
svg text.c0 { fill: #2a6fdb; } svg text.c1 { fill: #d9602b; } svg text.c2 { fill: #2f9e6e; }
svg text.c3 { fill: #a14fc4; } svg text.c4 { fill: #b08a1e; } svg text.c5 { fill: #5b6b7a; }
svg .best { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.heat td, .heat th { text-align: right; white-space: nowrap; } tr:last-child td { border-bottom: 0; }
.heat td.cell { color: #10151b; } .heat td.failed { color: var(--bad); } .heat td.none { color: var(--soft); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(ledger: Ledger | str | Path, run_name: str, path: str | Path) -> Path:
    """Write the report of a run to `path` and give the path back."""
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
        *_best(best, presented),
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
    cells = (f"<div><span>{escape(each.label)}</span><b>{escape(each.text)}</b></div>" for each in metrics(view))
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
    """The sections of a study's conclusion; what is long is folded away."""
    parts = []
    for section in sections:
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
