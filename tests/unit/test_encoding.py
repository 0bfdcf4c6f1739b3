"""Values as text: canonical, hashable, reversible."""

from __future__ import annotations

import datetime
import math
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import Blob, Case, ConfigError
from fanfold.encoding import blobs_in, decode, derive_seed, digest, encode, pack

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text())
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(plain)
def test_what_is_encoded_comes_back(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.integers(-100, 100), max_size=8))
def test_equal_dicts_have_equal_text(value: dict[str, int]) -> None:
    assert encode(value) == encode(dict(reversed(value.items())))


@dataclass(frozen=True)
class Genome:
    layers: tuple[int, ...]
    rate: float


def test_dataclasses_and_arrays_can_be_kept() -> None:
    numpy = pytest.importorskip("numpy")
    assert encode(Genome((1, 2), 0.5)) == '{"layers":[1,2],"rate":0.5}'
    assert encode({"w": numpy.arange(3), "x": numpy.float32(0.5)}) == '{"w":[0,1,2],"x":0.5}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: 2, 0: 3}, '{"0":3,"1":2}'),
        ({"found": [{np.int64(7): np.float32(0.5)}]}, '{"found":[{"7":0.5}]}'),
        ({("a", 2): 1, None: 2, True: 3}, '{"[\\"a\\",2]":1,"null":2,"true":3}'),
        ({"seen": {3, 1}, "of": {5: Genome((1, 2), 0.5)}}, '{"of":{"5":{"layers":[1,2],"rate":0.5}},"seen":[1,3]}'),
        ([Path("data") / "x.csv"], '["data/x.csv"]'),
    ],
)
def test_counts_by_number_and_paths_can_be_kept(value: Any, text: str) -> None:
    assert encode(value) == text and pack(value).text == text


def test_models_of_pydantic_are_kept_as_plain_values() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", day=(datetime.date, ...), rate=(float, 0.5))
    outer = pydantic.create_model("Outer", inner=(inner, ...), names=(dict[int, str], {}))
    value = outer(inner={"day": "2026-01-31"}, names={1: "a"})
    assert pack([value]).text == '[{"inner":{"day":"2026-01-31","rate":0.5},"names":{"1":"a"}}]'
    with pytest.raises(ConfigError, match=r"its \[0\]\['inner'\]\['rate'\] is nan"):
        encode([outer(inner={"day": "2026-01-31", "rate": math.nan})])


def test_moments_of_pandas_are_kept_and_gaps_refused() -> None:
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"at": ["2026-01-31 10:00", None]}).astype("datetime64[ns]").to_dict("records")
    assert encode(rows[0]) == '{"at":"2026-01-31T10:00:00"}'
    with pytest.raises(ConfigError, match="NaTType"):
        encode(rows[1])


def test_keys_that_would_be_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"two keys of a dict are the same as text"):
        encode({1: "a", "1": "b"})


def test_what_cannot_be_kept_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the candidate of trial 3 .* 'object'"):
        encode({"a": object()}, "the candidate of trial 3")


def test_blobs_are_references_with_bytes_behind_them() -> None:
    blob = Blob.of(b"weights" * 1000)
    text = encode({"weights": blob, "more": [blob]})
    assert len(text) < 200 and blobs_in({"a": [blob]}, text, "it") == {blob.digest: blob.read()}
    back = decode(text, {blob.digest: blob.read()}.__getitem__)
    assert back["weights"] == blob and back["more"][0].read() == blob.read()
    assert pickle.loads(pickle.dumps(back["weights"])).read() == blob.read()  # noqa: S301


@given(st.lists(st.binary(), min_size=2, max_size=4))
def test_digests_tell_how_parts_are_split(parts: list[bytes]) -> None:
    joined = [parts[0] + parts[1], *parts[2:]]
    assert digest(*parts) != digest(*joined)


def test_seeds_are_stable_across_processes_and_differ_by_identity() -> None:
    code = "from fanfold.encoding import derive_seed; print(derive_seed(7, 'case', 'a'))"
    other = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert other == derive_seed(7, "case", "a") == 4520851765539659935
    assert len({derive_seed(seed, "case", str(n)) for seed in range(10) for n in range(10)}) == 100
    assert Case("a", seed=5).rng().random() == Case("b", seed=5).rng().random()
    with pytest.raises(ValueError, match="no seed yet"):
        Case("a").rng()
