"""What a training run comes to: its learning curve, its policy scored on fresh episodes, and files of both."""

from __future__ import annotations

import csv
import io
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from fanfold import stats
from fanfold.errors import ConfigError
from fanfold.files import write_files
from fanfold.running import Go, Run
from fanfold.strategies import Sweep
from fanfold.studies.workflow import tensorboard
from fanfold.studies.workflow.collect import Collect, Collector
from fanfold.studies.workflow.orders import show
from fanfold.study import Study
from fanfold.summary import Curve, Section, Summary
from fanfold.tensors import pack, unpack
from fanfold.types import Case, Ok, Result

#: The columns of the log, as the documented system had them; and the lag of the policies that played.
COLUMNS = (
    "Workflow_ID",
    "Workflow_Order",
    "Update",
    "Episodes",
    "Total_Episodes_Sampled",
    "Env_Reward",
    "Alignment_Bonus",
    "Total_Reward",
    "Compliance",
    "Avg_Fixes",
    "Collection_Time",
    "Update_Time",
    "Staleness",
)


def cpu_seconds() -> float:
    """What this process and those it has waited for have used so far."""
    return sum(os.times()[:4])


@dataclass(frozen=True, slots=True)
class Update:
    """What one update of the policy learnt from.  `lags` counts episodes by how many versions old their policy was."""

    number: int
    episodes: int
    mean_return: float
    bonus: float = 0.0
    fixes: int = 0
    kept: int = 0
    seconds: float = 0.0
    lags: Mapping[int, int] = field(default_factory=dict)

    @property
    def compliance(self) -> float | None:
        return self.kept / self.fixes if self.fixes else None

    @property
    def lag(self) -> float:
        return sum(lag * count for lag, count in self.lags.items()) / self.episodes


def timed(run: Run[Any]) -> dict[int, tuple[float, float]]:
    """Of every trial, how many seconds its evaluation took, and when it began."""
    return {trial: (seconds, started) for trial, _, started, seconds in run.view.times()}


def curve(results: Iterable[Result[Any]], per_update: int, total: int, seconds: Mapping[int, float]) -> list[Update]:
    """The updates of a run, from its blocks in the order of telling; `seconds` is how long each block took."""
    updates: list[Update] = []
    told, blocks = 0, []
    for result in results:
        outcome = next(iter(result.outcomes.values()))
        if not isinstance(outcome, Ok) or not result.candidate["learn"]:
            continue
        blocks.append((result, outcome.data))
        told += result.candidate["episodes"]
        if sum(each.candidate["episodes"] for each, _ in blocks) >= per_update or told == total:
            updates.append(_update(len(updates), blocks, seconds))
            blocks = []
    return updates


def _update(number: int, blocks: list[tuple[Result[Any], Any]], seconds: Mapping[int, float]) -> Update:
    returns = [each for _, data in blocks for each in data["returns"]]
    lags: Counter[int] = Counter()
    for result, data in blocks:
        lags[number - result.candidate["version"]] += len(data["returns"])
    return Update(
        number + 1,
        len(returns),
        statistics.fmean(returns),
        sum(data.get("bonus", 0.0) for _, data in blocks) / len(returns),
        sum(sum(data.get("fixes", ())) for _, data in blocks),
        sum(sum(data.get("kept", ())) for _, data in blocks),
        sum(seconds.get(result.number, 0.0) for result, _ in blocks),
        lags,
    )


def settled(made: Any) -> dict[str, Any]:
    """What a conclusion was given, without what is measured from its making."""
    return {each.name: getattr(made, each.name) for each in fields(made) if each.name not in ("began", "used")}


