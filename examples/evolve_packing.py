"""A packing heuristic improved by a model that rewrites it; code that crashes or hangs only costs its own try.

The writer is simulated, so it costs nothing: it knows a few ideas, and one in three of its versions is broken.  Put a
real model into WRITER, and the rest stays as it is.

Run it:  python examples/evolve_packing.py
"""

import random

from fanfold import evolve
from fanfold.models import model
from fanfold.tasks.sandbox import run_code

SIZE = 100
CASES = [random.Random(seed).choices(range(5, 60), k=40) for seed in range(8)]
START = """def pack(items, size):
    bins = [[]]
    for item in items:
        if sum(bins[-1]) + item > size:
            bins.append([])
        bins[-1].append(item)
    return bins
"""


def evaluate(text, items):
    """How full the bins are, from 0 to 1, and what the writer should know about it."""
    bins = run_code(text, f"pack({items!r}, {SIZE})", seconds=3)
    if sorted(item for bin in bins for item in bin) != sorted(items):
        return 0.0, "items are missing, or there are others"
    if any(sum(bin) > SIZE for bin in bins):
        return 0.0, "a bin holds more than its size"
    least = -(-sum(items) // SIZE)
    return least / len(
        bins
    ), f"{len(bins)} bins; {least} would be the least. Room left: {[SIZE - sum(b) for b in bins]}"


def rewrite(name, messages, parameters, rng):
    """The simulated writer."""
    now = messages[-1]["content"].split('now:\n"""\n')[1].split('\n"""')[0]
    ideas = [
        now.replace("for item in items", "for item in sorted(items, reverse=True)"),
        now.replace(
            "        if sum(bins[-1]) + item > size:\n            bins.append([])\n        bins[-1].append(item)",
            "        fitting = [bin for bin in bins if sum(bin) + item <= size]\n"
            "        if not fitting:\n            bins.append([])\n            fitting = bins[-1:]\n"
            "        max(fitting, key=sum).append(item)",
        ),
        now.replace("return bins", "while True: pass"),
        now.replace("return bins", "return bin"),
    ]
    return f"<rewritten>\n{rng.choice([ideas[0], ideas[1], *ideas])}\n</rewritten>"


WRITER = model("simulated/writer", answer=f"{__name__}:rewrite")


def main():
    best = evolve(
        START, evaluate, cases=CASES, writer=WRITER, calls=100, kind="code", goal="Use as few bins as possible."
    )
    print(f"{best.start_score:.3f} -> {best.score:.3f}")
    print(best.text)
    return best


if __name__ == "__main__":
    main()
