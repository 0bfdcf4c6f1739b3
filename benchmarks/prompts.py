"""Compares ways of finding a prompt: ten tasks, the local model, equal calls; held-out accuracy of what each finds.

python benchmarks/prompts.py --quick                    # three tasks, two seeds, ours, random and hand-written
python benchmarks/prompts.py                            # everything; start it again to continue
python benchmarks/prompts.py --only guided,dspy-random --tasks dates,sums --seeds 0,1 --calls 200
python benchmarks/prompts.py --report                   # only the tables, from what is finished
python benchmarks/prompts.py --server http://127.0.0.1:8080/v1 --jobs 12    # the same weights on a GPU: in minutes
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import add_row, read_rows
from prompts_report import OURS, Outcome, report
from prompts_server import ENGINE, LOCAL, CountedModel, served, version_of
from prompts_tasks import DATA, HAND, TASKS

from fanfold.likeness import filled
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome, render, template
from fanfold.prompting.guided import RandomPrompts
from fanfold.prompting.material import Material
from fanfold.stop import MaxTrials
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.evaluator import PromptsEvaluator, cases, shots
from fanfold.study import Study
from fanfold.tasks import Problem, Split, Task, load

ROOT = Path(__file__).parents[1]
SIZES: Mapping[str, Any] = {"examples": 8, "train": 12, "validation": 8, "held_out": 60}
CALLS, SEEDS = (200, 100), (0, 1, 2)
QUICK = {"only": f"{OURS},random,hand", "tasks": "tickets,dates,places", "seeds": "0,1", "calls": "200"}
PEERS = ROOT / ".venv-peers"
#: The end of the names of methods that show 16 problems and score on 12 (the others: 8 and 20).
MORE = "-16"
#: How many examples are shown to each input where no search chose them.
NEAREST = 8
#: Where the position of the problem is marked in a prompt.
MARK = "\0"
#: Calls that our searches have in flight: what two cores have by default, on every machine.
IN_FLIGHT = 8
#: The longest a peer may take for one job, in seconds.
PATIENCE = 900.0
#: The code that decides what our searches do: a change of it makes their results old.
SEARCH = ("prompting", "schedules/paired.py", "schedules/racing.py", "strategies", "studies/prompts", "tasks")


@dataclass(frozen=True)
class Prompt:
    """A prompt as it is sent: what stands before and after the problem."""

    before: str
    after: str
    #: Of a prompt that shows each input the examples most like it: all of it, as data.
    template: Mapping[str, Any] | None = None
    #: What is sent beside it and the settings of the task: biases on the tokens that begin an answer.
    extra: Mapping[str, Any] | None = None

    def text(self, input: str) -> str:
        return filled(self.template or {"before": self.before, "after": self.after}, input)

    @classmethod
    def filling(cls, template: Mapping[str, Any]) -> Prompt:
        """The prompt that a search of ours found, as its summary describes it."""
        whole = template if "nearest" in template else None
        return cls(template["before"], template["after"], whole, template.get("extra"))

    @classmethod
    def of(cls, text: str) -> Prompt:
        before, _, after = text.partition(MARK)
        return cls(before, after)


@dataclass(frozen=True)
class Job:
    """One search: a method on a task, with a seed and a number of calls."""

    method: str
    task: str
    seed: int
    calls: int

    @functools.cached_property
    def work(self) -> Task:
        return load(DATA / TASKS[self.task])

    @functools.cached_property
    def split(self) -> Split:
        return self.work.split(self.seed, **SIZES)

    @property
    def parts(self) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
        """The problems to show and those to score on, for methods that keep them apart: 8 and 20, or 16 and 12."""
        rows = (*self.split.examples, *self.split.train, *self.split.validation)
        cut = 16 if self.method.endswith(MORE) else len(self.split.examples)
        return rows[:cut], rows[cut:]

    @functools.cached_property
    def shots(self) -> dict[str, tuple[str, str]]:
        return shots(self.split.examples)

    def settings(self, labels: tuple[str, str]) -> dict[str, Any]:
        """The parameters of every request, the same for all methods: temperature 0, the task's end and length."""
        evaluate = PromptsEvaluator(self.work, self.shots, (LOCAL,))
        return evaluate.settings(Genome(labels=labels), LOCAL)


