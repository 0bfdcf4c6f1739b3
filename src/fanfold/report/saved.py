"""A run as one HTML file: the web app with its data inside, which needs no server and loads nothing from elsewhere."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from html import escape
from pathlib import Path

import msgspec

from fanfold.errors import ConfigError
from fanfold.files import check_place, replacing
from fanfold.ledger import Ledger, RunView
from fanfold.redaction import redact, redact_body
from fanfold.report.assets import asset
from fanfold.report.pages import candidates, failures, lineage, matrix, overview, runs, work
from fanfold.report.pages.parts import Payload, ShownRun, sections
from fanfold.summary import Section

#: The bytes of data that a file may hold, and how many of the best candidates, and of their cells, are tried.
MOST_BYTES, CANDIDATES, CELLS = 4_000_000, 100, 2000
#: Endings of files that nobody expects a page in.
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".pdf")
#: The rows and columns of the matrix.
ROWS, COLUMNS = 320, 1024

_encode = msgspec.json.Encoder().encode


def check_report(path: str | Path) -> None:
    """Refuse a place where a report cannot be written, before the run that it is about."""
    path = Path(path)
    if path.suffix.lower() in PICTURES:
        raise ConfigError(
            f"{path} would be a page of HTML: name it {path.with_suffix('.html')}; `fanfold view --save {path} --png "
            "CHART` draws a chart"
        )
    with _explained(path):
        check_place(path)


def write_report(ledger: Ledger | str | Path, run_name: str, path: str | Path) -> Path:
    """Write the page of a run to `path`, and return the path."""
    path = Path(path)
    check_report(path)
    if not isinstance(ledger, Ledger):
        with Ledger(ledger, readonly=True) as opened:
            return write_report(opened, run_name, path)
    text = saved_page(RunView.open(ledger, run_name))
    with _explained(path), replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))
    return path


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}; give another file") from error


def saved_page(view: RunView) -> str:
    """The whole document."""
    helpers = [ShownRun(helper) for helper in view.siblings()]
    data = redact_body(_encode(_Data(ShownRun(view), helpers).payloads))
    return document(data.decode().replace("<", "\\u003c"), f"{view.name} · Fanfold")


def document(data: str, title: str) -> str:
    """The app around its data; scripts and styles other than its own do not run."""
    style, script = asset("app.css"), asset("app.js").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    icon = base64.b64encode(asset("favicon.svg").encode()).decode()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">',
            f"<title>{escape(redact(title))}</title>\n<style>{style}</style>\n</head>\n<body>",
            '<div id="app"></div>\n<noscript>This page needs JavaScript.</noscript>',
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Data:
    """The payloads of a file by their paths: those that matter most first, as long as there is room."""

    def __init__(self, shown: ShownRun, helpers: list[ShownRun]) -> None:
        self.payloads: dict[str, Payload] = {}
        self._room = MOST_BYTES
        listed = runs.run_row(shown) | {"helpers": [runs.run_row(helper) for helper in helpers]}
        page = {"ledgers": [{"id": 0, "name": shown.view.ledger.path.name, "path": shown.view.ledger.path.name}]}
        self._put("/api/runs", {**page, "runs": [listed], "next": None, "saved": True})
        for run in (shown, *helpers):
            self._add_run(run)
        for run in (shown, *helpers):
            self._add_candidates(run)

    def _put(self, path: str, payload: Payload) -> bool:
        """Keep a payload, unless the file would become too large."""
        size = len(_encode(payload))
        if size > self._room and path not in self.payloads:
            return False
        self._room -= size
        self.payloads[path] = payload
        return True

    def _add_run(self, shown: ShownRun) -> None:
        base = _base(shown)
        front = overview.overview(shown)
        front["can"] = dict.fromkeys(front["can"], False)
        self._put(base, front)
        for name, page in (("failures", failures.failures), ("lineage", lineage.lineage), ("work", work.work)):
            self._put(f"{base}/{name}", page(shown))
        self._put(f"{base}/trials", candidates.trials(shown) | {"next": None})
        self._add_matrix(shown)

    def _add_matrix(self, shown: ShownRun) -> None:
        values = shown.view.values("score")
        whole = matrix.arrange(shown, values, matrix.choices({}))
        arranged = matrix.Arrangement(whole.mark, whole.trials[:ROWS], whole.positions[:COLUMNS], whole.low, whole.high)
        if not self._put(f"{_base(shown)}/matrix", matrix.head(shown, arranged, "score")):
            return
        for number, level in enumerate(arranged.levels()):
            for row in range(-(-level["rows"] // matrix.TILE[0])):
                for column in range(-(-level["columns"] // matrix.TILE[1])):
                    tile = base64.b64encode(arranged.tile(values, number, row, column)).decode()
                    self._put(f"{_base(shown)}/tile?level={number}&row={row}&column={column}", {"b64": tile})

    def _add_candidates(self, shown: ShownRun) -> None:
        view, base = shown.view, _base(shown)
        kept, texts = [], dict[str, str]()
        for number in self._worth_keeping(shown):
            page = candidates.candidate(shown, number) | {"next": None, "files": [], "feedback": None}
            if not self._put(f"{base}/trial/{number}", page):
                break
            kept.append(number)
            texts[str(number)] = page["candidate_text"]
        self._put(f"{base}/text", {"texts": texts})
        cells = 0
        for number in kept:
            for row in view.evaluations(trials=[number], count=CELLS - cells, blobs=False):
                page = candidates.evaluation(shown, number, row.position) | {"feedback": None}
                if not self._put(f"{base}/cell/{number}/{row.position}", page):
                    break
                cells += 1
        self._say_what_is_missing(shown, len(kept), cells)

    def _worth_keeping(self, shown: ShownRun) -> Iterator[int]:
        """The best candidate and its ancestors, the first that failed, then the next best."""
        view, seen = shown.view, set[int]()
        best = list(view.numbers(order="best", count=CANDIDATES))
        line = [row.number for row in view.lineage(best[0])][-20:] if best else []
        failed = [
            cell["trial"]
            for group in self.payloads[f"{_base(shown)}/failures"]["groups"][:20]
            for cell in group["cells"][:1]
        ]
        for number in (*best[:1], *reversed(line), *failed, *best):
            if number not in seen:
                seen.add(number)
                yield number

    def _say_what_is_missing(self, shown: ShownRun, trials: int, cells: int) -> None:
        front, info = self.payloads.get(_base(shown)), shown.info
        asked = shown.view.progress().asked
        if front is None or (trials >= asked and cells >= info.evaluations):
            return
        text = (
            f"This file holds the best {trials:,} of {asked:,} {shown.unit}s and {cells:,} of {info.evaluations:,} "
            "evaluations. The ledger has all of them: fanfold view"
        )
        section = Section("What this file leaves out", text)
        front["sections"] = [*front["sections"], *sections([section])]


def _base(shown: ShownRun) -> str:
    return f"/api/run/0/{shown.info.name}"
