"""Which payload a path asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from fanfold.ledger import Quantity
from fanfold.report.pages import candidates, comparing, failures, lineage, matrix, overview, runs, search, work
from fanfold.report.pages.parts import Payload, ShownRun
from fanfold.view.shelf import Shelf
from fanfold.web import ApiError, Request

_encode = msgspec.json.Encoder().encode


def answer(shelf: Shelf, request: Request) -> bytes:
    """The JSON that a path asks for; kept as long as the run has not changed."""
    query = request.query
    match request.path.split("/"):
        case ["", "api", "runs"]:
            return _encode(runs.runs(shelf.ledgers(), query.get("before"), shelf.row))
        case ["", "api", "search"]:
            return _encode(search.search(shelf.ledgers(), query.get("q", "")[:200]))
        case ["", "api", "compare"]:
            pairs = [run.partition("/") for run in request.every("run")]
            return _encode(comparing.comparing([shelf.shown(int(number), name) for number, _, name in pairs]))
        case ["", "api", "run", number, name, *rest]:
            shown = shelf.shown(int(number), name)
            make = _page(shelf, shown, rest, query)
            version = (shown.view.mark, shown.view.status, shown.info.updated, len(shown.view.comments()))
            return shelf.kept((request.path, request.search), version, lambda: _encode(make()))
    raise ApiError(404, "there is nothing here", type="path")


def _page(shelf: Shelf, shown: ShownRun, rest: list[str], query: Mapping[str, str]) -> Callable[[], Payload]:
    match rest:
        case []:
            return lambda: overview.overview(shown)
        case ["trials"]:
            order, which = query.get("order", "best"), query.get("which", "all")
            check(order in ("best", "number", "told") and which in ("all", "complete", "dropped", "failed", "open"))
            chosen = cast(Any, (order, which))
            return lambda: candidates.trials(shown, chosen[0], chosen[1], query.get("after"), query.get("q", "")[:200])
        case ["trial", number]:
            return lambda: candidates.candidate(shown, int(number), int(query.get("after", -1)))
        case ["text"]:
            numbers = [int(number) for number in query.get("trials", "").split(",") if number][:10]
            return lambda: candidates.texts(shown, numbers)
        case ["cell", number, position]:
            return lambda: candidates.evaluation(shown, int(number), int(position))
        case ["matrix"]:
            return lambda: _head(shelf, shown, query)
        case ["lineage"]:
            return lambda: lineage.lineage(shown)
        case ["work"]:
            return lambda: work.work(shown)
        case ["failures"]:
            return lambda: failures.failures(shown)
    raise ApiError(404, "there is nothing here", type="path")


def check(sound: bool) -> None:
    if not sound:
        raise ApiError(400, "this order or choice is not known", type="query")


def _head(shelf: Shelf, shown: ShownRun, query: Mapping[str, str]) -> Payload:
    chosen = matrix.choices(query)
    return matrix.head(shown, shelf.arrange(shown, chosen, None, again=True), chosen["colour"])


def tile(shelf: Shelf, number: int, name: str, query: Mapping[str, str]) -> bytes:
    """The bytes of a tile, in the order that the page of the same `mark` was told."""
    shown, chosen = shelf.shown(number, name), matrix.choices(query)
    mark = query.get("mark")
    arranged = shelf.arrange(shown, chosen, None if mark is None else int(mark))
    values = shelf.values(shown, cast(Quantity, chosen["colour"]))
    return arranged.tile(values, *(int(query.get(name, 0)) for name in ("level", "row", "column")))
