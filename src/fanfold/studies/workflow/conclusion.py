"""What a search over workflows comes to: the best that complies, scored afresh, what is believed of all, and files."""

from __future__ import annotations

import csv
import io
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fanfold.running import Go, Run
from fanfold.strategies import Sweep
from fanfold.strategies.gp_ucb import Belief
from fanfold.studies.workflow import tensorboard
from fanfold.studies.workflow.baselines import Play, Watch, cases, judged
from fanfold.studies.workflow.cage2.rules import Cage2Game
from fanfold.studies.workflow.evaluator import MOMENTS
from fanfold.studies.workflow.orders import NAMED, Workflow, checked, orders, show
from fanfold.studies.workflow.policy_conclusion import COLUMNS, cpu_seconds, settled, timed, write
from fanfold.studies.workflow.strategy import gp_ucb, observed, report
from fanfold.study import Study
from fanfold.summary import Curve, Section, Summary
from fanfold.tensors import pack, unpack
from fanfold.types import Ok, Result, Trial

#: The columns of the two logs, as the documented system had them.
TRAINING = COLUMNS[:12]
SAMPLING = ("Iteration", "Workflow", "UCB_Score", "Reward", "Final_Compliance", "Episodes_Trained", "GP_Updated")
#: How many rows of a long table are shown.
ROWS = 30


@dataclass(frozen=True, slots=True)
class FinishedTraining:
    """A finished training as the ledger has it."""

    number: int
    workflow: Workflow
    visit: int
    score: float
    data: Mapping[str, Any]
    origin: Mapping[str, Any]
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return observed(self.data, self.score).constraint or 0.0

    def standing(self, threshold: float) -> tuple[int, float]:
        """Surely compliant before probably compliant before neither; of these the best, or the most compliant."""
        sure = self.data["compliance_interval"][0] >= threshold
        likely = self.rate >= threshold
        return int(sure) + int(likely), self.score if likely else self.rate


def trained(result: Result[Any]) -> str:
    """A training in a few words."""
    data = report(result)
    if data is None or result.score is None:
        return "a training that failed"
    rate = "-" if data["compliance"] is None else f"{data['compliance']:.2f}"
    return (
        f"{show(result.candidate.workflow)}: return {result.score:.2f}, compliance {rate}, {data['episodes']} episodes"
    )


def trainings(results: Iterable[Result[Any]], seconds: Mapping[int, float]) -> list[FinishedTraining]:
    """The trainings of a run in the order of telling, without those that failed."""
    found = []
    for result in results:
        data, candidate = report(result), result.candidate
        if data is not None and result.score is not None:
            order, origin = checked(candidate["workflow"]), result.trial.origin or {}
            took = seconds.get(result.number, 0.0)
            found.append(FinishedTraining(result.number, order, candidate["visit"], result.score, data, origin, took))
    return found


