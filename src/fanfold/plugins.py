"""Studies by name: the contract that a study's package fulfils, and the registry of those that are installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from fanfold.errors import ConfigError, FanfoldError, MissingExtra, nearest
from fanfold.registry import brought
from fanfold.texts import shortened

if TYPE_CHECKING:
    import click

    from fanfold.ledger import EvaluationRow, RunView, TrialRow
    from fanfold.rehearsal import Estimate
    from fanfold.simulator.config import AnswerFunction
    from fanfold.study import Study
    from fanfold.summary import Check, Section

GROUP = "fanfold.studies"

Settings = TypeVar("Settings")
R = TypeVar("R")

#: The most characters of a candidate in one line.
BRIEF = 80


@dataclass(frozen=True)
class FeedbackForm:
    """What a person is asked about a trial: the query, the answers to it, and how to judge them."""

    query: str
    answers: tuple[str, ...]
    ask: Literal["rating", "thumbs", "preference", "score"]


@dataclass(frozen=True)
class Presentation:
    """How a study's results look to people, as data: shell, report and web app draw the same sections.

    `headline(figures)` is one sentence about a run, made of its summary's figures.  `candidate(candidate)` and
    `cell(data)` describe a candidate, and the data of one evaluation, as they were recorded.  `brief(candidate)` is
    one line for lists, and `text(candidate)` the candidate as plain text, which others are compared with word by word.
    `tables` are further tables that `fanfold export --rows NAME` writes: functions of a `RunView` that give one
    mapping for each row.  A study in which no candidate is better than another says in `unit` what a trial is called
    instead, such as `row`.  Where the conclusion chooses what was found (`chooses`), the trial with the best score is
    not shown beside it.

    The web app asks for more: sections about a run while it is running (`overview`), about one trial (`trial`), about
    one evaluation (`evaluation`), and about several runs side by side (`compare`); they get a `RunView` and may read
    from it, for a fraction of a second.  Where a search only asks for a candidate that a model writes, `written` reads
    what it wrote from the record.  `scale` are the lowest and the highest score there can be.  `feedback(view, trial)`
    is what a person is asked about a trial, None where nothing is, and `tell(path, run, trial, value)` records the
    answer in the ledger at that path.
    """

    headline: Callable[[Mapping[str, Any]], str | None] | None = None
    candidate: Callable[[Any], Section] | None = None
    cell: Callable[[Any], Section] | None = None
    tables: Mapping[str, Callable[[RunView], Iterable[Mapping[str, Any]]]] = field(default_factory=dict)
    unit: str | None = None
    chooses: bool = False
    text: Callable[[Any], str] | None = None
    brief: Callable[[Any], str] | None = None
    scale: tuple[float, float] | None = None
    overview: Callable[[RunView], Iterable[Section]] | None = None
    trial: Callable[[RunView, TrialRow], Iterable[Section]] | None = None
    evaluation: Callable[[RunView, EvaluationRow], Iterable[Section]] | None = None
    compare: Callable[[Sequence[RunView]], Iterable[Section]] | None = None
    written: Callable[[RunView, TrialRow], Any] | None = None
    feedback: Callable[[RunView, int], FeedbackForm | None] | None = None
    tell: Callable[[Path, str, int, Any], None] | None = None

    def candidate_of(self, view: RunView, row: TrialRow) -> Any:
        """The candidate of a trial; of one that a model was asked for, what it wrote."""
        written = described(self.written, view, row)
        return row.candidate if written is None else written

    def text_of(self, candidate: Any) -> str:
        """A candidate as plain text: as the study writes it, or as indented JSON."""
        text = described(self.text, candidate)
        return _pretty(candidate) if text is None else text

    def brief_of(self, candidate: Any) -> str:
        """A candidate in one line of at most 80 characters."""
        text = described(self.brief, candidate)
        if text is None:
            section = described(self.candidate, candidate)
            text = _plain(candidate) if section is None else section.text
        return shortened(text, BRIEF)

    def trial_sections(self, view: RunView, row: TrialRow) -> tuple[Section, ...]:
        """What the page of a candidate shows."""
        sections = described(self.trial, view, row)
        if sections is None and (section := described(self.candidate, row.candidate)) is not None:
            sections = (section,)
        return tuple(sections or ())

    def evaluation_sections(self, view: RunView, row: EvaluationRow) -> tuple[Section, ...]:
        """What the page of a cell shows beside its score and its calls."""
        sections = described(self.evaluation, view, row)
        if sections is None and row.data is not None and (section := described(self.cell, row.data)) is not None:
            sections = (section,)
        return tuple(sections or ())


class Shell(Protocol):
    """What a study's command gets from the command line, as click's context object (`@click.pass_obj`)."""

    @property
    def machine_readable(self) -> bool:
        """Whether the user asked for JSON, so that `say` and `show` print nothing."""

    def say(self, text: str = "") -> None:
        """Print one line for people."""

    def show(self, sections: Iterable[Section]) -> None:
        """Print sections for people."""

    def print_json(self, value: Any) -> None:
        """Print the result for programs."""

    def estimate(self, config: Any, sample: int) -> Estimate:
        """Rehearse `sample` trials of the study; nothing is sent or kept."""

    def run(self, config: Any) -> None:
        """Run the study as `fanfold run` would, with the run options of this command line."""


@dataclass(frozen=True)
class StudyCommand:
    """A command of a study: `fanfold STUDY COMMAND`.  One that `runs` also takes the run options of `fanfold run`."""

    command: click.Command
    runs: bool = False


@dataclass(frozen=True)
class Starter:
    """What the file says that `fanfold init STUDY` writes; everything in it runs unchanged.

    `about` says in a sentence what the study does.  `settings` are fields that it sets.  `data` and `model` name the
    fields for the user's file and model, and `infer(file)` gives the settings that follow from that file.  `offer` are
    further fields, shown as comments, with an example of each.  `files` are written beside it where there are none of
    that name.
    """

    about: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    model: str | None = None
    needs_data: bool = False
    infer: Callable[[str], Mapping[str, Any]] | None = None
    offer: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyPlugin(Generic[Settings]):
    """What an entry point of the group `fanfold.studies` gives.

    `config` is a frozen dataclass: its fields are the study's flags and TOML keys.  `build` makes the study.
    `run_options` are defaults for options of `fanfold run` that follow from the config.  `commands` builds the study's
    own commands, and `calibrate` measures what this machine is good for.  `packages` are modules that the study needs
    and that the extra of its name installs.  `world` is what
    simulated models reply in a rehearsal (a function, or its name as module:function); without it, made-up words.
    `checks` are what `fanfold doctor` should look at, beside the packages.  `starter` is for `fanfold init`.
    """

    config: type[Settings]
    build: Callable[[Settings], Study[Any]]
    run_options: Callable[[Settings], Mapping[str, Any]] | None = None
    commands: Callable[[], Sequence[StudyCommand]] = tuple
    calibrate: Callable[[Settings], Iterable[Section]] | None = None
    packages: tuple[str, ...] = ()
    world: AnswerFunction | str | None = None
    shown: Presentation = Presentation()
    checks: Callable[[], Iterable[Check]] = tuple
    starter: Starter = Starter()


def studies() -> dict[str, EntryPoint]:
    """Every study that is installed, by name; nothing of it is imported yet."""
    return brought(GROUP)


def find_study(name: str) -> StudyPlugin[Any]:
    """The study of that name.  A module with `Config` and `study(config)`, as version 0.1 had it, works too."""
    plugin = _loaded(name)
    for module in plugin.packages:
        if importlib.util.find_spec(module) is None:
            entry = studies()[name]
            package = entry.dist.name if entry.dist is not None else entry.value
            raise MissingExtra(module, name, f"the study {name!r}", package)
    return plugin


def _loaded(name: str) -> StudyPlugin[Any]:
    """The study of that name; the packages that running it takes may be missing."""
    known = studies()
    if name not in known:
        raise ConfigError(f"there is no study {name!r}{nearest(name, known)}")
    entry = known[name]
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        loaded = entry.load()
    except Exception as error:
        extras = entry.dist.metadata.get_all("Provides-Extra") if entry.dist is not None else None
        if isinstance(error, ModuleNotFoundError) and name in (extras or ()):
            raise MissingExtra(error.name or "?", name, f"the study {name!r}", package) from error
        raise ConfigError(
            f"the study {name!r} of the package {package!r} cannot be imported ({type(error).__name__}: {error}): "
            f"install what it needs, or upgrade {package!r}"
        ) from error
    plugin = _from_module(loaded)
    if plugin is None or not dataclasses.is_dataclass(plugin.config) or not callable(plugin.build):
        raise ConfigError(
            f"the study {name!r} of the package {package!r} cannot be used: {entry.value!r} must be a "
            "fanfold.plugins.StudyPlugin, or a module with a dataclass `Config` and a function `study(config)`; "
            "report it to its author"
        )
    return plugin


def presentation_of(meta: Mapping[str, Any]) -> Presentation:
    """How the study of a recorded run shows its results; an empty one where that study is not installed."""
    target = meta.get("target")
    try:
        return _loaded(target).shown if isinstance(target, str) and target in studies() else Presentation()
    except FanfoldError:
        return Presentation()


def presentation_in(view: RunView) -> Presentation:
    """How a run is shown; one that belongs to another, such as its held-out run, as that other is."""
    return presentation_of({"target": target_of(view)})


def target_of(view: RunView) -> Any:
    """What was run, such as the name of a study; of a run that belongs to another, what that other ran."""
    meta = view.info.meta
    whole = view.ledger.find(meta["belongs_to"]) if isinstance(meta.get("belongs_to"), str) else None
    return (meta if whole is None else view.ledger.info(whole).meta).get("target")


def described(describe: Callable[..., R] | None, *values: Any) -> R | None:
    """What a study makes of recorded values; None where it has no words for them, or another version wrote them.

    Sections that a study makes one by one are collected here, so that what it raises harms no page.
    """
    try:
        made = None if describe is None else describe(*values)
        return tuple(made) if isinstance(made, Iterator) else made  # type: ignore[return-value]
    except Exception:
        return None


def recorded(view: RunView, trial: int, name: str) -> Any:
    """What the evaluations of a trial recorded under a name in their data; the first of them that did."""
    for row in view.evaluations(trials=[trial], failed=False, blobs=False):
        if isinstance(row.data, Mapping) and name in row.data:
            return row.data[name]
    return None


def concluded(views: Iterable[RunView]) -> list[tuple[str, Mapping[str, Any]]]:
    """The names and figures of the runs that have a conclusion."""
    summaries = [(view.name, view.summary()) for view in views]
    return [(name, summary.figures) for name, summary in summaries if summary is not None]


def _pretty(candidate: Any) -> str:
    if isinstance(candidate, str):
        return candidate
    return json.dumps(candidate, indent=2, ensure_ascii=False, sort_keys=True, default=str)


def _plain(candidate: Any) -> str:
    """A candidate without a study's words: the entries of a mapping, or its JSON, in one line."""
    if isinstance(candidate, Mapping):
        return ", ".join(f"{name} {_plain(value)}" for name, value in candidate.items())
    if isinstance(candidate, float):
        return f"{candidate:.4g}"
    return candidate if isinstance(candidate, str) else json.dumps(candidate, ensure_ascii=False, default=str)


def _from_module(module: Any) -> StudyPlugin[Any] | None:
    """The plugin itself, that of a module, or one made of a module as version 0.1 had them."""
    if isinstance(plugin := getattr(module, "plugin", module), StudyPlugin):
        return plugin
    config, build = getattr(module, "Config", None), getattr(module, "study", None)
    if config is None or build is None:
        return None
    return StudyPlugin(
        config, build, run_options=getattr(module, "how", None), calibrate=getattr(module, "calibrate", None)
    )
