"""Policies of PyTorch: any module by a contract of two methods, and a small one for images.

A network is a `torch.nn.Module` with two methods:

    class Network(torch.nn.Module):
        def __init__(self, spaces): ...
        def forward(self, observations): return outputs, values

`spaces` says what is needed to build it: `spaces.width` numbers an observation, or the shape `spaces.image` as
(channels, height, width), and `spaces.outputs` numbers that say how to act.  `forward` is given a batch of float32
observations: (n, width), normalised by the mean and deviation of all so far, or (n, channels, height, width) between 0
and 1.  Of a Dict or Tuple, each part of many numbers and all the small ones together then weigh alike.  It returns the
outputs, (n, outputs), and the expected returns, (n,), in units of its own: scale and mean are learnt beside.  For a
continuous action the outputs are its means; a network may give the logarithms of the deviations behind them, or leave
them out, and then they are learnt as one number for each part of the action.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fanfold.errors import ConfigError, MissingExtra
from fanfold.rl.experience import Experience
from fanfold.rl.heads import MASKED, Array, Gaussian, Head
from fanfold.rl.images import apart, images_of, moments
from fanfold.rl.network import LOG_DEVIATION, SCALE
from fanfold.rl.policy import DEVIATION, MEAN, Shares, beside, identity_of, normalised, observed
from fanfold.rl.ppo import Adam, Ppo, following, minibatches
from fanfold.rl.spaces import Encoder
from fanfold.tensors import Arrays

_NET = "net."
_LOCAL = threading.local()
#: How much of the targets' scale an update keeps; the network itself must follow it.
KEEP = 0.9
#: Observations that are judged at once.
_TOGETHER = 1024

#: What a network must be.
_ALONE = (
    "Each row is an observation of its own, of any episode and in any order. So a network must not remember what it "
    "saw (instead of an LSTM, stack frames: FrameStackObservation), mix rows, or draw random numbers in eval mode"
)


@functools.cache
def pytorch() -> Any:
    """The package, with one thread for each call: sums then have the same order everywhere."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "neuro", "a policy of PyTorch, which images need") from error
    torch.set_num_threads(1)
    return torch


@dataclass(frozen=True)
class Spaces:
    """What a network observes and how it acts: see the contract above."""

    width: int
    head: Head
    image: tuple[int, ...] | None = None

    @property
    def outputs(self) -> int:
        return self.head.own


#: What makes a network for given spaces.
Network: TypeAlias = Callable[[Spaces], Any]