@dataclass(frozen=True)
class PolicyConclusion:
    """Picks the policy that did best on held-out episodes, scores it on fresh ones, and writes agent and log."""

    collector: Collector
    settings: Mapping[str, Any]
    total: int
    per_update: int
    seed: int = 0
    results: str | None = None
    #: Episodes that the final policy is scored on.
    fresh: int = 4096
    block: int = 256
    timeout: float | None = None
    began: float = field(default_factory=time.time)
    used: float = field(default_factory=cpu_seconds)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Without when this process began, which is no change."""
        return settled(self)

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        cpu, times = cpu_seconds() - self.used, timed(run)
        seconds = {trial: each for trial, (each, _) in times.items()}
        updates = curve(run.results(), self.per_update, self.total, seconds)
        # What an earlier process played is not on this one's account.
        played = sum(
            result.candidate["episodes"]
            for result in run.results()
            if result.score is not None and result.candidate["learn"] and times[result.number][1] >= self.began
        )
        figures: dict[str, Any] = {
            "updates": len(updates),
            "episodes": sum(update.episodes for update in updates),
            "cpu_seconds": round(cpu, 3),
            "episodes_per_cpu_second": round(played / cpu, 1) if played and cpu > 0 else None,
        }
        sections = [learning(updates)]
        policies = ending(run.results())
        if policies:
            best = max(policies, key=lambda policy: policy.mean)
            found = judged((await go("fresh", self._fresh(best.candidate))).results())
            figures |= found | {"policy": best.name}
            sections.insert(0, final(figures, policies))
            if self.results is not None:
                place = self._write(Path(self.results) / run.id, best.candidate, updates, figures)
                figures["folder"] = str(place)
                sections.append(
                    Section(
                        "Files", f"{place}: agent, training_log.csv, experiment_config.json, curves for TensorBoard"
                    )
                )
        return Summary(figures, tuple(sections))

    def _fresh(self, chosen: Mapping[str, Any]) -> Study[Collect]:
        """The policy on as many fresh blocks as it takes, none larger than those of training."""
        size = min(self.block, self.fresh)
        candidate = replace(msgspec.convert(chosen, Collect), first_episode=0, episodes=size, attempt=0)
        cases = [Case(f"fresh-{first // size}", self.fresh - first) for first in range(0, self.fresh, size)]
        return Study(
            Sweep([candidate]),
            self.collector,
            cases,
            seed=self.seed,
            failed_score=0.0,
            timeout=self.timeout,
            retries=2,
            name="fresh",
        )

    def _write(self, place: Path, chosen: Mapping[str, Any], updates: list[Update], figures: Any) -> Path:
        about = {"greedy": str(chosen["greedy"]).lower(), "env": self.collector.env, "return": f"{figures['return']}"}
        files = {
            "agent.safetensors": pack(unpack(chosen["weights"].read()), about),
            "training_log.csv": log(updates, chosen["workflow"]).encode(),
            "experiment_config.json": msgspec.json.format(msgspec.json.encode(self.settings)),
        }
        tensorboard.write(place, curves(updates))
        return write(place, files)


def curves(updates: Iterable[Update]) -> dict[str, list[tuple[int, float]]]:
    """What is drawn over the episodes learnt from."""
    found: dict[str, list[tuple[int, float]]] = {"return/mean": [], "compliance": [], "staleness": []}
    episodes = 0
    for update in updates:
        episodes += update.episodes
        found["return/mean"].append((episodes, update.mean_return))
        found["staleness"].append((episodes, update.lag))
        if update.compliance is not None:
            found["compliance"].append((episodes, update.compliance))
    return found


def write(place: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder, each whole or not at all."""
    try:
        write_files(place, files)
    except OSError as error:
        raise ConfigError(f"results={str(place.parent)!r} cannot be written: {error}") from error
    return place


def played(result: Result[Any]) -> str:
    """A block in a few words: how it went, and how well its policy kept to its workflow."""
    outcome = next(iter(result.outcomes.values()))
    if not isinstance(outcome, Ok):
        return outcome.kind
    fixes, kept = (sum(outcome.data.get(name, ())) for name in ("fixes", "kept"))
    said = f"{len(outcome.data['returns'])} episodes of version {result.candidate.version}: return {outcome.score:.2f}"
    return f"{said}, compliance {kept / fixes:.2f}" if fixes else said


def judged(results: Iterable[Result[Any]]) -> dict[str, Any]:
    """The mean return with its interval, and the compliance where a workflow was to be kept to."""
    blocks = [data.data for result in results for data in result.outcomes.values() if isinstance(data, Ok)]
    returns = stats.mean(each for block in blocks for each in block["returns"])
    found: dict[str, Any] = {
        "return": returns.estimate,
        "return_interval": [returns.low, returns.high],
        "fresh_episodes": returns.n,
    }
    if blocks and "fixes" in blocks[0]:
        pairs = [pair for block in blocks for pair in zip(block["kept"], block["fixes"])]
        rate = stats.clustered_rate(dict(enumerate(pairs)))
        found |= {"compliance": rate.estimate, "compliance_interval": [rate.low, rate.high]}
    return found