@dataclass(frozen=True)
class SearchConclusion:
    """Scores the best compliant workflow and two heuristics on the same fresh episodes, and writes agents and logs."""

    game: Cage2Game
    settings: Mapping[str, Any]
    threshold: float
    ignore: tuple[str, ...] = ()
    seed: int = 0
    results: str | None = None
    fresh: int = 4096
    began: float = field(default_factory=time.time)
    used: float = field(default_factory=cpu_seconds)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Without when this process began, which is no change."""
        return settled(self)

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        cpu, times = cpu_seconds() - self.used, timed(run)
        told = trainings(run.results(), {trial: seconds for trial, (seconds, _) in times.items()})
        if not told:
            return Summary({"trainings": 0}, (Section("Best workflow", "No training has finished."),))
        # What an earlier process learnt from is not on this one's account.
        here = sum(each.data["episodes"] for each in told if times[each.number][1] >= self.began)
        figures: dict[str, Any] = {
            "trainings": len(told),
            "episodes": sum(each.data["episodes"] for each in told),
            "held_out_episodes": sum(each.data["held_out_episodes"] for each in told),
            "cpu_seconds": round(cpu, 3),
            "episodes_per_cpu_second": round(here / cpu, 1) if here and cpu > 0 else None,
            "stopped": dict(sorted(Counter(each.data["stopped"] for each in told).items())),
        }
        best = max(told, key=lambda each: each.standing(self.threshold))
        players = [
            Play("agent", best.workflow, best.data["agent"], best.data["greedy"]),
            Play("greedy", best.workflow),
            Play("random", best.workflow),
        ]
        fresh = Study(Sweep(players), Watch(self.game), cases(self.fresh), seed=self.seed, name="fresh")
        scores = [judged(each) for each in (await go("fresh", fresh)).results()]
        complies = best.standing(self.threshold)[0] > 0
        figures |= scores[0] | {"workflow": show(best.workflow), "trial": best.number, "complies": complies}
        figures["policy"] = best.data["policy"]
        figures["rivals"] = dict(zip(("greedy", "random"), scores[1:]))
        reference, whose = best_known(run, told, self.threshold)
        course = regrets(told, self.threshold, reference)
        beliefs = believed(told, self.threshold, self.ignore)
        figures |= {"regret": course, "best_known": reference, "best_known_of": whose}
        figures["beliefs"] = [
            [show(each.arm[0]), round(each.mean, 4), round(each.deviation, 4), round(each.feasible, 4)]
            for each in beliefs
        ]
        sections = [
            first(figures, self.threshold),
            side_by_side(scores),
            table(told, self.threshold),
            belief_table(beliefs, told, self.ignore),
            regret_table(course, reference, whose),
            endings(told),
            family(told),
        ]
        if self.results is not None:
            place = write(Path(self.results) / run.id, self._files(told))
            tensorboard.write(place, curves(told, self.threshold))
            figures["folder"] = str(place)
            text = f"{place}: logs, experiment_config.json, curves for TensorBoard, and an agent of every training"
            sections.append(Section("Files", text))
        return Summary(figures, tuple(sections))

    def _files(self, told: Sequence[FinishedTraining]) -> dict[str, bytes]:
        files = {
            "training_log.csv": training_log(told).encode(),
            "gp_sampling_log.csv": sampling_log(told).encode(),
            "experiment_config.json": msgspec.json.format(msgspec.json.encode(self.settings)),
        }
        for each in told:
            arrays = unpack(each.data["agent"].read())
            weights = {name: array for name, array in arrays.items() if not name.startswith(MOMENTS)}
            about = {"workflow": show(each.workflow), "greedy": str(each.data["greedy"]).lower(), "env": "cage2"}
            about |= {"return": f"{each.score}", "compliance": f"{each.data['compliance']}"}
            files[f"workflow_{each.number}_agent.safetensors"] = pack(weights, about)
        return files


# ---------------------------------------------------------------- what follows from the trainings


def curves(told: Sequence[FinishedTraining], threshold: float) -> dict[str, list[tuple[int, float]]]:
    """What is drawn over the episodes learnt from: every training's end, and the best compliant one so far."""
    found: dict[str, list[tuple[int, float]]] = {"training/return": [], "training/compliance": [], "best/return": []}
    episodes, best = 0, -math.inf
    for each in told:
        episodes += each.data["episodes"]
        found["training/return"].append((episodes, each.score))
        found["training/compliance"].append((episodes, each.rate))
        if each.rate >= threshold:
            best = max(best, each.score)
        if math.isfinite(best):
            found["best/return"].append((episodes, best))
    return found


def believed(told: Sequence[FinishedTraining], threshold: float, ignore: Sequence[str]) -> list[Belief[Any]]:
    """What a Gaussian process believes of all 120 workflows after these trainings, the best first."""
    process = gp_ucb(threshold, ignore, visits=1)
    process.begin(0)
    for each in told:
        trial = Trial(each.number, (each.workflow, 0))
        process.tell(Result(trial, each.score, {"0": Ok(each.score, each.data)}))
    return sorted(process.beliefs(), key=lambda each: (each.feasible < 0.5, -each.mean))