@dataclass(frozen=True)
class TorchPolicy:
    """A policy whose network is a module of PyTorch.  `device` is where it learns; it always plays on the CPU.

    `last` says that an image's channels are its last dimension.  With `normalise` it sees rows in deviations from the
    mean of all so far, and images so by channel.
    """

    make: Callable[[Spaces], Any]
    spaces: Spaces
    normalise: bool = False
    device: str = "cpu"
    last: bool = False
    shares: Shares = ()

    @property
    def fingerprint(self) -> dict[str, Any]:
        return identity_of(self)

    @classmethod
    def of(cls, make: Callable[[Spaces], Any], encoder: Encoder, head: Head, device: str = "cpu") -> TorchPolicy:
        """The policy of a network on these observations and actions.  What cannot work is refused here."""
        if isinstance(make, pytorch().nn.Module):
            raise ConfigError("policy is a network: give its class, or a function of spaces, as workers make theirs")
        try:
            pytorch().zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device={device!r} cannot be used: {str(error).splitlines()[0]}") from error
        if encoder.image is None:
            policy = cls(make, Spaces(encoder.width, head), encoder.continuous, device, shares=encoder.shares)
        else:
            shape = encoder.image if len(encoder.image) == 3 else (1, *encoder.image)
            last = shape[2] < shape[0]
            image = (shape[2], *shape[:2]) if last else shape
            policy = cls(make, Spaces(encoder.width, head, image), make is convolutions, device, last)
        policy._built()
        return policy

    @property
    def head(self) -> Head:
        return self.spaces.head

    def initial(self, seed: int) -> Arrays:
        torch = pytorch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            weights = _arrays(self._built())
        weights[SCALE] = np.array([0.0, 1.0])
        columns = self.spaces.image[0] if self.spaces.image else self.spaces.width
        return weights | beside(self.head, columns, self.normalise, self.shares)

    def _built(self) -> Any:
        """A module that keeps the contract; what is wrong with it is said now."""
        torch = pytorch()
        try:
            module = self.make(self.spaces)
        except TypeError as error:
            inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            if inside and (first := next(iter(_parameters(self.make)), None)) is not None:
                if first.default is first.empty:
                    raise  # of what the network itself called
                raise ConfigError(
                    f"the network is made with the spaces as its first argument, and here that is "
                    f"{first.name}={first.default!r}: let it be `spaces` ({error})"
                ) from error
            raise ConfigError(
                f"the network is made with one argument, the spaces, and does not take it: {error}"
            ) from error
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"the policy gave {module!r}, which is not a torch.nn.Module")
        shape = self.spaces.image or (self.spaces.width,)
        try:
            with torch.no_grad():
                given = module(torch.zeros(2, *shape))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{type(module).__name__}.forward raised {type(error).__name__} for observations of the shape "
                f"(n, {', '.join(map(str, shape))}): {error}"
            ) from error
        right = isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, torch.Tensor) for each in given)
        sizes = {self.head.own, self.head.outputs}
        if not right or given[0].shape[0] != 2 or given[0].shape[-1] not in sizes or given[1].numel() != 2:
            got = [tuple(each.shape) for each in given] if right else type(given).__name__
            raise ConfigError(
                f"{type(module).__name__}.forward must return outputs of the shape (n, {self.head.own}) and values of "
                f"the shape (n,) for n observations, and returned {got} for 2"
            )
        if not all(bool(torch.isfinite(each).all()) for each in given):
            raise ConfigError(
                f"{type(module).__name__}.forward returned numbers that are not finite, before any training"
            )
        return module

    def check_alone(self) -> None:
        """Refuse a network whose outputs for an observation depend on others, or on what it was asked before."""
        torch = pytorch()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            module = self.make(self.spaces).eval()
            name, shape = type(module).__name__, self.spaces.image or (self.spaces.width,)
            rows = torch.rand(3, *shape)
            try:
                first = module(rows)[0]
                alone = torch.cat([module(row[None])[0].reshape(1, -1) for row in rows])
                again = module(rows)[0]
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise ConfigError(
                    f"{name}.forward took 2 observations, and raised {type(error).__name__} for 3, for 1, or when it "
                    f"was asked again: {error}. {_ALONE}"
                ) from error
        near = 1e-3 * float(first.abs().max()) + 1e-7
        if float((first - again).abs().max()) > near:
            raise ConfigError(f"{name}.forward gave other outputs for the same observations the second time. {_ALONE}")
        if float((first - alone).abs().max()) > near:
            raise ConfigError(f"{name}.forward gave an observation other outputs beside others than alone. {_ALONE}")

    def module(self, weights: Arrays, device: str = "cpu") -> Any:
        """The module with these weights; one a thread, device and policy, loaded when the weights are others."""
        known: dict[Any, Any] = _LOCAL.__dict__.setdefault("modules", {})
        module, loaded = known.get((self.make, self.spaces, device), (None, None))
        if loaded is not weights:
            module = self._built().to(device) if module is None else module  # lazy layers have their sizes then
            _load(module, weights)
            known[self.make, self.spaces, device] = module.eval(), weights
        return module

    def observations(self, weights: Arrays, rows: Array) -> Any:
        """Rows as the network sees them."""
        if self.spaces.image is None:
            seen = np.array(rows[:, : self.spaces.width], np.float32)
            return pytorch().from_numpy(normalised(weights, seen))
        images = self._images(rows)
        return images if MEAN not in weights else apart(images, weights[MEAN], weights[DEVIATION])

    def _images(self, rows: Array) -> Any:
        assert self.spaces.image is not None
        seen = pytorch().from_numpy(np.array(rows[:, : self.spaces.width]))
        return images_of(seen, self.spaces.image, self.last)

    def _read(self, own: Any, spread: Any, rows: Array) -> Any:
        """What the head reads, as a tensor."""
        torch = pytorch()
        if isinstance(self.head, Gaussian):
            return own if own.shape[1] == self.head.outputs else torch.cat([own, spread.expand_as(own)], dim=1)
        if rows.shape[1] == self.spaces.width:
            return own
        allowed = torch.from_numpy(rows[:, self.spaces.width :] > 0).to(own.device)
        return torch.where(allowed, own, torch.full_like(own, MASKED))

    def outputs(self, weights: Arrays, rows: Array) -> Array:
        return self._judged(weights, rows, "cpu")[0]

    def judge(self, weights: Arrays, rows: Array) -> tuple[Array, Array]:
        outputs, values = self._judged(weights, rows, self.device)
        mean, scale = weights[SCALE]
        return outputs, mean + scale * values.astype(np.float64)

    def _judged(self, weights: Arrays, rows: Array, device: str) -> tuple[Array, Array]:
        torch, module = pytorch(), self.module(weights, device)
        spread = torch.from_numpy(weights.get(LOG_DEVIATION, np.zeros(1, np.float32)).copy()).to(device)
        outputs, values = [], []
        with torch.no_grad():
            for start in range(0, len(rows), _TOGETHER):
                some = rows[start : start + _TOGETHER]
                own, expected = module(self.observations(weights, some).to(device))
                outputs.append(self._read(own, spread, some).cpu().numpy())
                values.append(expected.reshape(-1).cpu().numpy())
        return np.concatenate(outputs), np.concatenate(values)

    def observe(self, weights: Arrays, rows: Array, visits: Array) -> Arrays:
        if MEAN not in weights:
            return weights
        if self.spaces.image is None:
            return observed(weights, rows[:, : self.spaces.width], visits)
        starts = range(0, len(rows), _TOGETHER)
        found = [moments(self._images(rows[start : start + _TOGETHER])) for start in starts]
        means, variances = (np.concatenate(each) for each in zip(*found))
        return observed(weights, means, visits, variances)

    def learn(
        self, weights: Arrays, adam: Adam, experience: Experience, settings: Ppo, progress: float, seed: int
    ) -> tuple[Arrays, float]:
        return _Update(self, weights, adam, experience, settings, progress).made(seed)


