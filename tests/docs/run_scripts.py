"""Run scripts one after another, each in a process of its own that need not import the large libraries again.

    python run_scripts.py FIRST.py SECOND.py ...

Every script runs in a fork of this process, as `__main__` and with nothing of the ones before it; the first that fails
ends the sequence with its exit code.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import sys
from pathlib import Path

# What is imported before the forks, when a script names it: the code that imports the libraries it computes with.
BEFORE = {
    "fanfold": ("fanfold.study", "fanfold.sync"),
    "neuro": ("fanfold.studies.neuro", "sklearn.ensemble"),
    "neuro|torch": ("torch.onnx",),
    "rl|gymnasium": ("gymnasium",),
}


def main(scripts: list[str]) -> None:
    text = "\n".join(Path(script).read_text() for script in scripts)
    for word, modules in BEFORE.items():
        if re.search(rf"\b({word})\b", text):
            for module in modules:
                importlib.import_module(module)
    for script in scripts:
        child = os.fork()
        if child == 0:
            sys.argv, sys.path[0] = [script], str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")
            return
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            print(f"{script} ends with {code}", file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
