"""What a search may say: its material, rules and first prompts, from what the config and the task give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fanfold.config import content
from fanfold.errors import ConfigError
from fanfold.prompting.genome import Genome, Labels
from fanfold.prompting.material import Material, Part, allowed, broken_rules, mend
from fanfold.prompting.sketch import sketch_of
from fanfold.studies.prompts.config import PromptsConfig
from fanfold.tasks import Split, Task


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
    sizes = (min(config.max_examples, len(split.examples)), config.max_words)
    examples = tuple(problem.id for problem in split.examples)
    must, never = _texts(config.must), _texts(config.never)
    clauses = {name: tuple(text for text in bank if allowed(text, never)) for name, bank in clauses.items()}
    pairs = tuple(pair for pair in task.labels if allowed("\n".join(pair), never))
    material = Material(clauses, pairs, examples, *sizes, parts, must, never, words)
    if material.ruled and config.form == "words":
        raise ConfigError("template, pinned, must and never need clauses: leave out form = words")
    if broken := broken_rules(mend(words or Genome(labels=(pairs or (Genome().labels,))[0]), material), material):
        raise ConfigError(f"no prompt can keep the rules: {broken[0]}; give a clause, or pin a part, that does")
    return material


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
    found = tuple(part.strip() for part in text.split("\n---\n") if part.strip())
    if not found:
        raise ConfigError(f"seeds_file {config.seeds_file} holds no prompt: write some, separated by lines of ---")
    return (*config.seeds, *found)


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(filter(None, [value] if isinstance(value, str) else value))
