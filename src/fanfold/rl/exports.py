"""A trained policy for programs without Fanfold: ONNX and TorchScript.

Both take `observations`, rows of numbers as `agent.json` describes them, and give `outputs`: a score for each choice,
or the means and the logarithms of the deviations of continuous actions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fanfold.errors import ConfigError, MissingExtra
from fanfold.files import write_files
from fanfold.rl.agent import Agent
from fanfold.rl.heads import Gaussian
from fanfold.rl.network import LOG_DEVIATION
from fanfold.rl.policy import DEVIATION, FAR, MEAN, Mlp
from fanfold.tensors import Arrays

#: The version of ONNX's operators that is written, and of its files: what every runtime of the last years reads.
OPERATORS, FORMAT = 17, 8
ONNX, TORCHSCRIPT = "agent.onnx", "agent.pt"


def export(agent: Agent, folder: str | Path, formats: tuple[str, ...] = ("onnx", "torchscript")) -> tuple[Path, ...]:
    """Write a policy into a folder as `agent.onnx` and `agent.pt`."""
    known = {"onnx": (ONNX, to_onnx), "torchscript": (TORCHSCRIPT, to_torchscript)}
    if unknown := set(formats) - set(known):
        raise ConfigError(f"there is no format {unknown.pop()!r}; known: {', '.join(known)}")
    files = {known[each][0]: known[each][1](agent) for each in formats}
    write_files(Path(folder), files)
    return tuple(Path(folder) / name for name in files)


def _arrays(agent: Agent) -> Arrays:
    """The arrays of the policy's network, by the names that both formats use."""
    policy, weights = agent.policy, agent.weights
    if not isinstance(policy, Mlp):
        raise ConfigError("only networks of Fanfold's own are written here: export your module with torch itself")
    arrays = {f"{kind}{layer}": weights[f"policy.{layer}.{kind}"] for layer in range(3) for kind in ("weight", "bias")}
    if policy.context:  # the same at every step: a part of the first bias
        own = policy.width
        told = np.asarray(policy.context, np.float32) @ arrays["weight0"][own:]
        arrays["weight0"], arrays["bias0"] = arrays["weight0"][:own], arrays["bias0"] + told
    if MEAN in weights:
        arrays["mean"], arrays["deviation"] = weights[MEAN], weights[DEVIATION]
    if isinstance(policy.head, Gaussian):
        arrays["log_deviation"] = weights[LOG_DEVIATION]
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def to_onnx(agent: Agent) -> bytes:
    """The policy as a model of ONNX: `observations` of any number in, `outputs` out."""
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
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "neuro", "a policy as TorchScript") from error
    import io
    import warnings

    arrays = {name: torch.from_numpy(np.array(array)) for name, array in _arrays(agent).items()}

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, array in arrays.items():
                self.register_buffer(name, array)

        def forward(self, observations: Any) -> Any:
            seen = observations
            if "mean" in arrays:
                seen = ((seen - self.mean) / self.deviation).clamp(-FAR, FAR)
            for layer in range(3):
                seen = seen @ getattr(self, f"weight{layer}") + getattr(self, f"bias{layer}")
                seen = torch.tanh(seen) if layer < 2 else seen
            if "log_deviation" not in arrays:
                return seen
            return torch.cat([seen, torch.zeros_like(seen) + arrays["log_deviation"]], 1)

    file = io.BytesIO()
    jit: Any = torch.jit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers torch.export, whose files only Python reads
        jit.save(jit.trace(Network().eval(), torch.zeros(2, len(arrays["weight0"]))), file)
    return file.getvalue()
