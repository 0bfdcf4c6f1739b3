"""Programs of others, each in an environment of its own below `.venv-peers`, which `make test` makes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

#: What a peer sees of our environment; litellm must not fetch its table of models.
ENVIRONMENT = {
    **{name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ},
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
PEERS = Path(os.environ.get("FANFOLD_PEERS") or Path(__file__).parents[2] / ".venv-peers")


def peer(name: str, program: str = "bin/python") -> str:
    """The path of a peer's program; the test is skipped where the peer is not installed."""
    path = PEERS / name / program
    if not path.exists():
        pytest.skip(f"needs {name} in an environment of its own: make .venv-peers/{name}/.ready")
    return str(path)


def run_in(name: str, program: str, argument: Any = None, timeout: float = 120.0) -> Any:
    """Run a Python program in a peer's environment, with `argument` as JSON on its stdin; what it prints last is JSON.

    It sees neither this process's keys nor its packages.
    """
    done = subprocess.run(
        [peer(name), "-c", program],
        input=json.dumps(argument),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
