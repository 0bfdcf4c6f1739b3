"""Tests that can fail: changes the code a little, one change at a time, and sees whether a fast test notices.

    python tools/mutants.py                     the seeded sample; a table, the survivors, .mutants/results.json
    python tools/mutants.py --module fold       only the mutants of one module
    python tools/mutants.py --again             only those that survived last time

Every mutant is run in a copy of the working tree, which itself is never changed, against the tests that reach the
changed line, first the quick ones that are about it, until one fails.  A mutant that hangs or breaks the import is
killed as well.  The sample depends on the seed and on the code only: a change in one function leaves the sample of the
others as it is.

A busy machine kills nothing: a test counts when it fails twice in a row, and a test that hangs is run on the unchanged
code at once, which must pass, and then on the mutant again with more time than that took.

Survivors that stay are listed with the reason in `tools/mutants_accepted.toml`.  Those that no test could notice are
marked `equivalent` there; the share is stated with and without them.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import reach
from mutations import Mutation, mutations, names_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/fanfold")
KEEP = ROOT / ".mutants"
ACCEPTED = Path(__file__).with_name("mutants_accepted.toml")
MODULES = (
    "search_loop",
    "dispatcher",
    "outbox",
    "work",
    "attempt",
    "calls",
    "replies",
    "flights",
    "ledger/journal",
    "ledger/commits",
    "limits/limiter",
    "limits/pace",
    "limits/known_rates",
    "limits/window",
    "schedules/racing",
    "schedules/halving",
    "models/batch/executor",
    "models/batch/journal",
    "models/batch/waves",
    "models/batch/protocol",
    "models/batch/lifecycle",
    "models/batch/recovery",
)
#: Where tests are looked for; of these, the fast ones, without the files that are about other modules, and with some
#: that `make check` leaves out (all whose name begins so).  A single test that takes long is left out in any case.
TESTS = ("tests/unit", "tests/models", "tests/faults", "tests/scale/test_workers.py")
NOT_ABOUT = tuple(
    f"tests/{name}.py"
    for name in (
        "models/test_http",
        "models/test_wire",
        "unit/test_config",
        "unit/test_encoding",
        "unit/test_executors",
        "unit/test_genetic",
        "unit/test_gp_ucb",
        "unit/test_space",
        "unit/test_stats",
        "unit/test_strategies",
    )
)
EXTRA = (
    "tests/models/test_batch",
    "tests/models/test_model",
    "tests/models/test_money",
    "tests/unit/test_halving",
    "tests/unit/test_ledger",
    "tests/unit/test_limits",
    "tests/unit/test_objective",
    "tests/unit/test_promises",
    "tests/unit/test_pruning",
    "tests/unit/test_racing",
    "tests/unit/test_remote",
    "tests/unit/test_study",
    "tests/unit/test_view",
    "tests/faults/test_calls_from_everywhere",
    "tests/faults/test_paid",
    "tests/faults/test_place",
    "tests/faults/test_poison",
    "tests/faults/test_waiting",
)
#: So many tests are tried first, by themselves: most mutants need no more, and few files are quick to collect.
FIRST = 8
#: No module has fewer mutants in the sample than this.
LEAST = 4
#: Seconds: the longest test that counts as fast, the tests of one mutant together, and one test that hangs.
SLOWEST, TOGETHER, HANGING = 4.0, 45.0, 30.0
#: Bytes that a process may map: a mutant that collects without end is stopped by this.
MEMORY = 8 << 30
ENOUGH = 0.85
Item = TypeVar("Item")
ACCEPTED_BY = ("module", "place", "text", "was", "now")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of one module, with a name that does not depend on line numbers."""

    module: str
    name: str
    mutation: Mutation

    @property
    def place(self) -> str:
        return f"{PACKAGE / self.module}.py:{self.mutation.line}"

    def change(self) -> str:
        was, now = (" ".join(text.split()) for text in (self.mutation.was, self.mutation.now))
        return f"{was}  ->  {now}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a mutant: `killed` by a test, `hung`, `broken` (no test could start), or `survived`."""

    mutant: Mutant
    outcome: str
    by: str | None
    tests: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        mutation = self.mutant.mutation
        return {
            "module": self.mutant.module,
            "line": mutation.line,
            "place": mutation.place,
            "text": mutation.text,
            "was": mutation.was,
            "now": mutation.now,
            "name": self.mutant.name,
            "outcome": self.outcome,
            "by": self.by,
            "tests": self.tests,
            "seconds": round(self.seconds, 1),
        }


