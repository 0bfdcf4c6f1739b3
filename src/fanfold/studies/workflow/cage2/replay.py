"""Replays recorded episodes with their chance outcomes injected, and says where the model first differs.

A trace is a file of JSON lines, plain or gzipped, one episode a line, recorded from CybORG 2.1.  Its steps hold blue's
action, red's action with its target, what chance decided, and everything that came of it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from fanfold.errors import ConfigError
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.engine import play, start

_Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
_Row = Annotated[list[int], msgspec.Meta(min_length=7, max_length=7)]


class Chance(msgspec.Struct, frozen=True):
    """What chance decided in a step; None where it had nothing to decide.  `green` is the host green scanned."""

    exploit: str | None = None
    detected: _Flag | None = None
    escalated: str | None = None
    green: str | None = None


class Step(msgspec.Struct, frozen=True):
    """A recorded step: what was done, and its result."""

    blue: Annotated[int, msgspec.Meta(ge=0, lt=len(g.ACTIONS))]
    red: tuple[str, str | None]
    chance: Chance
    success: Literal["TRUE", "FALSE", "UNKNOWN"]
    reward: float
    obs: Annotated[str, msgspec.Meta(pattern="^[01]{52}$")]
    hosts: Annotated[list[_Row], msgspec.Meta(min_length=len(g.HOSTS), max_length=len(g.HOSTS))]
    ot: _Flag

    def facts(self) -> dict[str, Any]:
        """What the model must give as well."""
        return {
            "red": list(self.red),
            "success": self.success,
            "reward": self.reward,
            "obs": self.obs,
            "hosts": self.hosts,
            "ot": self.ot,
        }


class RecordedEpisode(msgspec.Struct, frozen=True):
    """A recorded episode."""

    red: Literal["b_line", "meander", "sleep"]
    length: int
    steps: list[Step]
    blue_policy: str = ""


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first thing in which the model does not do what was recorded; `before` is the steps that led there."""

    where: str
    step: int
    field: str
    expected: Any
    got: Any
    before: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.where}, step {self.step}: {self.field} differs"]
        lines += [f"  {text}" for text in _contrast(self.field, self.expected, self.got)]
        return "\n".join([*lines, "  the last steps as recorded:", *(f"  {line}" for line in self.before)])


@dataclass(slots=True)
class ReplayTally:
    """How far a replay came, and the difference that ended it."""

    files: list[str] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0
    difference: ReplayDifference | None = None

    @property
    def mismatches(self) -> int:
        return int(self.difference is not None)


def replay(files: Iterable[str | Path], observation: str = "cyborg") -> ReplayTally:
    """Replay every episode of every file until something differs.

    `observation` is the variant that was recorded (see `Cage2Game`).  A file that cannot be read is a ConfigError.
    """
    tally = ReplayTally()
    for file in files:
        tally.files.append(str(file))
        for line, episode in read(file):
            where = f"{file}, line {line} ({episode.red} red, blue {episode.blue_policy or 'unnamed'})"
            done, tally.difference = compare(episode, where, observation)
            tally.steps += done
            tally.episodes += 1
            if tally.difference is not None:
                return tally
    return tally


def read(file: str | Path) -> Iterator[tuple[int, RecordedEpisode]]:
    """The episodes of a trace with the numbers of their lines."""
    decoder = msgspec.json.Decoder(RecordedEpisode)
    number = 0
    for number, line in _lines(Path(file)):
        try:
            episode = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}, line {number}: this is not a recorded episode: {error}") from error
        if len(episode.steps) != episode.length:
            problem = f"{len(episode.steps)} steps where its length says {episode.length}"
            raise ConfigError(f"{file}, line {number}: the episode is not whole: {problem}; record it again")
        for step, recorded in enumerate(episode.steps, 1):
            _check_names(recorded, f"{file}, line {number}, step {step}")
        yield number, episode
    if not number:
        raise ConfigError(f"{file} holds no episode: a trace has one JSON object a line")


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if packed else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{file} is a damaged gzip file: {error}; copy it again") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error


_EXPLOITS = tuple(exploit.name for exploit in g.EXPLOITS)


def _check_names(step: Step, where: str) -> None:
    known = {
        "red's action": (step.red[0], g.RED_ACTIONS),
        "red's target": (step.red[1], (None, *g.HOSTS, *g.SUBNETS)),
        "the exploit": (step.chance.exploit, (None, *_EXPLOITS)),
        "the kind of session escalated": (step.chance.escalated, (None, *g.KINDS[:-1])),
        "the host green scanned": (step.chance.green, (None, *g.GREEN_HOSTS)),
    }
    for what, (name, names) in known.items():
        if name not in names:
            listed = ", ".join(str(known_name) for known_name in names if known_name is not None)
            raise ConfigError(f"{where}: {what} cannot be {name!r}; known: {listed}")


