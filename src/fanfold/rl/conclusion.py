"""What a training comes to: its best policy scored on fresh episodes, and an agent's folder."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from fanfold import stats
from fanfold.errors import ConfigError
from fanfold.files import write_files
from fanfold.rl import logs, shown, tensorboard
from fanfold.rl.agent import Agent
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.environments import release
from fanfold.rl.fresh import fresh_study
from fanfold.rl.learner import LEAST_FRESH, LearningPlan
from fanfold.rl.making import name_of
from fanfold.rl.policy import Policy
from fanfold.rl.torch_policy import TorchPolicy
from fanfold.rl.updates import EndPolicy, Update, ending, failures, updates
from fanfold.running import Go, Run
from fanfold.study import Study
from fanfold.summary import Section, Summary
from fanfold.tensors import unpack
from fanfold.types import Ok


def cpu_seconds() -> float:
    """What this process and those it has waited for have used so far."""
    return sum(os.times()[:4])


def returned(blocks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean return of blocks of episodes, with its interval."""
    mean = stats.mean(each for block in blocks for each in block["returns"])
    return {"return": mean.estimate, "return_interval": [mean.low, mean.high], "fresh_episodes": mean.n}


def speed(episodes: int, cpu: float) -> dict[str, Any]:
    """How many episodes a CPU-second gave, for a summary."""
    rate = round(episodes / cpu, 1) if episodes and cpu > 0 else None
    return {"cpu_seconds": round(cpu, 3), "episodes_per_cpu_second": rate}


def write(folder: Path, files: Mapping[str, bytes], settings: Any) -> None:
    """Write the files of a run and its settings into its folder, each whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(dataclasses.asdict(settings)))
    try:
        write_files(folder, {**files, "experiment_config.json": text})
    except OSError as error:
        raise ConfigError(f"results={str(folder.parent)!r} cannot be written: {error}") from error


def _held_out(run: Run[Any]) -> int:
    """How many held-out episodes all policies played that training ended with."""
    played = [each.candidate for each in run.results() if not each.candidate["learn"]]
    ends = (block["first_episode"] + block["episodes"] for block in played)
    return 4 * max(ends, default=LEAST_FRESH // 4)


@dataclass(frozen=True)
class PolicyConclusion:
    """Picks the policy that did best on held-out episodes, scores it on fresh ones, and writes agent, log and curves.

    `settings` are the config of the study, which is kept beside the agent in the folder `results` (none: no files).
    `card` is what the agent's file says of the environment.  There are `fresh` episodes, or as many (None) as the four
    policies played that the `plan` of learning ends with.
    """

    settings: Any
    collector: Collector
    policy: Policy
    card: Mapping[str, Any]
    fresh: int | None
    plan: LearningPlan
    results: str | None = None
    seed: int = 0
    timeout: float | None = None
    #: When this process began, and what it had used.
    began: float = field(default_factory=time.time)
    used: float = field(default_factory=cpu_seconds)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Without when this process began, which changes nothing."""
        return {"settings": self.settings, "fresh": self.fresh}

    def rehearsed(self) -> Self:
        """The same without a folder: a rehearsal keeps nothing."""
        return replace(self, results=None)

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        cpu = cpu_seconds() - self.used
        times = {trial: (started, seconds) for trial, _, started, seconds in run.view.times()}
        learnt, lost = updates(run.results(), times), failures(run.results())
        figures: dict[str, Any] = {
            "updates": len(learnt),
            "episodes": sum(update.episodes for update in learnt),
            "steps": sum(update.steps for update in learnt),
            "failed_episodes": len(lost),
            **self._speed(run, times, cpu),
        }
        sections = [shown.learning(learnt)]
        if lost:
            sections.append(shown.failed_episodes(lost, run.id))
        policies = ending(run.results())
        if policies:
            best = max(policies, key=lambda policy: policy.mean)
            # Not named as in versions that counted lost episodes as 0.
            count = self.fresh or _held_out(run)
            fresh = (await go("final", self._fresh(best, count))).results()
            release(self.collector.env)
            blocks = [each.data for result in fresh for each in result.outcomes.values() if isinstance(each, Ok)]
            figures |= returned(blocks) | {"policy": best.name} | self.measured(blocks)
            figures["failed_fresh_episodes"] = count - figures["fresh_episodes"]
            sections.insert(0, self.ended(figures, policies))
            sections += await self.more(best)
            agent = self._agent(best, figures)
            figures["agent"] = dict(agent.card)
            if self.results is not None:
                folder = Path(self.results) / run.id
                write(folder, {**agent.files(), "training_log.csv": self.log(learnt)}, self.settings)
                curves = tensorboard.noted(folder, self.curves(learnt))
                figures["folder"] = str(folder)
                what = f"agent, training_log.csv, experiment_config.json, {curves}"
                sections.append(Section("Files", f"{folder}: {what}"))
        return Summary(figures, tuple(sections))

    def measured(self, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Further figures of the fresh episodes."""
        return {}

    def ended(self, figures: Mapping[str, Any], policies: Sequence[EndPolicy]) -> Section:
        return shown.final_policy(figures, policies)

    async def more(self, best: EndPolicy) -> list[Section]:
        """Further sections about the policy."""
        return []

    def log(self, learnt: Sequence[Update]) -> bytes:
        return logs.training_log(learnt)

    def curves(self, learnt: Sequence[Update]) -> logs.Curves:
        return logs.policy_curves(learnt)

    def _speed(self, run: Run[Any], times: Mapping[int, tuple[float, float]], cpu: float) -> dict[str, Any]:
        """What an earlier process played is not on this one's account."""
        recent = sum(
            result.candidate["episodes"]
            for result in run.results()
            if result.score is not None and result.candidate["learn"] and times[result.number][0] >= self.began
        )
        return speed(recent, cpu)

    def _fresh(self, best: EndPolicy, count: int) -> Study[Collect]:
        policy = msgspec.convert(best.candidate, Collect)
        return fresh_study(self.collector, policy, count, self.plan.piece(count), self.seed, self.timeout)

    def _agent(self, best: EndPolicy, figures: Mapping[str, Any]) -> Agent:
        facts = {name: figures[name] for name in ("return", "return_interval", "fresh_episodes", "steps", "policy")}
        network = {}
        if isinstance(self.policy, TorchPolicy):
            network = {"network": getattr(self.settings, "network", None) or name_of(self.policy.make)}
        card = {**self.card, **network, "greedy": best.candidate["greedy"], **facts}
        return Agent(self.policy, unpack(best.candidate["weights"].read()), card)
