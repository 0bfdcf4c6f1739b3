"""Networks as the text of a PyTorch module that imports nothing but torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fanfold.studies.neuro.genome import NetworkGenome, Shape
from fanfold.studies.neuro.layout import Layout, halving, layout

_CALLS = {
    "relu": "torch.relu",
    "leaky_relu": "F.leaky_relu",
    "tanh": "torch.tanh",
    "sigmoid": "torch.sigmoid",
    "selu": "torch.selu",
}
_TAKES = {
    "images": "images of {shape.channels} x {shape.height} x {shape.width}",
    "sequence": "sequences of {shape.channels} x {shape.width}",
    "table": "rows of {shape.channels} features, which the encoder in table.py makes of a table",
}
_GIVES = {
    "classes": "a score for every class",
    "numbers": "every number in its own units",
    "labels": "a score for every label, above 0 if it holds",
}
_LISTS = "self.conv, self.norm, self.dense, self.dense_norm = (nn.ModuleList() for _ in range(4))"
_DICTS = "self.depth, self.squeeze = nn.ModuleDict(), nn.ModuleDict()"
_SQUEEZE = '''
class Squeeze(nn.Module):
    """A factor between 0 and 2 for each map, from the means of all of them."""

    def __init__(self, maps, within):
        super().__init__()
        self.down, self.up = nn.Linear(maps, within, bias=False), nn.Linear(within, maps, bias=False)

    def forward(self, x):
        return 2 * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))[:, :, None, None]

'''
_ATTENTION = '''
class Attention(nn.Module):
    """Features as tokens that attend to each other: their mean."""

    def __init__(self, features, size):
        super().__init__()
        self.embed, self.place = (nn.Parameter(torch.zeros(features, size)) for _ in range(2))
        self.query, self.key, self.value = (nn.Parameter(torch.zeros(size, size)) for _ in range(3))

    def forward(self, x):
        tokens = x[:, :, None] * self.embed + self.place
        query, key, value = tokens @ self.query, tokens @ self.key, tokens @ self.value
        chances = (query @ key.transpose(1, 2) / tokens.shape[2] ** 0.5).softmax(2)
        return torch.relu(tokens + chances @ value).mean(1)

'''
_FITTED = '''
def fitted(x, channels):
    """As many channels as asked for: the first ones, or all and zeros."""
    missing = channels - x.shape[1]
    return x[:, :channels] if missing <= 0 else F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))

'''
_MEMBER = """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
{made}

    def forward(self, x):
{flow}

