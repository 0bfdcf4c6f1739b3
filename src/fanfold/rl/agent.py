"""Trained agents: files that say what they are, a policy that acts, and episodes to look at.

An agent's folder holds `agent.safetensors`, the weights, and `agent.json`, its card: the environment, the spaces, the
network, and how well it did.
"""

from __future__ import annotations

import functools
import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.files import write_files
from fanfold.ledger import RunView
from fanfold.rl.environments import Lane, checked_reward, checked_row
from fanfold.rl.failures import FailedEpisode
from fanfold.rl.heads import Categories
from fanfold.rl.making import Environment, closed, name_of, named
from fanfold.rl.policy import MEAN, Mlp, Policy, act
from fanfold.rl.space_json import space_from_json, space_to_json
from fanfold.rl.spaces import Decoder, Encoder, head_of, mask_row
from fanfold.rl.torch_policy import Network, TorchPolicy, convolutions
from fanfold.rl.updates import ending
from fanfold.tensors import Arrays, pack, unpack
from fanfold.types import Ok

if TYPE_CHECKING:
    from fanfold.running import Run

WEIGHTS, CARD = "agent.safetensors", "agent.json"


#: An argument that a file cannot hold, such as a table of prices.
_UNTOLD: Any = object()


def _plain(value: Any) -> Any:
    """An argument of an environment as a file keeps it, so that it is the same when it is read."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        parts = {name: _plain(part) for name, part in value.items()}
        whole = all(isinstance(name, str) for name in parts) and all(part is not _UNTOLD for part in parts.values())
        return parts if whole else _UNTOLD
    if isinstance(value, list | tuple):
        items = [_plain(part) for part in value]
        return _UNTOLD if any(item is _UNTOLD for item in items) else items
    kept = type(value) in (NoneType, bool, int, str) or (type(value) is float and math.isfinite(value))
    return value if kept else _UNTOLD


def card_of(env: Environment, made: Any = None) -> dict[str, Any]:
    """What an agent's file says of its environment; `made` is one of it that is there already."""
    if made is None:
        made = env()
        closed(made)
    wrappers = [name_of(each) for each in env.wrappers]
    kwargs = {name: _plain(value) for name, value in env.kwargs.items()}
    told = {name: value for name, value in kwargs.items() if value is not _UNTOLD}
    code = [name for name in ([] if env.spec else [env.name]) + wrappers if ":" not in name]
    code += [f"env_kwargs[{name!r}]" for name in kwargs if name not in told]
    about = {"name": env.name, "kwargs": told, "wrappers": wrappers, "max_steps": env.max_steps, "code": code}
    spaces = {"observation_space": made.observation_space, "action_space": made.action_space}
    return {"format": 1, "env": about, **{name: space_to_json(space) for name, space in spaces.items()}}


