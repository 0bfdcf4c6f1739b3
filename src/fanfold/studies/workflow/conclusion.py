"""What a run comes to: its best policy scored on fresh episodes, what is believed of all workflows, and files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fanfold.errors import ConfigError
from fanfold.rl import environments, tensorboard
from fanfold.rl.agent import Agent, policy_of
from fanfold.rl.conclusion import cpu_seconds, speed, write
from fanfold.rl.failures import commonest
from fanfold.running import Go, Run
from fanfold.strategies import Sweep
from fanfold.strategies.gp_ucb import Belief
from fanfold.studies.workflow import logs, shown
from fanfold.studies.workflow.baselines import Play, Watch, WatchOwn, cases, judged
from fanfold.studies.workflow.chooser import UpperBound, observed
from fanfold.studies.workflow.collect import Cage2Collector, context_of
from fanfold.studies.workflow.config import WorkflowConfig
from fanfold.studies.workflow.defender import defender_card
from fanfold.studies.workflow.evaluator import MOMENTS
from fanfold.studies.workflow.own import KeptCollector
from fanfold.studies.workflow.spaces import Workflow, WorkflowSpace, show
from fanfold.studies.workflow.trainings import FinishedTraining, penalty_share, trainings
from fanfold.study import Study
from fanfold.summary import Section, Summary
from fanfold.tensors import Arrays, pack, unpack
from fanfold.types import Ok, Result, Trial

#: The most workflows whose beliefs are kept.
MOST_BELIEFS = 200


def _times(run: Run[Any]) -> tuple[dict[int, float], dict[int, float]]:
    """Of every trial, how many seconds its evaluation took, and when it began."""
    rows = list(run.view.times())
    return {trial: seconds for trial, _, _, seconds in rows}, {trial: started for trial, _, started, _ in rows}


@dataclass(frozen=True)
class SearchConclusion:
    """Scores the best compliant workflow and two heuristics on the same fresh episodes, and writes agents and logs.

    What the search chose is told apart from what the finale made of it: both are scored.
    """

    config: WorkflowConfig
    space: WorkflowSpace
    collector: Cage2Collector | KeptCollector
    #: What an agent's file says of an environment of one's own.
    card: Mapping[str, Any] | None = None
    #: When this process began, and what it had used.
    began: float = field(default_factory=time.time)
    used: float = field(default_factory=cpu_seconds)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Without when this process began, which changes nothing."""
        return {"config": self.config}

    def rehearsed(self) -> Self:
        """The same without a folder: a rehearsal keeps nothing."""
        return replace(self, config=replace(self.config, results=None))

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        cpu, (seconds, started) = cpu_seconds() - self.used, _times(run)
        told, threshold = trainings(run.results(), seconds), self.config.compliance_threshold
        if not told:
            return Summary({"trainings": 0}, (Section("Best workflow", "No training has finished."),))
        # What an earlier process learnt from is not on this one's account.
        recent = sum(each.data["episodes"] for each in told if started[each.number] >= self.began)
        best = max(told, key=lambda each: each.standing(threshold))
        searched = [each for each in told if not each.finale] or told
        chosen = max(searched, key=lambda each: each.standing(threshold))
        space, full = self.space, self.config.per_workflow
        scores = await self._scores([best, *([chosen] if chosen is not best else [])], go)
        reference, whose = best_known(run, told, threshold, space)
        course, beliefs = regrets(told, threshold, reference), believed(told, threshold, space, full)
        figures: dict[str, Any] = {
            "trainings": len(told),
            "episodes": sum(each.data["episodes"] for each in told),
            "held_out_episodes": sum(each.data["held_out_episodes"] for each in told),
            **speed(recent, cpu),
            "stopped": dict(sorted(Counter(each.data["stopped"] for each in told).items())),
            **scores[0],
            "workflow": show(best.workflow),
            "trial": best.number,
            "complies": best.standing(threshold)[0] > 0,
            "policy": best.data["policy"],
            "chosen": {"workflow": show(chosen.workflow), "trial": chosen.number, **scores[0 if chosen is best else 1]},
            "finale_episodes": sum(each.data["episodes"] for each in told if each.finale),
            "rivals": dict(zip(("greedy", "random"), scores[-2:])) if self._cage2 else {},
            "regret": course,
            "best_known": reference,
            "best_known_of": whose,
            "beliefs": [
                [show(each.arm), round(each.mean, 4), round(each.deviation, 4), round(each.feasible, 4)]
                for each in beliefs[:MOST_BELIEFS]
            ],
        }
        agent = self._agent(best, figures)
        figures["agent"] = dict(agent.card)
        figures |= self._warnings(told)
        sections = [
            shown.best_workflow(figures, threshold),
            shown.side_by_side(scores, chosen is not best),
            shown.ranked_trainings(told, threshold),
            shown.belief_table(beliefs, told, space),
            shown.regret_table(told, course, reference, whose),
            shown.endings(told),
            shown.family(told),
            *shown.episode(best.data),
        ]
        if self.config.results is not None:
            folder = Path(self.config.results) / run.id
            write(folder, {**agent.files(), **_files(told, self._env)}, self.config)
            curves = tensorboard.noted(folder, logs.search_curves(told, threshold))
            what = f"logs, experiment_config.json, {curves}, the agent, and the weights of every training"
            figures["folder"] = str(folder)
            sections.append(Section("Files", f"{folder}: {what}"))
        return Summary(figures, tuple(sections))

    def _warnings(self, told: Sequence[FinishedTraining]) -> dict[str, Any]:
        """Figures of what may have gone wrong: episodes that failed, and a penalty of another size than the returns."""
        figures: dict[str, Any] = {}
        if failed := [each.data for each in told if each.data.get("failed_episodes")]:
            figures["failed_episodes"] = sum(data["failed_episodes"] for data in failed)
            figures["failure"] = commonest(data["failure"] for data in failed)
        if not self._cage2 and (share := penalty_share(told)) is not None:
            figures |= {"alignment_lambda": self.config.alignment_lambda, "penalty_share": share}
            figures["compliant"] = sum(each.rate >= self.config.compliance_threshold for each in told)
        return figures

    def _agent(self, best: FinishedTraining, figures: Mapping[str, Any]) -> Agent:
        """The policy of the best workflow, as others can load it."""
        card = self.card or defender_card(self.config.game, context_of(best.workflow))
        facts = {name: figures[name] for name in ("return", "return_interval", "workflow", "compliance", "trial")}
        weights = _weights(best)
        card = {**card, "greedy": best.data["greedy"], **facts}
        return Agent(policy_of(weights, card), weights, card)

    @property
    def _env(self) -> str:
        return str(getattr(self.collector.env, "name", self.collector.env))

    @property
    def _cage2(self) -> bool:
        return not isinstance(self.collector, KeptCollector)

    async def _scores(self, best: Sequence[FinishedTraining], go: Go) -> list[dict[str, Any]]:
        """What the best policies, a greedy heuristic and chance do on the same fresh episodes."""
        players = [Play("agent", each.workflow, each.data["agent"], each.data["greedy"]) for each in best]
        watch: Watch | WatchOwn = Watch(self.config.game)
        count = self.config.scored_on
        if isinstance(self.collector, KeptCollector):
            watch, count = WatchOwn(self.collector), self.config.fresh_episodes or 256
        else:
            players += [Play("greedy", best[0].workflow), Play("random", best[0].workflow)]
        study = Study(Sweep(players), watch, cases(count), seed=self.config.seed, name="fresh")
        scores = [judged(each) for each in (await go("fresh", study)).results()]
        environments.release(self.collector.env)
        return scores