# -- methods: each gives the prompt it finds ---------------------------------------------------------------------------


def config_of(job: Job, search: str, calibrates: bool = False) -> PromptsConfig:
    """The settings of `fanfold run prompts --task FILE --calls N --search SEARCH`; labels may be calibrated."""
    return PromptsConfig(
        task=str(DATA / TASKS[job.task]),
        calls=job.calls,
        seed=job.seed,
        trials=100_000,
        search=search,  # type: ignore[arg-type]
        concurrent=IN_FLIGHT,
        calibrate=calibrates and bool(getattr(job.work.grader, "among", ())),
        **SIZES,
    )


def searched(search: str, calibrates: bool = False) -> Callable[[Job, CountedModel], Prompt]:
    """The study, as `fanfold run prompts --task FILE --calls N` runs it."""

    def find(job: Job, counted: CountedModel) -> Prompt:
        config = config_of(job, search, calibrates)
        work = study(config, make=counted.model)
        # The winner is scored here, as those of all methods are; the calls that are counted are those of the search.
        split = dataclasses.replace(work.conclude.split, held_out=())  # type: ignore[union-attr]
        work = dataclasses.replace(work, conclude=dataclasses.replace(work.conclude, split=split))  # type: ignore[type-var]
        run = work.run(f"async:{config.in_flight}")
        assert run.summary is not None
        template = run.summary.figures["template"]
        run.ledger.close()
        return Prompt.filling(template)

    return find


class DrawnPrompts(RandomPrompts):
    """Random prompts from the first one on, as many at once as there is room for."""

    def __init__(self, material: Material, shots: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(material, shots)
        self._opening.clear()

    def ask(self, n: int) -> list[Genome]:
        return [self._next() for _ in range(n)]


def searched_plainly(job: Job, counted: CountedModel, calibrates: bool = False) -> Prompt:
    """Random search as in textbooks: each prompt is scored on all 20 problems, and the first of the best wins."""
    work = study(config_of(job, "random", calibrates), make=counted.model)
    evaluate: Any = work.evaluate
    by_label = evaluate.calibration is not None
    problems = (*job.split.train, *job.split.validation)
    plain = Study(
        DrawnPrompts(evaluate.material, evaluate.shots),
        evaluate,
        cases(problems, (LOCAL,)),
        stop=MaxTrials(job.calls // len(problems)),
        seed=job.seed,
        name="random-plain",
    )
    run = plain.run(f"async:{IN_FLIGHT}")
    results = [evaluate.calibration.calibrated(each) if by_label else each for each in run.results()]
    best = genome_of(max((each for each in results if each.complete), key=lambda each: each.score))
    run.ledger.close()
    return Prompt.filling(template(best, evaluate.shots) | evaluate.settings(best, LOCAL))


def searched_plainly_calibrated(job: Job, counted: CountedModel) -> Prompt:
    """The same prompts, and what the model prefers to answer is taken off: of them and of the winner."""
    return searched_plainly(job, counted, calibrates=True)


def all_examples(job: Job, _: CountedModel) -> Prompt:
    """The examples under the names of the file's columns, and no search."""
    shown, _ = job.parts
    genome = Genome(labels=job.work.labels[0], examples=tuple(problem.id for problem in shown))
    return Prompt.of(render(genome, MARK, shots(shown)))


def nearest_examples(job: Job, _: CountedModel) -> Prompt:
    """For each input the eight problems most like it, of all that are solved, and no search."""
    known = shots((*job.split.examples, *job.split.train, *job.split.validation))
    genome = Genome(labels=job.work.labels[0], examples=tuple(known), nearest=NEAREST)
    return Prompt.filling(template(genome, known))


def hand_written(job: Job, counted: CountedModel) -> Prompt:
    """The best of five prompts on the problems that the others search on."""
    label, answer = job.work.labels[0]
    shown = "\n\n".join(f"{label}: {input}\n{answer}: {right}" for input, right in job.shots.values())
    texts = [text.replace("{examples}", shown).replace("{input}", MARK) for text in HAND[job.task]["prompts"]]
    prompts = [Prompt.of(text) for text in texts]
    problems = (*job.split.train, *job.split.validation)
    scores = [sum(scored(job, prompt, problems, counted)) for prompt in prompts]
    return prompts[scores.index(max(scores))]


def told(job: Job) -> dict[str, Any]:
    """What a peer learns of a job: the data without the held-out problems, and how the model is to be asked."""
    shown, scored = job.parts
    return {
        **asdict(job),
        "method": job.method.removesuffix(MORE),
        "examples": [(problem.input, problem.shown) for problem in shown],
        "train": [(problem.input, problem.shown) for problem in scored],
        "labels": job.work.labels[0],
        "mark": MARK,
        "settings": job.settings(job.work.labels[0]),
    }


def elsewhere(environment: str) -> Callable[[Job, CountedModel], Prompt]:
    """A peer in an environment of its own, which asks the same model over HTTP (`prompts_peers.py`)."""

    def find(job: Job, counted: CountedModel) -> Prompt:
        python = PEERS / environment / "bin" / "python"
        with served(counted, job.work.grader, job.work.problems) as url:
            text = json.dumps({**told(job), "url": url})
            command = [str(python), str(Path(__file__).with_name("prompts_peers.py"))]
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["without a word"])[-1][:300])
        return Prompt.of(json.loads(done.stdout.strip().splitlines()[-1])["prompt"])

    return find


