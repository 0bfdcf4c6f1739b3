"""How pairings, games and the result of a run look to people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fanfold import drawings, stats
from fanfold.drawings import Row
from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.plugins import Presentation, concluded
from fanfold.studies.secrets.evaluator import deeds, met
from fanfold.studies.secrets.figures import AGENT_COLUMNS, INTERVAL, agent_row, rates_drawing
from fanfold.studies.secrets.job_files import game_rows, message_rows
from fanfold.studies.secrets.records import pairing_of, read
from fanfold.studies.secrets.statistics import model_figures
from fanfold.summary import Section

#: Games up to which a page counts them again while a run is running.
MOST_LIVE = 2000


def headline(figures: Mapping[str, Any]) -> str | None:
    """How often secrets were revealed, over all pairings."""
    games = figures.get("games", {})
    if games.get("status") == "failed":
        kinds = ", ".join(f"{kind.removeprefix('failed: ')} ({count})" for kind, count in games["apart"].items())
        return f"failed: none of {sum(games['apart'].values())} games was played; {kinds}"
    rate = figures["overall"][-1]["secrets_revealed"] if figures.get("overall") else None
    if rate is None or rate["estimate"] is None:
        return None
    limits = f"[{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"
    return f"secrets revealed in {100 * rate['estimate']:.1f} % {limits} of {rate['n']} chances"


def candidate(game: Mapping[str, Any]) -> Section:
    """Who plays, and by which rules."""
    rows = tuple((seat, agent["model"], agent["style"]) for seat, agent in enumerate(game["agents"], 1))
    return Section("Pairing", _rules(game), ("seat", "model", "style"), rows)


def text(game: Mapping[str, Any]) -> str:
    """The rules, and what every agent is told, one thing in a line."""
    agents = [
        f"Agent {seat}: {agent['model']}, {agent['style']}, {agent['memory']} memory\n{agent['manner']}\n"
        f"It is shown: {', '.join(agent['context']) or 'nothing'}"
        for seat, agent in enumerate(game["agents"], 1)
    ]
    return "\n\n".join([f"Game: {_rules(game)}", *agents])


def brief(game: Mapping[str, Any]) -> str:
    """Who plays against whom."""
    return pairing_of(0, game).label


def _rules(game: Mapping[str, Any]) -> str:
    return f"{game['mode']}, rounds: {game['rounds']}, messages of each agent: {game['messages']}"


def overview(view: RunView) -> Iterator[Section]:
    """How often each model has revealed and obtained so far; the conclusion says more."""
    if view.summary() is None and 0 < view.info.evaluations <= MOST_LIVE:
        models = model_figures(read(view))
        rows = tuple(agent_row(each) for each in models)
        drawn = (rates_drawing(models),)
        yield Section("Models so far", INTERVAL, ("model", *AGENT_COLUMNS), rows, drawings=drawn)


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """The pairing, what its agents are told, and how they did."""
    yield candidate(row.candidate)
    told = tuple((seat, agent["manner"], agent["memory"]) for seat, agent in enumerate(row.candidate["agents"], 1))
    yield Section("What the agents are told", "", ("seat", "manner", "memory"), told)
    games = list(view.evaluations(trials=[row.number], failed=False, blobs=False))
    totals = [deeds(game.data, len(told)) for game in games]
    labels = pairing_of(row.number, row.candidate).labels
    counts = [
        (what, seat, sum(total[at][seat] for total in totals))
        for at, what in ((0, "revealed"), (1, "obtained"))
        for seat in range(len(labels))
    ]
    talks = sum(len(met(game.data)) for game in games) * 2 // max(1, len(labels))
    dots = [
        drawings.dot(f"{seat + 1}: {labels[seat]}, {what}", stats.rate(count, talks)) for what, seat, count in counts
    ]
    table = tuple((labels[seat], what, count, talks) for what, seat, count in counts)
    drawn = (drawings.intervals(dots, unit="share of conversations", low=0.0, high=1.0),)
    yield Section("Secrets", "", ("agent", "", "times", "of"), table, drawings=drawn)


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """Every conversation of a game, with the words that gave a secret away."""
    yield cell(row.data)
    case = view.case(row.position)
    if case is None:
        return
    scenario = case.data
    names = [f"{name} (secret: {secret})" for name, secret in zip(scenario["names"], scenario["secrets"])]
    for talk in msgspec.json.decode(row.data["transcript"].read()):
        seats = talk["seats"]
        leaks = tuple(
            (leak["turn"] + 1, scenario["names"][leak["seat"]], leak["rule"], leak["evidence"])
            for leak in talk["leaks"]
        )
        gave = [scenario["names"][seat] for seat, revealed in zip(seats, talk["revealed"]) if revealed]
        text = f"{' and '.join(gave)} gave the secret away." if gave else "Nobody gave a secret away."
        messages = [_message(turn, message, seats, talk["leaks"]) for turn, message in enumerate(talk["messages"])]
        drawn = (drawings.conversation([names[seat] for seat in seats], messages),)
        title = f"Round {talk['round'] + 1}: {' and '.join(scenario['names'][seat] for seat in seats)}"
        yield Section(title, text, ("message", "agent", "leak", "words"), leaks, drawings=drawn)


def compare(views: Sequence[RunView]) -> Iterator[Section]:
    """How often each model revealed in each run, and where it ranks."""
    rates = [
        (f"{name}: {model['model']}", *(model["revealed"][part] for part in ("estimate", "low", "high", "n")))
        for name, figures in concluded(views)
        for model in figures.get("models", ())
    ]
    dots = [dict(zip(("name", "value", "low", "high", "n"), rate)) for rate in rates]
    drawn = drawings.intervals(dots, unit="share of conversations", low=0.0, high=1.0)
    columns = ("run and model", "revealed", "low", "high", "conversations")
    yield Section("Secrets revealed", "", columns, tuple(rates), drawings=(drawn,))
    ranks = tuple(
        (name, one["rank"], one["player"], one["estimate"], one["low"], one["high"])
        for name, figures in concluded(views)
        for one in figures.get("ranking", ())
    )
    if ranks:
        yield Section("Rankings", "", ("run", "rank", "player", "strength", "low", "high"), ranks)


def _message(turn: int, message: Row, seats: Sequence[int], leaks: Sequence[Row]) -> dict[str, Any]:
    """A message with its leaks marked where their words can be found in it."""
    own = [leak for leak in leaks if leak["turn"] == turn]
    places = [
        (leak["rule"], re.search(re.escape(leak["evidence"].removesuffix("...")), message["text"], re.I))
        for leak in own
        if leak["evidence"]
    ]
    marks = [{"start": place.start(), "end": place.end(), "why": rule} for rule, place in places if place]
    note = "; ".join(f"leak ({leak['rule']}): {leak['evidence']}" for leak in own)
    if message["finish"] != "stop":
        note = "; ".join(filter(None, [note, f"ended by {message['finish']}"]))
    return {"who": seats.index(message["seat"]), "text": message["text"], "marks": marks, "note": note}


def cell(data: Mapping[str, Any]) -> Section:
    """A game: the points, and every leak."""
    text = f"points: {', '.join(f'{score:g}' for score in data['scores'])}; {data['messages']} messages"
    rows = tuple((talk + 1, seat + 1, rule) for talk, seat, rule in data.get("leaks", ()))
    return Section("Game", text, ("conversation", "seat", "leak"), rows)


presentation = Presentation(
    headline,
    candidate,
    cell,
    {"games": game_rows, "messages": message_rows},
    chooses=True,
    text=text,
    brief=brief,
    overview=overview,
    trial=trial,
    evaluation=evaluation,
    compare=compare,
)
