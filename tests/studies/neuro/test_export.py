"""A network that was found can be used without Fanfold, and is the same there."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neuro_world import everything

from fanfold.errors import ConfigError
from fanfold.studies.neuro.export import Classifier
from fanfold.studies.neuro.genome import ACTIVATIONS, Conv, Dense, NetworkGenome, Shape
from fanfold.studies.neuro.layout import parameters
from fanfold.studies.neuro.network import forward, initial
from fanfold.studies.neuro.space import NetworkSpace, random_genome

WIDE = NetworkSpace(conv_layers=(0, 4), filters=(1, 9), kernels=(1, 3, 5, 7), dense_layers=(0, 3), nodes=(1, 17))
IMAGES, COLOURED, VECTORS = Shape(1, 8, 8, 10), Shape(3, 13, 9, 2), Shape(7, 1, 1, 3)
TABLE, SEQUENCES = Shape(7, 1, 1, 3, "table"), Shape(2, 1, 20, 4, "sequence")
SHAPES = (IMAGES, COLOURED, VECTORS, TABLE, SEQUENCES)


def a_classifier(
    genome: NetworkGenome, shape: Shape, seed: int = 0, classes: tuple[str, ...] | None = None
) -> Classifier:
    """A network as training leaves it: all its numbers, also the running statistics, are no longer the first ones."""
    rng = np.random.default_rng(seed)
    weights = initial(genome, shape, seed)
    for name, array in weights.items():
        shift = rng.uniform(0.1, 0.5, array.shape) if "norm." in name else 0.0
        weights[name] = (array + shift).astype(np.float32)
    mean, scale = rng.uniform(10, 100, shape.channels), rng.uniform(20, 60, shape.channels)
    names = classes or tuple(f"class {n}" for n in range(shape.classes))
    return Classifier(genome, shape, weights, tuple(mean.tolist()), tuple(scale.tolist()), names)


def an_ensemble(shape: Shape, seed: int = 0) -> Classifier:
    """Three networks, two of them of one genome."""
    one, other = (random_genome(everything(WIDE), random.Random(seed + n)) for n in (0, 1))
    members = [a_classifier(genome, shape, seed + n) for n, genome in enumerate((one, other, one))]
    return replace(members[0], others=tuple((each.genome, each.weights) for each in members[1:]))


def exported() -> list[Classifier]:
    single = [a_classifier(genome, shape, number) for number, (genome, shape) in enumerate(genomes())]
    return [*single, *(an_ensemble(shape, number) for number, shape in enumerate(SHAPES))]


def some_images(shape: Shape, n: int, seed: int = 1) -> Any:
    size = (n, shape.channels, shape.height, shape.width)
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def bare(images: Any) -> Any:
    """Rows of a table, sequences and grey images as people have them."""
    _, channels, height, width = images.shape
    if height == 1:
        return images[:, :, 0, 0] if width == 1 else images[:, :, 0]
    return images[:, 0] if channels == 1 else images


def expected(classifier: Classifier, images: Any) -> Any:
    """What the study's own forward pass makes of normalised images."""
    mean, scale = (np.asarray(each).reshape(-1, 1, 1) for each in (classifier.mean, classifier.scale))
    inputs = torch.from_numpy(((images - mean) / scale).astype(np.float32))
    outputs = []
    for genome, weights in classifier.members:
        net = {name: torch.from_numpy(array) for name, array in weights.items()}
        outputs.append(forward(genome, net, inputs).numpy())
    return np.mean(outputs, axis=0)


def genomes() -> list[tuple[NetworkGenome, Shape]]:
    found = [
        (NetworkGenome((Conv(4, 3, name),), (Dense(6, name),), norm, 0.2, "adam", 0.01), IMAGES)
        for name, norm in zip(ACTIVATIONS, ("batch", "none") * 3)
    ]
    found += [(random_genome(WIDE, random.Random(seed)), (IMAGES, COLOURED, VECTORS)[seed % 3]) for seed in range(9)]
    newer = everything(WIDE)
    found += [(random_genome(newer, random.Random(seed)), SHAPES[seed % 5]) for seed in range(30, 50)]
    found.append((NetworkGenome((), (), "batch", 0.0, "sgd", 0.01), IMAGES))
    return found


