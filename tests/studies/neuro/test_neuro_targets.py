"""What networks are asked for: losses, scores and intervals agree with definitions that others wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss, r2_score
from torch.nn import functional as F

from fanfold.studies.neuro.targets import chances, interval, loss, predictions, score, temperature

RNG = np.random.default_rng(1)
CLASSES = torch.from_numpy(RNG.integers(3, size=40))
NUMBERS = torch.from_numpy(RNG.normal(size=(40, 2)))
LABELS = torch.from_numpy((RNG.random((40, 3)) < 0.3).astype(np.float64))
WANTED = {"classes": CLASSES, "numbers": NUMBERS, "labels": LABELS}
OUTPUTS = {
    "classes": torch.from_numpy(RNG.normal(size=(40, 3))),
    "numbers": NUMBERS + 0.3 * torch.from_numpy(RNG.normal(size=(40, 2))),
    "labels": torch.from_numpy(RNG.normal(size=(40, 3))),
}


def test_scores_are_those_of_scikit_learn() -> None:
    said = {target: predictions(outputs, target) for target, outputs in OUTPUTS.items()}
    said["balanced"] = said["classes"]
    expected = {
        "classes": accuracy_score(CLASSES, said["classes"]),
        "balanced": balanced_accuracy_score(CLASSES, said["balanced"]),
        "numbers": r2_score(NUMBERS, said["numbers"]),
        "labels": f1_score(LABELS, said["labels"], average="micro"),
    }
    for target, value in expected.items():
        rows = "classes" if target == "balanced" else target
        assert float(score(OUTPUTS[rows], WANTED[rows], target)) == pytest.approx(value, abs=1e-10)


def test_a_balanced_score_is_that_of_the_classes_that_are_there_and_the_same_side_by_side() -> None:
    outputs, wanted = OUTPUTS["classes"], CLASSES.clamp_max(1)
    seen = [float(score(outputs[wanted == one], wanted[wanted == one], "classes")) for one in (0, 1)]
    assert float(score(outputs, wanted, "balanced")) == pytest.approx(sum(seen) / 2, abs=1e-10)
    stack = torch.stack([outputs, -outputs, outputs.nan_to_num() * torch.nan])
    assert torch.equal(score(stack, wanted, "balanced"), torch.stack([score(o, wanted, "balanced") for o in stack]))
    assert float(score(stack[2], wanted, "balanced")) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("target", WANTED)
def test_networks_side_by_side_are_judged_as_each_alone(target: str) -> None:
    outputs, wanted = OUTPUTS[target], WANTED[target]
    stack = torch.stack([outputs, outputs * 0.5, -outputs])
    weights = torch.linspace(0.5, 1.5, 40, dtype=torch.float64)
    for smoothing, counts in ((0.0, None), (0.1, None), (0.1, weights)):
        together = loss(stack, wanted, target, counts, smoothing)
        alone = [loss(one, wanted, target, counts, smoothing) for one in stack]
        torch.testing.assert_close(together, torch.stack(alone))
    torch.testing.assert_close(score(stack, wanted, target), torch.stack([score(o, wanted, target) for o in stack]))


def test_the_loss_of_classes_is_the_one_networks_always_learnt_by() -> None:
    assert torch.equal(loss(OUTPUTS["classes"], CLASSES, "classes"), F.cross_entropy(OUTPUTS["classes"], CLASSES))


@pytest.mark.parametrize("target", WANTED)
@pytest.mark.slow
def test_a_row_that_counts_nothing_changes_nothing(target: str) -> None:
    outputs, wanted = OUTPUTS[target], WANTED[target]
    weights = torch.ones(40, dtype=torch.float64)
    weights[:20] = 0.0
    halved = loss(outputs[20:], wanted[20:], target)
    torch.testing.assert_close(2.0 * loss(outputs, wanted, target, weights), halved)


@pytest.mark.parametrize("target", WANTED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_network_that_diverged_scores_badly_but_scores(target: str, bad: float) -> None:
    outputs = torch.full_like(OUTPUTS[target], bad)
    value = float(score(outputs, WANTED[target], target))
    assert -1.0 <= value < 0.6


def test_numbers_that_never_vary_are_right_or_wrong() -> None:
    constant = torch.ones(5, 1)
    assert float(score(constant, constant, "numbers")) == 1.0
    assert float(score(constant + 1, constant, "numbers")) == 0.0


def test_an_overconfident_network_is_cooled_and_its_chances_fit_better() -> None:
    labels = torch.from_numpy(RNG.integers(2, size=400))
    sure = torch.zeros(400, 2, dtype=torch.float64)
    right = torch.from_numpy(RNG.random(400) < 0.8)
    sure[torch.arange(400), torch.where(right, labels, 1 - labels)] = 8.0  # 0.9997 sure, and right in 80 %
    cooled = temperature(sure, labels, "classes")
    assert float(chances(sure, "classes", cooled).max()) == pytest.approx(float(right.double().mean()), abs=5e-3)
    assert log_loss(labels, chances(sure, "classes", cooled)) < log_loss(labels, chances(sure, "classes"))


@pytest.mark.parametrize("target", WANTED)
def test_an_interval_holds_its_score_and_follows_from_the_seed(target: str) -> None:
    middle, low, high = interval(OUTPUTS[target], WANTED[target], target)
    assert low <= middle <= high
    assert high - low > 0.01
    assert interval(OUTPUTS[target], WANTED[target], target) == (middle, low, high)


@pytest.mark.parametrize("target", ["classes", "labels"])
def test_a_few_rows_that_are_all_right_do_not_make_a_network_sure(target: str) -> None:
    wanted = torch.arange(20) % 2 if target == "classes" else torch.eye(2)[torch.arange(20) % 2]
    outputs = torch.eye(2)[torch.arange(20) % 2] * 2.0 - 1.0
    assert 0.9 < float(chances(outputs, target, temperature(outputs, wanted, target)).max()) < 0.99