def best_known(run: Run[Any], told: Sequence[FinishedTraining], threshold: float) -> tuple[float | None, str]:
    """The best return of a compliant policy, and whose: of runs in this ledger that trained all workflows, or ours."""
    mine = run.ledger.run(run.id)
    best = _best(told, threshold)
    whose = mine.name
    for other in run.ledger.runs():
        alike = other.identity.get("evaluate") == mine.identity.get("evaluate")
        if not alike or other.id == mine.id or other.trials < len(orders()):
            continue
        theirs = trainings(run.ledger.results(other.id), {})
        found = _best(theirs, threshold) if len({each.workflow for each in theirs}) == len(orders()) else None
        if found is not None and (best is None or found > best):
            best, whose = found, other.name
    return best, whose


def _best(told: Iterable[FinishedTraining], threshold: float) -> float | None:
    return max((each.score for each in told if each.rate >= threshold), default=None)


def regrets(told: Sequence[FinishedTraining], threshold: float, reference: float | None) -> list[list[Any]]:
    """After each training: episodes so far, the best return of a compliant policy, and how far it is from the best."""
    rows: list[list[Any]] = []
    episodes, best = 0, None
    for each in told:
        episodes += each.data["episodes"]
        if each.rate >= threshold and (best is None or each.score > best):
            best = each.score
        behind = None if best is None or reference is None else round(reference - best, 6)
        rows.append([episodes, best, behind])
    return rows


# ---------------------------------------------------------------- for people


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def first(figures: Mapping[str, Any], threshold: float) -> Section:
    low, high = figures["return_interval"]
    text = f"{figures['workflow']} (training {figures['trial']}, its {figures['policy']} policy)"
    if not figures["complies"]:
        text = f"No training reached a compliance of {threshold:g}. The nearest to it: {text}"
    if figures["return"] is None:
        return Section("Best workflow", f"{text}. None of the fresh episodes could be played.")
    share, (least, most) = figures["compliance"], figures["compliance_interval"]
    text += (
        f": mean return {figures['return']:.2f} (95 % interval {low:.2f} to {high:.2f}), compliance {_share(share)} "
        f"({least:.3f} to {most:.3f}) over {figures['fresh_episodes']} fresh episodes. {figures['trainings']} "
        f"trainings learnt from {figures['episodes']:,} episodes and were looked at on "
        f"{figures['held_out_episodes']:,} others."
    )
    if figures["episodes_per_cpu_second"] is not None:
        text += f" {figures['episodes_per_cpu_second']:,.0f} episodes per CPU-second, all of it counted."
    return Section("Best workflow", text)


def side_by_side(scores: Sequence[Mapping[str, Any]]) -> Section:
    names = ("trained", "greedy: mends the most urgent it sees", "random actions")
    columns = ("policy", "return", "low", "high", "compliance", "contested", "as the original counts")
    rows = tuple(
        (name, each["return"], *each["return_interval"], each["compliance"], each["contested"], each["original"])
        for name, each in zip(names, scores)
    )
    return Section("The same fresh episodes, with the same workflow", "", columns, rows)


def table(told: Sequence[FinishedTraining], threshold: float) -> Section:
    ranked = sorted(told, key=lambda each: each.standing(threshold), reverse=True)
    names = {order: name for name, order in NAMED.items()}
    columns = ("workflow", "visit", "return", "compliance", "low", "contested", "episodes", "compliant at", "then")
    rows = tuple(
        (
            f"{show(each.workflow)}{f' ({names[each.workflow]})' if each.workflow in names else ''}",
            each.visit,
            each.score,
            each.data["compliance"],
            each.data["compliance_interval"][0],
            each.data["contested"],
            each.data["episodes"],
            each.data["compliant_at"],
            each.data["compliant_return"],
        )
        for each in ranked[:ROWS]
    )
    more = f" The best {ROWS} of {len(told)}." if len(told) > ROWS else ""
    text = f"On held-out episodes. `then` is the return when compliance was first shown.{more}"
    return Section("Trainings", text, columns, rows)


