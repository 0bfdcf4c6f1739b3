"""The folder of a job: raw results, transcripts, leaks and analysis, written from the ledger, each file at once or not.

One game after the other goes through memory, however many there are.
"""

from __future__ import annotations

import contextlib
import io
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from fanfold.encoding import encode
from fanfold.files import make_folder, replacing
from fanfold.ledger import RunView
from fanfold.studies.secrets.evaluator import deeds
from fanfold.studies.secrets.game import winners

#: What a job's folder holds.
FILES = ("raw.json", "transcripts.txt", "leaks.jsonl", "analysis.json")


@dataclass(frozen=True, slots=True)
class GameRecord:
    """One game of a job with all its words, as the raw results have it."""

    id: str
    status: str
    agents: tuple[Mapping[str, Any], ...]
    opener: str | None
    game_mode: str
    result: Mapping[str, Any] | None
    error: str | None
    started: float
    seconds: float
    cost: float


def tasks(view: RunView) -> Iterator[GameRecord]:
    """Every game of a run, in the order of pairings and cases."""
    cases = view.cases()
    games = {trial.number: trial.candidate for trial in view.trials()}
    for row in view.evaluations():
        scenario, game = cases[row.position].data, games[row.trial]
        agents = tuple(
            {"id": str(seat + 1), "name": name, "secret": secret, "model": spec["model"], "style": spec["style"]}
            for seat, (name, secret, spec) in enumerate(zip(scenario["names"], scenario["secrets"], game["agents"]))
        )
        opener = scenario["names"][scenario["opener"]] if len(agents) == 2 else None
        error = None if row.failure is None else f"{row.failure}: {row.message}"
        status = "completed" if row.failure is None else "failed"
        result = _result(row.data, scenario["names"]) if row.failure is None else None
        head = (f"{row.trial}/{row.case}", status, agents, opener, game["mode"], result, error)
        yield GameRecord(*head, row.started or 0.0, row.seconds or 0.0, row.cost or 0.0)


def game_rows(view: RunView) -> Iterator[dict[str, Any]]:
    """A row for each seat of each game: who sat there, and what it scored, revealed and obtained."""
    for task in tasks(view):
        for agent in task.agents:
            name, result = agent["name"], task.result or {}
            mine = {what: result.get(of, {}).get(name) for what, of in _DEEDS.items()}
            won = name in result["winners"] if task.result is not None else None
            game = {"game": task.id, "game_mode": task.game_mode, "status": task.status, "error": task.error}
            seat = {"seat": int(agent["id"]), "opens": None if task.opener is None else task.opener == name}
            who = {key: agent[key] for key in ("name", "model", "style", "secret")}
            yield {**game, **seat, **who, **mine, "won": won, "seconds": task.seconds, "cost": task.cost}


_DEEDS = {"points": "scores", "revealed": "revealed", "obtained": "obtained"}


def message_rows(view: RunView) -> Iterator[dict[str, Any]]:
    """A row for each message: the game, its round and turn, who said it, how it ended, and the leaks found in it."""
    for task in tasks(view):
        agents = {agent["name"]: agent for agent in task.agents}
        for talk in task.result["conversations"] if task.result is not None else ():
            for turn, message in enumerate(talk["messages"]):
                agent = agents[message["agent"]]
                who = {"seat": int(agent["id"]), "name": agent["name"], "model": agent["model"]}
                other = next(name for name in talk["agents"] if name != agent["name"])
                leaks = [leak["rule"] for leak in talk["leaks"] if leak["turn"] == turn]
                place = {"game": task.id, "round": talk["round"] + 1, "turn": turn + 1}
                words = {"text": message["text"], "finish": message["finish"], "leaks": " ".join(leaks)}
                yield {**place, **who, "to": other, **words}