#: The environment of every peer.
ENVIRONMENTS: Mapping[str, str] = {
    "dspy-random": "dspy",
    "dspy-bare": "dspy",
    f"dspy-bare{MORE}": "dspy",
    "mipro": "dspy",
    "gepa": "gepa",
    f"gepa{MORE}": "gepa",
    "capo": "promptolution",
    "capo-fields": "promptolution",
}
METHODS: Mapping[str, Callable[[Job, CountedModel], Prompt]] = {
    OURS: searched("guided"),
    "guided-calibrated": searched("guided", calibrates=True),
    "genetic": searched("genetic"),
    "random": searched("random"),
    "random-plain": searched_plainly,
    "random-calibrated": searched_plainly_calibrated,
    "hand": hand_written,
    "examples": all_examples,
    f"examples{MORE}": all_examples,
    "nearest": nearest_examples,
    **{method: elsewhere(environment) for method, environment in ENVIRONMENTS.items()},
}


# -- one job after another ---------------------------------------------------------------------------------------------


def scored(job: Job, prompt: Prompt, problems: Sequence[Problem], counted: CountedModel) -> list[float]:
    """What the task's grader gives each problem, asked with this prompt."""
    model, settings = counted.model(), job.settings(job.work.labels[0])
    settings |= {"extra": prompt.extra} if prompt.extra else {}

    async def every() -> list[float]:
        texts = [prompt.text(problem.input) for problem in problems]
        replies = await asyncio.gather(*(model.generate(text, **settings) for text in texts))
        grades = [await job.work.grader(reply.text, problem) for reply, problem in zip(replies, problems)]
        return [grade.score for grade in grades]

    return asyncio.run(every())


def outcome_of(job: Job, counted: CountedModel) -> Outcome:
    counted.begin()
    began = time.perf_counter()
    prompt = METHODS[job.method](job, counted)
    used, seconds = counted.calls, time.perf_counter() - began
    scores = scored(job, prompt, job.split.held_out, counted)
    return Outcome(
        **asdict(job),
        used=used,
        accuracy=sum(scores) / len(scores),
        scores=tuple(scores),
        prompt=[prompt.before, prompt.after],
        version=version(job.method, job.task),
        commit=commit(),
        date=time.strftime("%Y-%m-%d"),
        seconds=round(seconds, 1),
    )


def depends_on(method: str, task: str) -> list[Path]:
    """The files whose content decides a result: the task, the model, and our searches or the way a peer is run."""
    files = [DATA / TASKS[task], *ENGINE]
    if METHODS[method].__qualname__.startswith("searched"):
        for part in SEARCH:
            path = ROOT / "src" / "fanfold" / part
            files += path.rglob("*.py") if path.is_dir() else [path]
    elif method == "hand":
        files.append(DATA / "hand.toml")
    elif method in ENVIRONMENTS:
        files.append(Path(__file__).with_name("prompts_peers.py"))
    return files


