"""Every kind of action and observation is learnt: a planted optimum each, in numpy and by networks of PyTorch."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from fanfold.errors import ConfigError
from fanfold.rl.collect import Collector
from fanfold.rl.config import RlConfig, StepPpo
from fanfold.rl.environments import policy_for, spaces_of
from fanfold.rl.learner import Learner
from fanfold.rl.making import Environment
from fanfold.rl.torch_policy import Spaces, TorchPolicy, convolutions
from fanfold.rl.training import chosen_policy, study_of, train
from fanfold.types import Case, Ok, Result, Trial

STEPS = 8


class Planted(gymnasium.Env[Any, Any]):
    """In each of eight steps a cue is shown, and the action that fits it pays 1; the best policy earns 8."""

    actions: Any = Discrete(3)
    seen: Any = Box(-1, 1, (3,), np.float32)

    def __init__(self) -> None:
        self.action_space, self.observation_space = self.actions, self.seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), self.info()

    def observe(self) -> Any:
        self.cue = int(self.np_random.integers(3))
        return self.shown()

    def shown(self) -> Any:
        return np.eye(3, dtype=np.float32)[self.cue]

    def info(self) -> dict[str, Any]:
        return {}

    def pay(self, action: Any) -> float:
        return float(action == self.cue)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        paid, self.age = self.pay(action), self.age + 1
        return self.observe(), paid, self.age == STEPS, False, self.info()


class Several(Planted):
    actions = MultiDiscrete([3, 2])

    def pay(self, action: Any) -> float:
        return 0.5 * float(action[0] == self.cue) + 0.5 * float(action[1] == (self.cue == 1))


class Bits(Planted):
    actions = MultiBinary(3)

    def pay(self, action: Any) -> float:
        return float((action == np.eye(3)[self.cue]).mean())


class Continuous(Planted):
    actions = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))

    def pay(self, action: Any) -> float:
        away = abs(action[0] - (self.cue - 1)) / 4 + abs(action[1] - 5 * self.cue) / 10
        return max(0.0, 1.0 - float(away))


class Masked(Planted):
    """Of six choices, three pay nothing and are masked in every step; which, changes."""

    actions = Discrete(6)

    def info(self) -> dict[str, Any]:
        self.shift = int(self.np_random.integers(2))
        return {"action_mask": np.arange(6) % 2 == self.shift}

    def pay(self, action: Any) -> float:
        assert action % 2 == self.shift, "a masked choice was taken"
        return float(action // 2 == self.cue)


class Numbered(Planted):
    seen = Discrete(3, start=4)

    def shown(self) -> Any:
        return self.cue + 4


class Nested(Planted):
    seen = Dict(noise=Box(-1, 1, (2, 2), np.float32), what=Tuple((Discrete(3), MultiBinary(2))))

    def shown(self) -> Any:
        return {"noise": self.np_random.uniform(-1, 1, (2, 2)), "what": (self.cue, np.array([0, 1], np.int8))}


class Unscaled(Planted):
    """Numbers of thousands and of thousandths."""

    seen = Box(-1e6, 1e6, (3,), np.float32)

    def shown(self) -> Any:
        return (np.eye(3)[self.cue] * [0.002, 3.0, 5000.0] + [0, 0, 90_000]).astype(np.float32)


class Picture(Planted):
    """A bright stripe at one of three heights."""

    seen = Box(0, 255, (18, 18, 1), np.uint8)

    def shown(self) -> Any:
        image = self.np_random.integers(0, 60, (18, 18, 1)).astype(np.uint8)
        image[6 * self.cue + 2 : 6 * self.cue + 4] = 250
        return image


class Kinds(Picture):
    """The same as MiniGrid has it: bytes that number kinds, from 0 to 10."""

    def shown(self) -> Any:
        return (super().shown() // 25).astype(np.uint8)


def learnt(kind: type[Planted], steps: int, policy: Any = None, **ppo: Any) -> float:
    """The mean of the last 60 episodes."""
    config = RlConfig("?", steps_per_update=512, total_steps=steps, ppo=StepPpo(learning_rate=3e-3, hidden=32, **ppo))
    env = Environment.of(kind)
    plan = config.plan(chosen_policy(config, env, policy))
    learner, collect, returns = Learner(plan), Collector(env, raw=True, policy=plan.policy), list[float]()
    learner.begin(1)
    while not plan.over(learner.counts):
        (block,) = learner.ask(1)
        outcome = collect(block, Case("0", None, 2))
        assert isinstance(outcome, Ok), outcome
        learner.tell(Result(Trial(len(returns), block), outcome.score, {"0": outcome}))
        returns += outcome.data["returns"]
    assert np.mean(returns[:30]) < 0.75 * STEPS
    return float(np.mean(returns[-60:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "best"),
    [
        (Planted, 7.5),
        (Several, 7.3),
        (Bits, 7.2),
        (Continuous, 6.4),
        (Masked, 7.5),
        (Numbered, 7.5),
        (Nested, 7.3),
        (Unscaled, 7.3),
    ],
)
def test_every_kind_of_space_is_learnt(kind: type[Planted], best: float) -> None:
    assert learnt(kind, 10_000 if kind is not Continuous else 20_000) > best


# ---------------------------------------------------------------- PyTorch

torch = pytest.importorskip("torch")


class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A network that a user would write."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(spaces.width, 32), torch.nn.Tanh())
        self.act, self.value = torch.nn.Linear(32, spaces.outputs), torch.nn.Linear(32, 1)

    def forward(self, observations: Any) -> Any:
        seen = self.body(observations)
        return self.act(seen), self.value(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "best", "policy"),
    [
        (Several, 7.2, Network),
        (Continuous, 5.8, Network),
        (Masked, 7.2, Network),
        (Picture, 7.3, None),
        (Kinds, 7.3, None),
    ],
)
def test_networks_of_pytorch_learn(kind: type[Planted], best: float, policy: Any) -> None:
    steps = {Picture: 6_000, Kinds: 6_000, Masked: 12_000, Continuous: 12_000}.get(kind, 8_000)
    assert learnt(kind, steps, policy, passes=6, minibatch=128) > best


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Planted, Several, Continuous])
def test_both_paths_compute_the_same_chances_and_gradients(kind: type[Planted]) -> None:
    """A module with the weights of the numpy network gives the same outputs; one gradient step goes the same way."""
    from fanfold.rl.experience import folded, read
    from fanfold.rl.torch_policy import _chances

    env = Environment.of(kind)
    policy = TorchPolicy.of(Network, *spaces_of(env))
    weights = policy.initial(0)
    collect = Collector(env, raw=True, policy=policy)
    (block,) = _begun(policy).ask(1)
    outcome = collect(block, Case("0", None, 2))
    assert isinstance(outcome, Ok)
    steps = read(outcome.data["experience"].read())
    outputs, _ = policy.judge(weights, steps.observations)
    index, actions = steps.index[steps.inside], steps.actions[steps.inside]  # type: ignore[union-attr]
    logs, entropy = _chances(policy.head, torch.from_numpy(outputs), torch.from_numpy(index), torch.from_numpy(actions))
    assert np.allclose(logs, policy.head.log_chances(outputs, index, actions), atol=1e-5)
    assert np.allclose(entropy, policy.head.entropy(outputs), atol=1e-5)
    part = folded(steps, policy, weights, 0.99, 0.95, correct=True)  # type: ignore[arg-type]
    good = (part.gain + part.loss) > 0
    moved, _ = policy.learn(weights, _begun(policy).adam, part, StepPpo(passes=1, minibatch=4096), 0.0, 0)
    after = policy.head.log_chances(policy.judge(moved, part.observations)[0], part.where, part.action)
    if good.any() and not good.all():
        assert (after - part.log_chance)[good].mean() > (after - part.log_chance)[~good].mean()


def _begun(policy: Any) -> Learner:
    learner = Learner(RlConfig("?", total_steps=100).plan(policy))
    learner.begin(0)
    return learner


@pytest.mark.slow
def test_a_network_of_pytorch_learns_the_same_on_every_executor_and_acts_afterwards() -> None:
    settings: dict[str, Any] = {"total_steps": 600, "steps_per_update": 200, "fresh_episodes": 8, "in_flight": 2}
    runs = [train(Planted, policy=Network, executor=executor, **settings) for executor in ("inline", "threads:2")]
    assert runs[0].curve == runs[1].curve
    assert runs[0].agent.act(np.eye(3, dtype=np.float32)[1]) in range(3)


class Wordy(Network):
    def forward(self, observations: Any) -> Any:
        return super().forward(observations)[0]


class Nowhere(Network):
    def forward(self, observations: Any) -> Any:
        outputs, values = super().forward(observations)
        return outputs / 0, values


def test_a_network_that_does_not_keep_the_contract_is_refused_before_anything_is_played() -> None:
    encoder, head = spaces_of(Environment.of(Planted))
    with pytest.raises(ConfigError, match=r"Wordy.forward must return outputs of the shape \(n, 3\) and values"):
        TorchPolicy.of(Wordy, encoder, head)
    with pytest.raises(ConfigError, match="give its class"):
        TorchPolicy.of(Network(Spaces(3, head)), encoder, head)
    with pytest.raises(ConfigError, match=r"is not a torch\.nn\.Module"):
        TorchPolicy.of(lambda spaces: 3, encoder, head)
    with pytest.raises(ConfigError, match="device='nowhere' cannot be used"):
        TorchPolicy.of(Network, encoder, head, "nowhere")
    with pytest.raises(ConfigError, match="is made with one argument, the spaces, and does not take it"):
        TorchPolicy.of(lambda: Network(Spaces(3, head)), encoder, head)  # type: ignore[misc, arg-type]
    with pytest.raises(ConfigError, match=r"forward raised RuntimeError for observations of the shape \(n, 3\): mat1"):
        TorchPolicy.of(lambda spaces: Network(Spaces(7, head)), encoder, head)
    with pytest.raises(
        ConfigError, match=r"Nowhere\.forward returned numbers that are not finite, before any training"
    ):
        TorchPolicy.of(Nowhere, encoder, head)


class Remembers(Network):
    """Keeps what it saw before, as a recurrent network does."""

    def __init__(self, spaces: Any) -> None:
        super().__init__(spaces)
        self.before = 0.0

    def forward(self, observations: Any) -> Any:
        outputs, values = super().forward(observations)
        self.before = outputs.mean() + self.before
        return outputs + self.before, values


class Sequenced(Network):
    """Takes the rows of a batch for the steps of a sequence."""

    def forward(self, observations: Any) -> Any:
        return super().forward(observations.cumsum(0))


class Sized(Network):
    """Remembers how many rows it was given first."""

    size = 0

    def forward(self, observations: Any) -> Any:
        self.size = self.size or len(observations)
        return super().forward(observations.reshape(self.size, -1))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Remembers, r"other outputs for the same observations the second time.*stack frames"),
        (Sequenced, r"gave an observation other outputs beside others than alone.*stack frames"),
        (Sized, r"raised RuntimeError for 3, for 1, or when it was asked again.*stack frames"),
    ],
)
def test_a_network_that_looks_at_more_than_one_observation_is_refused(network: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen_policy(RlConfig("?"), Environment.of(Planted), network)


class Hidden(torch.nn.Module):
    """Its first argument is not the spaces."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, hidden)


