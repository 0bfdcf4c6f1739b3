"""What the study makes of a run: its statistics, its waves, and the folder of the job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fanfold import drawings
from fanfold.ledger import Ledger, RunView
from fanfold.running import Go, Run
from fanfold.studies.secrets.figures import summarise
from fanfold.studies.secrets.job_files import FILES, printable, write_job
from fanfold.studies.secrets.records import Records, read
from fanfold.summary import Section, Summary


@dataclass(frozen=True)
class SecretsConclusion:
    """Reads the run's ledger, writes the job's folder, and gives the summary."""

    pairings: int
    results: str | None = None
    seed: int = 0
    remarks: tuple[str, ...] = ()
    cut_off: str = "apart"

    def rehearsed(self) -> SecretsConclusion:
        """The same without a folder: a rehearsal keeps nothing."""
        return replace(self, results=None)

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        return await asyncio.to_thread(self._apart, run.view)  # a large run takes a while to read

    def _apart(self, view: RunView) -> Summary:
        """The summary, read by a connection of its own: one that two threads read by at once can lock them both up."""
        with Ledger(view.ledger.path, readonly=True) as ledger:
            return self._summary(RunView(ledger, view.id))

    def _summary(self, view: RunView) -> Summary:
        records = read(view, self.pairings, self.cut_off)
        summary = summarise(records, self.seed)
        sections = [*summary.sections, *examples(view, records), *waves(view)]
        figures = dict(summary.figures)
        if self.remarks:
            sections.insert(0, Section("Model names", "\n".join(self.remarks)))
        if self.results is not None:
            status = records.status  # before anything is written, so that the files say how the job ended
            place = write_job(view, Path(self.results), status, figures)
            figures["job"] = {"folder": str(place), "status": status}
            sections.append(Section("Job", f"{status}: {place} ({', '.join(FILES)})"))
        return Summary(figures, tuple(sections))


def examples(view: RunView, records: Records) -> list[Section]:
    """The first leak of each rule, in the words that gave the secret away."""
    rows = []
    cases = view.cases()
    for rule, (trial, position) in sorted(records.first.items()):
        [row] = view.evaluations(after=(trial, position - 1), count=1)
        talks = msgspec.json.decode(row.data["transcript"].read())
        leak = next(each for talk in talks for each in talk["leaks"] if each["rule"] == rule)
        secret = cases[position].data["secrets"][leak["seat"]]
        rows.append((rule, f"{trial}/{row.case}", printable(secret, 40), printable(leak["evidence"], 60)))
    return [Section("First leak of each rule", "", ("rule", "game", "secret", "words"), tuple(rows))] if rows else []


def waves(view: RunView) -> list[Section]:
    """The provider batches of a run: how many requests travelled together, and how long that took."""
    rows = []
    for wave in view.waves():
        each = None if wave.seconds is None else round(wave.seconds / wave.requests, 2)
        seconds = None if wave.seconds is None else round(wave.seconds, 2)
        rows.append((wave.number, wave.model, wave.requests, wave.answered, seconds, each))
    head = ("wave", "model", "requests", "answered", "seconds", "seconds per message")
    bars = [{"name": f"wave {row[0]}", "value": row[2], "note": f"{row[4]} s"} for row in rows if row[4] is not None]
    drawn = (drawings.bars(bars, unit="requests"),)
    return (
        [Section("Waves", "A wave is a turn of the conversations.", head, tuple(rows), drawings=drawn)] if rows else []
    )