@dataclass(frozen=True, eq=False)
class Agent:
    """A policy that was trained, and its card.

    `agent.act(observation)` gives an action that `env.step` takes.  An agent acts as it did best in training, greedy
    or drawing its actions; `greedy=` says otherwise.
    """

    policy: Policy
    weights: Arrays = field(repr=False)
    card: Mapping[str, Any]
    #: The luck of actions that are drawn.
    _keys: Any = field(default_factory=lambda: np.array([0], np.uint64), repr=False)

    @classmethod
    def load(
        cls,
        source: str | Path | Run[Any] | RunView,
        *,
        ledger: str | Path | None = None,
        version: int | None = None,
        env: str | Callable[..., Any] | Environment | None = None,
        policy: Policy | Network | None = None,
    ) -> Agent:
        """The agent of a folder, or of a run.

        A run is an object that `train` returned, or a name in a `ledger`.  `version` takes the policy that a run had
        after so many updates.  `env` is needed where the run's environment is a function of a Python program, and
        `policy` where its network is.
        """
        if isinstance(source, str | Path) and (folder := folder_of(Path(source))) is not None:
            if version is not None:
                raise ConfigError("a folder holds one version of an agent: name the run instead, with its ledger")
            return cls._read(folder, policy)
        if isinstance(source, str | Path):
            if ledger is None or not Path(ledger).exists():
                raise ConfigError(f"there is no agent in {str(source)!r}: give a folder with {CARD}, or a run's ledger")
            with RunView.open(ledger, str(source)) as view:
                return cls._of_run(view, version, env, policy)
        return cls._of_run(source if isinstance(source, RunView) else source.view, version, env, policy)

    @classmethod
    def _read(cls, folder: Path, policy: Policy | Network | None) -> Agent:
        try:
            card = msgspec.json.decode((folder / CARD).read_bytes(), type=dict[str, Any])
            weights = unpack((folder / WEIGHTS).read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the agent in {folder} cannot be read: {error}") from error
        return cls(_policy(policy, weights, card), weights, card)

    @classmethod
    def _of_run(cls, view: RunView, version: int | None, env: Any, policy: Policy | Network | None) -> Agent:
        summary = view.summary()
        figures = {} if summary is None else summary.figures
        card = dict(figures.get("agent") or {})
        blob, greedy = _weights(view, version, figures.get("policy"), card)
        if env is not None or not card:
            steps = card["env"].get("max_steps") if card else _fields(view).get("max_episode_steps")
            played = card_of(_recorded(view) if env is None else _limited(Environment.of(env), steps))
            card = {**played, **card, "env": played["env"]}  # the spaces it was trained on stay
        weights = unpack(blob)
        if "network" not in card and not _ours(weights):
            card["network"] = _fields(view).get("network") or name_of(convolutions)
        return cls(_policy(policy, weights, card), weights, {**card, "greedy": greedy})

    def save(self, folder: str | Path) -> None:
        """Write the agent's two files into a folder."""
        write_files(Path(folder), self.files())

    def files(self) -> dict[str, bytes]:
        about = {name: str(self.card[name]) for name in ("greedy", "return") if name in self.card}
        card = msgspec.json.format(msgspec.json.encode(dict(self.card)))
        env = self.card["env"]
        return {WEIGHTS: pack(self.weights, {"env": env.get("alias", env["name"]), **about}), CARD: card}

    @property
    def greedy(self) -> bool:
        return bool(self.card.get("greedy", True))

    def act(self, observation: Any, greedy: bool | None = None, mask: Any = None) -> Any:
        """The action for one observation, as `env.step` takes it; `mask` says which choices are allowed."""
        row = self._row(observation)
        if row.shape != (self._encoder.width,):
            raise ConfigError(
                f"the agent was trained on observations of {self._encoder.width} numbers, and this one has {row.size}: "
                f"give one observation as {self._encoder.space} has it"
            )
        if mask is None and isinstance(observation, Mapping) and isinstance(self.policy.head, Categories):
            mask = observation.get("action_mask")
        if mask is not None:
            row = np.concatenate([row, mask_row(mask, self.policy.head).astype(row.dtype)])
        greedy = self.greedy if greedy is None else greedy
        chosen = act(self.policy, self.weights, checked_row(row)[None], self._keys, greedy)
        return self._decoder(chosen)[0]

    def _row(self, observation: Any) -> Any:
        try:
            return self._encoder(observation)
        except (TypeError, ValueError, LookupError) as error:
            begun = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], Mapping)
            hint = ". env.reset() returns a tuple of an observation and a dict: give the observation alone" * begun
            raise ConfigError(
                f"the agent cannot take this observation ({type(error).__name__}: {error}): give one as "
                f"{self._encoder.space} has it{hint}"
            ) from error

    @functools.cached_property
    def _encoder(self) -> Encoder:
        return Encoder(space_from_json(self.card["observation_space"]))

    @functools.cached_property
    def _decoder(self) -> Decoder:
        return Decoder(space_from_json(self.card["action_space"]))

    def environment(self) -> Environment:
        """The environment that it was trained on, where its card can name it."""
        env = self.card["env"]
        if env.get("code"):
            names = ", ".join(env["code"])
            raise ConfigError(
                f"{names} belongs to the program that trained the agent: say env=, such as a function that makes the "
                "environment, or --env file.py:name"
            )
        try:
            return Environment.of(env["name"], env["kwargs"], env["wrappers"], env["max_steps"])
        except ConfigError as error:
            raise ConfigError(
                f"{error}. The agent was trained on {env['name']}: where that is not here, say env=, or --env"
            ) from error

    def play(
        self,
        env: str | Callable[..., Any] | Environment | None = None,
        episodes: int = 10,
        seed: int = 0,
        greedy: bool | None = None,
        render_mode: str | None = None,
    ) -> Iterator[ShownEpisode]:
        """Play episodes, the first of them with just this seed; they are cut off where those of the training were."""
        steps = self.card["env"].get("max_steps")
        made = self.environment() if env is None else _limited(Environment.of(env), steps)
        lane = Lane(made, **({"render_mode": render_mode} if render_mode and made.takes("render_mode") else {}))
        try:
            if (lane.encoder.width, lane.head) != (self._encoder.width, self.policy.head):
                raise ConfigError(
                    f"env={made.name!r} observes {lane.encoder.space} and takes {lane.env.action_space}, but the agent "
                    f"was trained on {self._encoder.space} and {self._decoder.space}: give the same arguments and "
                    "wrappers (--env-kwargs, --wrappers)"
                )
            for number in range(episodes):
                own = seed if number == 0 else derive_seed(seed, "episode", number)
                yield self._episode(lane, own, number, self.greedy if greedy is None else greedy)
        finally:  # also where nobody looks at the rest
            lane.close()

    def _episode(self, lane: Lane, seed: int, number: int, greedy: bool) -> ShownEpisode:
        played, keys = ShownEpisode(number, seed), np.array([seed % 2**64], np.uint64)
        try:
            row = checked_row(lane.begin(seed % 2**31, 0))
            played.seen(lane, None, 0.0)
            for step in itertools.count(1):
                (action,) = lane.decode(act(self.policy, self.weights, row[None], keys, greedy))
                observation, reward, terminated, truncated, info = lane.step(action)
                played.seen(lane, action, float(checked_reward(reward)))
                if terminated or truncated or step >= lane.due:
                    break
                row = checked_row(lane.row(observation, info))
                lane.check_mask(row, info)
        except (Exception, SystemExit) as error:
            played.failed = FailedEpisode.of(number, seed, played.length, error)
            played.traceback = traceback.format_exc()
        return played


