"""Quick evaluations travel together and large data once; each evaluation stays an affair of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, ConfigError, Failed, Ok, ReplayDivergence, Study, Sweep
from fanfold.attempt import attempt
from fanfold.errors import PlaceLost, WorkerDied
from fanfold.executors import Executor, Processes, Ray, make, parcels, processes
from fanfold.executors.local_process import LocalProcess
from fanfold.executors.pace import MOST, CallPace
from fanfold.executors.trips import Reply, Trip, Trips
from fanfold.executors.worker_process import WorkerProcess
from fanfold.models import model
from fanfold.models.model import Model

#: Seconds after which a test has failed rather than waited.
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One Ray for the whole module: starting one takes seconds."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=2, object_store_memory=80 * 2**20, **quiet)
    yield
    ray.shutdown()


@pytest.fixture(params=["processes:2", pytest.param("ray:2", marks=pytest.mark.slow)])
def far(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("ray"):
        request.getfixturevalue("cluster")
    return str(request.param)


# ---------------------------------------------------------------- how many travel together


@pytest.mark.parametrize(
    ("seconds", "together", "line"), [(1e-5, MOST, MOST), (0.005, 10, 10), (0.04, 1, 2), (0.5, 1, 2), (5.0, 1, 1)]
)
def test_about_50_ms_of_work_travel_together(seconds: float, together: int, line: int) -> None:
    pace = CallPace()
    assert (pace.together, pace.line) == (1, 1), "nothing is known yet"
    for _ in range(3):
        pace.took(seconds)
    assert (pace.together, pace.line) == (together, line)


def quick(number: int) -> int:
    return -number


def wait_for(path: str) -> str:
    Path(path).with_suffix(".begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


def test_quick_calls_are_more_than_the_slots_and_come_back_in_any_number(far: str) -> None:
    async def check(executor: Executor) -> None:
        assert executor.depth == executor.slots == 2
        for _ in range(3):
            assert await asyncio.gather(*(executor.run(quick, n) for n in range(100))) == [-n for n in range(100)]
        assert executor.depth >= 2 * executor.slots

    asyncio.run(within(far, check))


@dataclass(frozen=True)
class Patient:
    """One candidate waits until all others were evaluated."""

    folder: str
    others: int

    def __call__(self, candidate: int, case: Case) -> float:
        Path(self.folder, str(candidate)).touch()
        end = time.monotonic() + PATIENCE
        while (count := sum(1 for _ in Path(self.folder).iterdir())) <= self.others and time.monotonic() < end:
            if candidate != 70:
                return 0.0
            time.sleep(0.02)
        return float(count)


def test_evaluations_behind_a_long_one_are_made_elsewhere(far: str, tmp_path: Path) -> None:
    run = Study(Sweep(range(120)), Patient(str(tmp_path), 119), window=120).run(far)
    assert max(result.score or 0.0 for result in run.results() if result.candidate == 70) == 120.0


def either(number: int, gate: str) -> int:
    if gate:
        wait_for(gate)
    return number


async def within(spec: str, check: Callable[[Executor], Any]) -> None:
    async with asyncio.timeout(PATIENCE), make(spec) as executor:
        await check(executor)


def test_the_time_of_an_evaluation_is_that_at_its_worker(tmp_path: Path) -> None:
    began = time.monotonic()
    run = Study(Sweep(range(150)), size_of, [Case("only", "x")], window=150).run(
        "processes:1", ledger=tmp_path / "l.db"
    )
    elapsed = time.monotonic() - began
    with sqlite3.connect(tmp_path / "l.db") as db:
        seconds = [row[0] for row in db.execute("SELECT seconds FROM evaluation ORDER BY started")]
    assert run.progress.evaluations == len(seconds) == 150
    # The first one is measured here, with the start of its worker; the wait of the others would add up to far more.
    assert sum(sorted(seconds)[:-1]) < elapsed


# ---------------------------------------------------------------- one that fails, fails alone


@dataclass(frozen=True)
class Perilous:
    """Notes that it begins; some candidates raise, hang or kill their worker."""

    log: str
    trouble: Mapping[int, str]

    def __call__(self, candidate: int, case: Case) -> float:
        with Path(self.log).open("a") as log:
            log.write(f"{candidate}\n")
        match self.trouble.get(candidate):
            case "raise":
                raise LookupError("nothing there")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
        return candidate * 2 + case.rng().random()


@pytest.mark.slow
def test_one_that_raises_hangs_or_kills_its_worker_fails_alone(far: str, tmp_path: Path) -> None:
    trouble = {120: "raise", 140: "die", 160: "hang"}
    evaluate = Perilous(str(tmp_path / "log"), trouble)
    calm = Perilous(str(tmp_path / "calm"), {})
    expected = Study(Sweep(range(200)), calm, seed=1, window=100).run("inline").results()
    results = list(Study(Sweep(range(200)), evaluate, seed=1, window=100, timeout=1.5).run(far).results())
    kinds = {r.candidate: o.kind for r in results for o in r.outcomes.values() if isinstance(o, Failed)}
    assert kinds == {120: "error", 140: "worker-died", 160: "timeout"}
    wanted = {r.candidate: r.score for r in expected if r.candidate not in trouble}
    assert {r.candidate: r.score for r in results if r.candidate not in trouble} == wanted
    began = Counter(int(line) for line in (tmp_path / "log").read_text().split())
    if far.startswith("processes"):
        # What waited behind the culprit had not begun, and what was before it had come home.
        assert began == Counter(range(200)) + Counter([140])
    else:  # a worker that dies takes along what it did in the last 0.1 s
        assert began[160] <= 2 and sum(began.values()) < 200 + 2 * MOST


def test_a_worker_that_is_killed_costs_the_calls_in_its_line_nothing(tmp_path: Path) -> None:
    async def check(executor: Executor) -> None:
        await asyncio.gather(*(executor.run(either, n, "") for n in range(50)))
        gate = tmp_path / "gate"
        calls = [asyncio.create_task(executor.run(either, n, str(gate) if n == 0 else "")) for n in range(30)]
        while not gate.with_suffix(".begun").exists():
            await asyncio.sleep(0.01)
        calls[0].cancel()
        assert await asyncio.gather(*calls[1:]) == list(range(1, 30))

    asyncio.run(within("processes:1", check))


def test_where_a_worker_cannot_be_started_the_others_do_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[LocalProcess]()

    def only_one(*arguments: Any) -> LocalProcess:
        if started:
            raise PlaceLost("no room for another worker")
        started.append(LocalProcess(*arguments))
        return started[0]

    monkeypatch.setattr(processes, "LocalProcess", only_one)
    monkeypatch.setattr(processes, "PATIENCE", 3600.0)

    async def check(executor: Executor) -> None:
        answers = [await executor.run(quick, n) for n in range(5)]
        for _ in range(3):
            answers += await asyncio.gather(*(executor.run(quick, n) for n in range(40)), return_exceptions=True)
        lost = [answer for answer in answers if isinstance(answer, PlaceLost)]
        assert len(lost) == 1, "said once, and not tried again for each call"
        assert sum(isinstance(answer, int) for answer in answers) == 5 + 3 * 40 - len(lost)

    asyncio.run(within("processes:2", check))


class Road:
    """Where trips end well, except those with a call that kills, loses or silences its worker."""

    def __init__(self) -> None:
        self.trips: list[list[bytes]] = []
        self.cancelled: list[list[bytes]] = []

    async def __call__(self, trip: Trip) -> list[Reply]:
        bodies = [call.args for call in trip.calls]
        self.trips.append(bodies)
        trip.report([], len(bodies))
        await asyncio.sleep(0)
        if b"lose" in bodies:
            raise PlaceLost("the node is gone")
        if b"die" in bodies:
            raise WorkerDied("killed")
        try:
            await asyncio.sleep(3600 if b"hang" in bodies else 0)
        except asyncio.CancelledError:
            self.cancelled.append(bodies)
            raise
        return [(b"v", body.upper(), 10) for body in bodies]


class Line(Road):
    """A worker with several trips in line: when it dies, it takes all of them with it."""

    def __init__(self) -> None:
        super().__init__()
        self._here: list[list[bytes]] = []

    async def __call__(self, trip: Trip) -> list[Reply]:
        self._here.append(bodies := [call.args for call in trip.calls])
        self.trips.append(bodies)
        trip.report([], len(bodies))
        try:
            await asyncio.sleep(0.01)
            if any(b"die" in others for others in self._here):
                await asyncio.sleep(0.01)
                raise WorkerDied("killed")
            return [(b"v", body.upper(), 10) for body in bodies]
        finally:
            self._here.remove(bodies)


def travel(
    words: Sequence[bytes], seconds: float | None = None, way: type[Road] = Road, slots: int = 1
) -> tuple[Road, dict[bytes, Any]]:
    """Make these calls at once, after a quick one; gives the trips they made, and their replies or errors."""

    async def made() -> tuple[Road, dict[bytes, Any]]:
        road = way()
        trips = Trips(slots, road, lines=way is Line)
        trips.reports = True
        await trips.run(quick, b"first")
        road.trips.clear()
        calls = [attempt(lambda word=word: trips.run(quick, word), timeout=seconds) for word in words]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        await trips.close()
        return road, dict(zip(words, replies, strict=True))

    return asyncio.run(made())


def test_who_travels_with_one_that_kills_the_worker_is_tried_alone() -> None:
    road, replies = travel([b"a", b"die", b"b"])
    assert isinstance(replies.pop(b"die"), WorkerDied)
    assert replies == {b"a": (b"v", b"A"), b"b": (b"v", b"B")}
    assert road.trips == [[b"a", b"die"], [b"b"], [b"a"], [b"die"]]


def test_who_travels_with_one_that_loses_its_place_is_tried_alone() -> None:
    _, replies = travel([b"a", b"lose", b"b", b"c"])
    assert [type(reply) for reply in replies.values()] == [tuple, PlaceLost, tuple, tuple]


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_who_is_in_line_behind_one_that_kills_the_worker_is_never_blamed(seconds: float | None) -> None:
    words = [b"a", b"die", *(b"%d" % n for n in range(30))]
    road, replies = travel(words, seconds, Line, slots=4)
    assert isinstance(replies.pop(b"die"), WorkerDied)
    assert replies == {word: (b"v", word.upper()) for word in words if word != b"die"}
    assert sum(b"die" in trip for trip in road.trips) == 2, "among others, and as the only suspect"


def test_calls_with_time_limits_are_on_the_clock_only_when_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.executors.trips.SPLIT", 0.05)
    road, replies = travel([b"a", b"hang", b"b", b"c"], seconds=0.2)
    assert isinstance(replies.pop(b"hang"), TimeoutError)
    assert replies == {word: (b"v", word.upper()) for word in (b"a", b"b", b"c")}
    assert road.cancelled == [[b"a", b"hang"], [b"hang"]]


# ---------------------------------------------------------------- calls belong to their evaluation


@dataclass(frozen=True)
class Asking:
    """Every third candidate asks a model, some of them twice."""

    asked: Model

    def __call__(self, candidate: int, case: Case) -> Ok:
        texts = [
            self.asked.generate_sync(f"question {candidate}.{n}", max_tokens=8, reasoning_effort="none").text
            for n in range(candidate % 3)
        ]
        return Ok(float(candidate), texts)


def test_a_call_is_paid_by_the_evaluation_that_made_it(far: str, tmp_path: Path) -> None:
    books = []
    for place in ("threads:1", far):
        ledger = tmp_path / f"{place[:4]}.db"
        study = Study(Sweep(range(60)), Asking(model("simulated/gpt-6-luna")), window=60)
        costs = [(r.number, r.cost, r.outcomes) for r in study.run(place, ledger=ledger).results()]
        with sqlite3.connect(ledger) as db:
            calls = db.execute("SELECT trial, length(keys) FROM cell_call ORDER BY trial").fetchall()
        books.append((costs, calls))
    assert books[0] == books[1]
    assert {trial for trial, _ in books[0][1]} == {n for n in range(60) if n % 3}


# ---------------------------------------------------------------- data once per worker


def size_of(candidate: int, case: Case) -> Ok:
    return Ok(float(len(case.data) + candidate), {"worker": os.getpid(), "object": id(case.data)})


@dataclass
class Weighed:
    """How many bytes were sent to workers."""

    total: int = 0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Weighed:
    weighed = Weighed()
    send = WorkerProcess._send

    def weigh(self: WorkerProcess, kind: bytes, number: int, body: bytes) -> None:
        weighed.total += len(body)
        send(self, kind, number, body)

    monkeypatch.setattr(WorkerProcess, "_send", weigh)
    return weighed


def test_a_large_case_is_sent_to_each_worker_once(sent: Weighed) -> None:
    cases = [Case("large", "x" * 1_000_000), Case("small", "y")]
    places = ("inline", "processes:2")
    first, second = (
        list(Study(Sweep(range(40)), size_of, cases, seed=1, window=40).run(place).results()) for place in places
    )
    assert [result.score for result in first] == [result.score for result in second]
    assert 1_000_000 < sent.total < 2 * 1_000_000 + 200_000
    notes = [outcome.data for result in second if isinstance(outcome := result.outcomes["large"], Ok)]
    held = {(note["worker"], note["object"]) for note in notes}
    assert len(notes) == 40 and len(held) == len({worker for worker, _ in held}), "a worker has it twice"


@pytest.mark.slow
def test_a_large_case_is_put_into_a_cluster_once(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    put, sizes = ray.put, list[int]()

    def weigh(value: Any, **options: Any) -> Any:
        sizes.append(len(value))
        return put(value, **options)

    monkeypatch.setattr(ray, "put", weigh)
    run = Study(Sweep(range(40)), size_of, [Case("large", "x" * 1_000_000)], window=40).run("ray:2")
    assert [r.score for r in run.results()] == [1_000_000.0 + n for n in range(40)]
    assert sum(size > 1_000_000 for size in sizes) == 1


def test_a_worker_keeps_a_bounded_amount_of_what_it_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def send(request: parcels.Fetch) -> Future[bytes]:
        asked.append(request.name)
        reply = Future[bytes]()
        reply.set_result(parcels.dumps(request.name * 1000))
        return reply

    monkeypatch.setattr(parcels, "home", lambda: send)
    monkeypatch.setattr(parcels, "KEPT", 2500)
    monkeypatch.setattr(parcels, "_FETCHED", {})
    for name in ("a", "b", "a", "c", "a", "b"):
        assert parcels.fetched(name) == name * 1000
    assert asked == ["a", "b", "c", "b"], "the one that was not used for longest made room"


# ---------------------------------------------------------------- what a study shares


class Index:
    """Large, and the same for all evaluations."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)


