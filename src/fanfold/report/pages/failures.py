"""The Failures page: what failed, by message, and the command that tries it again."""

from __future__ import annotations

import shlex

from fanfold.report.pages.parts import Payload, ShownRun, clipped


def failures(shown: ShownRun) -> Payload:
    """The failures in groups, the most frequent first."""
    groups = [
        {
            "kind": group.kind,
            "message": clipped(group.message, 4000),
            "count": group.count,
            "first": group.first,
            "last": group.last,
            "traceback": clipped(group.traceback, 20_000),
            "cells": [{"trial": trial, "position": position, "case": case} for trial, position, case in group.cells],
        }
        for group in shown.view.failure_groups()
    ]
    path = shlex.quote(str(shown.view.ledger.path))
    return {
        "groups": groups,
        "command": f"fanfold resume {shlex.quote(shown.info.name)} --retry-failed --ledger {path}",
    }