@dataclass(slots=True)
class ShownEpisode:
    """An episode that an agent played: actions and rewards by step, and what the environment rendered."""

    number: int
    seed: int
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    #: Before the first step, and after every step.
    frames: list[Any] = field(default_factory=list, repr=False)
    failed: FailedEpisode | None = None
    traceback: str = field(default="", repr=False)

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def total(self) -> float:
        return float(sum(self.rewards))

    def seen(self, lane: Lane, action: Any, reward: float) -> None:
        if action is not None:
            self.actions.append(action)
            self.rewards.append(reward)
        if getattr(lane.env, "render_mode", None) in ("rgb_array", "ansi"):
            self.frames.append(lane.env.render())


def _policy(policy: Policy | Network | None, weights: Arrays, card: Mapping[str, Any]) -> Policy:
    return policy_of(weights, card, policy) if policy is None or callable(policy) else policy


def policy_of(weights: Arrays, card: Mapping[str, Any], make: Network | None = None) -> Policy:
    """The policy that these weights are of; `make` makes its network, where the card does not name it."""
    encoder, head = Encoder(space_from_json(card["observation_space"])), head_of(space_from_json(card["action_space"]))
    if not _ours(weights):
        return TorchPolicy.of(make or _network(card), encoder, head)
    inputs, hidden = weights["policy.0.weight"].shape
    context = tuple(float(each) for each in card.get("context", ()))
    if inputs != encoder.width + len(context):
        raise ConfigError(f"the agent has {inputs} inputs, and its card describes {encoder.width + len(context)}")
    return Mlp(encoder.width, head, context, hidden, MEAN in weights, shares=encoder.shares)


def _ours(weights: Arrays) -> bool:
    """Whether weights are of the network of numpy."""
    return "policy.0.weight" in weights


def _network(card: Mapping[str, Any]) -> Network:
    name = card.get("network")
    try:
        made = named(str(name), "network")
    except ConfigError as error:
        raise ConfigError(
            f"{error}. The agent was trained with {name}: play it in the folder where that is, or say policy="
        ) from error
    if isinstance(made, str):
        raise ConfigError(f"the agent's network, {made}, is code of another program: load it with policy=")
    return made


def folder_of(path: Path) -> Path | None:
    """The folder of an agent that a path means."""
    path = path.parent if path.name in (WEIGHTS, CARD) else path
    return path if (path / CARD).is_file() else None


def _weights(view: RunView, version: int | None, chosen: str | None, card: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The weights of a version, or of the policy that the run ended with; and whether it acts greedily."""
    if "trial" in card:  # a run of many trainings
        if version is not None:
            raise ConfigError(f"the run {view.name!r} is of many trainings, and keeps one version of each policy")
        (told,) = (each for each in view.results() if each.number == card["trial"])
        (outcome,) = told.outcomes.values()
        assert isinstance(outcome, Ok)
        return outcome.data["agent"].read(), bool(card["greedy"])
    first = next(iter(view.trials()), None)
    if first is not None and not (isinstance(first.candidate, Mapping) and "learn" in first.candidate):
        raise ConfigError(
            f"the run {view.name!r} has no agent. A run of `rl` has one, and a search for workflows when it is over "
            f"(fanfold resume {view.name})"
        )
    if version is None:
        policies = ending(view.results())
        if not policies:
            raise ConfigError(f"the run {view.name!r} has no policy yet")
        best = next((each for each in policies if each.name == chosen), max(policies, key=lambda each: each.mean))
        return best.candidate["weights"].read(), best.candidate["greedy"]
    known_versions = set()
    for row in view.trials():
        known_versions.add(row.candidate["version"])
        if row.candidate["version"] == version and row.candidate["learn"]:
            return row.candidate["weights"].read(), False
    raise ConfigError(f"the run {view.name!r} has no version {version}: it has 0 to {max(known_versions, default=0)}")


def _limited(env: Environment, steps: int | None) -> Environment:
    """An environment whose episodes are cut off as in the training, unless it says otherwise."""
    return env if env.max_steps is not None else replace(env, max_steps=steps)


def _fields(view: RunView) -> dict[str, Any]:
    """The settings of a run that began in a shell."""
    fields: dict[str, Any] = view.info.meta.get("fields", {})
    return fields


def _recorded(view: RunView) -> Environment:
    """The environment that the settings of a run name."""
    fields = _fields(view)
    if "env" not in fields:
        raise ConfigError(f"the environment of the run {view.name!r} is not known here: say env=")
    own = (fields.get(name) for name in ("env_kwargs", "wrappers", "max_episode_steps"))
    kwargs, wrappers, steps = own
    return Environment.of(fields["env"], kwargs, wrappers or (), steps)
