"""A fingerprint is equal only where results are: every shape of evaluator, and what each does."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import enum
import functools
import http.server
import importlib
import operator
import os
import random
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy
import pytest
import torch

from fanfold import (
    Case,
    ConfigError,
    Float,
    Genetic,
    Halving,
    MaxTrials,
    Racing,
    Random,
    ReplayDivergence,
    Space,
    Study,
    Sweep,
)
from fanfold.events import Notice
from fanfold.fingerprints import Unknown, fingerprint
from fanfold.fingerprints.values import hashed
from fanfold.identity import Identity
from fanfold.models import model

ROOT = Path(__file__).parents[2]


# -- shapes of evaluator with a setting k --------------------------------------------------------------------


class Eval:
    def __init__(self, k: Any) -> None:
        self.k = k

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)

    def method(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


class Inherits(Eval):
    def __call__(self, candidate: Any, case: Case) -> float:
        return super().__call__(candidate, case) + 1


class Slots:
    __slots__ = ("k", "unset")

    def __init__(self, k: Any) -> None:
        self.k = k

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


class SlotsAndMore(Slots):
    def __init__(self, k: Any) -> None:
        super().__init__(1)
        self.more = k


class Mangled:
    def __init__(self, k: Any) -> None:
        self.__k = k

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.__k)


@dataclass(frozen=True)
class Data:
    k: Any

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


@dataclass(frozen=True, slots=True)
class SlottedData:
    k: Any
    other: int = 0

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


class Struct(msgspec.Struct):
    k: Any

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


class Pair(NamedTuple):
    name: str
    k: Any


class Level(enum.Enum):
    ONE = 1
    TEN = 10


class Built:
    """Its setting comes by a method that no evaluation calls."""

    k = 0

    def set_k(self, k: int) -> Built:
        self.k = k
        return self

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


class Settings:
    """Gives its settings itself, as a mapping."""

    def __init__(self, k: Any) -> None:
        self.k, self.pace = k, time.monotonic()

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"k": self.k}

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


def closure(k: Any) -> Any:
    def evaluate(candidate: Any, case: Case) -> float:
        return float(candidate * k)

    return evaluate


def nested_closure(k: Any) -> Any:
    inner = closure(k)
    return lambda candidate, case: inner(candidate, case) + 1


def async_closure(k: Any) -> Any:
    async def evaluate(candidate: Any, case: Case) -> float:
        await asyncio.sleep(0)
        return float(candidate * k)

    return evaluate


def default(k: Any) -> Any:
    def evaluate(candidate: Any, case: Case, k: Any = k) -> float:
        return float(candidate * k)

    return evaluate


def keyword_default(k: Any) -> Any:
    def evaluate(candidate: Any, case: Case, *, k: Any = k) -> float:
        return float(candidate * k)

    return evaluate


def three(k: Any, candidate: Any, case: Case, more: Any = 0) -> float:
    return float(candidate * k)


def scaled(k: Any) -> Any:
    """A decorator of the project's own."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*given: Any) -> float:
            return float(k * function(*given))

        return wrapper

    return decorate


def one_line(k: Any) -> Any:
    # fmt: off
    first, second = (lambda candidate, case: candidate * 1, lambda candidate, case: candidate * 10)
    # fmt: on
    return first if k == 1 else second


def without_source(k: Any) -> Any:
    names: dict[str, Any] = {"__name__": "written_nowhere"}
    exec(f"def evaluate(candidate, case):\n    return candidate * {k!r}", names)
    return names["evaluate"]


def attribute(k: Any) -> Any:
    made = closure(1)
    made.k = k
    return made


def class_attribute(k: Any) -> Any:
    return type("Made", (Eval,), {"k": k, "__module__": __name__})(1)


def looped(k: Any) -> Any:
    made = Eval(k)
    made.itself = [made]  # type: ignore[attr-defined]
    return made


def named(text: Any) -> Any:
    made = closure(random.random())
    made.fingerprint = text
    return made


def dispatched(k: Any) -> Any:
    @functools.singledispatch
    def evaluate(candidate: Any, case: Case) -> float:
        return 0.0

    evaluate.register(int, closure(k))
    return evaluate


