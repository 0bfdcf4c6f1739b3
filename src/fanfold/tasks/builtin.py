"""The tasks that ship with Fanfold: six small ones that need no download, from easy to hard for a small model.

Their settings and problems are in data/; they are ours and in the public domain (CC0): data/LICENSE.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from fanfold.tasks.graders import grader
from fanfold.tasks.task import SETTINGS, Problem, Task, tupled


def _task(name: str) -> Task:
    lines = (Path(__file__).with_name("data") / f"{name}.jsonl").read_bytes().splitlines()
    problems = tuple(msgspec.json.decode(line, type=Problem) for line in lines)
    settings = tupled(SETTINGS[name])
    return Task(name, problems, grader(settings.pop("grader")), **settings)


#: Every task by its name.
BUILTIN: Mapping[str, Callable[[], Task]] = {name: partial(_task, name) for name in SETTINGS}
