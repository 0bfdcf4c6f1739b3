"""The conformance suite for studies: what shell, report and resume rely on."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fanfold.config import describe, from_mapping
from fanfold.drawings import KINDS
from fanfold.encoding import decode, encode
from fanfold.identity import Identity
from fanfold.ledger import Ledger, RunView
from fanfold.plugins import StudyPlugin
from fanfold.run_options import RunOptions
from fanfold.summary import Section
from fanfold.types import Ok

#: Trials, and evaluations of each, whose pages are made.
SHOWN = 5


class StudyConformance:
    """Subclass it in a test module as `class TestMine(StudyConformance)` and give it `plugin` and `small`.

    `small` are fields of a config whose study runs in a second or two, without keys and without a network.
    """

    plugin: StudyPlugin[Any]
    small: dict[str, Any]

    def config(self) -> Any:
        return from_mapping(self.plugin.config, self.small)

    def test_its_config_is_frozen_and_every_field_has_a_help_text_and_a_default(self) -> None:
        assert self.plugin.config.__dataclass_params__.frozen
        assert (self.plugin.config.__doc__ or "").strip()
        for field in describe(self.plugin.config):
            assert field.help and not field.required, field.name

    def test_a_recorded_config_gives_the_same_config(self) -> None:
        recorded = decode(encode(dataclasses.asdict(self.config())))
        assert from_mapping(self.plugin.config, recorded) == self.config()

    def test_the_same_config_gives_the_same_study_and_nothing_of_it_is_unknown(self) -> None:
        first, second = (Identity.of(self.plugin.build(self.config())) for _ in range(2))
        assert first.record == second.record
        assert first.unknown(*first.prints) == ""

    def test_its_run_options_are_options_of_a_run(self) -> None:
        assert set(self._options()) <= {field.name for field in dataclasses.fields(RunOptions)}

    def test_its_commands_have_names_and_help(self) -> None:
        for own in self.plugin.commands():
            assert own.command.name and own.command.help and own.command.get_short_help_str(), own.command.name

    def test_the_packages_it_names_are_installed_here(self) -> None:
        assert [name for name in self.plugin.packages if importlib.util.find_spec(name) is None] == []

    def test_what_a_run_records_can_be_shown(self, tmp_path: Path) -> None:
        with contextlib.chdir(tmp_path):
            run = self.plugin.build(self.config()).run(**self._options(), ledger="study.db", run="small")
            run.ledger.close()
        assert run.best_or_none is not None
        with Ledger(tmp_path / "study.db", readonly=True) as ledger:
            self._show(RunView.open(ledger, "small"))

    def _show(self, view: RunView) -> None:
        shown, summary = self.plugin.shown, view.summary()
        if shown.headline is not None and summary is not None:
            sentence = shown.headline(summary.figures)
            assert sentence and "\n" not in sentence
        for read in shown.tables.values():
            assert all(encode(dict(row)) for row in read(view))
        if shown.overview is not None:
            _check(shown.overview(view))
        if shown.compare is not None:
            _check(shown.compare([view, view]))
        for row in view.trials(which="told", blobs=False):
            if shown.candidate is not None:
                _check([shown.candidate(row.candidate)])
            for outcome in view.outcomes(row.number).values():
                if shown.cell is not None and isinstance(outcome, Ok):
                    _check([shown.cell(outcome.data)])
        for row in [view.trial(row.number) for row in view.trials(which="told", blobs=False, count=SHOWN)]:
            written = row.candidate if shown.written is None else shown.written(view, row) or row.candidate
            for text in (shown.text, shown.brief):
                assert text is None or (isinstance(text(written), str) and text(written))
            if shown.trial is not None:
                _check(shown.trial(view, row))
            for evaluation in view.evaluations(trials=[row.number], failed=False, count=SHOWN):
                if shown.evaluation is not None:
                    _check(shown.evaluation(view, evaluation))

    def _options(self) -> dict[str, Any]:
        return dict(self.plugin.run_options(self.config())) if self.plugin.run_options is not None else {}


def _check(sections: Iterable[Section]) -> None:
    """Sections that the page of a run can show: tables as wide as their heads, bands as long as their curves."""
    for section in sections:
        assert isinstance(section, Section) and encode(section), section
        assert all(len(row) == len(section.columns) for row in section.rows), section.title
        assert all(drawing.kind in KINDS for drawing in section.drawings), section.title
        for curve in section.curves:
            assert len(curve.low) == len(curve.high) in (0, len(curve.points)), curve.name