SHAPES: dict[str, Callable[[Any], Any]] = {
    "a class with state": Eval,
    "an inherited __init__": Inherits,
    "slots": Slots,
    "slots and a __dict__": SlotsAndMore,
    "a private attribute": Mangled,
    "a dataclass": Data,
    "a dataclass with slots": SlottedData,
    "a msgspec struct": Struct,
    "a setting that came by a method": lambda k: Built().set_k(k),
    "a closure": closure,
    "a closure over a closure": nested_closure,
    "a coroutine function": async_closure,
    "a default": default,
    "a keyword default": keyword_default,
    "a partial by keyword": lambda k: functools.partial(closure(1), more=k),
    "a partial of a partial by place": lambda k: functools.partial(functools.partial(three, k), more=1),
    "a bound method": lambda k: Eval(k).method,
    "a built-in method of a value": lambda k: {1: k}.__getitem__,
    "two lambdas on one line": one_line,
    "a decorated function": lambda k: scaled(2)(closure(k)),
    "a decorator's setting": lambda k: scaled(k)(closure(2)),
    "a cached function": lambda k: functools.lru_cache(closure(k)),
    "a singledispatch function": dispatched,
    "code without source": without_source,
    "an attribute of a function": attribute,
    "a class attribute": class_attribute,
    "an object in an object": lambda k: Eval(Eval(k)),
    "objects in a list": lambda k: Eval([closure(1), Eval(k)]),
    "objects in a dict": lambda k: Eval({"a": Eval(k), 2: closure(k)}),
    "objects in a set": lambda k: Eval({Data(k), Data(3)}),
    "a dict of settings": lambda k: Eval({"deep": {"k": k, "all": [1, 2]}}),
    "a named tuple": lambda k: Eval(Pair("k", k)),
    "an enum": lambda k: Eval(Level(k)),
    "a set of texts": lambda k: Eval({"a", "b", "c", str(k)}),
    "a namespace": lambda k: Eval(types.SimpleNamespace(k=k)),
    "an ordered dict": lambda k: Eval(collections.OrderedDict(k=k)),
    "an item getter": lambda k: Eval(operator.itemgetter(k)),
    "a path": lambda k: Eval(Path("data") / str(k)),
    "bytes": lambda k: Eval(bytes([k])),
    "a number too long to write": lambda k: Eval([10**5000 + k]),
    "an array": lambda k: Eval(numpy.full(1000, k)),
    "an array of objects": lambda k: Eval(numpy.array([{"a": k}, None], dtype=object)),
    "a generator of numbers": lambda k: Eval(numpy.random.default_rng(k)),
    "a seeded random": lambda k: Eval(random.Random(k)),
    "a tensor": lambda k: Eval(torch.full((3, 3), float(k), dtype=torch.bfloat16)),
    "a network": lambda k: Eval(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(k / 100)).state_dict),
    "a model": lambda k: Eval(model(f"simulated/m{k}")),
    "an object that holds itself": looped,
    "a fingerprint of its own": lambda k: named(f"v{k}"),
    "settings of its own": Settings,
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES.keys())
def test_a_fingerprint_is_equal_for_equal_settings_only(make: Callable[[Any], Any]) -> None:
    if make is SHAPES["a network"]:
        torch.manual_seed(0)
    first = fingerprint(make(1))
    if make is SHAPES["a network"]:
        torch.manual_seed(0)
    again, other = fingerprint(make(1)), fingerprint(make(10))
    assert not first.unknown and not other.unknown
    assert first.text == again.text and first.parts == again.parts
    assert first.text != other.text and first.parts != other.parts
    assert " at 0x" not in str(first)


def test_there_are_thirty_shapes_and_more() -> None:
    assert len(SHAPES) + len(FILES) + len(UNKNOWN) >= 30


# -- what the code reaches in the project's own modules -------------------------------------------------------

