"""What each clause of a prompt does to the style of responses: how a prompt that was never tried is imagined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fanfold.prompting.genome import Genome
from fanfold.studies.critic.bank import clauses_of
from fanfold.studies.critic.critic import Array, LinearCritic, as_numbers, as_text, np
from fanfold.studies.critic.evolution import Member
from fanfold.studies.critic.features import CROSSED, CUES, SHAPE, USUAL_CUE, USUAL_LOOK, combined

#: How many responses it takes until a clause's effect is believed by half.
RIDGE = 5.0


class Habits:
    """Ridge regression from the clauses of a prompt to the style of its responses.

    Every response teaches it, whether shown or not.  A clause that was never tried is taken to change nothing.
    """

    def __init__(self, clauses: Iterable[str], size: int) -> None:
        self._places = {clause: place for place, clause in enumerate(sorted(set(clauses)), start=1)}
        many = len(self._places) + 1
        self._xx: Array = np.zeros((many, many))
        self._xy: Array = np.zeros((many, size))
        self._effects: Array | None = None

    def learn(self, prompt: Genome, style: Sequence[float]) -> None:
        """Take in the style of one response."""
        row = self._row(prompt)
        self._xx += np.outer(row, row)
        self._xy += np.outer(row, style)
        self._effects = None

    def expect(self, prompt: Genome) -> list[float]:
        """The style that responses of a prompt may have."""
        effects = self._effects
        if effects is None:
            shrunk = np.eye(len(self._xx)) * RIDGE
            shrunk[0, 0] = 1e-6  # what all responses have in common is no clause's effect
            effects = self._effects = np.linalg.solve(self._xx + shrunk, self._xy).astype(np.float64)
        expected: list[float] = (self._row(prompt) @ effects).tolist()
        return expected

    def _row(self, prompt: Genome) -> Array:
        row = np.zeros(len(self._xx))
        row[[0, *(self._places[clause] for clause in clauses_of(prompt) if clause in self._places)]] = 1.0
        return row

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-like values."""
        return {"xx": as_text(self._xx), "xy": as_text(self._xy)}

    def load(self, state: dict[str, Any]) -> None:
        self._xx = as_numbers(state["xx"]).reshape(self._xx.shape)
        self._xy = as_numbers(state["xy"]).reshape(self._xy.shape)
        self._effects = None


def imagined(prompt: Genome, places: Sequence[Sequence[float]], style: Sequence[float]) -> Array:
    """The features of a prompt's responses in several situations, if they have a style: a row for each."""
    rows = np.repeat([combined(prompt, places[0], style)], len(places), axis=0)
    where, looks = np.asarray(places), np.asarray(style[:CROSSED])
    cues, first = len(CUES), len(SHAPE)
    crossed = (where[:, :cues, None] - USUAL_CUE) * (looks - USUAL_LOOK)
    parts = (where[:, :cues], crossed.reshape(len(places), -1), where[:, cues:])
    rows[:, first : first + sum(part.shape[1] for part in parts)] = np.hstack(parts)
    return rows


def outlook(
    members: Sequence[Member], places: Sequence[Sequence[float]], critic: LinearCritic, habits: Habits
) -> tuple[dict[str, float], Callable[[Genome], float]]:
    """How much each prompt would be missed, and what one that was never tried promises, as the critic sees it.

    Both are imagined in some situations, where the best prompt for each would have answered: a prompt is missed by how
    much worse the next best is, and promises by how much it is better than the best.
    """
    styles = [member.style or habits.expect(member.prompt) for member in members]
    rows = [imagined(member.prompt, places, style) for member, style in zip(members, styles)]
    worth = critic.predict(np.vstack(rows)).mean.reshape(len(members), len(places))
    best = worth.max(axis=0)
    missed = {}
    for i, member in enumerate(members):
        others = [row for j, row in enumerate(worth) if j != i]
        loss = 0.0 if not others else float((best - np.max(others, axis=0)).mean())
        missed[member.prompt.text] = round(loss, 6)  # many are not missed at all, on every machine

    def promise(prompt: Genome) -> float:
        expected = critic.predict(imagined(prompt, places, habits.expect(prompt))).mean
        # Where it is the best nowhere, being good on average counts, but little.
        return float((expected - best).clip(0.0).mean() + 0.1 * expected.mean())

    return missed, promise