# -- the sample ------------------------------------------------------------------------------------------------------


def all_mutants(modules: Iterable[str]) -> dict[str, list[Mutant]]:
    found: dict[str, list[Mutant]] = {}
    for module in modules:
        file = ROOT / PACKAGE / f"{module}.py"
        if not file.exists():
            sys.exit(f"{file} is not there: correct MODULES in tools/mutants.py")
        found[module] = [Mutant(module, name, each) for name, each in names_of(mutations(file.read_bytes()))]
    return found


def sample(found: dict[str, list[Mutant]], size: int, seed: int) -> list[Mutant]:
    """So many of them, from each module in proportion to its size; which ones, the seed decides for each by itself."""
    total = sum(map(len, found.values()))
    chosen: list[Mutant] = []
    for module, mutants in found.items():
        share = min(len(mutants), max(LEAST, -(-size * len(mutants) // total)))
        ranked = sorted(mutants, key=lambda each: hashlib.sha256(f"{seed}\t{module}\t{each.name}".encode()).digest())
        chosen += sorted(ranked[:share], key=lambda each: each.mutation.start)
    return chosen


# -- the tests that reach a line -------------------------------------------------------------------------------------


class Copy:
    """A copy of the working tree in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        ignored = shutil.ignore_patterns(".git", ".venv*", ".mutants", "__pycache__", ".*_cache", ".hypothesis", "*.db")
        shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
        (folder / "tools/sitecustomize.py").write_text("import reach\n\nreach.watch_child()\n")
        compiling = [sys.executable, "-m", "compileall", "-q", str(folder / "src"), str(folder / "tests")]
        subprocess.run(compiling, check=True, stdout=subprocess.DEVNULL)

    @property
    def current(self) -> Path:
        """The file that names the test under way."""
        return self.root / "current.txt"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REACH_", "PYTHON"))}
        path = os.pathsep.join((str(self.root / "src"), str(self.root / "tools")))
        return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", reach.CURRENT: str(self.current), **more}

    def change(self, module: str, source: bytes) -> None:
        file = self.root / PACKAGE / f"{module}.py"
        file.write_bytes(source)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def pytest(self, *args: str, limit: float, each: float | None = None, **more: str) -> tuple[int | None, str]:
        """Exit code (None: it, or one test for itself, did not end in time) and output of a run of the tests."""
        self.current.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "reach", *args]
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_bounded,
        ) as process:
            began = time.time()
            try:
                while time.time() < began + limit and (each is None or time.time() < self._since(began) + each):
                    try:
                        output, _ = process.communicate(timeout=2)
                        return process.returncode, output
                    except subprocess.TimeoutExpired:
                        pass
                return None, ""
            finally:
                _end_group(process.pid)

    def _since(self, began: float) -> float:
        """When the test under way began, or this run of the tests."""
        return self.current.stat().st_mtime if self.current.exists() else began


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def tests_that_reach(copies: Sequence[Copy]) -> dict[str, dict[str, Any]]:
    """Every fast test with its seconds and the lines it reaches; recorded once for this state of code and tests."""
    copy = copies[0]
    state = hashlib.sha256()
    for place in (*TESTS, str(PACKAGE)):
        path = copy.root / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            state.update(str(file.relative_to(copy.root)).encode() + b"\0" + file.read_bytes() + b"\0")
    state.update(repr((MODULES, TESTS, EXTRA, NOT_ABOUT)).encode())
    kept = KEEP / f"reach-{state.hexdigest()[:16]}.json"
    if not kept.exists():
        print("recording which tests reach which lines (once for this state of the code) ...", flush=True)
        tests: dict[str, dict[str, Any]] = {}
        side_by_side(copies, TESTS, lambda copy, place: tests.update(recorded(copy, place)))
        for old in KEEP.glob("reach-*.json"):
            old.unlink()
        kept.write_text(json.dumps(tests))
    tests = json.loads(kept.read_text())
    failing = [name for name, test in tests.items() if not test["passed"]]
    for name in failing:
        print(f"left out, it fails on the unchanged code: {name}")
    return {name: test for name, test in tests.items() if test["passed"] and test["seconds"] <= SLOWEST}


def recorded(copy: Copy, place: str) -> dict[str, dict[str, Any]]:
    """The tests of a folder or file, with their seconds and the lines they reach."""
    files = [str(copy.root / PACKAGE / f"{module}.py") for module in MODULES]
    result = copy.root / "reach.json"
    result.unlink(missing_ok=True)
    names = {reach.FILES: os.pathsep.join(files), reach.RESULT: str(result), reach.EXTRA: os.pathsep.join(EXTRA)}
    code, output = copy.pytest(place, *(f"--ignore={file}" for file in NOT_ABOUT), limit=3600, **names)
    if not result.exists():
        raise RuntimeError(f"{place} did not run to its end (exit code {code}):\n{output[-3000:]}")
    tests: dict[str, dict[str, Any]] = json.loads(result.read_text())
    for test in tests.values():
        test["lines"] = {_module(copy, file): lines for file, lines in test["lines"].items()}
    return tests


def side_by_side(copies: Sequence[Copy], items: Iterable[Item], do: Callable[[Copy, Item], None]) -> None:
    """Do something with every item, on as many copies at a time as there are; the first error ends it."""
    lock, left, failed = threading.Lock(), collections.deque(items), threading.Event()

    def work(copy: Copy) -> None:
        while not failed.is_set():
            with lock:
                if not left:
                    return
                item = left.popleft()
            try:
                do(copy, item)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(len(copies)) as pool:
        for future in [pool.submit(work, copy) for copy in copies]:
            future.result()


def _module(copy: Copy, file: str) -> str:
    return Path(file).relative_to(copy.root / PACKAGE).with_suffix("").as_posix()


def reaching(mutant: Mutant, tests: dict[str, dict[str, Any]]) -> list[str]:
    """The tests that reach a mutant, as many as fit into the time for one: first the quick ones that are about it."""
    first, last = mutant.mutation.lines
    ranked: list[tuple[float, str]] = []
    for name, test in tests.items():
        lines = test["lines"].get(mutant.module, ())
        if lines if mutant.mutation.at_import else any(first <= line <= last for line in lines):
            share = len(lines) / sum(map(len, test["lines"].values()))
            ranked.append((test["seconds"] / share**2, name))
    chosen: list[str] = []
    seconds = 0.0
    for _, name in sorted(ranked):
        seconds += tests[name]["seconds"]
        if chosen and seconds > TOGETHER:
            break
        chosen.append(name)
    return chosen


# -- running ---------------------------------------------------------------------------------------------------------


def judge(copy: Copy, mutant: Mutant, names: list[str], seconds: float) -> Verdict:
    started = time.monotonic()
    if not names:
        return Verdict(mutant, "survived", "no fast test reaches it", 0, 0.0)
    outcome, by = "survived", ""
    rounds = [names[:FIRST], names[FIRST:]]
    while rounds and outcome == "survived":
        now = rounds.pop(0)
        outcome, by = _tried(copy, mutant, now, seconds) if now else ("survived", "")
        if outcome == "late":  # once more, beside the unchanged code; if that explains it, the other tests decide
            outcome = "hung" if _hangs(copy, mutant, by) else "survived"
            rounds.insert(0, now[now.index(by) + 1 :] if by in now else [])
    killer = by if by and outcome != "survived" else None
    return Verdict(mutant, outcome, killer, len(names), time.monotonic() - started)


def _tried(copy: Copy, mutant: Mutant, names: list[str], seconds: float) -> tuple[str, str]:
    """What the tests say of a mutant, and which one said it: `late` if one, or all together, took too long."""
    # A test that only waits has a fifth of its time in `seconds`; three times as much is for a busy machine.
    code, output = _on(copy, mutant, names, HANGING, 60 + 15 * seconds)
    if code == 0:
        return "survived", ""
    failed = _failed(output)
    if code is None or reach.STOPPED in output:
        at = copy.current.read_text() if copy.current.exists() else names[0]
        return "late", failed[0] if failed else at
    return "killed" if code == 1 else "broken", failed[0] if failed else ""


def _hangs(copy: Copy, mutant: Mutant, name: str) -> bool:
    """Whether a test that passes on the unchanged code, now and here, does not end on the mutant with far more time."""
    began = time.monotonic()
    code, _ = _on(copy, None, [name], 10 * HANGING, 11 * HANGING)
    took = time.monotonic() - began
    if code != 0:
        return False
    code, _ = _on(copy, mutant, [name], max(HANGING, 5 * took), 2 * HANGING + 6 * took)
    return code != 0


def _on(copy: Copy, mutant: Mutant | None, names: list[str], each: float, limit: float) -> tuple[int | None, str]:
    """Run tests on a mutant, or on the unchanged code, with so much time for each and for all."""
    chosen = copy.root / "chosen.txt"
    chosen.write_text("\n".join(names))
    args = (f"@{chosen}", "-x", "-o", f"timeout={each:.0f}")
    each += HANGING  # what pytest-timeout has stopped may hang on in its end
    if mutant is None:
        return copy.pytest(*args, limit=limit, each=each)
    original = (copy.root / PACKAGE / f"{mutant.module}.py").read_bytes()
    copy.change(mutant.module, mutant.mutation.apply(original))
    try:
        return copy.pytest(*args, limit=limit, each=each)
    finally:
        copy.change(mutant.module, original)


def _failed(output: str) -> list[str]:
    """The names of the tests that failed, which may contain blanks."""
    lines = (line.partition(" ") for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/")))
    return [rest.partition(" - ")[0] for _, _, rest in lines]


def judge_all(copies: Sequence[Copy], chosen: list[Mutant], tests: dict[str, dict[str, Any]]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    lock = threading.Lock()

    def work(copy: Copy, mutant: Mutant) -> None:
        names = reaching(mutant, tests)
        verdict = judge(copy, mutant, names, sum(tests[name]["seconds"] for name in names))
        with lock:
            verdicts.append(verdict)
            mark = "SURVIVED" if verdict.outcome == "survived" else verdict.outcome
            print(f"{len(verdicts):4}/{len(chosen)} {mark:8} {verdict.seconds:5.1f} s  {mutant.place}", flush=True)
            if verdict.outcome == "survived":
                print(f"      {mutant.change()}", flush=True)

    side_by_side(copies, chosen, work)
    order = {id(mutant): number for number, mutant in enumerate(chosen)}
    return sorted(verdicts, key=lambda verdict: order[id(verdict.mutant)])


def check_killers(copy: Copy, verdicts: Sequence[Verdict]) -> list[str]:
    """The tests that killed something, once more on the unchanged code: those that fail by themselves prove nothing."""
    killers = sorted({verdict.by for verdict in verdicts if verdict.outcome == "killed" and verdict.by})
    if not killers:
        return []
    chosen = copy.root / "chosen.txt"
    chosen.write_text("\n".join(killers))
    code, output = copy.pytest(f"@{chosen}", limit=900)
    failed = _failed(output)
    return failed if failed or code == 0 else [f"the check itself ended with exit code {code}: {output[-500:]}"]


# -- results ---------------------------------------------------------------------------------------------------------


def accepted() -> dict[tuple[str, ...], dict[str, Any]]:
    """Why a survivor stays, by what identifies it whatever line it is on."""
    if not ACCEPTED.exists():
        return {}
    register = tomllib.loads(ACCEPTED.read_text())
    return {tuple(_words(each[name]) for name in ACCEPTED_BY): each for each in register["mutant"]}


def _words(text: str) -> str:
    return " ".join(text.split())


def report(verdicts: Sequence[Verdict], doubtful: Sequence[str]) -> bool:
    """Print the table and the survivors; whether enough were killed and every survivor is accounted for."""
    print(f"\n{'module':20} {'mutants':>8} {'killed':>8} {'survived':>8}")
    for module in dict.fromkeys(verdict.mutant.module for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.mutant.module == module]
        left = sum(verdict.outcome == "survived" for verdict in mine)
        print(f"{module:20} {len(mine):8} {len(mine) - left:8} {left:8}")
    survivors = [verdict for verdict in verdicts if verdict.outcome == "survived"]
    killed = len(verdicts) - len(survivors)
    print(f"{'all':20} {len(verdicts):8} {killed:8} {len(survivors):8}   {killed / max(1, len(verdicts)):.1%} killed")
    reasons = accepted()
    unexplained = equivalent = 0
    for verdict in survivors:
        mutation = verdict.mutant.mutation
        row = verdict.as_json()
        reason = reasons.get(tuple(_words(row[name]) for name in ACCEPTED_BY), {})
        unexplained += not reason
        equivalent += reason.get("equivalent", False)
        print(f"\n{verdict.mutant.place}  in {mutation.place} ({mutation.kind})\n    {verdict.mutant.change()}")
        print(f"    {reason.get('why', 'NOT EXPLAINED: write a test, or say in tools/mutants_accepted.toml why not')}")
        if verdict.by:
            print(f"    {verdict.by}")
    for name in doubtful:
        print(f"\nnot to be trusted, it failed on the unchanged code: {name}")
    others = len(verdicts) - equivalent
    print(f"\n{killed} of {others} that are not equivalent ({equivalent} are): {killed / max(1, others):.1%} killed")
    if unexplained:
        print(f"\n{unexplained} of {len(survivors)} survivors are not explained")
    return killed >= ENOUGH * len(verdicts) and not unexplained and not doubtful


def choose(args: argparse.Namespace) -> list[Mutant]:
    found = all_mutants(MODULES)
    if args.module:
        found = {module: mutants for module, mutants in found.items() if module.rpartition("/")[2] in args.module}
    if args.again:
        left = json.loads((KEEP / "results.json").read_text())["mutants"]
        names = {(each["module"], each["name"]) for each in left if each["outcome"] == "survived"}
        return [each for mutants in found.values() for each in mutants if (each.module, each.name) in names]
    if args.match:
        return [each for mutants in found.values() for each in mutants if args.match in f"{each.place} {each.change()}"]
    return sample(found, args.sample, args.seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--sample", type=int, default=150, help="at least so many mutants (default 150)")
    parser.add_argument("--jobs", type=int, default=2, help="so many mutants at a time (default 2)")
    parser.add_argument("--module", action="append", help="only this module, as in --module fold; may be repeated")
    parser.add_argument("--again", action="store_true", help="only those that survived last time")
    parser.add_argument("--match", help="all mutants whose place or change has this text, instead of a sample")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    args = parser.parse_args()
    started = time.monotonic()
    chosen = choose(args)
    if args.list:
        for mutant in chosen:
            print(f"{mutant.place}\t{mutant.mutation.kind}\t{mutant.change()}")
        print(f"{len(chosen)} of {sum(map(len, all_mutants(MODULES).values()))}")
        return 0
    KEEP.mkdir(exist_ok=True)
    (KEEP / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(args.jobs)]
        tests = tests_that_reach(copies)
        verdicts = judge_all(copies, chosen, tests)
        doubtful = check_killers(copies[0], verdicts)
    rows = [verdict.as_json() for verdict in verdicts]
    record = {"seed": args.seed, "seconds": round(time.monotonic() - started), "mutants": rows}
    if not args.match:
        (KEEP / "results.json").write_text(json.dumps(record, indent=1))
    good = report(verdicts, doubtful)
    print(f"\nseed {args.seed}, {record['seconds']} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