FILES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a constant": ({"evals": "K = 1\ndef f(c, case):\n    return c * K"}, {"evals": "K = 10"}),
    "a constant of another module": (
        {"helpers": "K = 1", "evals": "import helpers\ndef f(c, case):\n    return c * helpers.K"},
        {"helpers": "K = 10"},
    ),
    "a function of another module": (
        {"helpers": "def g(c):\n    return c", "evals": "import helpers\ndef f(c, case):\n    return helpers.g(c)"},
        {"helpers": "def g(c):\n    return c * 10"},
    ),
    "what a function there reads": (
        {
            "deep": "TABLE = {'k': 1}",
            "helpers": "from deep import TABLE\ndef g(c):\n    return c * TABLE['k']",
            "evals": "from helpers import g as h\ndef f(c, case):\n    return h(c)",
        },
        {"deep": "TABLE = {'k': 10}"},
    ),
    "functions that call each other": (
        {"evals": "K = 1\ndef f(c, case):\n    return g(c)\ndef g(c):\n    return f(c - 1, 0) if c > 0 else K"},
        {"evals": "K = 10"},
    ),
    "a class that is made inside": (
        {
            "helpers": "class Helper:\n    factor = 1\n    def go(self, c):\n        return c * self.factor",
            "evals": "import helpers\ndef f(c, case):\n    return helpers.Helper().go(c)",
        },
        {"helpers": "factor = 10"},
    ),
    "a method of a base class": (
        {
            "helpers": "class Base:\n    def go(self, c):\n        return c * 1",
            "evals": "import helpers\nclass E(helpers.Base):\n    def __call__(self, c, case):\n        "
            "return self.go(c)\nf = E()",
        },
        {"helpers": "return c * 10"},
    ),
    "a module imported inside": (
        {"lazy": "K = 1", "evals": "def f(c, case):\n    from lazy import K\n    return c * K"},
        {"lazy": "K = 10"},
    ),
    "what a module imported inside imports": (
        {
            "deep": "K = 1",
            "lazy": "import deep",
            "evals": "def f(c, case):\n    import lazy\n    return c * lazy.deep.K",
        },
        {"deep": "K = 10"},
    ),
    "a decorator's argument by name": (
        {
            "helpers": "import functools\ndef times(k):\n    return lambda g: functools.lru_cache(maxsize=k)(g)",
            "evals": "import helpers\nK = 1\n@helpers.times(K)\ndef f(c, case):\n    return c",
        },
        {"evals": "K = 10"},
    ),
    "an object of a module": (
        {
            "helpers": "class Client:\n    def __init__(self, k):\n        self.k = k\n    def go(self, c):\n"
            "        return c * self.k\nCLIENT = Client(1)",
            "evals": "from helpers import CLIENT\ndef f(c, case):\n    return CLIENT.go(c)",
        },
        {"helpers": "Client(10)"},
    ),
    "a folder without __init__.py, imported inside": (
        {
            "lazy/__init__": "",
            "lazy/plain/numbers": "K = 1",
            "evals": "def f(c, case):\n    from lazy.plain.numbers import K\n    return c * K",
        },
        {"lazy/plain/numbers": "K = 10"},
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], Any]]:
    """Makes modules of these texts and gives the function `f` of `evals`, as a new process would have it."""
    before, made = set(sys.modules), iter(range(100))

    def make(files: dict[str, str]) -> Any:
        for name in set(sys.modules) - before:
            del sys.modules[name]
        folder = tmp_path / str(next(made))
        folder.mkdir()
        for name, text in files.items():
            file = folder / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        importlib.invalidate_caches()
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module("evals").f

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def changed(text: str, part: str) -> str:
    """The text with the line or words that say 1 saying what `part` says."""
    return text.replace(part.replace("10", "1"), part) if "10" in part and "def" not in part else part


@pytest.mark.parametrize("shape", FILES.values(), ids=FILES.keys())
def test_a_fingerprint_covers_what_code_reaches(
    shape: tuple[dict[str, str], dict[str, str]], project: Callable[[dict[str, str]], Any]
) -> None:
    files, change = shape
    first, again = fingerprint(project(files)), fingerprint(project(files))
    other = fingerprint(project(files | {name: changed(files[name], part) for name, part in change.items()}))
    unrelated = fingerprint(project({name: f"'''Words.'''\n# words\nZ = 5\n{text}" for name, text in files.items()}))
    assert not first.unknown and first.text == again.text
    assert other.text != first.text
    if "lazy" not in str(files):
        assert unrelated.text == first.text, "what the code does not reach does not count"


def test_a_module_imported_inside_counts_the_same_before_and_after_it_is_loaded(
    project: Callable[[dict[str, str]], Any],
) -> None:
    evaluate = project(FILES["a module imported inside"][0])
    before = fingerprint(evaluate)
    assert "lazy" not in sys.modules, "nothing is imported by taking a fingerprint"
    assert evaluate(3, None) == 3
    assert fingerprint(evaluate).text == before.text


def test_a_file_that_was_edited_since_it_was_loaded_does_not_count(project: Callable[[dict[str, str]], Any]) -> None:
    text = "def f(c, case):\n    return c + 1"
    loaded, new = project({"evals": text}), project({"evals": text.replace("1", "2")})
    file = Path(loaded.__code__.co_filename)
    file.write_text(text.replace("1", "2"))
    os.utime(file, (1, 1))
    assert fingerprint(loaded).text != fingerprint(new).text, "what counts is the code that runs"


