"""Where a training begins that continues another: an agent's weights, if they fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fanfold.errors import ConfigError
from fanfold.rl.agent import CARD, Agent, folder_of
from fanfold.rl.policy import Mlp, Policy
from fanfold.rl.space_json import space_from_json
from fanfold.running import Run
from fanfold.tensors import Arrays, pack
from fanfold.types import Blob

#: An agent, its folder or the name of its run there, or a run.
Start: TypeAlias = Agent | Run[Any] | str | Path


def start_of(source: Start, policy: Policy, card: Mapping[str, Any], results: str | None) -> tuple[Blob, str]:
    """The weights that learning begins with, and a remark on whose they are.

    `card` describes the environment that is to be learnt, by `policy`.  An agent of other spaces, or of another
    network, is refused.  What it remembers of observations and returns is part of its weights.
    """
    agent = source if isinstance(source, Agent) else Agent.load(_found(source, results), policy=policy)
    for what in ("observation_space", "action_space"):
        if agent.card[what] != card[what]:
            own, here = space_from_json(agent.card[what]), space_from_json(card[what])
            raise ConfigError(
                f"start: the agent was trained on {agent.card['env']['name']} with the {what} {own}, and "
                f"env={card['env']['name']!r} has {here}: give the environment (env, env_kwargs, wrappers) the same one"
            )
    _check_network(agent, policy)
    scored = f", which returned {agent.card['return']:.6g}" if agent.card.get("return") is not None else ""
    return Blob.of(pack(agent.weights)), f"learning begins with an agent of {agent.card['env']['name']}{scored}"


def _found(source: Run[Any] | str | Path, results: str | None) -> Run[Any] | Path:
    if not isinstance(source, str | Path):
        return source
    places = [Path(source), *([] if results is None else [Path(results) / source])]
    found = next((place for place in places if folder_of(place) is not None), None)
    if found is None:
        raise ConfigError(
            f"start={str(source)!r}: there is no {CARD} in {' or '.join(map(str, places))}. Name an agent's folder, "
            "such as results/rl/RUN; from Python, Agent.load(run, ledger=...) takes a run of a ledger"
        )
    return found


def _check_network(agent: Agent, policy: Policy) -> None:
    own, here = _shapes(agent.weights), _shapes(policy.initial(0))
    if own == here:
        return
    name = next(name for name in [*own, *here] if own.get(name) != here.get(name))
    one, other = (shapes.get(name, "not there") for shapes in (own, here))
    if network := agent.card.get("network"):
        remedy = f"give its network, {network} (network)"
    else:
        hidden = len(agent.weights["policy.0.bias"])
        remedy = f"set ppo.hidden={hidden}" if isinstance(policy, Mlp) else "leave out the network"
    raise ConfigError(
        f"start: the agent has another network than this training: {name} is {one} in the agent, and {other} here: "
        f"{remedy}, or begin without start"
    )


def _shapes(weights: Arrays) -> dict[str, tuple[int, ...]]:
    """Without what is remembered of observations: agents of earlier versions lack some, and learn without it."""
    return {name: array.shape for name, array in weights.items() if not name.startswith("observation.")}
