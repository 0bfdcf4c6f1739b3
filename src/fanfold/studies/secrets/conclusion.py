"""What the study makes of a run: its statistics, its waves, and the folder of the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fanfold.calls import REHEARSAL
from fanfold.ledger import Ledger
from fanfold.running import Go, Run
from fanfold.studies.secrets.job_files import FILES, printable, write_job
from fanfold.studies.secrets.records import Records, read
from fanfold.studies.secrets.tables import summarise
from fanfold.summary import Section, Summary

_WAVES = "SELECT tag, model, requests, created FROM batch WHERE run = ? ORDER BY created, tag"
_ENDS = "SELECT batch, count(*), max(at + seconds) FROM payment WHERE run = ? AND batch IS NOT NULL GROUP BY batch"


@dataclass(frozen=True)
class SecretsConclusion:
    """Reads the run's ledger, writes the job's folder (unless it is a rehearsal), and gives the summary."""

    pairings: int
    results: str | None = None
    seed: int = 0
    remarks: tuple[str, ...] = ()
    cut_off: str = "apart"

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        info = run.ledger.run(run.id)
        records = read(run.ledger, info.id, self.pairings, self.cut_off)
        found = summarise(records, self.seed)
        sections = [*found.sections, *examples(run.ledger, info.id, records), *waves(run.ledger, info.id)]
        figures = dict(found.figures)
        if self.remarks:
            sections.insert(0, Section("Models", "\n".join(self.remarks)))
        if self.results is not None and REHEARSAL.get() is None:
            played = records.clean + sum(records.apart.values())
            # Decided before anything is written, so that the files say how the job ended.
            status = "completed" if played == records.planned else "stopped"
            place = write_job(run.ledger, info, Path(self.results), status, figures)
            figures["job"] = {"folder": str(place), "status": status}
            sections.append(Section("Job", f"{status}: {place} ({', '.join(FILES)})"))
        return Summary(figures, tuple(sections))


def examples(ledger: Ledger, run: int, records: Records) -> list[Section]:
    """The first leak of each rule, in the words that gave the secret away."""
    rows = []
    sql = (
        "SELECT c.id, c.data, e.data FROM evaluation e JOIN run_case c ON c.run = e.run AND c.position = e.position "
        "WHERE e.run = ? AND e.trial = ? AND e.position = ?"
    )
    for rule, (trial, position) in sorted(records.first.items()):
        case, scenario, data = ledger.one(sql, (run, trial, position))
        talks = msgspec.json.decode(ledger.value(data)["transcript"].read())
        leak = next(each for talk in talks for each in talk["leaks"] if each["rule"] == rule)
        secret = ledger.value(scenario)["secrets"][leak["seat"]]
        rows.append((rule, f"{trial}/{case}", printable(secret, 40), printable(leak["evidence"], 60)))
    return [Section("First leak of each rule", "", ("rule", "game", "secret", "words"), tuple(rows))] if rows else []


def waves(ledger: Ledger, run: int) -> list[Section]:
    """The provider batches of a run: how many requests travelled together, and how long that took."""
    ends = {tag: (answered, end) for tag, answered, end in ledger.read(_ENDS, (run,))}
    rows = []
    for number, (tag, model, requests, created) in enumerate(ledger.read(_WAVES, (run,)), start=1):
        answered, end = ends.get(tag, (0, None))
        seconds = None if end is None else max(0.0, end - created)
        each = None if seconds is None else round(seconds / requests, 2)
        rows.append((number, model, requests, answered, None if seconds is None else round(seconds, 2), each))
    head = ("wave", "model", "requests", "answered", "seconds", "seconds per message")
    return [Section("Waves", "", head, tuple(rows))] if rows else []
