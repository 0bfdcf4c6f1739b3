"""The study that a config describes: a search over workflows, or one policy that learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fanfold.errors import ConfigError
from fanfold.files import check_results
from fanfold.rl.collect import Collect
from fanfold.rl.config import executor_of
from fanfold.rl.learner import Learner, LearningPlan
from fanfold.rl.training import study_of
from fanfold.studies.workflow.chooser import Chooser, HalvingChooser, InTurn, Shuffled, UpperBound
from fanfold.studies.workflow.collect import CAGE2, cage2_policy, context_of
from fanfold.studies.workflow.compliance import Stopping
from fanfold.studies.workflow.conclusion import SearchConclusion
from fanfold.studies.workflow.config import WorkflowConfig
from fanfold.studies.workflow.defender import DefenderConclusion, defender_card
from fanfold.studies.workflow.evaluator import Train, WorkflowTrainer
from fanfold.studies.workflow.orders import NAMED, parse
from fanfold.studies.workflow.own import KeptCollector, OwnProblem
from fanfold.studies.workflow.shown import played, trained
from fanfold.studies.workflow.spaces import WorkflowSpace
from fanfold.studies.workflow.strategy import SearchPlan, WorkflowSearch
from fanfold.study import Study


def study(config: WorkflowConfig, own: OwnProblem | None = None) -> Study[Any]:
    """The study that a config describes; `own` is a problem of your own in the place of CAGE-2."""
    check_results(config.results)
    if own is not None:
        _check_own(config, own)
    return _one_policy(config) if config.mode == "ppo" else _many_workflows(config, own or config.own)


def _check_own(config: WorkflowConfig, own: OwnProblem) -> None:
    """Refuse settings that would do something else than they say for a problem that comes beside them."""
    config.check_other()
    if config.mode == "ppo":
        raise ConfigError(
            "mode='ppo' trains one policy of CAGE-2, and not for this problem: use another mode, or fanfold.rl.train"
        )
    if config.mode == "fixed" and config.workflow is None:
        raise ConfigError("mode='fixed' needs the workflow to train, which only CAGE-2 can do without (workflow)")
    if config.exhaustive and own.space.arms is None:
        raise ConfigError("exhaustive=True: there are too many workflows to train all of them")


def _one_policy(config: WorkflowConfig) -> Study[Collect]:
    if config.env != CAGE2:
        return replace(study_of(config.as_rl), name="workflow")
    workflow = None if config.workflow is None else parse(config.workflow, config.grain)
    policy = cage2_policy(context_of(workflow), config.ppo.hidden, config.remembers)
    plan = LearningPlan(
        policy,
        config.total_episodes,
        config.per_update,
        config.per_block,
        config.window,
        config.ppo,
        context_of(workflow),
        config.synchronous,
        -(-config.scored_on // 4),
        growth=config.growth or (4.0 if config.remembers else 1.0),
    )
    return Study(
        Learner(plan),
        config.cage2,
        seed=config.seed,
        timeout=config.timeout,
        retries=2,
        name="workflow",
        shown=played,
        conclude=DefenderConclusion(
            config,
            config.cage2,
            policy,
            defender_card(config.game, context_of(workflow)),
            config.scored_on,
            plan,
            config.results,
            config.seed,
            config.timeout,
        ),
    )


def _many_workflows(config: WorkflowConfig, own: OwnProblem | None) -> Study[Train]:
    space = config.workflows if own is None else own.space
    if own is not None and config.episodes_per_update is None:  # a training is to have some twenty updates at least
        config = replace(config, episodes_per_update=max(10, min(100, config.per_workflow // 20)))
    threshold, collector = config.compliance_threshold, config.collector_for(own)
    remarks: tuple[str, ...] = ()
    card = None
    if isinstance(collector, KeptCollector):
        remarks, card = collector.checked(step=run_options(config)["executor"] == "inline")
    plan = SearchPlan(
        len(space.arms or ()) * config.per_workflow if config.exhaustive else config.total_episodes,
        config.rungs,
        config.per_update,
        threshold=threshold,
        inherit=config.inherit == "nearest",
        finale=config.finale if config.mode in ("search", "halving") and not config.exhaustive else 0.0,
        window=config.window,
        synchronous=config.synchronous,
    )
    trainer = WorkflowTrainer(
        collector,
        config.ppo,
        Stopping(threshold, patience=-(-config.patience_updates // config.look_updates)),
        config.per_update,
        config.look_updates,
        *((256, 1024) if own is None else _looks(config)),
        early=config.fixed_episodes_per_workflow is None,
        keep_optimiser=config.inherit_optimiser,
    )
    return Study(
        WorkflowSearch(space, _chooser(config, space), plan),
        trainer,
        seed=config.seed,
        timeout=config.timeout,
        name="workflow",
        shown=trained,
        remarks=remarks,
        conclude=SearchConclusion(config, space=space, collector=collector, card=card),
    )


def _looks(config: WorkflowConfig) -> tuple[int, int]:
    """Episodes of a look, and of a score, for environments that are not as quick as CAGE-2."""
    return min(256, max(16, config.per_workflow // 20)), min(1024, max(64, config.per_workflow // 4))


def _chooser(config: WorkflowConfig, space: WorkflowSpace) -> Chooser:
    if config.exhaustive:
        return InTurn(space.arms or (), again=False)
    if config.mode == "fixed":
        return InTurn(tuple(NAMED.values()) if config.workflow is None else (space.parse(config.workflow),))
    if config.mode == "random":
        return Shuffled(space)
    if config.mode == "halving":
        return HalvingChooser(space, config.rungs, config.compliance_threshold)
    return UpperBound(space, config.per_workflow, config.compliance_threshold)


def run_options(config: WorkflowConfig) -> dict[str, Any]:
    """Run options that follow from the config: where blocks are played and workflows are trained."""
    return {"executor": executor_of(config.n_workers, config.timeout)}
