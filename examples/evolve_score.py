"""Scores examples/evolve_solver.py, or what a model made of it: how full the bins are, from 0 to 1."""

import random

from fanfold.tasks.sandbox import run_code

SIZE = 100
ORDERS = [random.Random(seed).choices(range(5, 60), k=60) for seed in range(4)]


def evaluate(text):
    fills = []
    for bins, items in zip(run_code(text, f"[pack(items, {SIZE}) for items in {ORDERS!r}]"), ORDERS, strict=True):
        if sorted(item for bin in bins for item in bin) != sorted(items) or any(sum(bin) > SIZE for bin in bins):
            return 0.0, "a bin holds more than its size, or items are missing"
        fills.append(sum(items) / SIZE / len(bins))
    return {"score": sum(fills) / len(fills), "feedback": "the share of the bins that is filled", "worst": min(fills)}
