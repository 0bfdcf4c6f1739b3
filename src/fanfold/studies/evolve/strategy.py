"""The search for demonstrations: which right answers of the program each of its prompts shows, and in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

from fanfold.encoding import encode
from fanfold.prompting.beliefs import Beliefs, Features
from fanfold.strategies.reflective import parts_of
from fanfold.strategy import Strategy
from fanfold.studies.evolve.program import RIGHT, demonstrations, with_demonstrations
from fanfold.types import Ok, Result

#: What each prompt shows: cases by the prompt's name, in their order.
Shown: TypeAlias = Mapping[str, tuple[str, ...]]

#: Choices that are thought of for every one that is proposed, and how many of the best have neighbours.
FRESH, NEAR, LEADERS = 40, 40, 4
#: How far a draw strays from what is believed.
SPREAD = 0.7


class Demonstrations(Strategy[Any]):
    """Thompson sampling over what prompts show: one draw of what each demonstration is worth, the best choice for it.

    A demonstration is what a prompt was asked and replied on a case that came out right; of the prompt whose reply is
    the answer, also what it should have replied.  `seed` is proposed first, unless another strategy proposes it; the
    texts are those of the best candidate so far, whoever proposed it.
    """

    def __init__(self, names: Sequence[str], most: int, seed: Mapping[str, str] | None = None) -> None:
        self._names, self._most = tuple(names), most
        self._seed = None if seed is None else dict(seed)
        self._pool: dict[str, dict[str, str]] = {name: {} for name in names}
        self._right: set[tuple[str, str]] = set()
        self._beliefs = Beliefs()
        self._seen: list[Shown] = []
        self._best: tuple[float, int, dict[str, str]] | None = None
        self._proposed: set[str] = set()
        self._origins: dict[str, Any] = {}

    def ask(self, n: int) -> list[Any]:
        if self._best is None:
            seed, self._seed = self._seed, None
            return [seed] if n and seed is not None else []
        asked: list[Any] = []
        while len(asked) < n and (candidate := self._next()) is not None:
            asked.append(candidate)
        return asked

    def tell(self, result: Result[Any]) -> None:
        parts = parts_of(result)
        scores = [outcome.score for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
        if parts is None or not scores:
            return
        self._learn(result)
        shown = {name: tuple(case for case, _ in demonstrations(parts, name)) for name in self._names}
        mean = result.score if result.score is not None else sum(scores) / len(scores)
        self._beliefs.see(self.features(shown), mean, len(scores))
        self._seen.append(shown)
        if result.complete and (self._best is None or mean > self._best[0]):
            self._best = mean, result.number, parts

    def origin(self, candidate: Any) -> Any:
        return self._origins.get(encode(candidate), {"by": "seed", "parents": []})

    def features(self, shown: Shown) -> Features:
        """What may make a choice good: each demonstration of each prompt, how many, and the last."""
        features: dict[str, float] = {}
        for name, cases in shown.items():
            features |= {f"{name} shows {case}": 1.0 for case in cases}
            features[f"{name} shows some"] = len(cases) / self._most
            if cases:
                features[f"{name} ends with {cases[-1]}"] = 0.5
        return features

    def _learn(self, result: Result[Any]) -> None:
        """Take the demonstrations that the evaluator offers; the first of a case stays, unless a later one is right."""
        for case, outcome in result.outcomes.items():
            if isinstance(outcome, Ok) and isinstance(outcome.data, Mapping):
                for turn in outcome.data.get("turns", ()):
                    pool, right = self._pool.get(turn["prompt"], {}), outcome.score >= RIGHT
                    if case not in pool or (right and (turn["prompt"], case) not in self._right):
                        pool[case] = turn["shown"]
                        self._right |= {(turn["prompt"], case)} if right else set()

    def _next(self) -> dict[str, str] | None:
        """The best choice of one possible world that was not proposed yet; None where there is none."""
        assert self._best is not None
        rng, posterior = self.rng, self._beliefs.posterior()
        pool = [self._random(rng) for _ in range(FRESH)]
        leaders = sorted(self._seen, key=lambda shown: -posterior.expected(self.features(shown)))[:LEADERS]
        pool += [self._neighbour(rng.choice(leaders), rng) for _ in range(NEAR)]
        new = {encode(shown): shown for shown in pool if encode([self._best[1], shown]) not in self._proposed}
        new = {text: shown for text, shown in new.items() if any(shown.values())}
        if not new:
            return None
        draw = posterior.draw(rng, SPREAD)
        best = max(new.values(), key=lambda shown: draw.score(self.features(shown)))
        _, number, parts = self._best
        self._proposed.add(encode([number, best]))
        chosen = {name: [(case, self._pool[name][case]) for case in cases] for name, cases in best.items()}
        candidate = with_demonstrations(parts, chosen)
        self._origins[encode(candidate)] = {"by": "demonstrations", "parents": [number]}
        return candidate

    def _random(self, rng: Random) -> Shown:
        shown = {}
        for name in self._names:
            cases = list(self._pool[name])
            shown[name] = tuple(rng.sample(cases, rng.randint(0, min(self._most, len(cases)))))
        return shown

    def _neighbour(self, shown: Shown, rng: Random) -> Shown:
        """A choice with one prompt's demonstrations changed: one more, one less, another, or another order."""
        name = rng.choice(self._names)
        cases = [case for case in shown[name] if case in self._pool[name]]
        others = [case for case in self._pool[name] if case not in cases]
        move = rng.choice(("add", "drop", "swap", "order"))
        if move == "add" and others and len(cases) < self._most:
            cases.insert(rng.randint(0, len(cases)), rng.choice(others))
        elif move == "drop" and cases:
            cases.pop(rng.randrange(len(cases)))
        elif move == "swap" and cases and others:
            cases[rng.randrange(len(cases))] = rng.choice(others)
        else:
            rng.shuffle(cases)
        kept = {other: tuple(case for case in own if case in self._pool[other]) for other, own in shown.items()}
        return {**kept, name: tuple(cases)}
