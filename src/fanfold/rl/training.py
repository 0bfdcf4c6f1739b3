"""Training as a study, and as one call: `train(make_env)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fanfold.errors import ConfigError, nearest
from fanfold.files import check_results
from fanfold.rl.agent import Agent, card_of
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.conclusion import PolicyConclusion
from fanfold.rl.config import RlConfig, StepPpo
from fanfold.rl.environments import policy_for, release, spaces_of, try_observation
from fanfold.rl.heads import Array, Categories
from fanfold.rl.learner import Learner
from fanfold.rl.making import LONGEST, Environment, closed, named
from fanfold.rl.policy import Mlp, Policy
from fanfold.rl.shown import played
from fanfold.rl.spaces import images_in, is_image, marking_columns
from fanfold.rl.starting import Start, start_of
from fanfold.rl.torch_policy import Network, TorchPolicy, convolutions
from fanfold.rl.updates import updates
from fanfold.run_options import RunOptions
from fanfold.running import Run
from fanfold.study import Study


def chosen_policy(config: RlConfig, env: Environment, policy: Policy | Network | None = None) -> Policy:
    """What learns: the policy given, a network of PyTorch, or ours that fits the environment."""
    make = policy if policy is not None or config.network is None else named(config.network, "network")
    if isinstance(make, str) or not (make is None or callable(make) or hasattr(make, "initial")):
        what = "network" if policy is None else "policy"
        raise ConfigError(
            f"{what}={make!r} is not a network: give the class of a torch.nn.Module, or name it as module:name or "
            "file.py:name; without one, what fits the environment is chosen"
        )
    if make is not None and not callable(make):
        return make
    encoder, head = spaces_of(env)
    if make is None and encoder.image is None:
        return policy_for(env, config.ppo.hidden)
    network = TorchPolicy.of(make or convolutions, encoder, head, config.device)
    network.check_alone()
    return network


def study_of(
    config: RlConfig,
    env: Environment | None = None,
    policy: Policy | Network | None = None,
    start: Start | None = None,
) -> Study[Collect]:
    """The study that a config describes.  What cannot be learnt is refused here."""
    check_results(config.results)
    env = env or config.environment
    made = env.check(step=config.executor == "inline")
    closed(made)  # before another is made: of some there can be one at a time
    try:
        begun = try_observation(env)
        policy = chosen_policy(config, env, policy)
    finally:
        release(env)
    card = card_of(env, made)
    remarks = remarks_of(env, made, policy, begun, config.device)
    ppo = config.ppo
    weights = None
    if (start := start or config.start) is not None:
        weights, told = start_of(start, policy, card, config.results)
        remarks = (*remarks, told)
    plan = config.plan(policy, weights)
    collector = Collector(env, ppo.discount, ppo.trace, ppo.correction == "vtrace", policy)
    return Study(
        Learner(plan),
        collector,
        seed=config.seed,
        in_order=config.in_order,
        timeout=config.timeout,
        retries=2,
        name="rl",
        shown=played,
        remarks=remarks,
        conclude=PolicyConclusion(
            config,
            collector,
            policy,
            card,
            config.fresh_episodes,
            plan,
            config.results,
            config.seed,
            config.timeout,
        ),
    )


#: Beyond this, numbers of 32 bits are more than 1 apart.
PRECISE = 2.0**24
#: Beyond so many columns that mark values, steps take milliseconds.
MARKS = 2000
#: Wrappers that come to depend on what was played in them, and why to leave them out.
_REMEMBERING = {
    "NormalizeObservation": (
        "keeps statistics of its own in every environment: results differ from one executor to the next, and the agent "
        "acts without them. Leave it out, observations are normalised anyway"
    ),
    "NormalizeReward": (
        "changes the unit of rewards as it goes: returns are not those of the environment. Leave it out, learning "
        "follows the size of returns anyway"
    ),
}


def _wrappers(made: Any) -> set[str]:
    """The names of an environment's wrappers."""
    names = set()
    while made is not made.unwrapped:
        names.add(type(made).__name__)
        made = made.env
    return names


def remarks_of(
    env: Environment, made: Any, policy: Policy, begun: Sequence[Array], device: str = "cpu"
) -> tuple[str, ...]:
    """What was inferred about the environment, also from the first observations of episodes of one seed."""
    remarks, first = [], begun[0]
    if not np.isfinite(first).all():
        remarks.append(
            f"{env.name} begins with an observation that is not a finite number of 32 bits (up to 3.4e38), and such "
            "episodes fail: let it scale or clip what it observes"
        )
    elif (most := float(np.abs(first).max(initial=0.0))) > PRECISE:
        remarks.append(
            f"{env.name} observes numbers as large as {most:.3g}, of which seven digits are seen: let it subtract a "
            "constant if small differences matter"
        )
    if (columns := marking_columns(made.observation_space)) > MARKS:
        remarks.append(
            f"{env.name} observes values by their numbers, which become {columns:,} columns of 0 and 1: that is slow, "
            "and each value is learnt by itself. Let it observe in a Box what makes values alike, such as coordinates"
        )
    remarks += _of_network(env, made.observation_space, policy, first, device)
    remembering = [each for each in _REMEMBERING if each in _wrappers(made)]
    remarks += [f"{each} of {env.name} {_REMEMBERING[each]}" for each in remembering]
    if env.max_steps is None and env.longest(made) == LONGEST:
        remarks.append(
            f"{env.name} has no TimeLimit: an episode that does not end by itself is cut off after {LONGEST:,} steps "
            "(max_episode_steps), also each of those that score policies (fresh_episodes)"
        )
    if not remembering and not all(np.array_equal(first, other, equal_nan=True) for other in begun):
        remarks.append(
            f"two episodes of {env.name} with the same seed begin differently, so no run can be repeated: let reset "
            "call super().reset(seed=seed), and take random numbers from self.np_random"
        )
    return tuple(remarks)


