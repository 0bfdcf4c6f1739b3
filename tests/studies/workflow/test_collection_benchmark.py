"""The benchmark of collection runs on tiny sizes, everyone plays the same game, and targets are judged."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fanfold.rl import environments as gym
from fanfold.rl import heads, network

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OTHERS = {"one after the other": ("sequential",), "AsyncVectorEnv, 2": ("async_vector", 2)}


@pytest.fixture(scope="module")
def collection() -> Iterator[ModuleType]:
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("collection")
    sys.path[:] = before


@pytest.fixture(scope="module")
def peers(collection: ModuleType) -> ModuleType:
    return importlib.import_module("collection_peers")


@pytest.mark.slow
def test_rates_are_measured_printed_and_saved(
    collection: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(sizes: object) -> Iterator[object]:
        weights = network.initial(4, 2, 64, 0)
        others = {**OTHERS, "nobody": ("subproc_vec_of_nobody",)}
        lines = collection.compared("CartPole-v1", weights, ["inline", "threads:2"], others, sizes, 4, 1e9)
        yield collection.Table("CartPole", lines)

    monkeypatch.setattr(collection, "QUICK", collection.TINY)
    monkeypatch.setattr(collection, "SECTIONS", {"some": section})
    file = tmp_path / "folder" / "collection.json"
    assert collection.main(["--quick", "--json", str(file)]) == 0
    assert collection.main(["--quick", "--json", str(file), "--strict"]) == 1
    assert "1 target(s) MISSED" in capsys.readouterr().out
    (table,) = json.loads(file.read_text())["tables"]
    *measured, absent = table["lines"]
    assert [line["name"] for line in measured] == ["Fanfold inline", "Fanfold threads:2", *OTHERS]
    assert absent["name"] == "nobody" and "make bench-peers" in absent["note"] and not absent["values"]
    for line in measured:
        assert line["values"][collection.RATE]["median"] > 0 < line["values"][collection.CPU_RATE]["median"]
        assert 8 < line["values"][collection.STEPS]["median"] < 100
    assert [collection.TIMES in line["values"] for line in measured] == [True, True, False, False]


@pytest.mark.slow
def test_the_others_ask_the_same_policy(peers: ModuleType, tmp_path: Path) -> None:
    weights = network.initial(4, 2, 64, 3)
    weights["policy.2.weight"] = weights["policy.2.weight"] * np.float32(30)
    np.savez(tmp_path / "weights.npz", **weights)
    policy = peers.Policy(str(tmp_path / "weights.npz"))
    seen = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    bounds = policy.chances(seen)
    chances = np.diff(bounds / bounds[:, -1:], axis=1, prepend=0)
    assert np.allclose(chances, np.exp(heads.log_softmax(network.forward(weights, "policy", seen)[2])), atol=1e-5)
    rng = np.random.default_rng(1)
    drawn = np.mean([policy.act_all(seen, rng) for _ in range(2000)], axis=0)
    assert np.abs(drawn - chances[:, 1]).max() < 0.05
    one = np.mean([policy.act(seen[0], rng) for _ in range(2000)])
    assert abs(one - chances[0, 1]) < 0.05


def test_the_balancing_policy_balances(collection: ModuleType) -> None:
    found, _ = gym.play("CartPole-v1", collection.balancing(), range(10), 0)
    assert found is not None and np.median(found.lengths) == 500


@pytest.mark.slow
def test_the_time_of_all_descendants_counts(collection: ModuleType) -> None:
    import subprocess

    before = collection.cpu_seconds()
    work = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"])
    assert collection.cpu_seconds() - before > 0.29
