"""How workflows, trainings, blocks of episodes and the result of a run look to people."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fanfold import drawings
from fanfold.drawings import Drawing
from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.plugins import Presentation, concluded
from fanfold.rl import shown as policies
from fanfold.strategies.gp_ucb import Belief
from fanfold.studies.workflow.orders import NAMED
from fanfold.studies.workflow.spaces import Orders, Workflow, WorkflowSpace, show
from fanfold.studies.workflow.strategy import report
from fanfold.studies.workflow.trainings import FinishedTraining
from fanfold.summary import Curve, Section
from fanfold.types import Blob, Ok, Result

#: How many rows of a long table are shown.
ROWS = 30
#: What breaks the workflow costs an untrained policy so many times the largest return in an episode: too little for a
#: workflow to be kept to, a good measure, and so much that returns are hardly learnt.
LITTLE, USUAL, MUCH = 0.5, 2.0, 20.0
#: Trainings or blocks that a page looks at while a run is running.
MOST_LIVE = 2000


def headline(figures: Mapping[str, Any]) -> str | None:
    """The return and the compliance of the best policy."""
    text = policies.headline(figures)
    if text is None or figures.get("compliance") is None:
        return text
    return f"{text}, compliance {figures['compliance']:.3f}"


def candidate(value: Mapping[str, Any]) -> Section:
    """A workflow and its training, a block of episodes, or a policy that is watched, as the ledger has it."""
    order = "any order" if value.get("workflow") is None else show(value["workflow"])
    if "who" in value:
        return Section("Policy", f"{'the trained agent' if value['who'] == 'agent' else value['who']}: {order}")
    if "visit" in value:
        begins = "" if value["parent"] is None else f", begins with the policy of {show(value['parent'])}"
        if value.get("learnt"):
            begins = f", continues after {value['learnt']}"
        return Section("Workflow", f"{order}: visit {value['visit']}, at most {value['episodes']} episodes{begins}")
    return policies.block(value)


def cell(data: Mapping[str, Any]) -> Section:
    """The figures of one training, or of one block."""
    if "returns" in data:
        return policies.episodes(data)
    names = ("return", "compliance", "contested", "fixes", "episodes", "stopped", "policy")
    return Section("Training", "", ("", "value"), tuple((name, data[name]) for name in names))


def text(value: Mapping[str, Any]) -> str:
    """The workflow, one type of machines in a line, and how its training began."""
    return "\n".join([*(value.get("workflow") or ["any order"]), candidate(value).text.partition(": ")[2]]).strip()


def brief(value: Mapping[str, Any]) -> str:
    """The order and the visit, or the episodes of a block."""
    return candidate(value).text


def overview(view: RunView) -> Iterator[Section]:
    """The trainings so far by return and compliance, or the learning curve so far; the conclusion says more."""
    if view.summary() is not None or "belongs_to" in view.info.meta:
        return
    blocks, points = [], []
    rows = view.evaluations(failed=False, blobs=False, count=MOST_LIVE)
    for row in rows:
        if "returns" in row.data:
            blocks.append(row)
        else:
            points.append((row.trial, row.data["compliance"], row.score))
    if points:
        names = {row.number: brief(row.candidate) for row in view.trials(which="told", blobs=False, count=MOST_LIVE)}
        named = [(names.get(trial, f"trial {trial}"), trial, compliance, score) for trial, compliance, score in points]
        yield _spread("Trainings so far", "On held-out episodes.", named)
    if blocks:
        yield policies.live_curve(blocks)


def _spread(title: str, text: str, rows: Sequence[tuple[str, int, float | None, float | None]]) -> Section:
    points = [{"name": name, "trial": trial, "x": rate, "y": score} for name, trial, rate, score in rows]
    drawn = drawings.scatter(points, x="compliance", y="mean return")
    return Section(title, text, ("workflow", "trial", "compliance", "return"), tuple(rows[:ROWS]), drawings=(drawn,))


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """The workflow with its training, or the block of episodes with its returns."""
    yield candidate(row.candidate)
    for each in view.evaluations(trials=[row.number], failed=False):
        yield from evaluation(view, each)


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """The figures of a training, how it learnt, and an episode of its policy; of a block, its returns."""
    if "returns" in row.data:
        yield from policies.evaluation(view, row)
        return
    yield cell(row.data)
    if "curve" not in row.data:
        return
    learnt = list(itertools.accumulate(step[0] for step in row.data["curve"]))
    own = Curve("episodes learnt from", tuple((float(n), step[1]) for n, step in zip(learnt, row.data["curve"])))
    held = Curve("held-out episodes", tuple((float(look[0]), look[1]) for look in row.data["looks"]))
    yield Section("Return", "", curves=(own, held), across="episodes learnt from", up="mean return")
    rates = [(float(n), step[4] / step[3]) for n, step in zip(learnt, row.data["curve"]) if step[3]]
    looks = [(float(look[0]), look[2]) for look in row.data["looks"] if look[2] is not None]
    curves = (Curve("episodes learnt from", tuple(rates)), Curve("held-out episodes", tuple(looks)))
    yield Section("Compliance", "", curves=curves, across="episodes learnt from", up="share of fixes in order")
    yield from episode(row.data)


def compare(views: Sequence[RunView]) -> Iterator[Section]:
    """The best compliant return after so many episodes, one curve a run, and the policies that the runs ended with."""
    runs = concluded(views)
    courses = {name: [row for row in figures.get("regret", ()) if row[1] is not None] for name, figures in runs}
    curves = [Curve(name, tuple((float(row[0]), float(row[1])) for row in course)) for name, course in courses.items()]
    if any(curve.points for curve in curves):
        across, up = "episodes learnt from", "best compliant return"
        yield Section("Return against episodes", "", curves=tuple(curves), across=across, up=up)
    yield from policies.compare(runs, "compliance", "compliance")


def episode(data: Mapping[str, Any]) -> Iterator[Section]:
    """The episode that a training recorded; runs of earlier versions have none."""
    if isinstance(recorded := data.get("episode"), Blob):
        yield replayed(Drawing("replay", msgspec.json.decode(recorded.read())))


def replayed(drawing: Drawing) -> Section:
    """An episode step by step, and what blue did in it."""
    steps = drawing.data["steps"]
    done = Counter(
        " ".join(filter(None, (move["action"], move["node"])))
        for step in steps
        for move in step["moves"]
        if move["who"] == "blue"
    )
    total = math.fsum(step["value"] for step in steps)
    text = f"One held-out episode: return {total:.1f} in {len(steps)} steps. What blue did:"
    return Section("An episode", text, ("action", "times"), tuple(done.most_common(10)), drawings=(drawing,))


presentation = Presentation(
    headline,
    candidate,
    cell,
    chooses=True,
    text=text,
    brief=brief,
    overview=overview,
    trial=trial,
    evaluation=evaluation,
    compare=compare,
)


def trained(result: Result[Any]) -> str:
    """A training in a few words."""
    data = report(result)
    if data is None or result.score is None:
        return "a training that failed"
    rate = "-" if data["compliance"] is None else f"{data['compliance']:.2f}"
    order = show(result.candidate.workflow)
    return f"{order}: return {result.score:.2f}, compliance {rate}, {data['episodes']} episodes"


def played(result: Result[Any]) -> str:
    """A block in a few words: how it went, and how well its policy kept to its workflow."""
    outcome, text = next(iter(result.outcomes.values())), policies.played(result)
    fixes, kept = (sum(outcome.data.get(name, ())) if isinstance(outcome, Ok) else 0 for name in ("fixes", "kept"))
    return f"{text}, compliance {kept / fixes:.2f}" if fixes else text


def best_workflow(figures: Mapping[str, Any], threshold: float) -> Section:
    low, high = figures["return_interval"]
    text = f"{figures['workflow']} (training {figures['trial']}, its {figures['policy']} policy)"
    if not figures["complies"]:
        text = f"No training reached a compliance of {threshold:g}. The nearest to it: {text}"
    if figures["return"] is None:
        return Section("Best workflow", f"{text}. None of the fresh episodes could be played.")
    least, most = figures["compliance_interval"]
    share = "none" if figures["compliance"] is None else f"{figures['compliance']:.3f}"
    text += (
        f": mean return {figures['return']:.2f} (95 % interval {low:.2f} to {high:.2f}), compliance {share} "
        f"({least:.3f} to {most:.3f}) over {figures['fresh_episodes']} fresh episodes. {figures['trainings']} "
        f"trainings learnt from {figures['episodes']:,} episodes and were looked at on "
        f"{figures['held_out_episodes']:,} others."
    )
    if figures.get("failed_episodes"):
        text += f" {figures['failed_episodes']:,} episodes failed and were left out, most with {figures['failure']}."
    if figures["episodes_per_cpu_second"] is not None:
        text += f" {figures['episodes_per_cpu_second']:,.0f} episodes per CPU-second, all of it counted."
    return Section("Best workflow", text + _penalty(figures))


def _penalty(figures: Mapping[str, Any]) -> str:
    """A note where what breaks the workflow costs far more than returns are, or too little for most to be kept to."""
    share, kept = figures.get("penalty_share"), figures.get("compliant", 0) / max(1, figures["trainings"])
    if share is None or LITTLE <= share <= MUCH or (share < LITTLE and kept >= 0.5):
        return ""
    effect = "so returns may hardly have been learnt" if share > MUCH else "and most trainings did not comply"
    cost, better = (float(f"{value:.1g}") for value in (share, figures["alignment_lambda"] * USUAL / share))
    return (
        f" At first, what broke the workflow cost {cost:g} times the largest return in an episode, {effect}: try "
        f"--alignment-lambda {better:g}."
    )


def side_by_side(scores: Sequence[Mapping[str, Any]], finale: bool) -> Section:
    """The policy of the run, that of the search before its finale, and two heuristics."""
    trained = ("after the finale", "as the search chose it") if finale else ("trained",)
    names = (*trained, "greedy: fixes the most urgent it sees", "random actions")
    columns = ("policy", "return", "low", "high", "compliance", "contested", "as the original counts")
    rows = tuple(
        (name, each["return"], *each["return_interval"], each["compliance"], each["contested"], each["original"])
        for name, each in zip(names, scores)
    )
    dots = [{"name": row[0], "value": row[1], "low": row[2], "high": row[3]} for row in rows]
    drawn = (drawings.intervals(dots, unit="mean return"),)
    return Section("The same fresh episodes, with the same workflow", "", columns, rows, drawings=drawn)


def ranked_trainings(told: Sequence[FinishedTraining], threshold: float) -> Section:
    ranked = sorted(told, key=lambda each: each.standing(threshold), reverse=True)
    names = {order: f" ({name})" for name, order in NAMED.items()}
    columns = ("workflow", "visit", "return", "compliance", "low", "contested", "episodes", "compliant at", "then")
    rows = tuple(
        (show(each.workflow) + names.get(each.workflow, "") + " (finale)" * each.finale, each.visit, each.score)
        + (each.data["compliance"], each.data["compliance_interval"][0])
        + tuple(each.data[name] for name in ("contested", "episodes", "compliant_at", "compliant_return"))
        for each in ranked[:ROWS]
    )
    more = f" The best {ROWS} of {len(told)}." if len(told) > ROWS else ""
    text = f"On held-out episodes. `then` is the return when compliance was first shown.{more}"
    points = [
        {"name": show(each.workflow), "x": each.data["compliance"], "y": each.score, "trial": each.number}
        | {"front": each is ranked[0]}
        for each in ranked
    ]
    drawn = (drawings.scatter(points, x="compliance", y="mean return"),)
    return Section("Trainings", text, columns, rows, drawings=drawn)


def belief_table(
    beliefs: Sequence[Belief[Workflow]], told: Sequence[FinishedTraining], space: WorkflowSpace
) -> Section:
    """Workflows that are the same to the environment have one row."""
    ignored = space.ignored if isinstance(space, Orders) else ()
    visits = Counter(space.canonical(each.workflow) for each in told)
    columns = ("workflow", "mean return", "deviation", "probably compliant", "trainings")
    rows = tuple(
        (
            show([name for name in each.arm if name not in ignored]) if len(ignored) < len(each.arm) else "any",
            each.mean,
            each.deviation,
            each.feasible,
            visits[each.arm],
        )
        for each in beliefs[:ROWS]
    )
    text = "Of a whole training that inherits nothing."
    if ignored:
        text += f" Red can hold no machine of {' or '.join(ignored)}: their places do not matter."
    dots = [
        {
            "name": row[0].replace(">", " > "),
            "value": row[1],
            "low": row[1] - 1.96 * row[2],
            "high": row[1] + 1.96 * row[2],
            "n": row[4],
        }
        for row in rows
    ]
    drawn = [drawings.intervals(dots, unit="believed return")]
    if isinstance(space, Orders) and len(space.relevant) > 1 and space.arms:
        drawn.append(_by_place(beliefs, space.relevant))
    return Section("Beliefs", text, columns, rows, drawings=tuple(drawn))


def _by_place(beliefs: Sequence[Belief[Workflow]], options: Sequence[str]) -> Drawing:
    """The mean believed return of all orders in which an option has a place."""
    sums: dict[tuple[str, int], list[float]] = {}
    for each in beliefs:
        for place, name in enumerate(name for name in each.arm if name in options):
            sums.setdefault((name, place), []).append(each.mean)
    numbers = range(len(options))
    values = [[statistics.fmean(sums.get((name, place), [0.0])) for place in numbers] for name in options]
    every = [mean for means in sums.values() for mean in means]
    places = [f"{place + 1}." for place in numbers]
    ends = min(every), max(every)
    titles = "place in the order", "mean believed return"
    return drawings.grid(list(options), places, values, low=ends[0], high=ends[1], across=titles[0], down=titles[1])


def regret_table(
    told: Sequence[FinishedTraining], course: Sequence[Sequence[Any]], reference: float | None, whose: str
) -> Section:
    if reference is None:
        rates = itertools.accumulate((each.rate for each in told), max)
        best = Curve("best compliance", tuple((float(row[0]), rate) for row, rate in zip(course, rates)))
        text = "No policy was compliant, so there is nothing to compare with."
        return Section("Regret", text, curves=(best,), across="episodes learnt from", up="best compliance so far")
    every = max(1, len(course) // 20)
    rows = tuple(
        (number, *row) for number, row in enumerate(course, 1) if number % every == 0 or number in (1, len(course))
    )
    columns = ("trainings", "episodes", "best compliant return", "behind the best known")
    behind = tuple((float(row[0]), float(row[2])) for row in course if row[2] is not None)
    text = f"The best known is {reference:.2f}, of run {whose}."
    drawn = (Curve("behind the best known", behind),)
    return Section("Regret", text, columns, rows, drawn, "episodes learnt from", up="return behind the best known")


def endings(told: Sequence[FinishedTraining]) -> Section:
    meaning = {
        "compliant": "complied, and its return no longer improved",
        "patience": "did not comply, and its compliance no longer improved",
        "budget": "its episodes were used up",
        "pause": "paused, and continued if its workflow was chosen again",
    }
    counts = Counter(each.data["stopped"] for each in told)
    rows = tuple((reason, text, counts[reason]) for reason, text in meaning.items() if counts[reason])
    return Section("Why trainings ended", "", ("reason", "meaning", "trainings"), rows)


def family(told: Sequence[FinishedTraining]) -> Section:
    columns = ("training", "workflow", "visit", "began with", "its visit", "distance")
    rows = tuple(
        (each.number, show(each.workflow), each.visit)
        + tuple(each.origin.get(name) for name in ("parent", "parent_visit", "distance"))
        for each in told[: 4 * ROWS]
    )
    return Section("Inheritance", "", columns, rows)