def _of_network(env: Environment, space: Any, policy: Policy, first: Array, device: str) -> Iterator[str]:
    """What does not suit a network, or what a network does not suit."""
    most = float(np.abs(first).max(initial=0.0))
    plain = isinstance(policy, TorchPolicy) and policy.spaces.image and not policy.normalise
    if plain and first.dtype != np.uint8 and most > 16:
        yield (
            f"{env.name} observes pictures with numbers up to {most:.3g}, which a network gets as they are: let them "
            "be bytes (uint8), which it gets between 0 and 1, or divide them"
        )
    if isinstance(policy, TorchPolicy) and first.size and _gives_chances(policy, first):
        yield (
            "the network gives chances, which add up to 1. Scores are expected, and chances are made of them: without "
            "its last softmax it learns to decide"
        )
    if isinstance(policy, Mlp) and device != "cpu":
        yield (
            f"device={device!r} is for networks of PyTorch: rows of numbers are learnt by a small one of numpy, on the "
            "CPU. A network of your own learns there (network)"
        )
    if isinstance(policy, Mlp) and (images := images_in(space)):
        yield (
            f"{env.name} observes pictures among other things ({', '.join(images)}), and they are learnt as plain "
            "numbers: a network of your own can do better (network)"
        )
    elif isinstance(policy, Mlp) and is_image(space):
        yield f"{env.name} observes pictures, and they are learnt as plain numbers, which is slow"
    elif isinstance(policy, Mlp) and len(space.shape or ()) == 4:
        yield (
            f"{env.name} observes stacks of pictures, and they are learnt as plain numbers, which is slow: make "
            "pictures grey before they are stacked (GrayscaleObservation), or bring a network (network)"
        )


def _gives_chances(policy: TorchPolicy, row: Array) -> bool:
    """Whether a network gives the chances of choices, and not scores."""
    head = policy.head
    if not isinstance(head, Categories) or max(head.sizes) == 1:
        return False
    outputs = policy.outputs(policy.initial(0), row[None, : policy.spaces.width])
    return bool((outputs >= 0).all()) and all(np.isclose(outputs[:, span].sum(), 1, atol=1e-4) for span in head.spans())


@dataclass(frozen=True)
class Trained:
    """The result of `train`: the agent, its learning curve, and the run in which it learnt."""

    agent: Agent
    #: Episodes learnt from so far, and the mean return of those of an update.
    curve: tuple[tuple[int, float], ...] = field(repr=False)
    run: Run[Collect]


def train(
    env: str | Callable[..., Any] | Environment,
    *,
    policy: Policy | Network | str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[str | Callable[[Any], Any]] | None = None,
    start: Start | Trained | None = None,
    **settings: Any,
) -> Trained:
    """Train a policy on an environment: an id, `module:name`, `file.py:name`, or a function that makes one.

    Further arguments are the fields of `RlConfig` (`total_steps`, `n_workers`, `seed`, ...) and the options of
    `Study.run` (`executor`, `ledger`, `run`, `watch`, ...).  No folder is written unless `results` names one.  With
    `start`, an agent is trained further: one that was loaded, its folder, or the result of another training.
    """
    fields = {each.name for each in dataclasses.fields(RlConfig)} - {"env", "env_kwargs", "wrappers", "start"}
    options = {each.name for each in dataclasses.fields(RunOptions)}
    for name in settings.keys() - fields - options:
        inner = {each.name for each in dataclasses.fields(StepPpo)}
        hint = f": write ppo={{{name!r}: ...}}" if name in inner else nearest(name, [*fields, *options])
        raise ConfigError(f"train() has no argument {name!r}{hint}")
    made = Environment.of(env, env_kwargs, wrappers or (), settings.get("max_episode_steps"))
    own = {name: value for name, value in settings.items() if name in fields}
    if isinstance(policy, str):
        own["network"], policy = policy, None
    own |= {"start": str(start)} if isinstance(start, str | Path) else {}
    config = RlConfig(env=made.name, **{"results": None, **own})
    how = {name: value for name, value in settings.items() if name not in fields}
    study = study_of(config, made, policy, start.agent if isinstance(start, Trained) else start)
    assert isinstance(study.evaluate, Collector)
    run = study.run(**{"executor": config.executor, **how})
    curve, episodes = [], 0
    for update in updates(run.results()):
        episodes += update.episodes
        curve.append((episodes, update.mean_return))
    return Trained(Agent.load(run, policy=study.evaluate.policy), tuple(curve), run)
