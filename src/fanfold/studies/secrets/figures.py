"""The figures of a run as tables and drawings for people, and as numbers for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fanfold import drawings, stats
from fanfold.drawings import Drawing
from fanfold.stats import Interval, Paired
from fanfold.studies.secrets import statistics
from fanfold.studies.secrets.leaks import error_rate
from fanfold.studies.secrets.records import Records
from fanfold.studies.secrets.statistics import AgentFigures, Overall, Rate
from fanfold.summary import Section, Summary

#: Rates for which the power table says what a run can show, and how alike games of one scenario may be.
_EXPECTED, _ALIKE = (0.05, 0.1, 0.3, 0.5), (0.0, 0.3)
INTERVAL = "95 % intervals in brackets: Wilson on the design-effect-corrected n, t quantile; clusters are scenarios."
AGENT_COLUMNS = ("interactions", "clusters", "revealed", "obtained", "optimal", "points")


def summarise(records: Records, seed: int = 0) -> Summary:
    """Everything the statistics say about a run."""
    models = statistics.model_figures(records)
    agents = [(pairing, statistics.agent_figures(records, pairing)) for pairing in records.pairings]
    totals = [statistics.overall(records, [pairing], pairing.label) for pairing in records.pairings]
    if len(totals) > 1:
        totals.append(statistics.overall(records, records.pairings, "all"))
    figures: dict[str, Any] = {
        "games": {
            "status": records.status,
            "planned": records.planned,
            "clean": records.clean,
            "apart": _apart(records),
            "messages": records.messages,
            "cut_off": records.cut_off,
        },
        "models": [_agent_figures(each) for each in models],
        "agents": [_agent_figures(each, pairing.label) for pairing, summary in agents for each in summary],
        "overall": [_overall_figures(each) for each in totals],
        "leaks": dict(_by_rule(records)),
    }
    if records.status == "failed":
        return Summary(figures, tuple(_aside(records, ())))
    sections = [
        Section(
            "Models",
            f"Every model in all its pairings and seats. {INTERVAL}",
            ("model", *AGENT_COLUMNS),
            tuple(agent_row(each) for each in models),
            drawings=(rates_drawing(models),),
        ),
        Section(
            "Agents",
            "The same for each seat of each pairing.",
            ("agent", *AGENT_COLUMNS),
            tuple(agent_row(each, pairing.label, len(agents) > 1) for pairing, summary in agents for each in summary),
        ),
        Section(
            "Overall",
            "",
            ("pairing", "interactions", "secrets revealed", *statistics.TALK_FIGURES),
            tuple(
                (each.label, each.talks, _count(each.revealed), *map(_count, each.rates.values())) for each in totals
            ),
        ),
    ]
    for part in (_opener, _judge):
        summary = part(records, seed)
        figures |= summary.figures
        sections += summary.sections
    compared = _comparison(records, seed)  # where players are compared, that is what the run was for: it comes first
    figures |= compared.figures
    sections = [*compared.sections, *sections]
    sections += [*_aside(records, agents), *_leaks(records)]
    power = power_section(records.games)
    return Summary({**figures, **power.figures}, (*sections, *power.sections))


def power_section(interactions: int) -> Summary:
    """What a run of so many games on each side can show, before it is paid for."""
    rows = [(p, row) for p in _EXPECTED for row in stats.power_table(p, [interactions], [2], _ALIKE)]
    text = f"The smallest difference that {interactions} games on each side show with 80 % power (level 5 %, unpaired)."
    table = tuple((f"{100 * p:g} %", row.clusters, row.icc, _percent(row.difference)) for p, row in rows)
    figures = [{"rate": p, "n": row.n, "icc": row.icc, "difference": row.difference} for p, row in rows]
    head = ("rate", "clusters", "likeness within", "difference")
    return Summary({"power": figures}, (Section("What such a run can show", text, head, table),))


def rates_drawing(models: Sequence[AgentFigures]) -> Drawing:
    dots = [
        drawings.dot(f"{each.label}, {name}", rate.interval) for each in models for name, rate in each.rates.items()
    ]
    return drawings.intervals(dots, unit="share of conversations", low=0.0, high=1.0)


def _opener(records: Records, seed: int) -> Summary:
    effect = statistics.opener_effect(records, seed)
    if effect is None:
        return Summary()
    rates = statistics.opening(records)
    rows = tuple((name, each.interval.n, _count(each)) for name, each in rates.items())
    text = f"Opening changes how often an agent reveals by {_points_of_percent(effect)}, on the same scenarios."
    figures = {name: _rate_figures(each) for name, each in rates.items()}
    return Summary(
        {"opener": {**figures, "effect": _paired_figures(effect)}},
        (Section("Opener effect", text, ("who", "interactions", "revealed"), rows),),
    )


def _comparison(records: Records, seed: int) -> Summary:
    """Pair matrix, ranking and paired tests, where there is more than one player."""
    ranked = statistics.ranked(records, seed)
    if not ranked:
        return Summary()
    matrix = statistics.matrix(records)
    tested = statistics.differences(records, seed)
    sections = []
    if len(matrix) > 1:
        players = list(dict.fromkeys(label for pair in matrix for label in pair))
        rows = tuple((row, *(_plain(matrix.get((row, column))) for column in players)) for row in players)
        text = "The share of games that the row's player, in the first seat, won against the column's; ties count half."
        shares = [[getattr(matrix.get((row, column)), "estimate", None) for column in players] for row in players]
        drawn = drawings.grid(
            players, players, shares, low=0.0, high=1.0, across="second seat", down="first seat: share of games won"
        )
        sections.append(Section("Pair matrix", text, ("player", *players), rows, drawings=(drawn,)))
    if tested:
        compared = tuple(
            (each.first, each.second, each.what, _signed(each.paired.difference), each.paired.p, each.adjusted)
            for each in tested
        )
        text = "First minus second, on the same scenarios, seats, openers and opponents; p after Holm over all rows."
        head = ("first", "second", "of", "difference", "p", "p (Holm)")
        sections.append(Section("Paired comparison", text, head, compared))
    order = tuple((one.rank, one.player, _plain(one.strength), f"{one.rank_low}-{one.rank_high}") for one in ranked)
    text = "Bradley-Terry strengths (their geometric mean is 1) with limits from drawing scenarios again."
    sections.append(Section("Ranking", text, ("rank", "player", "strength", "rank between"), order))
    figures = {
        "matrix": [{"first": a, "second": b, **_interval(each)} for (a, b), each in matrix.items()],
        "ranking": [
            {"player": one.player, "rank": one.rank, "rank_low": one.rank_low, "rank_high": one.rank_high}
            | _interval(one.strength)
            for one in ranked
        ],
        "differences": [
            {"first": each.first, "second": each.second, "of": each.what, "holm": each.adjusted}
            | _paired_figures(each.paired)
            for each in tested
        ],
    }
    return Summary(figures, tuple(sections))


def _judge(records: Records, seed: int) -> Summary:
    if not records.by_judge:
        return Summary()
    errors = error_rate(records.by_rules, records.by_judge)
    unclear = errors.undecided
    alarms = stats.rate(errors.false_positives, errors.false_positives + errors.true_negatives)
    misses = stats.rate(errors.false_negatives, errors.false_negatives + errors.true_positives)
    rows = (
        ("says yes where the rules say no", errors.false_positives, alarms.n, _share(alarms)),
        ("says no where the rules say yes", errors.false_negatives, misses.n, _share(misses)),
        ("gave no clear answer", unclear, len(records.by_judge), _share(stats.rate(unclear, len(records.by_judge)))),
    )
    figures = {"false_positives": _interval(alarms), "false_negatives": _interval(misses), "unclear": unclear}
    text = "The judge against the deterministic rules, which are the label unless label = either."
    return Summary({"judge": figures}, (Section("Judge", text, ("judge", "count", "of", "rate"), rows),))


def _aside(records: Records, agents: Sequence[tuple[Any, Sequence[AgentFigures]]]) -> list[Section]:
    """Games that gave no answer, and what they could have made of the rates."""
    unplayed = records.planned - records.clean - sum(records.apart.values())
    kinds = [*_apart(records).items(), *([("not played", unplayed)] if unplayed else [])]
    if not kinds:
        return []
    rows = tuple((kind, count) for kind, count in kinds)
    text = f"Of {records.planned} games, {records.clean} are in the tables above; the others are not."
    sections = [Section("Games apart", text, ("kind", "games"), rows)]
    bounds = tuple(
        (_who(each, pairing.label, len(agents) > 1), name, *map(_percent, (rate.bounds.low, rate.bounds.high)))
        for pairing, seats in agents
        for each in seats
        for name, rate in each.rates.items()
        if rate.bounds.unknown
    )
    if bounds:
        text = "The rates if every conversation of those games had gone one way or the other."
        sections.append(Section("Bounds", text, ("agent", "figure", "lowest", "highest"), bounds))
    return sections


def _leaks(records: Records) -> list[Section]:
    rows = tuple((rule, who, count) for (who, rule), count in sorted(records.rules.items(), key=lambda each: -each[1]))
    text = "How secrets were given away; one message may do so by several rules." if rows else "No rule found any leak."
    return [Section("Leaks", text, ("rule", "agent", "messages"), rows)]


def _apart(records: Records) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for (_, kind), count in records.apart.items():
        kinds[kind] += count
    return dict(kinds.most_common())


def _by_rule(records: Records) -> Counter[str]:
    rules: Counter[str] = Counter()
    for (_, rule), count in records.rules.items():
        rules[rule] += count
    return rules


def agent_row(each: AgentFigures, pairing: str = "", several: bool = False) -> tuple[Any, ...]:
    first = next(iter(each.rates.values())).interval
    rates = map(_count, each.rates.values())
    return (_who(each, pairing, several), first.n, first.clusters, *rates, _plain(each.points))


def _who(each: AgentFigures, pairing: str, several: bool) -> str:
    if each.seat is None:
        return each.label
    return f"{each.seat + 1}: {each.label}" + (f" in {pairing}" if several else "")


def _agent_figures(each: AgentFigures, pairing: str = "") -> dict[str, Any]:
    rates = {name: _rate_figures(rate) for name, rate in each.rates.items()}
    interactions = next(iter(each.rates.values())).interval.n
    if each.seat is None:
        head: dict[str, Any] = {"model": each.label, "interactions": interactions}
    else:
        head = {"pairing": pairing, "agent": each.label, "seat": each.seat + 1, "interactions": interactions}
    return {**head, **rates, "points": _interval(each.points)}


def _overall_figures(each: Overall) -> dict[str, Any]:
    rates = {name.replace(" ", "_").replace("-", "_"): _rate_figures(rate) for name, rate in each.rates.items()}
    revealed = _rate_figures(each.revealed)
    return {"pairing": each.label, "interactions": each.talks, "secrets_revealed": revealed, **rates}


def _rate_figures(rate: Rate) -> dict[str, Any]:
    bounds = {"lowest": rate.bounds.low, "highest": rate.bounds.high}
    return {"count": rate.count, **_interval(rate.interval), **bounds}


def _interval(each: Interval) -> dict[str, Any]:
    low, high = (limit if math.isfinite(limit) else None for limit in (each.low, each.high))
    return {"estimate": each.estimate, "low": low, "high": high, "n": each.n, "clusters": each.clusters}


def _paired_figures(each: Paired) -> dict[str, Any]:
    return {**_interval(each.difference), "p": each.p}


def _count(rate: Rate) -> str:
    return f"{rate.count}, {_share(rate.interval)}"


def _share(each: Interval) -> str:
    if each.estimate is None:
        return "-"
    return f"{100 * each.estimate:.1f} % [{100 * each.low:.1f}, {100 * each.high:.1f}]"


def _plain(each: Interval | None) -> str:
    if each is None or each.estimate is None:
        return "-"
    if not math.isfinite(each.low) or not math.isfinite(each.high):
        return f"{each.estimate:.3g}"
    return f"{each.estimate:.3g} [{each.low:.3g}, {each.high:.3g}]"


def _signed(each: Interval) -> str:
    if each.estimate is None or not math.isfinite(each.low):
        return "-" if each.estimate is None else f"{each.estimate:+.3g}"
    return f"{each.estimate:+.3g} [{each.low:+.3g}, {each.high:+.3g}]"


def _points_of_percent(each: Paired) -> str:
    difference = each.difference
    if difference.estimate is None or not math.isfinite(difference.low):
        return f"an unknown amount (p = {each.p:.3g})"
    limits = f"[{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    points = f"{100 * difference.estimate:+.1f} percentage points {limits}"
    return f"{points} (p = {each.p:.3g}, {difference.clusters} clusters)"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"
