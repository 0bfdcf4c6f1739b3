"""Plays episodes the way others do, in a process of its own: a job as JSON, then numbers of episodes, come on stdin.

.venv-peers/sb3/bin/python benchmarks/collection_peers.py

Needs numpy, gymnasium and what it measures (stable-baselines3, ray); never Fanfold, except for CAGE-2 itself.  Every
contender asks the same policy, a numpy network with two hidden layers, and keeps what a learner needs of every step.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np

WORKERS = 2
#: Steps of an episode of the slow environment; the median of a step's seconds, and the sigma of its logarithm.
SLOW_STEPS, SLOW_MEDIAN, SLOW_SIGMA = 25, 0.005, 1.0
#: Episodes and steps played.
Played = tuple[int, int]


class Slow(gymnasium.Env[Any, int]):
    """A step takes lognormal time, as where a simulator, a network or a person is in the loop; it only waits."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(SLOW_MEDIAN * math.exp(SLOW_SIGMA * self.np_random.normal()))
        self.age += 1
        return np.zeros(4, np.float32), 1.0, self.age == SLOW_STEPS, False, {}


if "Slow-v0" not in gymnasium.registry:
    gymnasium.register("Slow-v0", Slow)


class Policy:
    """Acts by chance, as the scores of a small network say."""

    def __init__(self, file: str) -> None:
        arrays = np.load(file)
        self.layers = [(arrays[f"policy.{n}.weight"], arrays[f"policy.{n}.bias"]) for n in range(3)]

    def chances(self, seen: Any) -> Any:
        """For one observation, or for many in rows: how the chances of the actions add up."""
        (first, one), (second, two), (out, three) = self.layers
        scores = np.tanh(np.tanh(seen @ first + one) @ second + two) @ out + three
        return np.exp(scores - scores.max(axis=-1, keepdims=True)).cumsum(axis=-1)

    def act(self, seen: Any, rng: np.random.Generator) -> int:
        bounds = self.chances(np.asarray(seen, np.float32))
        return int(bounds.searchsorted(rng.random() * bounds[-1]))

    def act_all(self, seen: Any, rng: np.random.Generator) -> Any:
        bounds = self.chances(np.asarray(seen, np.float32))
        return (bounds < rng.random((len(bounds), 1)) * bounds[:, -1:]).sum(axis=1)


def collect_single_episode(env: Any, policy: Policy, seed: int) -> dict[str, Any]:
    """One episode, step by step."""
    rng = np.random.default_rng(seed)
    seen, _ = env.reset(seed=seed)
    steps, over = [], False
    while not over:
        action = policy.act(seen, rng)
        following, reward, terminated, truncated, _ = env.step(action)
        steps.append((seen, action, reward))
        seen, over = following, terminated or truncated
    observations, actions, rewards = zip(*steps)
    return {"observations": np.stack(observations), "actions": np.array(actions), "rewards": np.array(rewards)}


_KEPT: dict[str, Any] = {}


def in_a_worker(env: str, file: str, seed: int) -> dict[str, Any]:
    """`collect_single_episode` where environment and policy are made once per process, in the peers' favour."""
    if not _KEPT:
        _KEPT.update(env=gymnasium.make(env), policy=Policy(file))
    return collect_single_episode(_KEPT["env"], _KEPT["policy"], seed)


# ---------------------------------------------------------------- contenders


@contextmanager
def sequential(env: str, file: str) -> Iterator[Callable[[int], Played]]:
    made, policy = gymnasium.make(env), Policy(file)

    def some(episodes: int) -> Played:
        return episodes, sum(len(collect_single_episode(made, policy, seed)["actions"]) for seed in range(episodes))

    yield some


@contextmanager
def process_pool(env: str, file: str, workers: int = WORKERS) -> Iterator[Callable[[int], Played]]:
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:

        def some(episodes: int) -> Played:
            futures = [pool.submit(in_a_worker, env, file, seed) for seed in range(episodes)]
            return episodes, sum(len(each.result()["actions"]) for each in concurrent.futures.as_completed(futures))

        yield some


@contextmanager
def ray_tasks(env: str, file: str, workers: int = WORKERS) -> Iterator[Callable[[int], Played]]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=workers, object_store_memory=200 * 2**20, **quiet)
    task = ray.remote(num_cpus=1)(in_a_worker)

    def some(episodes: int) -> Played:
        waiting, steps = [task.remote(env, file, seed) for seed in range(episodes)], 0
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=min(len(waiting), 50))
            steps += sum(len(each["actions"]) for each in ray.get(done))
        return episodes, steps

    try:
        yield some
    finally:
        ray.shutdown()


def in_step(policy: Policy, reset: Callable[[], Any], step: Callable[[Any], Any]) -> Callable[[int], Played]:
    """Episodes of a vector of environments, all of which take a step and wait for the slowest."""
    rng = np.random.default_rng(0)

    def some(episodes: int) -> Played:
        seen, ended, kept = reset(), 0, []
        while ended < episodes:
            actions = policy.act_all(seen, rng)
            following, rewards, over = step(actions)
            kept.append((np.array(seen), actions, np.array(rewards), over))
            ended += int(over.sum())
            seen = following
        return ended, sum(len(actions) for _, actions, _, _ in kept)

    return some


@contextmanager
def async_vector(env: str, file: str, size: int) -> Iterator[Callable[[int], Played]]:
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode

    made: Any = AsyncVectorEnv([lambda: gymnasium.make(env)] * size, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(actions: Any) -> Any:
        seen, rewards, terminated, truncated, _ = made.step(actions)
        return seen, rewards, terminated | truncated

    try:
        yield in_step(Policy(file), lambda: made.reset(seed=0)[0], step)
    finally:
        made.close()


@contextmanager
def subproc_vec(env: str, file: str, size: int) -> Iterator[Callable[[int], Played]]:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    made = SubprocVecEnv([lambda: gymnasium.make(env)] * size, start_method="forkserver")
    made.seed(0)

    def step(actions: Any) -> Any:
        seen, rewards, over, _ = made.step(actions)
        return seen, rewards, over

    try:
        yield in_step(Policy(file), made.reset, step)
    finally:
        made.close()


CONTENDERS: dict[str, Callable[..., Any]] = {
    "sequential": sequential,
    "process_pool": process_pool,
    "ray_tasks": ray_tasks,
    "async_vector": async_vector,
    "subproc_vec": subproc_vec,
}


def main() -> None:
    job = json.loads(sys.stdin.readline())
    sys.path.insert(0, str(Path(__file__).parent))
    with CONTENDERS[job["contender"]](job["env"], job["file"], *job["options"]) as some:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            began = time.perf_counter()
            episodes, steps = some(int(line))
            print(json.dumps({"episodes": episodes, "steps": steps, "s": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
