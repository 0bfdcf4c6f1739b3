"""What prompts may be made of, and the limits and rules that every one of them keeps."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import UNSET

from fanfold.errors import ConfigError, nearest
from fanfold.prompting.genome import SECTIONS, SLOT, Genome, Labels

#: How often the same clause may stand in one prompt.
MOST_COPIES = 2


@dataclass(frozen=True)
class Part:
    """A clause that every prompt has, in one of its wordings; with a single one it is pinned, "" is none at all."""

    section: str
    wordings: tuple[str, ...]


@dataclass(frozen=True)
class Material:
    """What prompts may be made of: clauses by section, pairs of labels, ids of examples; and how long they may be.

    Every prompt has each of the `parts`, says what it `must` say, and `never` what it must not: texts in any case, or
    `re:` and a regular expression.  Prompts start from the `words` of a sketch where there is one.
    """

    clauses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: tuple[Labels, ...] = ()
    examples: tuple[str, ...] = ()
    most_examples: int = 4
    most_words: int = 120
    parts: tuple[Part, ...] = ()
    must: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    words: Genome | None = None
    #: Whether a prompt may choose what it shows by the input.
    by_input: bool = False

    def __post_init__(self) -> None:
        for name, bank in self.clauses.items():
            if name not in SECTIONS:
                raise ConfigError(f"a prompt has no section {name!r}{nearest(name, SECTIONS)}")
            if isinstance(bank, str) or not all(isinstance(clause, str) and clause.strip() for clause in bank):
                raise ConfigError(
                    f"the clauses for {name} must be a tuple of texts that say something, not {bank!r:.80}"
                )
        for pair in self.labels:
            if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(label, str) for label in pair):
                raise ConfigError(f"labels come in pairs, for input and answer, not {pair!r:.80}")
        if isinstance(self.examples, str) or len(set(self.examples)) != len(self.examples):
            raise ConfigError(f"examples must be ids of problems, each once, not {self.examples!r:.80}")
        if self.most_examples < 0 or self.most_words < 1:
            raise ConfigError(
                f"a prompt needs room: most_examples is at least 0 and most_words at least 1, "
                f"not {self.most_examples} and {self.most_words}"
            )
        fixed = sum(max(map(length, part.wordings)) for part in self.parts)
        if fixed > self.most_words:
            raise ConfigError(
                f"the pinned parts and choices alone have {fixed} words and a prompt may have {self.most_words}: "
                "shorten them, or raise --max-words"
            )
        for rule in (*self.must, *self.never):
            _matcher(rule)

    @property
    def ruled(self) -> bool:
        """Whether there is more to keep than lengths."""
        return bool(self.parts or self.must or self.never)

    @property
    def choices(self) -> tuple[Part, ...]:
        """The parts with several wordings."""
        return tuple(part for part in self.parts if len(part.wordings) > 1)

    @functools.cached_property
    def fixed(self) -> frozenset[str]:
        """The clauses that no operator changes, without the space around them."""
        return frozenset(wording.strip() for part in self.parts for wording in part.wordings if wording)


# -- what every prompt keeps to ---------------------------------------------------------------------------------------


def faults(genome: Genome, material: Material) -> list[str]:
    """What is wrong with a prompt, in words; nothing if it keeps to the material's limits and rules."""
    complaints, clauses = [], genome.clauses
    if genome.words > material.most_words:
        complaints.append(f"it has {genome.words} words and most_words is {material.most_words}")
    if genome.shown > material.most_examples:
        complaints.append(f"it shows {genome.shown} examples and most_examples is {material.most_examples}")
    if len(set(genome.examples)) < len(genome.examples):
        complaints.append("it shows an example twice")
    if unknown := [id for id in genome.examples if id not in material.examples]:
        complaints.append(f"it shows {unknown[0]!r}, which is not among the examples")
    if len(clauses) > MOST_COPIES and max(Counter(map(str.strip, clauses)).values()) > MOST_COPIES:
        complaints.append(f"it says the same clause more than {MOST_COPIES} times")
    if sum(SLOT in clause for clause in clauses) > 1:
        complaints.append(f"more than one of its clauses takes the input ({SLOT})")
    if not clauses and not any(genome.labels):
        complaints.append("it is empty: it has neither text nor labels")
    return complaints + broken_rules(genome, material)


def broken_rules(genome: Genome, material: Material) -> list[str]:
    """Which parts a prompt lacks, and which rules it breaks, in words."""
    if not material.ruled:
        return []
    head = genome.head()
    plain = _plain(head)
    complaints = []
    for part in material.parts:
        present = [wording for wording in part.wordings if wording and _plain(wording) in plain]
        own = sum(clause.strip() in {wording.strip() for wording in present} for clause in genome.clauses)
        if (not present and "" not in part.wordings) or own > 1:
            what = f"one of {len(part.wordings)} choices" if len(part.wordings) > 1 else "the pinned part"
            complaints.append(f"it does not have {what} {part.wordings[0].strip()!r:.60} once")
    complaints += [f"it must say {rule!r:.60}" for rule in material.must if not _matcher(rule)(head)]
    words = "\n".join((head, *genome.labels))
    return complaints + [f"it must never say {rule!r:.60}" for rule in material.never if _matcher(rule)(words)]


def allowed(text: str, never: Sequence[str]) -> bool:
    """Whether a text says nothing that must never be said."""
    return not any(_matcher(rule)(text) for rule in never)