def test_a_network_whose_first_argument_is_another_is_refused() -> None:
    with pytest.raises(ConfigError, match="first argument, and here that is hidden=64"):
        chosen_policy(RlConfig("?"), Environment.of(Planted), Hidden)


def test_images_come_to_networks_with_their_channels_first_and_between_0_and_1() -> None:
    policy = TorchPolicy.of(convolutions, *spaces_of(Environment.of(Picture)))
    assert policy.spaces.image == (1, 18, 18) and policy.last
    encoder, _ = spaces_of(Environment.of(Picture))
    image = np.arange(18 * 18, dtype=np.uint8).reshape(18, 18, 1)
    seen = policy.observations({}, encoder(image)[None])
    assert seen.shape == (1, 1, 18, 18) and np.allclose(seen[0, 0], image[:, :, 0] / 255)
    first = TorchPolicy(convolutions, Spaces(2 * 4 * 5, head=policy.head, image=(2, 4, 5)))
    assert first.observations({}, np.arange(40, dtype=np.float32)[None])[0, 1, 0, 0] == 20


def test_images_are_learnt_by_convolutions_and_rows_by_numpy() -> None:
    config = RlConfig("?")
    assert isinstance(chosen_policy(config, Environment.of(Picture)), TorchPolicy)
    assert chosen_policy(config, Environment.of(Planted)) == policy_for(Environment.of(Planted))


