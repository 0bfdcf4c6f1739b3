"""Servers that we did not write, started by these tests; `make test` installs them."""

from __future__ import annotations

from peer_environments import run_in


def test_a_program_in_a_foreign_environment_sees_its_own_packages_and_none_of_ours() -> None:
    program = """
import importlib.util, json, sys
import litellm
ours = importlib.util.find_spec("fanfold") is not None
print(json.dumps([json.load(sys.stdin), ours, "gpt-4o-mini" in litellm.model_cost]))
"""
    assert run_in("litellm", program, {"a": [1]}) == [{"a": [1]}, False, True]