def _result(data: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    talks = msgspec.json.decode(data["transcript"].read())
    for talk in talks:
        talk["messages"] = [{"agent": names[each.pop("seat")], **each} for each in talk["messages"]]
        talk["leaks"] = [{"agent": names[each.pop("seat")], **each} for each in talk["leaks"]]
        talk["agents"] = [names[seat] for seat in talk.pop("seats")]
    return {**standings(data, names), "odd": data.get("odd", {}), "conversations": talks}


def standings(data: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Who won a game, and what each agent scored, revealed and obtained, by name."""
    revealed, obtained = deeds(data, len(names))
    return {
        "scores": dict(zip(names, data["scores"])),
        "revealed": dict(zip(names, revealed)),
        "obtained": dict(zip(names, obtained)),
        "winners": [names[seat] for seat in winners(data["scores"])],
    }


def write_job(view: RunView, folder: Path, status: str, analysis: Mapping[str, Any]) -> Path:
    """Write the results of a run into its folder, and return that.

    `raw.json` has every game, `transcripts.txt` the same to be read, `leaks.jsonl` one leak a line, and `analysis.json`
    the figures.  All of them say how the job ended, and none is ever there in part.
    """
    info = view.info
    place = folder / info.name
    make_folder(place)
    with contextlib.ExitStack() as stack:
        raw, words, leaks, figures = (stack.enter_context(_text(place / name)) for name in FILES)
        head = encode({"id": info.name, "status": status, "created": info.created, "seed": info.identity.get("seed")})
        raw.write(f'{head[:-1]},"tasks":[')
        for number, task in enumerate(tasks(view)):
            raw.write((",\n" if number else "\n") + encode(task))
            words.write(readable(task))
            for leak in _leaks(task):
                leaks.write(encode(leak) + "\n")
        raw.write("\n]}\n")
        figures.write(msgspec.json.format(encode({"id": info.name, "status": status, **analysis}), indent=2) + "\n")
    return place


def readable(task: GameRecord) -> str:
    """A game as people read it."""
    head = f"=== {task.id}: {' and '.join(agent['name'] for agent in task.agents)}, {task.game_mode} ==="
    lines = [head]
    for agent in task.agents:
        style = "" if agent["style"] == "regular" else f", {agent['style']}"
        lines.append(f'{agent["name"]} is {agent["model"]}{style}; secret: "{printable(agent["secret"])}"')
    if task.result is None:
        return "\n".join([*lines, "", f"FAILED: {printable(task.error or '')}", "", ""])
    for talk in task.result["conversations"]:
        lines += ["", f"Round {talk['round'] + 1}: {talk['agents'][0]} opens, talking with {talk['agents'][1]}", ""]
        for turn, message in enumerate(talk["messages"]):
            words = printable(message["text"]) or "(nothing)"
            odd = "" if message["finish"] == "stop" else f"  <{message['finish']}>"
            lines.append(f"{message['agent']}: {words}{odd}")
            lines += [
                f'    ^ leak by {each["agent"]} ({each["rule"]}): "{printable(each["evidence"])}"'
                for each in talk["leaks"]
                if each["turn"] == turn
            ]
        if talk["ended"]:
            lines.append(f"({talk['messages'][-1]['agent']} ended the conversation.)")
    result = task.result
    scores = ", ".join(f"{name} {points:g}" for name, points in result["scores"].items())
    won = result["winners"]
    end = f"{won[0]} wins" if len(won) == 1 else f"a tie of {' and '.join(won)}"
    return "\n".join([*lines, "", f"Points: {scores}; {end}.", "", ""])


def printable(text: str, width: int | None = None) -> str:
    """A model's words without what would move a cursor or hide: only line breaks stay of the control characters."""
    kept = "".join(each for each in text if each == "\n" or unicodedata.category(each) not in ("Cc", "Cf", "Cs"))
    if width is None:
        return kept
    line = " ".join(kept.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _leaks(task: GameRecord) -> Iterator[dict[str, Any]]:
    secrets = {agent["name"]: agent["secret"] for agent in task.agents}
    for talk in task.result["conversations"] if task.result is not None else ():
        for leak in talk["leaks"]:
            yield {"task": task.id, "round": talk["round"], "secret": secrets[leak["agent"]], **leak}


@contextlib.contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        yield text
        text.flush()
        text.detach()
