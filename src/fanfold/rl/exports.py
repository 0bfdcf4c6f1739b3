"""A trained policy for programs without Fanfold: ONNX and TorchScript.

Both take `observations`, rows of numbers as `agent.json` describes them, and give `outputs`: a score for each choice,
or the means and the logarithms of the deviations of continuous actions.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fanfold.errors import ConfigError, MissingExtra
from fanfold.files import write_files
from fanfold.rl.agent import Agent
from fanfold.rl.heads import Gaussian
from fanfold.rl.images import apart, images_of
from fanfold.rl.network import LOG_DEVIATION
from fanfold.rl.policy import DEVIATION, FAR, MEAN, SHARE, Mlp
from fanfold.rl.torch_policy import TorchPolicy, pytorch
from fanfold.tensors import Arrays

#: The version of ONNX's operators that is written, and of its files: what every runtime of the last years reads.
OPERATORS, FORMAT = 17, 8
ONNX, TORCHSCRIPT = "agent.onnx", "agent.pt"
_FACTS = (MEAN, DEVIATION, SHARE, LOG_DEVIATION)


def export(agent: Agent, folder: str | Path, formats: tuple[str, ...] = ("onnx", "torchscript")) -> tuple[Path, ...]:
    """Write a policy into a folder as `agent.onnx` and `agent.pt`."""
    known = {"onnx": (ONNX, to_onnx), "torchscript": (TORCHSCRIPT, to_torchscript)}
    if unknown := set(formats) - set(known):
        raise ConfigError(f"there is no format {unknown.pop()!r}; known: {', '.join(known)}")
    files = {known[each][0]: known[each][1](agent) for each in formats}
    try:
        write_files(Path(folder), files)
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written: {error}; name another folder") from error
    return tuple(Path(folder) / name for name in files)


def _arrays(agent: Agent) -> Arrays:
    """The arrays of the policy's network, by the names that both formats use."""
    policy, weights = agent.policy, agent.weights
    assert isinstance(policy, Mlp)
    arrays = {f"{kind}{layer}": weights[f"policy.{layer}.{kind}"] for layer in range(3) for kind in ("weight", "bias")}
    if policy.context:  # the same at every step: a part of the first bias
        own = policy.width
        told = np.asarray(policy.context, np.float32) @ arrays["weight0"][own:]
        arrays["weight0"], arrays["bias0"] = arrays["weight0"][:own], arrays["bias0"] + told
    if MEAN in weights:
        arrays["mean"], arrays["deviation"] = weights[MEAN], weights[DEVIATION]
    if SHARE in weights:  # the same as a part of the first layer
        arrays["weight0"] = weights[SHARE][:, None] * arrays["weight0"]
    if isinstance(policy.head, Gaussian):
        arrays["log_deviation"] = weights[LOG_DEVIATION]
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def to_onnx(agent: Agent) -> bytes:
    """The policy as a model of ONNX: `observations` of any number in, `outputs` out."""
    if isinstance(agent.policy, TorchPolicy):
        return _traced_onnx(agent)
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError as error:
        raise MissingExtra("onnx", "onnx", "a policy as ONNX") from error
    arrays, nodes = _arrays(agent), [helper.make_node("Identity", ["observations"], ["x0"])]

    def then(kind: str, *others: str) -> None:
        nodes.append(helper.make_node(kind, [nodes[-1].output[0], *others], [f"x{len(nodes)}"]))

    if "mean" in arrays:
        arrays |= {"low": np.array(-FAR, np.float32), "high": np.array(FAR, np.float32)}
        then("Sub", "mean")
        then("Div", "deviation")
        then("Clip", "low", "high")
    for layer in range(3):
        then("MatMul", f"weight{layer}")
        then("Add", f"bias{layer}")
        if layer < 2:
            then("Tanh")
    if "log_deviation" in arrays:
        means = nodes[-1].output[0]
        arrays["none"] = np.zeros(1, np.float32)
        nodes.append(helper.make_node("Mul", [means, "none"], ["nothing"]))
        nodes.append(helper.make_node("Add", ["nothing", "log_deviation"], ["broad"]))
        nodes.append(helper.make_node("Concat", [means, "broad"], [f"x{len(nodes)}"], axis=1))
    nodes[-1].output[0] = "outputs"
    width, outputs = len(arrays["weight0"]), agent.policy.head.outputs
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPERATORS)], ir_version=FORMAT)
    checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def to_torchscript(agent: Agent) -> bytes:
    """The policy as a module of TorchScript, for `torch.jit.load` in Python or C++."""
    jit, file = pytorch().jit, io.BytesIO()
    jit.save(_traced(agent), file)
    return file.getvalue()


def _traced(agent: Agent) -> Any:
    torch = pytorch()
    forward, width = (_whole if isinstance(agent.policy, TorchPolicy) else _layers)(agent)

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, observations: Any) -> Any:
            return forward(observations)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch prefers torch.export, whose files only Python reads
        return torch.jit.trace(Network().eval(), torch.zeros(2, width))


def _layers(agent: Agent) -> tuple[Callable[[Any], Any], int]:
    """Our own network as a function of tensors, and how many numbers an observation has."""
    torch = pytorch()
    arrays = {name: torch.from_numpy(np.array(array)) for name, array in _arrays(agent).items()}

    def forward(seen: Any) -> Any:
        if "mean" in arrays:
            seen = ((seen - arrays["mean"]) / arrays["deviation"]).clamp(-FAR, FAR)
        for layer in range(3):
            seen = seen @ arrays[f"weight{layer}"] + arrays[f"bias{layer}"]
            seen = torch.tanh(seen) if layer < 2 else seen
        return seen if "log_deviation" not in arrays else _spread(seen, arrays["log_deviation"])

    return forward, len(arrays["weight0"])


def _whole(agent: Agent) -> tuple[Callable[[Any], Any], int]:
    """The same of a network of PyTorch, with what is done to observations before."""
    policy, weights = agent.policy, agent.weights
    assert isinstance(policy, TorchPolicy)
    spaces, torch = policy.spaces, pytorch()
    module = copy.deepcopy(policy.module(weights)).requires_grad_(False)  # its weights are constants of the file
    bytes_seen = agent.card["observation_space"].get("dtype") == "uint8"
    facts = {name: torch.from_numpy(np.array(weights[name], np.float32)) for name in _FACTS if name in weights}

    def forward(seen: Any) -> Any:
        if spaces.image is not None:
            seen = images_of(seen, spaces.image, policy.last) / (255.0 if bytes_seen else 1.0)
            seen = apart(seen, weights[MEAN], weights[DEVIATION]) if MEAN in facts else seen
        elif MEAN in facts:
            seen = ((seen - facts[MEAN]) / facts[DEVIATION]).clamp(-FAR, FAR)
            seen = seen * facts[SHARE] if SHARE in facts else seen
        own = module(seen)[0]
        return own if own.shape[1] == policy.head.outputs else _spread(own, facts[LOG_DEVIATION])

    return forward, spaces.width


def _spread(means: Any, log_deviation: Any) -> Any:
    torch = pytorch()
    return torch.cat([means, torch.zeros_like(means) + log_deviation], 1)


def _traced_onnx(agent: Agent) -> bytes:
    torch, file = pytorch(), io.BytesIO()
    names = {"input_names": ["observations"], "output_names": ["outputs"]}
    axes = {"observations": {0: "n"}, "outputs": {0: "n"}}
    traced, width = _traced(agent), agent.policy.spaces.width  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            traced, (torch.zeros(2, width),), file, **names, dynamic_axes=axes, opset_version=OPERATORS, dynamo=False
        )
    return file.getvalue()