def _files(told: Sequence[FinishedTraining], env: str) -> dict[str, bytes]:
    files = {"training_log.csv": logs.training_log(told), "gp_sampling_log.csv": logs.sampling_log(told)}
    for each in told:
        about = {"workflow": show(each.workflow), "greedy": str(each.data["greedy"]).lower(), "env": env}
        about |= {"return": f"{each.score}", "compliance": f"{each.data['compliance']}"}
        files[f"workflow_{each.number}_agent.safetensors"] = pack(_weights(each), about)
    return files


def _weights(training: FinishedTraining) -> Arrays:
    """The weights of a training's policy, without those of its optimiser."""
    arrays = unpack(training.data["agent"].read())
    return {name: array for name, array in arrays.items() if not name.startswith(MOMENTS)}


def believed(
    told: Sequence[FinishedTraining], threshold: float, space: WorkflowSpace, full: int
) -> list[Belief[Workflow]]:
    """What the surrogate believes of workflows after these trainings, the best first."""
    chooser = UpperBound(space, full, threshold)
    chooser.begin(0)
    for each in told:
        seen = observed(Result(Trial(each.number, each.workflow), each.score, {"0": Ok(each.score, each.data)}))
        learnt, lineage = each.origin["learnt"], each.origin.get("lineage", 0)
        chooser.surrogate.observe(each.workflow, learnt, lineage, seen, learnt - each.data["episodes"])
    return sorted(chooser.beliefs(), key=lambda each: (each.feasible < 0.5, -each.mean))


def best_known(
    run: Run[Any], told: Sequence[FinishedTraining], threshold: float, space: WorkflowSpace
) -> tuple[float | None, str]:
    """The best return of a compliant policy, and whose: of runs in this ledger that trained all workflows, or ours."""
    mine = run.ledger.run(run.id)
    best = _best(told, threshold)
    whose = mine.name
    for other in run.ledger.runs():
        alike = other.identity.get("evaluate") == mine.identity.get("evaluate")
        if space.arms is None or not alike or other.id == mine.id or other.trials < len(space.arms):
            continue
        theirs = trainings(run.ledger.results(other.id), {})
        try:
            covered = {space.canonical(space.checked(each.workflow)) for each in theirs}
        except ConfigError:
            continue  # of the same game in another grain
        score = _best(theirs, threshold) if covered == set(space.arms) else None
        if score is not None and (best is None or score > best):
            best, whose = score, other.name
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