def test_convolutions_see_bytes_of_any_size_in_deviations_by_channel() -> None:
    policy = chosen_policy(RlConfig(), Environment.of(Kinds))
    assert isinstance(policy, TorchPolicy)
    rng, weights = np.random.default_rng(0), policy.initial(0)
    rows = [rng.integers(0, most, (n, 18 * 18), np.uint8) for n, most in ((30, 3), (2000, 11))]
    for some in rows:
        weights = policy.observe(weights, some, np.ones(len(some)))
    seen = policy.observations(weights, np.concatenate(rows)).numpy()
    assert abs(seen.mean()) < 0.01 and abs(seen.std() - 1) < 0.01


class Chances(Network):
    """Ends with a softmax, as in many textbooks."""

    def forward(self, observations: Any) -> Any:
        outputs, values = super().forward(observations)
        return outputs.softmax(dim=1), values


def test_a_network_that_gives_chances_is_said() -> None:
    said = [study_of(RlConfig(), Environment.of(Planted), network).remarks for network in (Chances, Network)]
    assert "without its last softmax it learns to decide" in said[0][0] and set(said[1]) < set(said[0])


class Beside(Planted):
    """A picture of noise, and two numbers, of which the larger one is to be named: only they matter."""

    actions = Discrete(2)
    seen = Dict(picture=Box(0, 255, (16, 16), np.uint8), places=Box(0, 1, (2,), np.float32))

    def observe(self) -> Any:
        self.places = self.np_random.uniform(0, 1, 2).astype(np.float32)
        self.cue = int(self.places.argmax())
        return {"picture": self.np_random.integers(0, 256, (16, 16)).astype(np.uint8), "places": self.places}


@pytest.mark.slow
def test_two_numbers_beside_a_picture_are_learnt() -> None:
    assert train(Beside, total_steps=8_000, fresh_episodes=64, seed=1).agent.card["return"] > 6.2


def test_stacked_pictures_are_said_to_be_learnt_as_numbers() -> None:
    config = RlConfig(wrappers=("FrameStackObservation?stack_size=2",))
    (remark,) = (
        each for each in study_of(config, Environment.of(Picture, {}, config.wrappers)).remarks if "stack" in each
    )
    assert "stacks of pictures" in remark and "GrayscaleObservation" in remark