def test_comments_formatting_and_docstrings_do_not_count(project: Callable[[dict[str, str]], Any]) -> None:
    first = project({"evals": "def f(c, case):\n    return c + 1"})
    one = fingerprint(first).text
    second = project({"evals": "\n\ndef f(c,  case):\n    'Words.'\n    # more words\n    return (c + 1)"})
    assert fingerprint(second).text == one


def test_a_method_put_in_place_of_another_counts() -> None:
    class Patched(Eval):
        pass

    before = fingerprint(Patched(1)).text
    Patched.__call__ = lambda self, candidate, case: 0.0  # type: ignore[method-assign,assignment]
    assert fingerprint(Patched(1)).text != before


# -- what cannot be written down -----------------------------------------------------------------------------


class Client:
    def __init__(self, held: Any) -> None:
        self.held = held


class Raises:
    @property
    def fingerprint(self) -> str:
        raise RuntimeError("not today")

    def __call__(self, candidate: Any, case: Case) -> float:
        return 0.0


def _generator() -> Iterator[int]:
    yield 1


UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "a lock": (lambda: Eval(Client(threading.Lock())), "evaluate.k.held"),
    "an open file": (lambda: Eval(Path(__file__).open()), "evaluate.k"),  # noqa: SIM115
    "a thread": (lambda: Eval(threading.Thread()), "evaluate.k"),
    "a socket": (lambda: Eval(socket.socket()), "evaluate.k"),
    "a generator": (lambda: closure(_generator()), "evaluate.k"),
    "an iterator": (lambda: Eval(iter([1, 2])), "evaluate.k"),
    "an opaque object in a list": (lambda: Eval([1, threading.Lock()]), "evaluate.k[1]"),
    "a lock in a partial": (lambda: functools.partial(three, threading.Lock()), "evaluate.args[0]"),
    "a lock in a set": (lambda: Eval({threading.Lock()}), "evaluate.k"),
    "a lock inside an object of a library": (lambda: Eval(threading.Condition()), "evaluate.k"),
    "a fingerprint that raises": (Raises, "evaluate.fingerprint"),
    "settings of its own that are unknown": (lambda: Settings(Unknown("the weather")), "evaluate.k"),
}