PROGRAM = """
import importlib.util, sys
import numpy as np, torch
sys.modules["fanfold"] = None
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("model", folder + "/model.py")
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    with torch.inference_mode():
        np.save(folder + "/scores.npy", model.load()(torch.from_numpy(np.load(folder + "/images.npy"))).numpy())
"""


@pytest.mark.slow
def test_the_module_file_gives_the_same_scores_in_a_process_without_fanfold(tmp_path: Path) -> None:
    wanted, folders = [], []
    for number, classifier in enumerate(exported()):
        images = some_images(classifier.shape, 5)
        folders.append(str(classifier.save(tmp_path / str(number)).folder))
        np.save(tmp_path / str(number) / "images.npy", bare(images) if number % 2 else images)
        wanted.append(expected(classifier, images))
    subprocess.run([sys.executable, "-c", PROGRAM, *folders], check=True, timeout=120, cwd=tmp_path)
    for folder, scores in zip(folders, wanted):
        np.testing.assert_allclose(np.load(f"{folder}/scores.npy"), scores, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_onnx_gives_the_same_scores_for_any_number_of_images() -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    for classifier in exported():
        session = runtime.InferenceSession(classifier.onnx(), providers=["CPUExecutionProvider"])
        for n in (1, 6):
            images = some_images(classifier.shape, n)
            given = images.reshape(n, *json.loads(classifier.card())["input"]["shape"][1:]).astype(np.float32)
            (scores,) = session.run(["scores"], {"images": given})
            np.testing.assert_allclose(scores, expected(classifier, images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from(SHAPES), st.booleans())
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_the_study_and_the_same_alone_and_among_others(
    seed: int, shape: Shape, several: bool
) -> None:
    classifier = (
        an_ensemble(shape, seed) if several else a_classifier(random_genome(WIDE, random.Random(seed)), shape, seed)
    )
    images = some_images(shape, 4)
    scores = classifier.scores(images)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected(classifier, images), rtol=1e-3, atol=1e-3)
    alone = np.concatenate([classifier.scores(images[n : n + 1]) for n in range(4)])
    np.testing.assert_allclose(scores, alone, rtol=1e-9, atol=1e-12)


def test_more_images_than_are_scored_at_once_and_none_at_all() -> None:
    classifier = a_classifier(NetworkGenome((), (Dense(3, "relu"),), "none", 0.0, "sgd", 0.01), VECTORS)
    assert classifier.scores(some_images(VECTORS, 0)).shape == (0, 3)
    images = some_images(VECTORS, 1300)
    np.testing.assert_allclose(classifier.scores(images), expected(classifier, images), rtol=1e-4, atol=1e-4)


def test_the_module_says_what_it_takes_and_gives() -> None:
    genome = NetworkGenome((), (Dense(3, "relu"),), "none", 0.0, "adam", 0.001)
    for shape, takes in (
        (IMAGES, "A network for images of 1 x 8 x 8."),
        (Shape(7, 1, 1, 1, "table", "numbers"), "rows of 7 features, which the encoder in table.py makes of a table."),
        (SEQUENCES, "sequences of 2 x 20."),
    ):
        text = a_classifier(genome, shape).source()
        assert takes in text and ("every number in its own units" in text) == (shape.target == "numbers")
    assert "3 networks, answering by their mean, for" in an_ensemble(TABLE).source()


def test_the_weights_are_a_safetensors_file_with_the_names_of_the_module(tmp_path: Path) -> None:
    reader = pytest.importorskip("safetensors.torch")
    genome, shape = genomes()[0]
    classifier = a_classifier(genome, shape)
    classifier.save(tmp_path)
    tensors = reader.load_file(tmp_path / "model.safetensors")
    module = loaded(tmp_path)
    names = {name for name in module.Network().state_dict() if not name.endswith("num_batches_tracked")}
    assert set(tensors) == names
    np.testing.assert_array_equal(tensors["norm.0.running_var"].numpy(), classifier.weights["norm.0.var"])


def test_the_card_says_what_the_network_is(tmp_path: Path) -> None:
    genome, shape = genomes()[0]
    saved = a_classifier(genome, shape).save(tmp_path / "new" / "folder")
    card = json.loads((saved.folder / "model.json").read_text(encoding="utf-8"))
    assert card["classes"] == [f"class {n}" for n in range(10)]
    assert card["parameters"] == parameters(genome, shape)
    assert card["input"]["shape"] == ["n", 1, 8, 8]
    assert sorted(card["files"]) == sorted(saved.files) == sorted(each.name for each in saved.folder.iterdir())
    text = (saved.folder / "model.py").read_text(encoding="utf-8")
    assert "fanfold" not in text.lower()


@pytest.mark.slow
@given(st.lists(st.text(), min_size=10, max_size=10))
@settings(max_examples=30, deadline=None)
def test_a_class_may_have_any_name(names: list[str]) -> None:
    genome, shape = genomes()[0]
    classifier = a_classifier(genome, shape, classes=tuple(names))
    space: dict[str, Any] = {"__file__": "model.py", "__name__": "model"}
    exec(compile(classifier.source().encode(), "model.py", "exec"), space)
    assert space["CLASSES"] == tuple(names)
    assert json.loads(classifier.card())["classes"] == names


def test_dropout_is_in_the_module_where_it_is_trained_further(tmp_path: Path) -> None:
    genome = NetworkGenome((), (Dense(64, "relu"),), "none", 0.5, "sgd", 0.01)
    a_classifier(genome, VECTORS).save(tmp_path)
    network, images = loaded(tmp_path).load(), torch.ones(1, 7, 1, 1)
    assert torch.equal(network(images), network(images))
    network.train()
    assert not torch.equal(network(images), network(images))


def test_without_the_package_onnx_the_other_files_are_written_and_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    saved = a_classifier(*genomes()[0]).save(tmp_path)
    assert saved.files == ("model.safetensors", "model.py", "model.json")
    assert "fanfold[onnx]" in saved.notes[0]


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    classifier = a_classifier(*genomes()[0])
    parts = dict(vars(classifier))
    bent = {**classifier.weights, "out.bias": np.zeros(3, np.float32)}
    for changes, says in (
        ({"weights": bent}, "out.bias"),
        ({"weights": {}}, "conv.0.weight"),
        ({"classes": ("a", "b")}, "2 names"),
        ({"mean": (0.0, 0.0)}, "channels"),
    ):
        with pytest.raises(ConfigError, match=says):
            Classifier(**{**parts, **changes})
    with pytest.raises(ConfigError, match="images must be"):
        classifier.scores(np.zeros((2, 1, 9, 8)))
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="taken"):
        classifier.save(tmp_path / "taken")


def test_a_sequence_of_one_channel_may_be_given_without_it(tmp_path: Path) -> None:
    shape = Shape(1, 1, 20, 3, "sequence")
    classifier = a_classifier(NetworkGenome((Conv(4, 3, "relu"),), (), "none", 0.0, "sgd", 0.01), shape)
    classifier.save(tmp_path)
    network, images = loaded(tmp_path).load(), torch.from_numpy(some_images(shape, 5)).float()
    for form in (images[:, 0, 0], images[:, 0], images):
        np.testing.assert_allclose(network(form).detach().numpy(), expected(classifier, images.numpy()), rtol=1e-4)


def loaded(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
