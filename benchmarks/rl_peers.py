"""PPO as others publish it, in a process of its own: prints what it took to reach a task's threshold, as JSON.

.venv-peers/sb3/bin/python benchmarks/rl_peers.py stable-baselines3 CartPole-v1 0

Needs torch, gymnasium and stable-baselines3; never Fanfold.  Stable-Baselines3 has the settings that RL Baselines3 Zoo
publishes for each environment.  CleanRL is not a package: here is PPO as its documentation describes `ppo.py` and
`ppo_continuous_action.py`, with their published settings.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np

#: The seconds of a step of the slow environment, and the sigma of the logarithm of an episode's own factor.
SLOW_STEP, SLOW_SIGMA, SLOW_STEPS = 0.002, 1.5, 20
SLOW = "Slow-v1"


@dataclass(frozen=True)
class Goal:
    """A threshold for the mean return of the last 100 episodes, and the most steps that may be taken."""

    threshold: float
    steps: int


TASKS = {
    "CartPole-v1": Goal(475.0, 100_000),
    "Acrobot-v1": Goal(-100.0, 1_000_000),
    "LunarLander-v3": Goal(200.0, 1_000_000),
    "Pendulum-v1": Goal(-200.0, 100_000),
    SLOW: Goal(17.0, 100_000),
}
#: What RL Baselines3 Zoo publishes; `lin` marks a value that falls to nothing.
ZOO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": ("lin", 0.001),
        "clip_range": ("lin", 0.2),
    },
    "Acrobot-v1": {
        "normalize": True,
        "n_envs": 16,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "gamma": 0.99,
        "n_epochs": 4,
        "ent_coef": 0.0,
    },
    "LunarLander-v3": {
        "n_envs": 16,
        "n_steps": 1024,
        "batch_size": 64,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "n_epochs": 4,
        "ent_coef": 0.01,
    },
    "Pendulum-v1": {
        "n_envs": 4,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    SLOW: {"n_envs": 8, "n_steps": 128, "learning_rate": 1e-3},
}


class Slow(gymnasium.Env[Any, int]):
    """Twenty steps, in which the sign of a number must be named.  Some episodes are many times slower than others."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-5, 5, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age, self.factor = 0, math.exp(SLOW_SIGMA * self.np_random.normal())
        return self._seen(), {}

    def _seen(self) -> Any:
        self.seen = self.np_random.normal(size=4).astype(np.float32)
        return self.seen

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(SLOW_STEP * self.factor)
        self.age += 1
        right = float((self.seen[0] > 0) == bool(action))
        return self._seen(), right, self.age == SLOW_STEPS, False, {}


if SLOW not in gymnasium.registry:
    gymnasium.register(SLOW, Slow)


class Watch:
    """The mean of the last 100 returns, and what it took to bring it to the threshold."""

    def __init__(self, goal: Goal) -> None:
        self.goal, self.returns = goal, deque[float](maxlen=100)
        self.cpu, self.wall = _cpu(), time.perf_counter()
        self.reached: dict[str, Any] | None = None
        self.most = float(os.environ.get("MOST_CPU", math.inf))

    @property
    def over(self) -> bool:
        """Whether the threshold is reached, or the CPU time that a cell may take is used up."""
        return self.reached is not None or _cpu() - self.cpu > self.most

    def add(self, reward: float, steps: int) -> bool:
        self.returns.append(reward)
        if self.reached is None and len(self.returns) == 100 and self.mean >= self.goal.threshold:
            self.reached = self.spent(steps)
        return self.reached is not None

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns)) if self.returns else math.nan

    def spent(self, steps: int) -> dict[str, Any]:
        return {"steps": steps, "cpu": _cpu() - self.cpu, "wall": time.perf_counter() - self.wall}

    def result(self, steps: int) -> dict[str, Any]:
        return {"solved": self.reached is not None, "mean": self.mean, **(self.reached or self.spent(steps))}


def _cpu() -> float:
    return sum(os.times()[:4])


# ---------------------------------------------------------------- Stable-Baselines3


def stable_baselines3(task: str, seed: int) -> dict[str, Any]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

    settings, goal = dict(ZOO[task]), TASKS[task]
    kind: dict[str, Any] = {"vec_env_cls": SubprocVecEnv} if task == SLOW else {}
    env: Any = make_vec_env(task, settings.pop("n_envs"), seed=seed, **kind)
    if settings.pop("normalize", False):
        env = VecNormalize(env, gamma=settings["gamma"])
    for name, value in settings.items():
        if isinstance(value, tuple):
            settings[name] = lambda left, start=value[1]: left * start
    watch = Watch(goal)

    class Until(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    watch.add(info["episode"]["r"], self.num_timesteps)
            return not watch.over

    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings)
    model.learn(goal.steps, callback=Until())
    result = watch.result(model.num_timesteps)
    env.close()
    return result


# ---------------------------------------------------------------- CleanRL


@dataclass(frozen=True)
class Published:
    """The settings of CleanRL's script for discrete actions, and of that for continuous ones."""

    rate: float = 2.5e-4
    envs: int = 4
    steps: int = 128
    minibatches: int = 4
    epochs: int = 4
    entropy: float = 0.01
    normalised: bool = False


CONTINUOUS = Published(3e-4, 1, 2048, 32, 10, 0.0, normalised=True)
#: The steps over which its step sizes fall.
TOTAL = {"CartPole-v1": 500_000, "Acrobot-v1": 500_000, "LunarLander-v3": 1_000_000, "Pendulum-v1": 1_000_000}