@pytest.mark.parametrize(("make", "path"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_fingerprint_of_what_cannot_be_written_down_is_unknown(make: Callable[[], Any], path: str) -> None:
    evaluate = make()
    assert list(fingerprint(evaluate).unknown) == [path]
    if hasattr(getattr(evaluate, "k", None), "close"):
        evaluate.k.close()


class Hostile:
    """Everything that can raise does, and says so to the list it was given."""

    def __init__(self, called: list[str]) -> None:
        object.__setattr__(self, "called", called)

    def __call__(self, candidate: Any, case: Case) -> float:
        return 0.0

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "called").append(name)
        raise RuntimeError(name)

    __eq__ = __hash__ = __repr__ = __reduce__ = __len__ = __iter__ = __bool__ = __setattr__ = __getattribute__  # type: ignore

    @property
    def result(self) -> int:
        raise RuntimeError("evaluated")


def test_taking_a_fingerprint_calls_nothing_of_the_objects() -> None:
    called: list[str] = []
    found = fingerprint(Hostile(called))
    assert called == [] and not found.unknown
    assert fingerprint(Eval([Hostile(called), {Hostile: 1}])).text and called == []


# -- what the evaluator changes itself is no setting ---------------------------------------------------------

SEEN: list[Any] = []
CACHE: dict[Any, Any] = {}
COUNT = 0


def counting(candidate: Any, case: Case) -> float:
    global COUNT
    COUNT += 1
    SEEN.append(candidate)
    CACHE[candidate] = COUNT
    return 0.0


class Counting:
    shared: ClassVar[dict[Any, Any]] = {}

    def __init__(self) -> None:
        self.calls, self.log, self.k = 0, [], 3
        self.client: Any = None

    def __call__(self, candidate: Any, case: Case) -> float:
        self._count(candidate)
        self.client = threading.Lock()
        return float(self.table[0])

    def _count(self, candidate: Any) -> None:
        self.calls += 1
        self.log.append(candidate)
        self.shared[candidate] = 1

    @functools.cached_property
    def table(self) -> list[int]:
        return [self.k, random.randrange(10**9)]


def counting_closure() -> Any:
    calls, seen = 0, []

    def bump() -> None:
        nonlocal calls
        calls += 1

    def evaluate(candidate: Any, case: Case) -> float:
        bump()
        seen.append(calls)
        return 0.0

    return evaluate


@pytest.mark.parametrize("evaluate", [counting, Counting(), counting_closure(), Counting().__call__])
def test_counters_and_caches_of_an_evaluator_do_not_change_its_fingerprint(evaluate: Any) -> None:
    before = fingerprint(evaluate)
    evaluate(1, Case("0"))
    assert fingerprint(evaluate) == before and not before.unknown


# -- secrets -------------------------------------------------------------------------------------------------


def test_no_secret_is_in_a_fingerprint() -> None:
    held = Client({"api_key": "hunter2", "url": "https://me:hunter2@host/", "ok": 1, "tokens": ["hunter2"]})
    held.password, held.plain = "hunter2", "sk-hunter2"  # type: ignore[attr-defined]
    first = fingerprint(Eval(held))
    assert "hunter2" not in str(first)
    held.password = "other"  # type: ignore[attr-defined]
    assert fingerprint(Eval(held)).text != first.text


def test_the_key_of_a_model_does_not_count() -> None:
    asked = model("openai/gpt-5", key="one")
    assert fingerprint(Eval(asked)).text == fingerprint(Eval(replace(asked, key="two"))).text


def test_a_model_is_named_where_it_was_changed_and_an_earlier_record_of_it_still_counts() -> None:
    names = ("anthropic/claude-haiku-4-5", "anthropic/claude-haiku-5-5")
    before, after = (Identity.of(study(Eval(model(name, key="one")))) for name in names)
    said = str(after.changes(before.record).refused)
    assert all(f"{name}@https://" in said for name in names)
    text = before.record["parts"]["evaluate"]["evaluate.k"]
    strategy = replace(before.prints["strategy"], parts={"strategy._writer": text})
    now = replace(before, prints={**before.prints, "strategy": strategy})
    parts = {**before.record["parts"], "strategy": {"strategy._writer": f"#{hashed(text)[:12]}"}}
    assert not now.changes({**before.record, "parts": parts}).refused
    secret = types.SimpleNamespace(fingerprint=f"https://me:hunter2@{'host' * 15}/")
    assert "hunter2" not in str(fingerprint(Eval(secret)))


# -- runs ----------------------------------------------------------------------------------------------------


def study(evaluate: Any, **more: Any) -> Study[Any]:
    return Study(**{"strategy": Sweep([3]), "evaluate": evaluate} | more)


@pytest.mark.slow
def test_another_k_is_not_answered_from_the_ledger_of_the_first(tmp_path: Path) -> None:
    for make in (Eval, closure, Slots, Data, lambda k: functools.partial(three, k), lambda k: Eval(k).method):
        ledger = tmp_path / f"{id(make)}.db"
        best = [
            study(make(k)).run(ledger=ledger, run=run, reuse="ledger") for run, k in (("a", 1), ("b", 10), ("c", 10))
        ]
        assert [run.best.score for run in best if run.best] == [3.0, 30.0, 30.0]
        assert [run.progress.reused for run in best] == [0, 0, 1]


def test_reuse_across_runs_is_refused_where_the_fingerprint_is_unknown(tmp_path: Path) -> None:
    ledger = tmp_path / "a.db"
    evaluate = Eval(Client(threading.Lock()))
    with pytest.raises(ConfigError, match=r"evaluate\.k\.held \(_thread\.lock\).*attribute `fingerprint`.*dataclass"):
        study(evaluate).run(ledger=ledger, run="a", reuse="ledger")
    made = study(closure(1)).run(ledger=ledger, run="b").ledger.runs()
    assert [run.name for run in made] == ["b"], "no run was left behind"


def noticed(study: Study[Any], **how: Any) -> list[str]:
    notices: list[str] = []
    study.run(watch=lambda event: notices.append(event.message) if isinstance(event, Notice) else None, **how)
    return notices


@dataclass(frozen=True)
class Locked:
    k: int
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, candidate: Any, case: Case) -> float:
        return float(candidate * self.k)


