"""CAGE-2: the model does what CybORG 2.1 did, step by step, and a record that says otherwise is caught."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.studies.workflow.cage2.replay import RecordedEpisode, compare, read, replay

TRACES = Path(__file__).parents[2] / "data" / "cage2"
FILES = sorted(TRACES.glob("*.jsonl.gz"))


def episodes(red: str) -> list[dict[str, Any]]:
    with gzip.open(TRACES / f"{red}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


REDS = ("b_line", "meander", "sleep")
SHORT = {red: [episode for episode in episodes(red) if episode["length"] == 30] for red in REDS}


def checked(episode: dict[str, Any]) -> tuple[int, Any]:
    return compare(msgspec.convert(episode, RecordedEpisode))


def command(*arguments: str, code: int) -> Result:
    result = CliRunner().invoke(cli, ["workflow", "replay", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def written(folder: Path, *lines: dict[str, Any]) -> str:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


# ---------------------------------------------------------------- agreement


@pytest.mark.slow
def test_every_step_of_the_recorded_episodes_is_the_models() -> None:
    tally = replay(FILES)
    assert (tally.episodes, tally.steps, tally.mismatches) == (156, 9_360, 0), str(tally.difference)


@pytest.mark.slow
def test_the_command_prints_what_it_compared() -> None:
    result = command(*map(str, FILES), code=0)
    assert result.stdout == "156 episodes, 9360 steps, 0 mismatches\n"


@pytest.mark.slow
def test_the_command_speaks_json() -> None:
    found = json.loads(command(str(FILES[-1]), "--json", code=0).stdout)
    assert found == {"episodes": 12, "steps": 720, "mismatches": 0, "files": [str(FILES[-1])], "difference": None}


def test_plain_json_lines_are_read_as_well(tmp_path: Path) -> None:
    file = written(tmp_path, SHORT["b_line"][0], SHORT["meander"][0])
    assert command(file, code=0).stdout == "2 episodes, 60 steps, 0 mismatches\n"


def test_a_record_of_greens_scans_is_replayed_with_them() -> None:
    quiet = SHORT["sleep"][0]
    step = {**quiet["steps"][0], "chance": {"green": "User2"}}
    step["obs"] = "0" * 40 + "1000" + "0" * 8
    episode = {**quiet, "length": 2, "steps": [step, {**quiet["steps"][0], "obs": "0" * 52}]}
    assert quiet["steps"][0]["blue"] < 2
    assert checked(episode) == (2, None)


def test_the_other_variant_of_the_observation_is_compared_when_asked_for(tmp_path: Path) -> None:
    shown = "1000" + "0" * 48
    step = {"blue": 119, "red": ["Sleep", None], "chance": {}, "success": "UNKNOWN", "reward": 0.0, "ot": 1}
    rows = [[0, 0, 0, 1 if h == 8 else 0, 0, 0, -1] for h in range(13)]
    rows[1][5] = 128
    step |= {"blue": 120, "chance": {"green": "Enterprise0"}, "hosts": rows}
    for observation, obs in (("cyborg", "0" * 52), ("original", "0000" + shown[:48])):
        file = written(tmp_path, {"red": "sleep", "length": 1, "steps": [{**step, "obs": obs}]})
        command(file, "--observation", observation, code=0)
        command(file, "--observation", "cyborg" if observation == "original" else "original", code=1)


# ---------------------------------------------------------------- disagreement


def corrupt(step: dict[str, Any], field: str, place: int) -> None:
    """Change one recorded outcome to another possible value."""
    if field == "reward":
        step["reward"] = round(step["reward"] - 0.1 * (1 + place % 20), 1)
    elif field == "obs":
        at = place % 52
        step["obs"] = step["obs"][:at] + ("1" if step["obs"][at] == "0" else "0") + step["obs"][at + 1 :]
    elif field == "hosts":
        row = step["hosts"][place % 13]
        row[place % 7] += 1
    elif field == "ot":
        step["ot"] = 1 - step["ot"]
    elif field == "success":
        others = [outcome for outcome in ("TRUE", "FALSE", "UNKNOWN") if outcome != step["success"]]
        step["success"] = others[place % 2]
    else:
        step["red"] = ["Impact", "Op_Server0"] if step["red"][0] != "Impact" else ["Sleep", None]


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.sampled_from(REDS),
    st.integers(0, 10_000),
    st.integers(0, 29),
    st.sampled_from(["reward", "obs", "hosts", "ot", "success", "red"]),
    st.integers(0, 10_000),
)
def test_any_single_change_of_a_recorded_outcome_is_caught_in_its_step(
    red: str, number: int, at: int, field: str, place: int
) -> None:
    episode = json.loads(json.dumps(SHORT[red][number % len(SHORT[red])]))
    corrupt(episode["steps"][at], field, place)
    steps, difference = checked(episode)
    assert (steps, difference.step, difference.field) == (at + 1, at + 1, field)
    assert difference.expected != difference.got


def first_with(red: str, chance: str) -> tuple[dict[str, Any], int]:
    for episode in SHORT[red]:
        for at, step in enumerate(episode["steps"]):
            if chance in step["chance"]:
                return json.loads(json.dumps(episode)), at
    raise AssertionError(chance)


@pytest.mark.parametrize("chance", ["exploit", "escalated"])
def test_a_chance_outcome_that_cannot_happen_is_caught(chance: str) -> None:
    episode, at = first_with("meander", chance)
    before = episode["steps"][at]["chance"]
    impossible = {"exploit": "EternalBlue", "escalated": "undetected"}[chance]
    assert before[chance] != impossible
    episode["steps"][at]["chance"] = {**before, chance: impossible}
    _, difference = checked(episode)
    assert difference.step == at + 1


@pytest.mark.slow
def test_a_chance_outcome_that_is_missing_is_caught_even_if_the_draw_happens_to_agree() -> None:
    for episode in SHORT["meander"]:
        for at, step in enumerate(episode["steps"]):
            if step["chance"].get("exploit") == "HTTPSRFI":
                changed = json.loads(json.dumps(episode))
                del changed["steps"][at]["chance"]["exploit"]
                assert checked(changed)[1].step == at + 1


def test_a_chance_outcome_too_many_is_caught() -> None:
    episode = json.loads(json.dumps(SHORT["sleep"][0]))
    for chance in ({"exploit": "HTTPSRFI"}, {"escalated": "ssh"}, {"detected": 1}):
        episode["steps"][4]["chance"] = chance
        difference = checked(episode)[1]
        assert (difference.step, difference.field) == (5, "chance")


@pytest.mark.slow
def test_the_first_difference_is_shown_with_the_steps_before_it(tmp_path: Path) -> None:
    episode = json.loads(json.dumps(SHORT["b_line"][0]))
    step = episode["steps"][9]
    h = next(h for h in range(13) if step["obs"][4 * h : 4 * h + 4] == "0000")
    step["obs"] = step["obs"][: 4 * h] + "1111" + step["obs"][4 * h + 4 :]
    file = written(tmp_path, SHORT["b_line"][1], episode, episode)
    result = command(file, code=1)
    first, where, what, *rest = result.stdout.splitlines()
    assert first == "2 episodes, 40 steps, 1 mismatches"
    assert where == f"{file}, line 2 (b_line red, blue {episode['blue_policy']}), step 10: obs differs"
    assert what.endswith("expected Exploit/Privileged, got None/No")
    assert [line.split()[0] for line in rest[1:]] == ["7", "8", "9", "10"]
    found = json.loads(command(file, "--json", code=1).stdout)
    assert (found["mismatches"], found["difference"]["step"], found["difference"]["field"]) == (1, 10, "obs")


def test_a_difference_in_the_true_state_names_host_and_part(tmp_path: Path) -> None:
    episode = json.loads(json.dumps(SHORT["b_line"][0]))
    episode["steps"][3]["hosts"][2][1] += 1
    out = command(written(tmp_path, episode), code=1).stdout
    assert "step 4: hosts differs" in out and "Enterprise1, detected sessions: expected 1, got 0" in out


# ---------------------------------------------------------------- files that cannot be used


def broken(change: Any) -> dict[str, Any]:
    episode = json.loads(json.dumps(SHORT["sleep"][0]))
    change(episode)
    return episode


BROKEN = {
    "an action out of range": (lambda e: e["steps"][3].update(blue=145), "$.steps[3].blue"),
    "a negative action": (lambda e: e["steps"][3].update(blue=-1), "$.steps[3].blue"),
    "an action that is no number": (lambda e: e["steps"][0].update(blue="Restore"), "$.steps[0].blue"),
    "a missing field": (lambda e: e["steps"][2].pop("obs"), "missing required field `obs`"),
    "a missing list of steps": (lambda e: e.pop("steps"), "missing required field `steps`"),
    "an observation too short": (lambda e: e["steps"][1].update(obs="0" * 51), "$.steps[1].obs"),
    "an observation of other letters": (lambda e: e["steps"][1].update(obs="2" * 52), "$.steps[1].obs"),
    "twelve hosts": (lambda e: e["steps"][1]["hosts"].pop(), "$.steps[1].hosts"),
    "a row of six": (lambda e: e["steps"][1]["hosts"][5].pop(), "$.steps[1].hosts[5]"),
    "an unknown red": (lambda e: e.update(red="blue"), "$.red"),
    "an unknown exploit": (lambda e: e["steps"][7].update(chance={"exploit": "Guess"}), "step 8: the exploit"),
    "an unknown target": (lambda e: e["steps"][7].update(red=["Impact", "User9"]), "step 8: red's target"),
    "an unknown red action": (lambda e: e["steps"][7].update(red=["Dance", None]), "step 8: red's action"),
    "a session kind that cannot be": (lambda e: e["steps"][7].update(chance={"escalated": "admin"}), "step 8"),
    "steps missing at the end": (lambda e: e["steps"].pop(), "29 steps where its length says 30"),
    "a chance that is no mapping": (lambda e: e["steps"][0].update(chance=[]), "$.steps[0].chance"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_record_that_makes_no_sense_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    change, place = BROKEN[case]
    file = written(tmp_path, SHORT["sleep"][0], broken(change))
    message = command(file, code=2).stderr
    assert f"{file}, line 2" in message and place in message


@pytest.mark.slow
def test_damaged_and_empty_files_are_refused(tmp_path: Path) -> None:
    whole = FILES[0].read_bytes()
    cases = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:5_000] + bytes([whole[5_000] ^ 255]) + whole[5_001:],
        "header": whole[:4],
        "empty": b"",
        "blank": b"\n\n",
        "noise": bytes(range(256)),
        "cut line": json.dumps(SHORT["sleep"][0]).encode()[:-9],
        "not unicode": b'{"red": "\xff\xfe"}',
    }
    for name, data in cases.items():
        file = tmp_path / name
        file.write_bytes(data)
        assert str(file) in command(str(file), code=2).stderr
    for missing in (tmp_path / "missing.gz", tmp_path):
        assert "cannot be read" in command(str(missing), code=2).stderr


def test_errors_are_json_too(tmp_path: Path) -> None:
    found = json.loads(command(str(tmp_path / "missing"), "--json", code=2).stdout)
    assert found["error"]["type"] == "ConfigError"


def test_reading_gives_the_line_of_each_episode(tmp_path: Path) -> None:
    file = tmp_path / "spaced.jsonl"
    line = json.dumps(SHORT["sleep"][0])
    file.write_text(f"\n{line}\n\n{line}\n")
    assert [number for number, _ in read(file)] == [2, 4]
    with pytest.raises(ConfigError, match="holds no episode"):
        list(read(written(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("package", ["numpy", "numba"])
def test_the_command_names_the_extra_it_needs(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom fanfold.cli import cli\ncli(['workflow', 'replay', 'x'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert f"needs the package {package!r}: pip install 'fanfold[workflow]'" in result.stderr