def look_up(candidate: int, case: Case, *, index: Index, factor: float) -> float:
    return len(index.words[candidate]) * factor


class InBlocks:
    block_size = 8

    def __call__(self, candidate: int, case: Case, index: Index) -> float:
        return float(len(index.words[candidate]))

    def evaluate_block(self, cells: Sequence[tuple[int, Case]], index: Index) -> list[float]:
        return [float(len(index.words[candidate])) for candidate, _ in cells]


WORDS = ["a" * n for n in range(500)]


def test_what_a_study_shares_reaches_every_evaluation_and_each_worker_once(sent: Weighed) -> None:
    shared = {"index": Index(WORDS), "factor": 2.0}
    for place in ("inline", "threads:2", "processes:2"):
        run = Study(Sweep(range(40)), look_up, shared=shared, window=40).run(place)
        assert [r.score for r in run.results()] == [2.0 * n for n in range(40)]
    size = sum(map(len, WORDS))
    assert size < sent.total < 2 * size + 150_000


@pytest.mark.slow
def test_what_a_study_shares_reaches_blocks_and_clusters(cluster: None) -> None:
    for place in ("inline", "ray:2"):
        run = Study(Sweep(range(40)), InBlocks(), shared={"index": Index(WORDS)}, window=40).run(place)
        assert [r.score for r in run.results()] == [float(n) for n in range(40)]


