"""The study that a config describes: a search over workflows, or one policy that learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fanfold.rl.collect import Collect
from fanfold.rl.learner import Learner, LearningPlan
from fanfold.rl.training import study_of
from fanfold.strategy import Strategy
from fanfold.studies.workflow.collect import CAGE2, cage2_policy, context_of
from fanfold.studies.workflow.compliance import Stopping, reachable
from fanfold.studies.workflow.conclusion import SearchConclusion
from fanfold.studies.workflow.config import WorkflowConfig
from fanfold.studies.workflow.defender import DefenderConclusion, defender_card
from fanfold.studies.workflow.evaluator import Train, WorkflowTrainer
from fanfold.studies.workflow.orders import NAMED, UNITS, orders, parse
from fanfold.studies.workflow.shown import played, trained
from fanfold.studies.workflow.strategy import Arm, Shuffled, WorkflowSearch, given, gp_ucb
from fanfold.study import Study


def study(config: WorkflowConfig) -> Study[Any]:
    """The study that a config describes."""
    return _one_policy(config) if config.mode == "ppo" else _many_workflows(config)


def _one_policy(config: WorkflowConfig) -> Study[Collect]:
    if config.env != CAGE2:
        return replace(study_of(config.as_rl), name="workflow")
    workflow = None if config.workflow is None else parse(config.workflow)
    policy = cage2_policy(context_of(workflow), config.ppo.hidden)
    plan = LearningPlan(
        policy,
        config.total_episodes,
        config.per_update,
        config.block,
        config.window,
        config.ppo,
        context_of(workflow),
        config.synchronous,
        -(-config.scored_on // 4),
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
            plan.most,
            config.results,
            config.seed,
            config.timeout,
        ),
    )


def _many_workflows(config: WorkflowConfig) -> Study[Train]:
    ignore = tuple(unit for unit in UNITS if unit not in reachable((config.red,)))
    most, threshold = config.per_workflow, config.compliance_threshold
    search = WorkflowSearch(
        _chooser(config, ignore),
        len(orders()) * most if config.exhaustive else config.total_episodes,
        most,
        config.per_update,
        threshold=threshold,
        inherit=config.inherit == "nearest",
        ignore=ignore,
        finale=config.finale if config.mode == "search" and not config.exhaustive else 0.0,
        window=config.window,
    )
    trainer = WorkflowTrainer(
        config.cage2,
        config.ppo,
        Stopping(threshold, patience=-(-config.patience_updates // config.look_updates)),
        config.per_update,
        config.look_updates,
        early=config.fixed_episodes_per_workflow is None,
        keep_optimiser=config.inherit_optimiser,
    )
    return Study(
        search,
        trainer,
        seed=config.seed,
        timeout=config.timeout,
        name="workflow",
        shown=trained,
        conclude=SearchConclusion(config, ignore=ignore),
    )


def _chooser(config: WorkflowConfig, ignore: tuple[str, ...]) -> Strategy[Arm]:
    if config.exhaustive:
        return given(orders(), again=False)
    if config.mode == "fixed":
        return given(tuple(NAMED.values()) if config.workflow is None else (parse(config.workflow),))
    return Shuffled(orders()) if config.mode == "random" else gp_ucb(config.compliance_threshold, ignore)


def run_options(config: WorkflowConfig) -> dict[str, Any]:
    """Run options that follow from the config: where blocks are played and workflows are trained."""
    if config.n_workers == 1 and config.timeout is None:
        return {"executor": "inline"}
    return {"executor": f"processes:{config.n_workers}"}