class _Update:
    """One update of a module, with the loss and the schedule of `ppo.update`."""

    def __init__(
        self, policy: TorchPolicy, weights: Arrays, adam: Adam, experience: Experience, ppo: Ppo, progress: float
    ) -> None:
        torch = pytorch()
        self.policy, self.adam, self.experience, self.ppo, self.fading = policy, adam, experience, ppo, 1 - progress
        self.weights = weights | {SCALE: following(weights, experience, KEEP)}
        self.module = policy.make(policy.spaces).to(policy.device)
        _load(self.module, weights)
        self.spread = torch.nn.Parameter(
            torch.from_numpy(weights.get(LOG_DEVIATION, np.zeros(1, np.float32)).copy()).to(policy.device)
        )
        named = {f"{_NET}{name}": each for name, each in self.module.named_parameters()}
        self.parameters = named | ({LOG_DEVIATION: self.spread} if LOG_DEVIATION in weights else {})
        self.optimiser = torch.optim.Adam(self.parameters.values(), lr=ppo.learning_rate * max(self.fading, 0.05))
        for name, parameter in self.parameters.items():
            if f"{name}/1" in adam.state:
                one, two, count = (torch.from_numpy(adam.state[f"{name}/{part}"].copy()) for part in "12n")
                moments = {"exp_avg": one.to(policy.device), "exp_avg_sq": two.to(policy.device), "step": count[0]}
                self.optimiser.state[parameter] = moments

    def made(self, seed: int) -> tuple[Arrays, float]:
        experience, ppo, torch = self.experience, self.ppo, pytorch()
        scale = experience.scale
        rng, kl = np.random.default_rng(seed), 0.0
        parts = -(-len(experience.observations) // ppo.minibatch)
        self.module.train()
        with torch.random.fork_rng(devices=[]):  # dropout and the like
            torch.manual_seed(seed % 2**63)
            for _ in range(ppo.rounds(parts)):
                for part, rows in minibatches(experience, experience.observations, parts, rng):
                    kl = self._step(part, rows, scale, experience.steps / parts)
                    if kl > ppo.target_kl:
                        return self._written(), kl
        return self._written(), kl

    def _step(self, part: Experience, rows: Array, scale: float, total: float) -> float:
        torch, policy = pytorch(), self.policy

        def tensor(array: Array) -> Any:
            kind = np.int64 if array.dtype.kind in "iu" else np.float32
            return torch.from_numpy(np.asarray(array, kind)).to(policy.device)

        own, values = self.module(policy.observations(self.weights, rows).to(policy.device))
        outputs = policy._read(own, self.spread, rows)
        logs, entropy = _chances(policy.head, outputs, tensor(part.where), tensor(part.action))
        away = logs - tensor(part.log_chance)
        ratio = away.exp()
        kl = float((tensor(part.count) * (ratio - 1 - away)).sum().detach()) / int(part.count.sum())
        if kl > self.ppo.target_kl:
            return kl
        low, high = ratio.clamp(min=1 - self.ppo.clip), ratio.clamp(max=1 + self.ppo.clip)
        gained = (tensor(part.gain) * high + tensor(part.loss) * low).sum() / (scale * total)
        undecided = (tensor(part.visits) * entropy).sum() / total
        mean, unit = self.weights[SCALE]
        visits, wanted = tensor(part.visits), tensor((part.targets - part.visits * mean) / unit)
        expected = values.reshape(-1)
        error = (0.5 * visits * expected.square() - wanted * expected).sum() / total
        self.optimiser.zero_grad()
        (error - gained - self.ppo.entropy * self.fading * undecided).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.ppo.max_norm)
        self.optimiser.step()
        return kl

    def _written(self) -> Arrays:
        for name, parameter in self.parameters.items():
            moments = self.optimiser.state.get(parameter)
            if moments:
                self.adam.state[f"{name}/1"] = moments["exp_avg"].cpu().numpy()
                self.adam.state[f"{name}/2"] = moments["exp_avg_sq"].cpu().numpy()
                self.adam.state[f"{name}/n"] = np.array([float(moments["step"])], np.float32)
        spread = {LOG_DEVIATION: self.spread.detach().cpu().numpy()} if LOG_DEVIATION in self.weights else {}
        return self.weights | _arrays(self.module) | spread


