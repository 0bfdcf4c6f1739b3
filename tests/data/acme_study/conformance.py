"""The suite that Fanfold ships for authors of studies."""

from __future__ import annotations

from acme_study import plugin

from fanfold.testing import StudyConformance


class TestAcme(StudyConformance):
    plugin = plugin
    small = {"trials": 4}  # noqa: RUF012
