"""The documented training program over the study `workflow`, and the function its workers ran.

python -m fanfold.legacy.executor_async_train_workflow_rl --n-workers 100 --total-episodes 100000

Its options are those of `fanfold run workflow`, to which everything is handed on; only `--n-workers` means more there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.errors import ConfigError
from fanfold.executors import usable_cores

#: The most workflows that are trained at once.  More would be chosen before anything is known of those under way.
AT_ONCE = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and give its exit code."""
    from fanfold.cli import cli

    words = command(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(words, prog_name="fanfold", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def command(arguments: Sequence[str]) -> list[str]:
    """The words of the `fanfold` command that does what the documented one did.

    The documented workers played episodes of one workflow after the other; here each trains a workflow of its own.  How
    many are under way decides what the search knows when it chooses, and follows from `--n-workers` alone; how many
    processes they share, also from the machine: more than it has cores would only wait for each other.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--n-workers", "--n_workers")
    parser.add_argument("--in-flight", "--in_flight")
    parser.add_argument("--executor")
    known, rest = parser.parse_known_args(list(arguments))
    words = ["run", "workflow", *rest]
    wanted = known.n_workers
    if wanted is not None:
        words += ["--n-workers", wanted]
    if wanted is not None and wanted.isdecimal() and int(wanted) > 0:  # anything else is for the study to refuse
        workers = min(int(wanted), usable_cores())
        known.in_flight = known.in_flight or str(min(int(wanted), AT_ONCE))
        if known.executor is None:
            known.executor = f"processes:{workers}" if workers > 1 else "inline"
            if workers < int(wanted):
                print(f"{wanted} workers asked for, {workers} used: as many as there are cores", file=sys.stderr)
    for name, value in (("--in-flight", known.in_flight), ("--executor", known.executor)):
        words += [] if value is None else [name, value]
    return words


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of CAGE-2 as it was played, step by step.

    `observations` are rows of 52 bits; `compliance` is the share of fixes that kept to the workflow, None where there
    was none to keep to or nothing to fix.
    """

    number: int
    observations: Any
    actions: Any
    rewards: Any
    fixes: int = 0
    compliance: float | None = None

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())


def initial_policy(workflow: str | None = None, hidden: int = 64, seed: int = 0) -> bytes:
    """An untrained policy as the bytes of a safetensors file; those of a trained agent do as well."""
    from fanfold.studies.workflow import ppo
    from fanfold.studies.workflow.collect import CAGE2, sizes
    from fanfold.studies.workflow.orders import parse
    from fanfold.tensors import pack

    return pack(ppo.initial(*sizes(CAGE2, None if workflow is None else parse(workflow)), hidden, seed))


def collect_single_episode(
    policy: bytes,
    episode: int = 0,
    workflow: str | None = None,
    red_agent: str = "B_lineAgent",
    seed: int = 0,
    greedy: bool = False,
) -> Episode:
    """Play one whole episode.  What happens in it follows from the arguments alone, whoever plays it."""
    from fanfold.studies.workflow import Config, ppo
    from fanfold.studies.workflow.cage2_blocks import play
    from fanfold.studies.workflow.collect import Collect, sizes
    from fanfold.studies.workflow.compliance import judge
    from fanfold.studies.workflow.orders import parse
    from fanfold.tensors import unpack
    from fanfold.types import Blob

    config = Config(mode="ppo", red_agent=red_agent, workflow=workflow)
    order = None if workflow is None else parse(workflow)
    weights = unpack(policy)
    width = sizes(config.env, order)[0]
    if "policy.0.weight" not in weights or len(weights["policy.0.weight"]) != width:
        raise ConfigError(
            f"policy is not one for workflow={workflow!r}: it should have {width} inputs. Policies learn with or "
            "without a workflow, and play likewise"
        )
    block = Collect(0, Blob.of(policy), episode, 1, order, greedy)
    _, played = play(block, weights, config.game, range(episode, episode + 1), seed)
    seen = ppo.inputs_of(played.keys[played.observations[0]], sizes(config.env, None)[0])
    fixes, compliance = 0, None
    if order is not None:
        marks = judge(played.actions, played.held, order)
        fixes = int(marks.fixes[0])
        compliance = float(marks.kept[0]) / fixes if fixes else None
    return Episode(episode, seen, played.actions[0], played.rewards[0], fixes, compliance)


if __name__ == "__main__":
    sys.exit(main())
