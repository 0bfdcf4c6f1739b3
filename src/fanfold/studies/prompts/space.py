"""What a search may say: its material, rules and first prompts, from what the config and the task give."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from fanfold.capabilities import capabilities_of
from fanfold.config import content
from fanfold.errors import ConfigError
from fanfold.models.naming import runs_here
from fanfold.prompting.calibration import Calibration
from fanfold.prompting.genome import Genome, Labels
from fanfold.prompting.material import Material, Part, allowed, broken_rules, mend
from fanfold.prompting.sketch import sketch_of
from fanfold.studies.prompts.config import PromptsConfig
from fanfold.tasks import Problem, Split, Task
from fanfold.tasks.grading import Exact

#: The most examples a prompt shows unless told otherwise, and the most characters they may have together.
MOST_EXAMPLES, ROOM = 32, 5000

#: Parts in which problems are left out of the prompts that are scored on them.
FOLDS = 5
#: Characters for each token that a model has room for, above which a problem surely does not fit.
SURELY = 7
#: Tokens of a prompt and its reply that a local model has room for by default, and at most.
USUAL_ROOM, LOCAL_ROOM = 2048, 8192


def material_of(config: PromptsConfig, task: Task, split: Split) -> Material:
    """What prompts are made of; a template or a clause bank of the user's own takes the place of the task's clauses."""
    labels = task.labels[0] if task.labels else None
    words: Genome | None = None
    parts: tuple[Part, ...] = ()
    if config.template is not None:
        words, parts = sketch_of(config.template, labels)
    parts += tuple(Part("instruction", (text.strip(),)) for text in _texts(config.pinned))
    clauses = task.clauses if words is None else {}
    if isinstance(config.clauses, Mapping):
        clauses = config.clauses
    sizes = (fitting_examples(config, task, split), config.max_words)
    examples = tuple(problem.id for problem in shown_by(config, split))
    must, never = _texts(config.must), _texts(config.never)
    clauses = {name: tuple(text for text in bank if allowed(text, never)) for name, bank in clauses.items()}
    pairs = tuple(pair for pair in task.labels if allowed("\n".join(pair), never))
    material = Material(clauses, pairs, examples, *sizes, parts, must, never, words, config.by_input)
    if material.ruled and config.form == "words":
        raise ConfigError("template, pinned, must and never need clauses: leave out form = words")
    if broken := broken_rules(mend(words or Genome(labels=(pairs or (Genome().labels,))[0]), material), material):
        raise ConfigError(f"no prompt can keep the rules: {broken[0]}; give a clause, or pin a part, that does")
    return material


def calibration_of(config: PromptsConfig, task: Task, split: Split) -> Calibration | None:
    """How to take off what a model prefers to answer, where that is wanted.

    Answers must be a closed set, and the model must say how likely each was and take biases on tokens by their text.
    """
    if not config.calibrate:
        return None
    among = task.grader.among if isinstance(task.grader, Exact) else ()
    lacking = [
        "answers that are a closed set of labels" if len(among) < 2 else "",
        "one model that runs in this process" if len(config.model) > 1 or not runs_here(config.model[0]) else "",
        "--search guided or random" if config.kind not in ("guided", "random") else "",
    ]
    if missing := [what for what in lacking if what]:
        raise ConfigError(f"calibrate needs {' and '.join(missing)}: leave it out (--no-calibrate)")
    solved = (*split.examples, *split.train, *split.validation)
    return Calibration.of(among, (problem.shown for problem in solved))


def folds_of(split: Split) -> dict[str, frozenset[str]]:
    """The problems that prompts show and are scored on, in parts with about as many of every answer."""
    problems = sorted((*split.train, *split.validation), key=lambda problem: problem.shown)
    folds = [frozenset(problem.id for problem in problems[start::FOLDS]) for start in range(FOLDS)]
    return {id: fold for fold in folds for id in fold}


def shown_by(config: PromptsConfig, split: Split) -> tuple[Problem, ...]:
    """The problems that prompts may show as examples: one without an answer is none."""
    problems = (*split.examples, *((*split.train, *split.validation) if config.show_train else ()))
    return tuple(problem for problem in problems if problem.shown)


def fitting_examples(config: PromptsConfig, task: Task, split: Split) -> int:
    """How many examples a prompt may show: as many as wanted, or as its model has room for beside a problem."""
    most = wanted_examples(config, split)
    model, room = least_room(config)
    if room is None:
        return most
    if (longest := max(len(problem.input) for problem in task.problems)) > SURELY * room:
        raise ConfigError(
            f"a problem has {longest:,} characters and {model} has room for {room:,} tokens: shorten it, or "
            "use another model (--model)"
        )
    needed = prompt_tokens(config, task, split, most)
    while most and needed[most] > room:
        most -= 1
    return most


def least_room(config: PromptsConfig) -> tuple[str, int | None]:
    """The model that takes the fewest tokens, and how many; None where nobody knows of any."""
    rooms = {name: room for name in config.model if (room := _room(name)) is not None}
    model = min(rooms, key=rooms.__getitem__, default=config.model[0])
    return model, rooms.get(model)


def too_long(config: PromptsConfig, task: Task) -> int:
    """How many problems a model has probably no room for."""
    _, room = least_room(config)
    return 0 if room is None else sum(_tokens(problem.input) > room for problem in task.problems)


def wanted_examples(config: PromptsConfig, split: Split) -> int:
    """How many examples a prompt is to show at most: as told, or so many that the longest are not too long."""
    shown = shown_by(config, split)
    sizes = sorted((len(problem.input) + len(problem.shown) for problem in shown), reverse=True)
    few = max(1, sum(total <= ROOM for total in itertools.accumulate(sizes[:MOST_EXAMPLES])))
    return min(len(shown), few if config.max_examples is None else config.max_examples)


def prompt_tokens(config: PromptsConfig, task: Task, split: Split, most: int) -> list[int]:
    """Tokens of the longest prompt with no, one, ... `most` examples and of its reply, more or less."""
    shown = sorted((_tokens(problem.input + problem.shown) for problem in shown_by(config, split)), reverse=True)
    longest = max(_tokens(problem.input) for problem in task.problems)
    words = 2 * config.max_words + (config.max_tokens or task.max_tokens) + 64
    return list(itertools.accumulate(shown[:most], initial=longest + words))


def _tokens(text: str) -> int:
    """Tokens of a text; other letters than English ones take more of them."""
    size = len(text.encode("utf-8", "replace"))
    return size if size < 4 else (2 * len(text) - size) // 4 + (size - len(text))


def local_context(config: PromptsConfig, task: Task, split: Split, examples: int) -> int | None:
    """The room that a model in this process is given for so many examples; None: its usual one is enough."""
    needed = prompt_tokens(config, task, split, examples)[-1]
    if needed <= USUAL_ROOM:
        return None
    return 2 * USUAL_ROOM if needed <= 2 * USUAL_ROOM else LOCAL_ROOM


def _room(name: str) -> int | None:
    """Tokens that a model takes; None where nobody knows."""
    if runs_here(name):
        return LOCAL_ROOM
    return capabilities_of(name.partition("/")[2]).context


def first_prompts(
    config: PromptsConfig, otherwise: Sequence[str], material: Material, labels: Labels | None
) -> list[Genome]:
    """The prompts to start with: the template, and the user's own or, without any, those of the task."""
    own = seeds_of(config, ())
    sketch = [] if material.words is None else [material.words]
    first = [*sketch, *(Genome.of(text, labels) for text in own or (() if sketch else otherwise))]
    if not material.ruled:
        return first
    kept = [mend(genome, material) for genome in first]
    for genome in kept:
        if broken := broken_rules(genome, material):
            raise ConfigError(f"the prompt {genome.head()!r:.60} cannot be used: {broken[0]}")
    return kept


def seeds_of(config: PromptsConfig, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """The user's own prompts."""
    if config.seeds_file is None:
        return config.seeds or otherwise
    text = content(f"@{config.seeds_file}", "seeds_file")
    prompts = tuple(part.strip() for part in text.split("\n---\n") if part.strip())
    if not prompts:
        raise ConfigError(f"seeds_file {config.seeds_file} holds no prompt: write some, separated by lines of ---")
    return (*config.seeds, *prompts)


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(filter(None, [value] if isinstance(value, str) else value))