@dataclass(frozen=True, slots=True)
class EndPolicy:
    """One of the policies that training ended with, and what it did on held-out episodes."""

    name: str
    candidate: Mapping[str, Any]
    mean: float


def ending(results: Iterable[Result[Any]]) -> list[EndPolicy]:
    """The policies that training ended with; of one that was stopped before, the last that played."""
    plays: dict[tuple[str, bool], list[Result[Any]]] = {}
    last: Result[Any] | None = None
    for result in results:
        if result.score is None:
            continue
        if result.candidate["learn"]:
            last = result
        else:
            plays.setdefault((result.candidate["weights"].digest, result.candidate["greedy"]), []).append(result)
    if not plays and last is not None:
        return [EndPolicy("the last that played, sampled", {**last.candidate, "learn": False}, last.score or 0.0)]
    policies = []
    for (weights, greedy), found in plays.items():
        kind = "last" if weights == next(iter(plays))[0] else "averaged"
        episodes = sum(each.candidate["episodes"] for each in found)
        mean = sum((each.score or 0.0) * each.candidate["episodes"] for each in found) / episodes
        policies.append(EndPolicy(f"{kind}, {'greedy' if greedy else 'sampled'}", found[0].candidate, mean))
    return policies


def final(figures: Mapping[str, Any], policies: list[EndPolicy]) -> Section:
    """How good the policy is that training ended with."""
    text = "None of the fresh episodes could be played."
    if figures["return"] is not None:
        low, high = figures["return_interval"]
        text = (
            f"Mean return {figures['return']:.2f} (95 % interval {low:.2f} to {high:.2f}) over "
            f"{figures['fresh_episodes']} fresh episodes; {figures['policy']}, chosen on other held-out episodes."
        )
    if figures.get("compliance") is not None:
        low, high = figures["compliance_interval"]
        text += f" Compliance {figures['compliance']:.3f} ({low:.3f} to {high:.3f})."
    if figures["episodes_per_cpu_second"] is not None:
        text += f" {figures['episodes_per_cpu_second']:,.0f} episodes per CPU-second, collection and learning."
    rows = tuple((policy.name, policy.mean) for policy in policies)
    return Section("Final policy", text, ("policy", "mean return when chosen"), rows)


def learning(updates: list[Update]) -> Section:
    """The learning curve, thinned to about twenty rows, and how stale the policies were that played."""
    lags: Counter[int] = Counter()
    for update in updates:
        lags.update(update.lags)
    total = sum(lags.values())
    text = ", ".join(f"{lag}: {count / total:.0%}" for lag, count in sorted(lags.items()))
    every = max(1, len(updates) // 20)
    thinned = [update for update in updates if update.number % every == 0 or update is updates[-1]]
    sampled = 0
    seen = {}
    for update in updates:
        sampled += update.episodes
        seen[update.number] = sampled
    rows = tuple((each.number, seen[each.number], each.mean_return, each.compliance, each.lag) for each in thinned)
    head = ("update", "episodes", "mean return", "compliance", "versions behind")
    learnt = (Curve("mean return", tuple((float(seen[each.number]), each.mean_return) for each in updates)),)
    said = f"Episodes by versions behind: {text}." if total else ""
    return Section("Learning curve", said, head, rows, learnt, "episodes learnt from")


def log(updates: list[Update], workflow: Any) -> str:
    """The curve as CSV.  The time of an update is not known: a strategy has no clock."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    total = 0
    for each in updates:
        total += each.episodes
        order = "" if workflow is None else show(tuple(workflow))
        share = "" if each.compliance is None else f"{each.compliance:.6g}"
        rewards = (each.mean_return, each.bonus, each.mean_return + each.bonus)
        fixes = each.fixes / each.episodes
        rows.writerow(
            [0, order, each.number, each.episodes, total, *(f"{x:.6g}" for x in rewards), share, f"{fixes:.6g}"]
            + [f"{each.seconds:.4g}", "", f"{each.lag:.4g}"]
        )
    return text.getvalue()
