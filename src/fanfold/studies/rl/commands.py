"""`fanfold play`: episodes of a trained agent as text, as figures or as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fanfold.errors import ConfigError, MissingExtra
from fanfold.plugins import Shell, StudyCommand

if TYPE_CHECKING:
    from fanfold.rl.agent import ShownEpisode

_EXAMPLES = """\b
Examples:
  fanfold play results/rl/RUN --episodes 10
  fanfold play RUN --text --episodes 1
  fanfold play RUN --video pictures
  fanfold play RUN --version 12 --seed 1234
"""
_EXPORTS = """\b
Examples:
  fanfold rl export results/rl/RUN -o model
  fanfold rl export RUN --format onnx
"""
_ledger = click.option(
    "--ledger",
    envvar="FANFOLD_LEDGER",
    default="fanfold.db",
    show_default="$FANFOLD_LEDGER or fanfold.db",
    metavar="FILE",
    help="The file that keeps all runs.",
)


@click.command(short_help="Let a trained agent play.", epilog=_EXAMPLES)
@click.argument("agent")
@click.option("--env", help="The environment, where it is not the one that the agent was trained on.")
@click.option("--env-kwargs", help="Arguments of that environment, in JSON.")
@click.option("--wrappers", help="Wrappers of that environment, with commas between them.")
@click.option("--episodes", default=None, type=click.IntRange(1), help="How many; by default 10, with --seed 1.")
@click.option("--seed", default=None, type=int, help="The seed of the first episode, such as that of one that failed.")
@click.option("--version", default=None, type=click.IntRange(0), help="Of a run: its policy after so many updates.")
@click.option("--greedy/--sampled", default=None, help="Take the best action, or draw one.  Default: what did better.")
@click.option("--text", is_flag=True, help="Print every step.")
@click.option("--video", metavar="FOLDER", help="Write a GIF of every episode there.")
@_ledger
@click.pass_obj
def play(shell: Shell, /, agent: str, env: str | None, ledger: str, **how: Any) -> None:
    """Let an agent play, and show how it does.

    AGENT is a folder that a training wrote, or the name of a run in the ledger.  With --version and --seed, as a report
    of failed episodes names them, an episode of the training is played again, exactly.
    """
    from fanfold.rl.agent import Agent
    from fanfold.rl.making import Environment

    if how["text"] and how["video"]:
        raise ConfigError("choose between --text and --video")
    made = None
    if env is not None:
        made = Environment.of(env, _table(how["env_kwargs"]), list(filter(None, (how["wrappers"] or "").split(","))))
    elif how["env_kwargs"] or how["wrappers"]:
        raise ConfigError("--env-kwargs and --wrappers belong to --env: give it, too")
    loaded = Agent.load(agent, ledger=ledger, version=how["version"], env=made)
    env_made = made or loaded.environment()
    mode = "rgb_array" if how["video"] else _text_mode(env_made) if how["text"] else None
    seed = 0 if how["seed"] is None else how["seed"]
    count = how["episodes"] or (10 if how["seed"] is None else 1)
    episodes = []
    for episode in loaded.play(env_made, count, seed, how["greedy"], mode):
        episodes.append(episode)
        _show(shell, episode, how)
    _end(shell, episodes)


def _table(text: str | None) -> dict[str, Any]:
    try:
        table = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"--env-kwargs must be a table in JSON ({error}), not {text!r}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"--env-kwargs must be a table in JSON, not {text!r}")
    return table


def _text_mode(env: Any) -> str | None:
    """`ansi`, where the environment can draw itself as text."""
    from fanfold.rl.making import closed

    made = env()
    modes = (getattr(made, "metadata", None) or {}).get("render_modes", ())
    closed(made)
    return "ansi" if "ansi" in modes else None


def _show(shell: Shell, episode: ShownEpisode, how: dict[str, Any]) -> None:
    if how["text"]:
        frames = episode.frames or [None] * (episode.length + 1)
        if frames[0] is not None:
            shell.say(str(frames[0]).rstrip())
        for step, (action, reward) in enumerate(zip(episode.actions, episode.rewards), 1):
            shell.say(f"step {step}: action {action}, reward {reward:g}")
            if len(frames) > step and frames[step] is not None:
                shell.say(str(frames[step]).rstrip())
    end = (
        f"failed after {episode.length} steps"
        if episode.failed
        else f"return {episode.total:g}, {episode.length} steps"
    )
    shell.say(f"episode {episode.number} (seed {episode.seed}): {end}")
    if episode.failed:
        shell.say(episode.traceback.rstrip())
    if how["video"]:
        shell.say(f"  {_picture(episode, Path(how['video']))}")


def _picture(episode: ShownEpisode, folder: Path) -> Path:
    """An episode as a GIF."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "images", "--video") from error
    frames = [Image.fromarray(np.asarray(frame, np.uint8)) for frame in episode.frames if frame is not None]
    if not frames:
        raise ConfigError(
            "the environment gives no pictures: let make_env take render_mode, and pass it on. Or try --text"
        )
    path = folder / f"episode-{episode.number}.gif"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=40, loop=0)
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written: {error}; name another folder") from error
    return path


def _end(shell: Shell, episodes: list[ShownEpisode]) -> None:
    from fanfold import stats

    sound = [episode for episode in episodes if episode.failed is None]
    mean = stats.mean(episode.total for episode in sound)
    if shell.machine_readable:
        rows = [
            {"seed": each.seed, "return": each.total, "steps": each.length, "failed": each.failed and str(each.failed)}
            for each in episodes
        ]
        shell.print_json({"return": mean.estimate, "interval": [mean.low, mean.high], "episodes": rows})
    if len(sound) > 1:
        shell.say(f"mean return {mean.estimate:.2f} (95 % interval {mean.low:.2f} to {mean.high:.2f})")
    if len(sound) < len(episodes):
        click.get_current_context().exit(1)


@click.command(short_help="Write an agent as ONNX and TorchScript.", epilog=_EXPORTS)
@click.argument("agent")
@click.option("-o", "--output", metavar="FOLDER", default=".", show_default=True, help="Where to write it.")
@click.option("--format", "formats", type=click.Choice(["onnx", "torchscript"]), multiple=True, help="Default: both.")
@_ledger
@click.pass_obj
def export(shell: Shell, /, agent: str, output: str, formats: tuple[str, ...], ledger: str) -> None:
    """Write a trained policy for programs without Fanfold: agent.onnx and agent.pt.

    AGENT is a folder that a training wrote, or the name of a run in the ledger.
    """
    from fanfold.rl.agent import Agent
    from fanfold.rl.exports import export as write

    paths = write(Agent.load(agent, ledger=ledger), output, formats or ("onnx", "torchscript"))
    if shell.machine_readable:
        shell.print_json([str(path) for path in paths])
    for path in paths:
        shell.say(str(path))


def commands() -> tuple[StudyCommand, ...]:
    return StudyCommand(play), StudyCommand(export)