def compare(
    episode: RecordedEpisode, where: str = "the episode", observation: str = "cyborg"
) -> tuple[int, ReplayDifference | None]:
    """Replay one episode: the number of steps that were compared, and the first difference."""
    green = any(step.chance.green for step in episode.steps)
    game = g.Cage2Game((episode.red,), green=green, observation=observation)
    states, tables = start(game, 0, np.zeros(1, np.int64)), game.tables()
    actions, seen, reward = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.uint64), np.zeros((1, 1), np.int32)
    for number, step in enumerate(episode.steps):
        actions[0, 0] = step.blue
        states["forced"][0] = _injected(step)
        play(states, tables, actions, seen, reward)
        got = {**_facts(states[0]), "chance": _unexplained(states[0], step)}
        for name, expected in {**step.facts(), "chance": None}.items():
            if got[name] != expected:
                recent = tuple(_told(n, s) for n, s in enumerate(episode.steps[: number + 1], 1))[-4:]
                return number + 1, ReplayDifference(where, number + 1, name, expected, got[name], recent)
    return len(episode.steps), None


def _injected(step: Step) -> list[int]:
    forced = [-1] * g.PLACES
    chance = step.chance
    if step.red[1] in g.HOSTS:
        forced[g.AT_TARGET] = g.HOSTS.index(step.red[1])
    if chance.exploit is not None:
        forced[g.AT_EXPLOIT] = _EXPLOITS.index(chance.exploit)
    if chance.detected is not None:
        forced[g.AT_DETECTED] = chance.detected
    if chance.escalated is not None:
        forced[g.AT_ESCALATED] = g.KINDS.index(chance.escalated)
    forced[g.AT_GREEN] = g.GREEN_SLEEPS if chance.green is None else g.GREEN_HOSTS.index(chance.green)
    return forced


def _facts(state: Any) -> dict[str, Any]:
    """The state after a step in the words of a trace."""
    verb, target = int(state["verb"]), int(state["target"])
    names = g.SUBNETS if verb == g.SWEEP else g.HOSTS
    bits = int(state["observation"])
    return {
        "red": [g.RED_ACTIONS[verb], names[target] if target >= 0 else None],
        "success": g.OUTCOMES[int(state["success"])],
        "reward": int(state["reward"]) / 10,
        "obs": "".join(str(bits >> place & 1) for place in range(4 * len(g.HOSTS))),
        "hosts": [
            [
                *map(int, state["sessions"][h]),
                int(state["files"]) >> h & 1,
                int(state["decoys"][h]),
                int(state["ports"][h]),
            ]
            for h in range(len(g.HOSTS))
        ],
        "ot": int(state["running"]),
    }


def _unexplained(state: Any, step: Step) -> str | None:
    """A chance that the model and the record do not both know of, or None."""
    for place, name in enumerate(g.CHANCES):
        if int(state["drawn"]) >> place & 1:
            return f"the model had to draw {name!r}, for which the record gives no possible outcome"
    for place, value in ((g.AT_EXPLOIT, step.chance.exploit), (g.AT_ESCALATED, step.chance.escalated)):
        if value is not None and not int(state["used"]) >> place & 1:
            return f"the record has {g.CHANCES[place]} {value!r}, which cannot happen in the model"
    if step.chance.detected and not int(state["used"]) >> g.AT_DETECTED & 1:
        return "the record has a shell detected, and the model no new shell"
    return None


def _told(number: int, step: Step) -> str:
    red = " ".join(part for part in step.red if part)
    chance = ", ".join(
        f"{name} {value}" for name, value in msgspec.structs.asdict(step.chance).items() if value is not None
    )
    text = f"{number:>4}  blue {g.ACTIONS[step.blue]:<24} red {red:<36} {step.success:<7} {step.reward:>6}"
    return f"{text}  {chance}".rstrip()


_ACTIVITY = {"00": "None", "10": "Scan", "11": "Exploit", "01": "01"}
_LEVEL = {"00": "No", "10": "Unknown", "01": "User", "11": "Privileged"}


def _contrast(name: str, expected: Any, got: Any) -> list[str]:
    """The difference in words; of observations and of hosts, only those hosts that differ."""
    if name == "chance":
        return [str(got)]
    lines = []
    if name == "obs":
        for h, host in enumerate(g.HOSTS):
            a, b = expected[4 * h : 4 * h + 4], got[4 * h : 4 * h + 4]
            if a != b:
                words = [f"{_ACTIVITY[bits[:2]]}/{_LEVEL[bits[2:]]}" for bits in (a, b)]
                lines.append(f"{host}: expected {words[0]}, got {words[1]}")
        return lines
    if name == "hosts":
        parts = (*(f"{kind} sessions" for kind in g.KINDS), "malicious file", "decoys", "remembered ports")
        for host, a, b in zip(g.HOSTS, expected, got):
            lines += [f"{host}, {part}: expected {x}, got {y}" for part, x, y in zip(parts, a, b) if x != y]
        return lines
    return [f"expected {_words(expected)}, got {_words(got)}"]


def _words(value: Any) -> str:
    return " ".join(str(part) for part in value if part) if isinstance(value, list) else str(value)