def test_a_resume_with_an_unknown_fingerprint_warns_and_names_the_attribute(tmp_path: Path) -> None:
    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    assert noticed(study(Locked(1)), **how) == [], "the first part of a run has nothing to be compared with"
    [notice] = noticed(study(Locked(1)), **how)
    assert "evaluate.lock (_thread.lock)" in notice and "`fingerprint`" in notice
    with pytest.raises(ReplayDivergence, match=r"evaluate\.k was 1, is 2"):
        study(Locked(2)).run(**how)


@pytest.mark.parametrize("executor", ["inline", "threads:2"])
def test_an_evaluator_that_was_used_continues_its_run_in_the_same_process(executor: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    generator, client = random.Random(1), concurrent.futures.ThreadPoolExecutor(1)

    def draw(candidate: Any, case: Case) -> float:
        return generator.random() + next(client.map(abs, [candidate]))

    for trials in (1, 2, 2, 3):
        assert Study(Sweep([1, 2, 2]), draw, stop=MaxTrials(trials)).run(executor, **how).progress.told == trials
    assert Study(Sweep([1, 2, 2]), draw).run(**how).progress.reused == 1
    generator.seed(7)
    with pytest.raises(ReplayDivergence, match=r"evaluate\.generator was"):
        Study(Sweep([1, 2, 2]), draw).run(**how)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (Eval(1), Eval(10), r"evaluate\.k was 1, is 10"),
        (closure(1), closure(10), r"evaluate\.k was 1, is 10"),
        (Eval([1] * 99), Eval([2] * 99), r"evaluate\.k was #\w{12}, is #\w{12}"),
        (Eval({"deep": Data(1)}), Eval({"deep": Data(2)}), r"evaluate\.k\.deep\.k was 1, is 2"),
        (Eval(1), Inherits(1), r"evaluate was 'test_fingerprint.Eval', is 'test_fingerprint.Inherits'"),
        (one_line(1), one_line(10), r"the code of test_fingerprint.one_line.<locals>.<lambda> changed"),
        (named("v1"), named("v2"), r"evaluate was 'v1', is 'v2'"),
    ],
)
def test_a_resume_with_another_evaluator_names_what_changed(
    before: Any, after: Any, named: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    study(before).run(**how)
    with pytest.raises(ReplayDivergence, match=named):
        study(after).run(**how)
    study(before).run(**how)
    assert study(after).run(**how, accept_changes=True).progress.told == 1


SPACE = Space(x=Float(0, 1))


def score(candidate: Any, case: Case) -> float:
    return float(candidate["x"])


def low(scores: Any, share: float = 0.5) -> float:
    return float(min(scores) * share)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"strategy": Genetic(SPACE, population=4, mutation_rate=0.5)}, r"strategy\._rate\.\w+ was 0\.2, is 0\.5"),
        ({"strategy": Genetic(SPACE, population=4, tournament=2)}, r"strategy\..* was 3, is 2"),
        ({"strategy": Random(SPACE)}, "strategy was 'Genetic', is 'Random'"),
        ({"schedule": Racing(error=0.2)}, r"schedule\.error was 0\.05, is 0\.2"),
        ({"schedule": Halving()}, "schedule was 'Racing', is 'Halving'"),
        ({"aggregate": functools.partial(low, share=0.25)}, r"aggregate\.share was 0\.5, is 0\.25"),
    ],
)
def test_a_changed_setting_of_a_strategy_schedule_or_fold_is_refused_by_name(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    def search(**change: Any) -> Study[Any]:
        given = {
            "strategy": Genetic(SPACE, population=4),
            "schedule": Racing(),
            "aggregate": functools.partial(low, share=0.5),
        }
        return study(score, **given | {"cases": range(2), "window": 4} | change)

    from fanfold import MaxTrials

    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    search(stop=MaxTrials(6)).run(**how)
    with pytest.raises(ReplayDivergence, match=named):
        search(stop=MaxTrials(8), **change).run(**how, accept_changes=True)
    assert noticed(search(stop=MaxTrials(8)), **how) == [], "another stopping rule is no change"


class Draws(Random):
    """A strategy that keeps what cannot be written down."""

    def __init__(self, held: Any) -> None:
        super().__init__(SPACE)
        self.held = held

    def __deepcopy__(self, memo: Any) -> Draws:
        return Draws(self.held)


def test_a_strategy_that_cannot_be_written_down_resumes_with_a_notice(tmp_path: Path) -> None:
    from fanfold import MaxTrials

    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    noticed(study(score, strategy=Draws(threading.Lock()), stop=MaxTrials(2)), **how)
    [notice] = noticed(study(score, strategy=Draws(threading.Lock()), stop=MaxTrials(3)), **how)
    assert "strategy.held (_thread.lock)" in notice


def test_a_random_setting_of_a_strategy_is_named_with_what_to_do_about_it(tmp_path: Path) -> None:
    from fanfold import MaxTrials

    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    study(score, strategy=Draws("odd-1"), stop=MaxTrials(2)).run(**how)
    with pytest.raises(ReplayDivergence, match=r"strategy\.held was 'odd-1', is 'odd-2'.*random name.*`fingerprint`"):
        study(score, strategy=Draws("odd-2"), stop=MaxTrials(3)).run(**how)


class Budgeted(Sweep[Any]):
    """A strategy that uses up its setting; a run uses a copy, so what the study holds is what was given."""

    def __init__(self, left: int) -> None:
        super().__init__(range(9))
        self.left = left

    def ask(self, n: int) -> list[Any]:
        asked = super().ask(min(n, self.left))
        self.left -= len(asked)
        return asked


def test_a_setting_that_a_strategy_uses_up_counts(tmp_path: Path) -> None:
    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    study(Eval(1), strategy=Budgeted(2)).run(**how)
    assert study(Eval(1), strategy=Budgeted(2)).run(**how).progress.told == 2
    with pytest.raises(ReplayDivergence, match=r"strategy\.left was 2, is 3"):
        study(Eval(1), strategy=Budgeted(3)).run(**how)


def test_a_changed_conclusion_is_said_and_not_refused(tmp_path: Path) -> None:
    from fanfold.summary import Summary

    def conclusion(words: str) -> Any:
        async def conclude(run: Any, go: Any) -> Summary:
            return Summary(words)

        return conclude

    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    study(Eval(1), conclude=conclusion("one")).run(**how)
    assert noticed(study(Eval(1), conclude=conclusion("one")), **how) == []
    [notice] = noticed(study(Eval(1), conclude=conclusion("two")), **how)
    assert "conclude.words was 'one', is 'two'" in notice


def test_a_run_of_version_0_1_0_compares_what_it_kept(tmp_path: Path) -> None:
    import sqlite3

    from fanfold.encoding import encode

    how: dict[str, Any] = {"ledger": tmp_path / "a.db", "run": "a"}
    study(Eval(1)).run(**how).ledger.close()
    old = {key: value for key, value in study(Eval(1)).identity.items() if key not in ("parts", "version")}
    old |= {"evaluate": f"{__name__}.Eval@0123456789ab(Eval)", "fold": "statistics.fmean@0123456789ab"}
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("UPDATE run SET identity = ?", (encode(old),))
    [notice] = noticed(study(Eval(10)), **how)
    assert "0.1.0" in notice and "settings" in notice
    for other, named in ((closure(1), "evaluate was"), (Eval(1), "seed was")):
        with pytest.raises(ReplayDivergence, match=named):
            study(other, seed=int(other is not closure)).run(**how)


# -- the same in every process, and quick --------------------------------------------------------------------

IDENTITIES = """
import importlib, sys
from fanfold.encoding import encode
from fanfold.identity import Identity
for name, settings in (
    ("functions", {}), ("prompts", {}), ("prompts", {"model": ("simulated/a", "simulated/b"), "steady": True}),
    ("critic", {"feedback": "simulated", "model": "simulated/critic"}), ("secrets", {}),
    ("rl", {}), ("workflow", {}), ("workflow", {"mode": "ppo"}), ("neuro", {}),
):
    module = importlib.import_module(f"fanfold.studies.{name}")
    made = Identity.of(module.plugin.build(module.plugin.config(**settings)))
    print(name, made.unknown(*made.prints) or "known", encode(made.record))
"""


@pytest.mark.slow
def test_every_study_has_a_known_fingerprint_that_is_the_same_in_every_process(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", IDENTITIES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, folder in (("1", tmp_path), ("2", ROOT))
    ]
    first, second = (each.communicate()[0].splitlines() for each in started)
    assert [line.split()[:2] for line in first] == [
        [name, "known"]
        for name in ("functions", "prompts", "prompts", "critic", "secrets", "rl", "workflow", "workflow", "neuro")
    ]
    assert first == second
    assert str(ROOT) not in str(first) and " at 0x" not in str(first)


@pytest.mark.parametrize(
    ("study", "first", "other", "named"),
    [
        ("prompts", {"temperature": 0.0}, {"temperature": 0.5}, "temperature was the default, is 0.5"),
        ("prompts", {}, {"model": ("simulated/other",)}, "evaluate.model was"),
        (
            "prompts",
            {"search": "genetic"},
            {"search": "genetic", "mutation_rate": 0.123},
            "mutation_rate was the default, is 0.1",
        ),
        ("prompts", {}, {"max_examples": 3}, "max_examples was the default, is 3"),
        ("workflow", {}, {"alignment_lambda": 0.123}, "is 0.123"),
        ("functions", {}, {"population": 10}, "strategy._population was 40, is 10"),
        ("functions", {}, {"function": "ackley"}, "evaluate was 'fanfold.functions.rastrigin/1'"),
        ("neuro", {}, {"batch_size": 32}, "batch_size was 64, is 32"),
        ("neuro", {}, {"dataset": "mnist-5000"}, "dataset was 'digits', is 'mnist-5000'"),
    ],
)
def test_a_changed_setting_of_a_study_is_named(
    study: str, first: dict[str, Any], other: dict[str, Any], named: str
) -> None:
    module = importlib.import_module(f"fanfold.studies.{study}")
    before, after = (Identity.of(module.plugin.build(module.plugin.config(**settings))) for settings in (first, other))
    assert named in str(after.changes(before.record).refused)


@pytest.mark.slow
def test_a_client_is_the_same_after_it_was_used() -> None:
    """So a run that began with a client in use is continued by a process whose client is new."""
    httpx, openai, requests = (pytest.importorskip(name) for name in ("httpx", "openai", "requests"))

    class Page(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Set-Cookie", "seen=1")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        async_client = openai.AsyncOpenAI(base_url=url, api_key="x")
        for client, ask in (
            (httpx.Client(), lambda client: client.get(url)),
            (requests.Session(), lambda client: client.get(url)),
            (openai.OpenAI(base_url=url, api_key="x"), lambda client: client.get("/x", cast_to=object)),
            (async_client, lambda client: asyncio.run(client.get("/x", cast_to=object))),
        ):
            new = fingerprint(functools.partial(score, client=client)).text
            ask(client)
            assert fingerprint(functools.partial(score, client=client)).text == new, client
        server.shutdown()
    named, other = (functools.partial(score, client=httpx.Client(base_url=url)) for url in ("http://a", "http://b"))
    assert fingerprint(named).text != fingerprint(other).text


def test_a_space_of_gymnasium_is_the_same_after_it_was_sampled_from() -> None:
    """Its generator is seeded at random at the first use, so that no later process would recognise it."""
    spaces = pytest.importorskip("gymnasium").spaces

    def evaluator(space: Any) -> Any:
        return lambda candidate, case: float(space.contains(candidate))

    def space(n: int) -> Any:
        return spaces.Dict({"a": spaces.Discrete(n), "b": spaces.Tuple([spaces.Box(0, n, (2,))])})

    sampled = space(3)
    sampled.sample()
    assert fingerprint(evaluator(sampled)).text == fingerprint(evaluator(space(3))).text
    assert fingerprint(evaluator(space(4))).text != fingerprint(evaluator(space(3))).text


def test_the_work_of_a_fingerprint_is_small_and_grows_only_with_its_objects() -> None:
    def work(objects: int) -> int:
        """Function calls, which do not depend on the machine; ten thousand of them take a few milliseconds."""
        evaluate, calls = Eval([Eval(number) for number in range(objects)]), 0

        def count(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        fingerprint(evaluate)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            fingerprint(evaluate)
        finally:
            sys.setprofile(before)
        return calls

    none, hundred, two_hundred = work(0), work(100), work(200)
    assert work(20) < 20_000
    assert two_hundred - hundred < 1.2 * (hundred - none)


def test_a_sweep_that_has_grown_continues_its_run(tmp_path: Path) -> None:
    """Its fingerprint leaves the list out, because replay compares every candidate."""
    evaluated: list[int] = []

    def evaluate(candidate: int, case: Case) -> float:
        evaluated.append(candidate)
        return float(candidate)

    Study(Sweep([1, 2]), evaluate).run(ledger=tmp_path / "a.db", run="one")
    run = Study(Sweep([1, 2, 3]), evaluate).run(ledger=tmp_path / "a.db", run="one")
    assert run.progress.told == 3 and evaluated == [1, 2, 3]
    with pytest.raises(ReplayDivergence):
        Study(Sweep([1, 5, 3]), evaluate).run(ledger=tmp_path / "a.db", run="one")