def rules_in_words(material: Material) -> str:
    """The rules as a model is told that writes prompts."""
    kept = [_plain(part.wordings[0]) for part in material.parts if len(part.wordings) == 1]
    lines = [f"Keep this word for word: {text}" for text in kept]
    lines += [f"It must say: {rule}" for rule in material.must]
    return "\n".join(lines + [f"It must never say: {rule}" for rule in material.never])


@functools.lru_cache
def _matcher(rule: str) -> Callable[[str], bool]:
    """Whether a text says what a rule names: `re:` and a regular expression, or words in any case."""
    if rule.startswith("re:"):
        try:
            pattern = re.compile(rule[3:])
        except re.error as error:
            raise ConfigError(f"the rule {rule} is not a regular expression: {error}") from error
        return lambda text: pattern.search(text) is not None
    if not (words := _plain(rule)):
        raise ConfigError("a rule is empty: give a text, or re: and a regular expression")
    return lambda text: words.casefold() in _plain(text).casefold()


def _plain(text: str) -> str:
    return " ".join(text.split())


def mend(genome: Genome, material: Material) -> Genome:
    """The prompt itself if nothing is wrong with it, else the nearest one that keeps to the limits.

    Where a rule cannot be kept by leaving clauses out or adding one, the prompt still breaks it.
    """
    if not faults(genome, material):
        return genome
    known = [id for id in dict.fromkeys(genome.examples) if id in material.examples]
    genome = _ruled(genome, material) if material.ruled else genome
    if genome.nearest:
        genome = replace(genome, examples=tuple(known), nearest=min(genome.nearest, material.most_examples) or UNSET)
    if not genome.nearest:
        genome = replace(genome, examples=tuple(known[: material.most_examples]))
    fitted = fit(genome, material.most_words, _kept(genome, material))
    if not fitted.clauses and not any(fitted.labels):
        named = (pair for pair in material.labels if any(pair))
        fitted = replace(fitted, labels=next(named, ("Input", "Output")))
    return fitted


def _ruled(genome: Genome, material: Material) -> Genome:
    """Without clauses that must not be there, and with those that must."""
    sections = {
        name: [clause for clause in part if clause.strip() in material.fixed or allowed(clause, material.never)]
        for name, part in genome.sections.items()
    }
    for part in material.parts:
        own = {wording.strip() for wording in part.wordings if wording}
        present = [(name, clause) for name, clause in _placed(sections) if clause.strip() in own]
        for name, clause in present[1:]:
            sections[name].reverse()
            sections[name].remove(clause)
            sections[name].reverse()
        inside = any(_plain(wording) in _plain(genome.head()) for wording in own)
        if not present and not inside and "" not in part.wordings:
            _add(sections[part.section], part.wordings[0])
    bank = [(name, clause) for name in SECTIONS for clause in material.clauses.get(name, ())]
    for rule in material.must:
        says = _matcher(rule)
        if not any(says(clause) for _, clause in _placed(sections)):
            able = [("format", rule)] if not rule.startswith("re:") else [entry for entry in bank if says(entry[1])]
            for name, clause in able[:1]:
                _add(sections[name], clause)
    changed: dict[str, Any] = {name: tuple(clauses) for name, clauses in sections.items()}
    return replace(genome, **changed)


def _add(section: list[str], clause: str) -> None:
    """At the end, but before the clause that takes the input: an answer is expected right behind that."""
    section.insert(len(section) - bool(section and SLOT in section[-1] and SLOT not in clause), clause)


def _kept(genome: Genome, material: Material) -> frozenset[str]:
    """What may not be left out to make a prompt shorter."""
    needed = [_matcher(rule) for rule in material.must]
    return material.fixed | {clause.strip() for clause in genome.clauses if any(says(clause) for says in needed)}


def fit(genome: Genome, most_words: int, kept: Collection[str] = ()) -> Genome:
    """Without surplus copies and slots, and not too long.

    What goes first is the last clause of the longest section; the slot and what is `kept` stay, and only a last clause
    is cut inside.
    """
    sections: dict[str, list[str]] = {name: [] for name in SECTIONS}
    copies: Counter[str] = Counter()
    slots = 0
    for name, clause in _placed(genome.sections):
        copies[clause.strip()] += 1
        slots += SLOT in clause
        if copies[clause.strip()] <= MOST_COPIES and not (SLOT in clause and slots > 1):
            sections[name].append(clause)
    loose = {
        name: [at for at, clause in enumerate(part) if SLOT not in clause and clause.strip() not in kept]
        for name, part in sections.items()
    }
    words = sum(length(clause) for clauses in sections.values() for clause in clauses)
    left = sum(map(len, sections.values()))
    while words > most_words and left > 1 and any(loose.values()):
        longest = max(SECTIONS, key=lambda name: sum(length(sections[name][at]) for at in loose[name]))
        words -= length(sections[longest].pop(loose[longest].pop()))
        left -= 1
    if words > most_words and not kept:
        sections = {name: [" ".join(text.split()[:most_words]) for text in part] for name, part in sections.items()}
    fitted: dict[str, Any] = {name: tuple(clauses) for name, clauses in sections.items()}
    return replace(genome, **fitted)


def length(clause: str) -> int:
    return len(clause.split())


def _placed(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((name, clause) for name, section in sections.items() for clause in section)
