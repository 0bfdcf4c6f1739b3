"""The search of the frame: runs by name, study and headline, and candidates by their text."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from fanfold.errors import FanfoldError
from fanfold.ledger import Ledger, RunView
from fanfold.report.pages.parts import Payload, ShownRun

#: Results in all and of one run, and the newest runs whose candidates are looked at.
MOST, OF_A_RUN, RUNS = 50, 10, 20


def search(ledgers: Mapping[int, Ledger], words: str) -> Payload:
    """What contains the words, the newest run first."""
    wanted, results = words.strip().casefold(), list[Payload]()
    if not wanted:
        return {"results": []}
    heads = [(head.created, id, head.id) for id, ledger in ledgers.items() for head in ledger.run_heads()]
    runs = []
    for _, id, run in sorted(heads, reverse=True):
        with contextlib.suppress(FanfoldError):  # a damaged run has nothing to find
            runs.append(ShownRun(RunView(ledgers[id], run), id))
    for shown in runs:
        text = f"{shown.info.name} ({shown.study_name}) {shown.headline()}"
        if wanted in text.casefold():
            results.append({"path": f"#/run/{shown.ledger}/{shown.info.name}", "text": text})
    for shown in runs[:RUNS]:
        page = shown.view.trials_after(order="best", count=OF_A_RUN, contains=wanted)
        results += [
            {
                "path": f"#/run/{shown.ledger}/{shown.info.name}/trial/{row.number}",
                "text": f"{shown.info.name}, {shown.unit} {row.number}: {shown.brief(row)}",
            }
            for row in page.rows
        ]
        if len(results) >= MOST:
            break
    return {"results": results[:MOST]}