def _chances(head: Head, outputs: Any, where: Any, actions: Any) -> tuple[Any, Any]:
    """The logarithms of the actions' chances, and the entropy of every row."""
    torch = pytorch()
    if isinstance(head, Gaussian):
        normal = torch.distributions.Normal(outputs[:, : head.size], outputs[:, head.size :].exp(), validate_args=False)
        played = torch.distributions.Normal(normal.loc[where], normal.scale[where], validate_args=False)
        return played.log_prob(actions).sum(dim=1), normal.entropy().sum(dim=1)
    logs = [torch.log_softmax(each, dim=1) for each in outputs.split(list(head.sizes), dim=1)]
    columns = actions.reshape(len(actions), len(head.sizes)).long().unbind(dim=1)
    chosen = sum(each[where, column] for each, column in zip(logs, columns))
    return chosen, sum(-(each.exp() * each).sum(dim=1) for each in logs)


def _parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):  # of compiled code nobody knows
        return []


def _load(module: Any, weights: Arrays) -> None:
    """Put the network's own weights into a module."""
    own = {name.removeprefix(_NET): array for name, array in weights.items() if name.startswith(_NET)}
    module.load_state_dict({name: pytorch().from_numpy(array.copy()) for name, array in own.items()})


def _arrays(module: Any) -> Arrays:
    return {f"{_NET}{name}": each.detach().cpu().numpy().copy() for name, each in module.state_dict().items()}


def convolutions(spaces: Spaces) -> Any:
    """Our own network for images: three convolutions and a layer, and two heads."""
    torch = pytorch()
    nn = torch.nn
    assert spaces.image is not None
    channels = spaces.image[0]
    body = nn.Sequential(
        *(nn.Conv2d(channels, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()),
    )
    with torch.no_grad():
        size = body(torch.zeros(1, *spaces.image)).shape[1]
    act, value = nn.Linear(128, spaces.outputs), nn.Linear(128, 1)
    for layer, gain in ((act, 0.01), (value, 1.0)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)

    class Convolutions(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.layer = body, nn.Linear(size, 128)
            self.act, self.value = act, value

        def forward(self, observations: Any) -> Any:
            seen = torch.relu(self.layer(self.body(observations)))
            return self.act(seen), self.value(seen)[:, 0]

    return Convolutions()