def test_a_run_does_not_continue_with_other_shared_data(tmp_path: Path) -> None:
    ledger = tmp_path / "runs.db"

    def study(words: Sequence[str]) -> Study[int]:
        return Study(Sweep(range(3)), look_up, shared={"index": Index(words), "factor": 1.0})

    study(WORDS).run("inline", ledger=ledger, run="a")
    study(WORDS).run("inline", ledger=ledger, run="a")
    with pytest.raises(ReplayDivergence, match=r"evaluate\.index"):
        study(WORDS[::-1]).run("inline", ledger=ledger, run="a")


def test_what_cannot_be_shared_is_refused_before_the_first_evaluation() -> None:
    with pytest.raises(ConfigError, match=r"shared has indices, and evaluate must take"):
        Study(Sweep(range(3)), size_of, shared={"indices": []})
    with pytest.raises(ConfigError, match="a dict of names and values"):
        Study(Sweep(range(3)), size_of, shared=[1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"shared\.index \(_thread\.lock\)"):
        Study(Sweep(range(3)), look_up, shared={"index": threading.Lock(), "factor": 1.0}).run("inline")
    with pytest.raises(ConfigError, match=r"shared\['index'\] cannot be sent to a worker"):
        Study(Sweep(range(3)), look_up, shared={"index": Rooted(), "factor": 1.0}).run("processes:2")


class Rooted:
    """Equal to all others, and stays where it is."""

    fingerprint = "rooted"

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


def test_executors_say_what_they_can() -> None:
    assert make("async:5").depth == 5 and not make("threads:2").fetches
    assert Processes(3).depth == Ray(3).depth == 3 and Processes(3).fetches and Ray(3).fetches