def cleanrl(task: str, seed: int) -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    np.random.seed(seed)
    goal, probe = Goal(TASKS[task].threshold, TOTAL[task]), gymnasium.make(task)
    discrete = isinstance(probe.action_space, gymnasium.spaces.Discrete)
    settings = Published() if discrete else CONTINUOUS
    outputs = int(probe.action_space.n) if discrete else int(np.prod(probe.action_space.shape))
    width = int(np.prod(probe.observation_space.shape))
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: _wrapped(task, settings.normalised) for _ in range(settings.envs)],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )

    def net(out: int, gain: float) -> Any:
        layers = [nn.Linear(width, 64), nn.Linear(64, 64), nn.Linear(64, out)]
        for layer, stretch in zip(layers, (math.sqrt(2), math.sqrt(2), gain)):
            nn.init.orthogonal_(layer.weight, stretch)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    actor, critic, spread = net(outputs, 0.01), net(1, 1.0), nn.Parameter(torch.zeros(outputs))
    parameters = [*actor.parameters(), *critic.parameters(), *([] if discrete else [spread])]
    optimiser = torch.optim.Adam(parameters, lr=settings.rate, eps=1e-5)

    def chances(seen: Any) -> Any:
        if discrete:
            return torch.distributions.Categorical(logits=actor(seen))
        return torch.distributions.Independent(torch.distributions.Normal(actor(seen), spread.exp()), 1)

    learner = _Clean(settings, actor, critic, chances, parameters, optimiser)
    watch, steps = Watch(goal), 0
    batch = settings.envs * settings.steps
    seen = torch.as_tensor(envs.reset(seed=seed)[0], dtype=torch.float32)
    over = torch.zeros(settings.envs)
    for update in range(goal.steps // batch):
        optimiser.param_groups[0]["lr"] = settings.rate * (1.0 - update / (goal.steps // batch))
        rows: list[tuple[Any, ...]] = []
        for _ in range(settings.steps):
            steps += settings.envs
            with torch.no_grad():
                played = chances(seen)
                action = played.sample()
                kept = (seen, action, played.log_prob(action), critic(seen)[:, 0], over)
            following, reward, ended, cut, info = envs.step(action.numpy())
            rows.append((*kept, torch.as_tensor(reward, dtype=torch.float32)))
            seen = torch.as_tensor(following, dtype=torch.float32)
            over = torch.as_tensor(np.logical_or(ended, cut), dtype=torch.float32)
            for place in np.flatnonzero(over.numpy()):
                watch.add(float(info["final_info"]["episode"]["r"][place]), steps)
        if watch.over:
            break
        learner.learn(rows, seen, over)
    return watch.result(steps)


def _wrapped(task: str, normalised: bool) -> Any:
    from gymnasium import wrappers

    env: Any = gymnasium.make(task)
    if normalised:
        env = wrappers.FlattenObservation(env)
    env = wrappers.RecordEpisodeStatistics(env)
    if not normalised:
        return env
    env = wrappers.NormalizeObservation(wrappers.ClipAction(env))
    env = wrappers.TransformObservation(env, lambda seen: np.clip(seen, -10, 10), env.observation_space)
    return wrappers.TransformReward(wrappers.NormalizeReward(env, gamma=0.99), lambda reward: np.clip(reward, -10, 10))


@dataclass(frozen=True)
class _Clean:
    """One update: advantages, and epochs of minibatches with clipped policy and value losses."""

    settings: Published
    actor: Any
    critic: Any
    chances: Any
    parameters: list[Any]
    optimiser: Any

    def learn(self, rows: list[tuple[Any, ...]], last: Any, over: Any) -> None:
        import torch

        seen, actions, logs, values, overs, rewards = (torch.stack(column) for column in zip(*rows))
        with torch.no_grad():
            following, carried = self.critic(last)[:, 0], torch.zeros(self.settings.envs)
            advantages = torch.zeros_like(rewards)
            for at in range(len(rows) - 1, -1, -1):
                going = 1.0 - (over if at == len(rows) - 1 else overs[at + 1])
                after = following if at == len(rows) - 1 else values[at + 1]
                carried = rewards[at] + 0.99 * after * going - values[at] + 0.99 * 0.95 * going * carried
                advantages[at] = carried
        flat = [each.reshape(-1, *each.shape[2:]) for each in (seen, actions, logs, values, advantages)]
        size = len(flat[0]) // self.settings.minibatches
        for _ in range(self.settings.epochs):
            for chosen in torch.randperm(len(flat[0])).split(size):
                self._step(*(each[chosen] for each in flat))

    def _step(self, seen: Any, actions: Any, logs: Any, values: Any, advantages: Any) -> None:
        import torch

        played = self.chances(seen)
        ratio = (played.log_prob(actions) - logs).exp()
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = torch.max(-scaled * ratio, -scaled * ratio.clamp(0.8, 1.2)).mean()
        target, now = advantages + values, self.critic(seen)[:, 0]
        near = values + (now - values).clamp(-0.2, 0.2)
        value = 0.5 * torch.max((now - target) ** 2, (near - target) ** 2).mean()
        self.optimiser.zero_grad()
        (policy - self.settings.entropy * played.entropy().mean() + 0.5 * value).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimiser.step()


METHODS = {"stable-baselines3": stable_baselines3, "cleanrl": cleanrl}


def main(arguments: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    method, task, seed = arguments
    print(json.dumps(METHODS[method](task, int(seed))))


if __name__ == "__main__":
    main(sys.argv[1:])
