"""One study, five places to run it: the same search, the same best candidate, the same trace."""

from concurrent.futures import ThreadPoolExecutor

from fanfold import Case, Float, Genetic, MaxTrials, Ok, Space, Study

space = Space(x=Float(-5, 5), y=Float(-5, 5))


def evaluate(candidate: dict, case: Case) -> Ok:
    """A noisy valley; all chance comes from the case, so every place sees the same noise."""
    x, y = candidate["x"], candidate["y"]
    value = (1 - x) ** 2 + 10 * (y - x * x) ** 2 + case.rng().gauss(0, case.data)
    return Ok(-value, data={"distance": abs(x - 1) + abs(y - 1)})


study = Study(Genetic(space, population=24), evaluate, cases=[0.01, 0.02, 0.03], stop=MaxTrials(240), seed=7)

if __name__ == "__main__":
    for executor in ("inline", "async:8", "threads:4", "processes:2", ThreadPoolExecutor(4)):
        run = study.run(executor)
        best = ", ".join(f"{name}={value:.4f}" for name, value in run.best.candidate.items())
        where = executor if isinstance(executor, str) else type(executor).__name__
        print(f"{where:<20} best {run.best.score:.5f} ({best})  trace {run.trace}")
