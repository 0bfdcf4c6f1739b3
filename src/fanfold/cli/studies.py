"""`fanfold STUDY COMMAND`: the commands that studies bring, and what those commands get from the shell."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.options import ShellOptions, run_flags, shell_options
from fanfold.cli.output import examples, json_alone, machine_readable, output_options, print_json, say
from fanfold.errors import ConfigError, FanfoldError

if TYPE_CHECKING:
    from fanfold.plugins import StudyCommand
    from fanfold.rehearsal import Estimate
    from fanfold.summary import Section


class StudyGroup(click.Group):
    """`fanfold STUDY`: the study is imported only when one of its commands, or its help, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        plugin = self._plugin()
        own = [each.command.name or "" for each in plugin.commands()]
        return own + ["calibrate"] * (plugin.calibrate is not None)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        for each in self._plugin().commands():
            if each.command.name == name:
                return _bound(each, str(self.name))
        return _calibrate(str(self.name)) if name == "calibrate" else None

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.help = f"{self._plugin().config.__doc__ or ''}\n\nRun it with `fanfold run {self.name}`."
        super().format_help_text(ctx, formatter)

    def _plugin(self) -> Any:
        from fanfold.plugins import find_study

        return find_study(str(self.name))


def study_names() -> list[str]:
    from fanfold.plugins import studies

    return list(studies())


def study_group(name: str) -> StudyGroup:
    return StudyGroup(name, short_help=f"Commands of the study {name}.", epilog=examples(f"fanfold run {name} --help"))


@dataclasses.dataclass(frozen=True)
class StudyShell:
    """The `Shell` of one call of a study's command."""

    study: str
    ctx: click.Context
    values: dict[str, Any]

    @property
    def machine_readable(self) -> bool:
        return machine_readable(self.ctx)

    def say(self, text: str = "") -> None:
        say(text)

    def show(self, sections: Iterable[Section]) -> None:
        from fanfold.cli.show import say_summary
        from fanfold.summary import Summary

        say_summary(Summary({}, tuple(sections)))

    def print_json(self, value: Any) -> None:
        print_json(value)

    def estimate(self, config: Any, sample: int) -> Estimate:
        from fanfold.plugins import find_study
        from fanfold.rehearsal import estimate, rehearsing

        plugin = find_study(self.study)
        with rehearsing():
            study = plugin.build(config)
            return estimate(study, self._options(config).place(study.evaluate), sample=sample)

    def run(self, config: Any) -> None:
        from fanfold import __version__
        from fanfold.cli.run import do
        from fanfold.plugins import find_study

        options = self._options(config)
        meta = {"target": self.study, "fields": dataclasses.asdict(config), "options": options.recorded()}
        study = find_study(self.study).build(config)
        do(self.ctx, study, options, {**meta, "version": __version__})

    def _options(self, config: Any) -> ShellOptions:
        from fanfold.plugins import find_study

        defaults = find_study(self.study).run_options
        return shell_options(self.values, {} if defaults is None else defaults(config), self.study)


def _running(command: Callable[..., Any]) -> click.Command:
    return click.command()(run_flags("seed", "retry_failed")(command))


def _bound(own: StudyCommand, study: str) -> click.Command:
    """A study's command with the options that every command has, and its shell as click's context object."""
    command = copy.copy(own.command)
    named = {parameter.name for parameter in command.params}
    options = (_running if own.runs else click.command())(output_options(lambda: None)).params
    command.params = [*command.params, *(option for option in options if option.name not in named)]
    shared = {str(option.name) for option in options} - named
    callback = command.callback

    def call(**values: Any) -> Any:
        ctx = click.get_current_context()
        ctx.obj = StudyShell(study, ctx, {name: values.pop(name) for name in shared & set(values)})
        with json_alone():
            return callback(**values) if callback is not None else None

    command.callback = call
    return command


def _calibrate(study: str) -> click.Command:
    @click.command(
        "calibrate",
        short_help="Measure what this machine is good for.",
        context_settings={"ignore_unknown_options": True},
        epilog=examples(f"fanfold {study} calibrate"),
    )
    @click.argument("flags", metavar="[FIELDS]...", nargs=-1, type=click.UNPROCESSED)
    @output_options
    def calibrate(flags: tuple[str, ...]) -> None:
        """Measure the ways in which the study can run on this machine, and say which to use.

        FIELDS are those of `fanfold run`: measure with the data and sizes you mean to use.
        """
        from fanfold.cli.show import say_summary
        from fanfold.cli.target import configured
        from fanfold.plugins import find_study
        from fanfold.summary import Summary

        measure = find_study(study).calibrate
        if measure is None:
            able = ", ".join(name for name in study_names() if _able(name))
            raise ConfigError(f"there is nothing to calibrate in the study {study!r}; try {able or 'none'}")
        sections = tuple(measure(configured(study, flags)))
        if machine_readable():
            print_json([{"title": s.title, "text": s.text, "columns": s.columns, "rows": s.rows} for s in sections])
        say_summary(Summary({}, sections))

    return calibrate


def _able(study: str) -> bool:
    """Whether a study can be calibrated; one that cannot be imported here cannot."""
    from fanfold.plugins import find_study

    try:
        return find_study(study).calibrate is not None
    except FanfoldError:
        return False


#: Commands of studies that are also commands of their own: `fanfold play` is `fanfold rl play`.
SHORT = {"play": "rl"}
#: Options by which `fanfold compare`, as it was before version 0.2, is told from the comparison of runs.
_GAMES = {"--models", "--style", "--mode", "--interactions", "--messages", "--batch-service", "--output-dir", "--plan"}


def renamed(words: list[str]) -> list[str]:
    """A command line in today's spelling: commands of studies had names of their own in version 0.1."""
    first, *rest = words or [""]
    if first == "cage2":
        return ["workflow", *rest]
    if first == "compare" and any(word.partition("=")[0] in _GAMES for word in rest):
        return ["secrets", "compare", *rest]
    study = next((word for word in rest if not word.startswith("-")), None)
    if first == "calibrate" and study is not None:
        rest.remove(study)
        return [study, "calibrate", *rest]
    return words