def belief_table(beliefs: Sequence[Belief[Any]], told: Sequence[FinishedTraining], ignore: Sequence[str]) -> Section:
    """Workflows that ask for the same fixes have one row."""

    def bare(workflow: Workflow) -> str:
        return show([unit for unit in workflow if unit not in ignore]) or "any"

    visits = Counter(bare(each.workflow) for each in told)
    alike = Counter(bare(each.arm[0]) for each in beliefs)
    one_each = {bare(each.arm[0]): each for each in beliefs}
    columns = ("workflow", "orders", "mean return", "deviation", "probably compliant", "trainings")
    rows = tuple(
        (name, alike[name], each.mean, each.deviation, each.feasible, visits[name]) for name, each in one_each.items()
    )
    text = f"Red can hold no machine of {' or '.join(ignore)}: their places do not matter." if ignore else ""
    return Section("Beliefs", text, columns, rows[:ROWS])


def regret_table(course: Sequence[Sequence[Any]], reference: float | None, whose: str) -> Section:
    if reference is None:
        return Section("Regret", "No policy was compliant, so there is nothing to compare with.")
    every = max(1, len(course) // 20)
    rows = tuple(
        (number, *row) for number, row in enumerate(course, 1) if number % every == 0 or number in (1, len(course))
    )
    columns = ("trainings", "episodes", "best compliant return", "behind the best known")
    behind = tuple((float(row[0]), float(row[2])) for row in course if row[2] is not None)
    text = f"The best known is {reference:.2f}, of run {whose}."
    return Section("Regret", text, columns, rows, (Curve("behind the best known", behind),), "episodes learnt from")


def endings(told: Sequence[FinishedTraining]) -> Section:
    meaning = {
        "compliant": "complied, and its return no longer improved",
        "patience": "did not comply, and its compliance no longer improved",
        "budget": "its episodes were used up",
    }
    counts = Counter(each.data["stopped"] for each in told)
    rows = tuple((reason, said, counts[reason]) for reason, said in meaning.items() if counts[reason])
    return Section("Why trainings ended", "", ("reason", "meaning", "trainings"), rows)


def family(told: Sequence[FinishedTraining]) -> Section:
    columns = ("training", "workflow", "visit", "began with", "its visit", "distance")
    rows = tuple(
        (each.number, show(each.workflow), each.visit)
        + tuple(each.origin.get(name) for name in ("parent", "parent_visit", "distance"))
        for each in told[: 4 * ROWS]
    )
    return Section("Inheritance", "", columns, rows)


# ---------------------------------------------------------------- logs


def training_log(told: Sequence[FinishedTraining]) -> str:
    """Every update of every training.  How long an update took is not known, so its training's time is shared out."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(TRAINING)
    total = 0
    for each in told:
        for number, (episodes, reward, bonus, fixes, kept) in enumerate(each.data["curve"], 1):
            total += int(episodes)
            share = f"{kept / fixes:.6g}" if fixes else ""
            took = each.seconds * episodes / each.data["episodes"]
            rewards = [f"{value:.6g}" for value in (reward, bonus, reward + bonus)]
            rest = [share, f"{fixes / episodes:.6g}", f"{took:.4g}", ""]
            rows.writerow([each.number, show(each.workflow), number, int(episodes), total, *rewards, *rest])
    return text.getvalue()


def sampling_log(told: Sequence[FinishedTraining]) -> str:
    """Every choice, with the bound it was made by and what came of it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(SAMPLING)
    for number, each in enumerate(told, 1):
        bound = each.origin.get("bound")
        said = "" if bound is None else f"{bound:.6g}"
        rate = "" if each.data["compliance"] is None else f"{each.data['compliance']:.6g}"
        rows.writerow(
            [number, show(each.workflow), said, f"{each.score:.6g}", rate, each.data["episodes"], bound is not None]
        )
    return text.getvalue()