@functools.cache
def version(method: str, task: str) -> str:
    """What a result depends on, as of the first question: the code that runs, whatever is edited meanwhile."""
    return version_of(depends_on(method, task))


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Seed by seed and task by task, so that what is finished at any time compares all methods."""
    missing = [name for name, place in ENVIRONMENTS.items() if not (PEERS / place / "bin" / "python").exists()]
    if left := [method for method in options.only.split(",") if method in missing and not options.report]:
        print(f"not installed (make bench-peers), left out: {', '.join(left)}")
    for seed in map(int, options.seeds.split(",")):
        for task in options.tasks.split(","):
            for calls in map(int, options.calls.split(",")):
                for method in (name for name in options.only.split(",") if name not in left):
                    yield Job(method, task, seed, calls)


def finished(file: Path) -> dict[Job, Outcome]:
    """The results in the file that still hold, the last of each job."""
    outcomes: dict[Job, Outcome] = {}
    for row in read_rows(file):
        outcome = Outcome(**row)
        known = outcome.method in METHODS and outcome.task in TASKS
        if known and outcome.version == version(outcome.method, outcome.task):
            outcomes[Job(outcome.method, outcome.task, outcome.seed, outcome.calls)] = outcome
    return outcomes


def work_off(wanted: Sequence[Job], folder: Path, server: str | None = None, part: int = 0) -> dict[Job, Outcome]:
    """The outcomes of all jobs; those that the folder lacks are run, and written down one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prompts.jsonl"
    done = finished(file)
    counted = CountedModel(folder / (f"replies-{part}.db" if part else "replies.db"), server)
    for job in wanted:
        version(job.method, job.task)
    for number, job in enumerate(wanted, 1):
        if job in done:
            continue
        try:
            done[job] = outcome_of(job, counted)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{job.method} on {job.task}, seed {job.seed}, {job.calls} calls: failed: {error}", flush=True)
            continue
        add_row(file, asdict(done[job]))
        last = done[job]
        print(
            f"[{number}/{len(wanted)}] {job.method} on {job.task}, seed {job.seed}: {last.accuracy:.3f} "
            f"after {last.used} of {job.calls} calls, {last.seconds:.0f} s",
            flush=True,
        )
    return {job: done[job] for job in wanted if job in done}


def side_by_side(options: argparse.Namespace, wanted: Sequence[Job]) -> dict[Job, Outcome]:
    """The outcomes of all jobs, worked off by several processes."""
    servers = options.server.split(",") if options.server else [None]
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = [
            pool.submit(work_off, wanted[part :: options.jobs], options.folder, servers[part % len(servers)], part + 1)
            for part in range(options.jobs)
        ]
        return {job: outcome for part in parts for job, outcome in part.result().items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three tasks, two seeds, three methods: 15 minutes")
    parser.add_argument("--only", default=",".join(METHODS), help="methods, separated by commas")
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, separated by commas")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds, separated by commas")
    parser.add_argument("--calls", default=",".join(map(str, CALLS)), help="budgets, separated by commas")
    parser.add_argument("--report", action="store_true", help="run nothing: tables of what is finished")
    parser.add_argument("--server", help="addresses of OpenAI-compatible servers of the same weights, instead of ours")
    parser.add_argument("--jobs", type=int, default=1, help="searches at once, each in a process of its own")
    parser.add_argument("--folder", type=Path, default=ROOT / "results", help="where results and replies are kept")
    parser.add_argument("--out", type=Path, help="where the tables are written besides the terminal")
    if parser.parse_args(arguments).quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    for name, known in (("only", METHODS), ("tasks", TASKS)):
        if unknown := set(getattr(options, name).split(",")) - set(known):
            parser.error(f"--{name} does not know {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    wanted = list(jobs(options))
    if options.report:
        done = finished(options.folder / "prompts.jsonl")
        outcomes = {job: done[job] for job in wanted if job in done}
    else:
        alone = options.jobs == 1
        outcomes = work_off(wanted, options.folder, options.server) if alone else side_by_side(options, wanted)
    text = report(list(outcomes.values()), commit())
    print(f"\n{text}")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
