"""How blocks of episodes and a policy that learns look to people."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fanfold import drawings
from fanfold.ledger import EvaluationRow, RunView
from fanfold.rl.failures import UNKNOWN, FailedEpisode
from fanfold.rl.updates import EndPolicy, Update
from fanfold.summary import Curve, Section
from fanfold.types import Ok, Result

#: Blocks that a page looks at while a run is running, and rows of a long table that are shown.
MOST_LIVE, ROWS = 2000, 30


def headline(figures: Mapping[str, Any]) -> str | None:
    """The return of the policy on fresh episodes."""
    if figures.get("return") is None:
        return None
    low, high = figures["return_interval"]
    return f"return {figures['return']:.2f} [{low:.2f}, {high:.2f}] on fresh episodes"


def block(value: Mapping[str, Any]) -> Section:
    """A block of episodes, as the ledger has it."""
    last = value["first_episode"] + value["episodes"] - 1
    played = f"episodes {value['first_episode']} to {last} by version {value['version']}"
    return Section("Block", f"{played}, {'to learn from' if value['learn'] else 'held out'}")


def episodes(data: Mapping[str, Any]) -> Section:
    """The figures of one block."""
    returns, failed = data["returns"], data.get("failed", ())
    text = f"{len(returns)} episodes, mean return {sum(returns) / max(1, len(returns)):.2f}"
    return Section("Episodes", f"{text}; {len(failed)} failed" if failed else text)


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """The returns of a block, from the worst to the best, and what failed in it."""
    yield episodes(row.data)
    returns = sorted(row.data["returns"])
    points = tuple((100.0 * at / max(1, len(returns) - 1), value) for at, value in enumerate(returns))
    title = "Returns, from the worst episode to the best"
    yield Section(title, "", curves=(Curve("return", points),), across="% of episodes", up="return")
    if row.data.get("failed"):
        version = view.trial(row.trial).candidate["version"]
        yield failed_episodes([(version, FailedEpisode(**each)) for each in row.data["failed"]], view.name)


def overview(view: RunView) -> Iterator[Section]:
    """The learning curve so far; the conclusion says more."""
    if view.summary() is not None or "belongs_to" in view.info.meta:
        return
    rows = [row for row in view.evaluations(failed=False, blobs=False, count=MOST_LIVE) if "returns" in row.data]
    if rows:
        yield live_curve(rows)


def live_curve(rows: Sequence[EvaluationRow]) -> Section:
    curve = Curve("mean return of a block", tuple((float(row.trial), row.score or 0.0) for row in rows))
    failed = sum(len(row.data.get("failed", ())) for row in rows)
    text = f"{failed} episodes failed." if failed else ""
    return Section("Learning so far", text, curves=(curve,), across="blocks of episodes", up="return")


def compare(
    runs: Sequence[tuple[str, Mapping[str, Any]]], figure: str = "steps", column: str = "steps learnt from"
) -> Iterator[Section]:
    """The policies that runs ended with, side by side, and a further figure of each."""
    ends = tuple(
        (name, figures["return"], *figures["return_interval"], figures.get(figure))
        for name, figures in runs
        if figures.get("return") is not None
    )
    dots = [dict(zip(("name", "value", "low", "high"), row)) for row in ends]
    drawn = (drawings.intervals(dots, unit="return on fresh episodes"),)
    yield Section("Fresh episodes", "", ("run", "return", "low", "high", column), ends, drawings=drawn)


def played(result: Result[Any]) -> str:
    """A block in a few words."""
    outcome = next(iter(result.outcomes.values()))
    if not isinstance(outcome, Ok):
        return outcome.kind
    text = f"{len(outcome.data['returns'])} episodes of version {result.candidate.version}: return {outcome.score:.2f}"
    return f"{text}, {len(outcome.data['failed'])} failed" if outcome.data.get("failed") else text


def final_policy(figures: Mapping[str, Any], policies: Sequence[EndPolicy]) -> Section:
    """How good the policy is that training ended with."""
    lost = figures["failed_fresh_episodes"]
    text, brief = f"None of the {lost} fresh episodes could be played.", None
    if figures["return"] is None:
        brief = text
    else:
        low, high = figures["return_interval"]
        text = (
            f"Mean return {figures['return']:.2f} (95 % interval {low:.2f} to {high:.2f}) over "
            f"{figures['fresh_episodes']} fresh episodes{f' ({lost} more failed)' if lost else ''}; "
            f"{figures['policy']}, chosen on other held-out episodes."
        )
    if figures["episodes_per_cpu_second"] is not None:
        text += f" {figures['episodes_per_cpu_second']:,.0f} episodes per CPU-second, collection and learning."
    rows = tuple((policy.name, policy.mean) for policy in policies)
    return Section("Final policy", text, ("policy", "mean return when chosen"), rows, brief=brief)


def learning(updates: Sequence[Update]) -> Section:
    """The learning curve, thinned to about twenty rows, and how stale the policies were that played."""
    lags: Counter[int] = Counter()
    for update in updates:
        lags.update(update.lags)
    total = lags.total()
    shares = ", ".join(f"{lag}: {count / total:.0%}" for lag, count in sorted(lags.items()))
    every = max(1, len(updates) // 20)
    learnt = list(zip(updates, itertools.accumulate(update.episodes for update in updates)))
    rows = tuple(
        (each.number, episodes, each.steps, each.mean_return, each.lag, each.collection, each.learning)
        for each, episodes in learnt
        if each.number % every == 0 or each is updates[-1]
    )
    columns = ("update", "episodes", "its steps", "mean return", "versions behind", "playing (s)", "learning (s)")
    curve = Curve("mean return", tuple((float(episodes), each.mean_return) for each, episodes in learnt))
    text = f"Episodes by versions behind: {shares}." if total else ""
    return Section("Learning curve", text, columns, rows, (curve,), "episodes learnt from", up="mean return")


def failed_episodes(failed: Sequence[tuple[int, FailedEpisode]], run: str = "RUN") -> Section:
    """Episodes that failed, by what they failed with, and how to see one again."""
    kinds = Counter(each.kind for _, each in failed)
    rows = []
    for kind, count in kinds.most_common(ROWS):
        version, first = next(pair for pair in failed if pair[1].kind == kind)
        again = "-" if first.seed == UNKNOWN else f"fanfold play {run} --version {version} --seed {first.seed}"
        rows.append((kind, count, first.episode, first.step, first.message, again))
    text = f"{len(failed)} episodes failed; nothing was learnt from them."
    return Section(
        "Failed episodes", text, ("kind", "episodes", "first", "after steps", "message", "again"), tuple(rows)
    )