"""


def source(genomes: Sequence[NetworkGenome], shape: Shape, classes: tuple[str, ...]) -> str:
    """The module of one network, or of several whose outputs are averaged."""
    kinds = list(dict.fromkeys(genomes))
    helpers = [
        _SQUEEZE * any("squeeze" in conv.block for genome in kinds for conv in genome.conv),
        _ATTENTION * any("attend.key" in layout(genome, shape).tensors for genome in kinds),
        _FITTED * any("residual" in block for genome in kinds for block in genome.block_names),
    ]
    if len(genomes) == 1:
        made, flow = _lines(genomes[0], shape)
    else:
        for number, genome in enumerate(kinds):
            inner, through = ("\n".join(f"        {line}" for line in lines) for lines in _lines(genome, shape))
            helpers.append(_MEMBER.format(name=f"Member{number}", made=inner, flow=through))
        members = ", ".join(f"Member{kinds.index(genome)}()" for genome in genomes)
        made = [f"self.members = nn.ModuleList([{members}])"]
        flow = ["return torch.stack([member(x) for member in self.members]).mean(0)"]
    some = "A network" if len(genomes) == 1 else f"{len(genomes)} networks, answering by their mean,"
    template = Path(__file__).with_name("model.py.txt").read_text(encoding="utf-8")
    return template.format(
        about=f"{some} for {_TAKES[shape.kind].format(shape=shape)}.",
        gives=_GIVES[shape.target],
        classes=repr(classes),
        channels=shape.channels,
        flat=":, None, None" if shape.kind == "sequence" else "..., None, None",
        helpers="".join(helpers),
        made="\n".join(f"        {line}" for line in made),
        flow="\n".join(f"        {line}" for line in flow),
    )


def _lines(genome: NetworkGenome, shape: Shape) -> tuple[list[str], list[str]]:
    """How the layers of a network are made, and what they do with `x`."""
    sizes = layout(genome, shape)
    made = [_LISTS]
    flow: list[str] = []
    if any(layer.block != "plain" for layer in genome.conv):
        made.append(_DICTS)
    for i in range(len(genome.conv)):
        made += _conv_made(genome, sizes, i)
        flow += _conv_flow(genome, sizes, i)
    flow.append("x = x.mean((2, 3))" if genome.conv and genome.head == "mean" else "x = x.flatten(1)")
    if "attend.key" in sizes.tensors:
        made.append(f"self.attend = Attention({shape.channels}, {genome.attention})")
        flow.append("x = torch.cat([x, self.attend(x)], 1)")
    inputs = sizes.features
    norm = {"batch": "BatchNorm1d", "layer": "LayerNorm"}.get(genome.dense_norm)
    for j, dense in enumerate(genome.dense):
        made.append(f"self.dense.append(nn.Linear({inputs}, {dense.nodes}))")
        made += [f"self.dense_norm.append(nn.{norm}({dense.nodes}))"] * (norm is not None)
        call = f"self.dense[{j}](x)" if norm is None else f"self.dense_norm[{j}](self.dense[{j}](x))"
        call = f"{_CALLS[dense.activation]}({call})"
        if genome.dropout:
            call = f"F.dropout({call}, {genome.dropout!r}, self.training)"
        flow.append(f"x = {call} + fitted(x, {dense.nodes})" if dense.block == "residual" else f"x = {call}")
        inputs = dense.nodes
    made.append(f"self.out = nn.Linear({inputs}, {shape.classes})")
    return made, [*flow, "return self.out(x)"]


def _conv_made(genome: NetworkGenome, sizes: Layout, i: int) -> Iterator[str]:
    filters, channels = genome.conv[i].filters, sizes.maps[i][0]
    bias = ", bias=False" if genome.norm == "batch" else ""
    if (depth := sizes.tensors.get(f"conv.{i}.depth")) is not None:
        once = f"{channels}, {channels}, {_kernel(depth)}, groups={channels}, bias=False"
        yield f'self.depth["{i}"] = nn.Conv2d({once})'
    yield f"self.conv.append(nn.Conv2d({channels}, {filters}, {_kernel(sizes.tensors[f'conv.{i}.weight'])}{bias}))"
    if bias:
        yield f"self.norm.append(nn.BatchNorm2d({filters}))"
    if (down := sizes.tensors.get(f"squeeze.{i}.down")) is not None:
        yield f'self.squeeze["{i}"] = Squeeze({filters}, {down[0]})'


def _kernel(size: tuple[int, ...]) -> str:
    sides, around = size[2:], tuple(side // 2 for side in size[2:])
    if sides[0] == sides[1]:
        return f"{sides[0]}, padding={around[0]}"
    return f"{sides}, padding={around}"


def _conv_flow(genome: NetworkGenome, sizes: Layout, i: int) -> Iterator[str]:
    conv, call = genome.conv[i], "x"
    if "depthwise" in conv.block:
        call = f'self.depth["{i}"](x)'
    call = f"self.conv[{i}]({call})"
    if genome.norm == "batch":
        call = f"self.norm[{i}]({call})"
    if "squeeze" in conv.block:
        yield f"made = {call}"
        call = f'made * self.squeeze["{i}"](made)'
    if "residual" in conv.block:
        yield f"x = {call} + fitted(x, {conv.filters})"
        call = "x"
    if sizes.pooled[i]:
        by = halving(*sizes.maps[i][1:])
        call = f"F.max_pool2d({call}, {by[0] if by[0] == by[1] else by})"
    yield f"x = {_CALLS[conv.activation]}({call})"
