"""How a prompt is changed without a model: by clauses, words, examples and labels, and by crossing two prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

from fanfold.errors import ConfigError, nearest
from fanfold.prompting.genome import SECTIONS, SLOT, Genome, Labels
from fanfold.prompting.wording import EDITS, Edit, blend, edited

#: How often the same clause may stand in one prompt.
MOST_COPIES = 2


@dataclass(frozen=True)
class Material:
    """What prompts may be made of: clauses by section, pairs of labels, ids of examples; and how long they may be."""

    clauses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: tuple[Labels, ...] = ()
    examples: tuple[str, ...] = ()
    most_examples: int = 4
    most_words: int = 120

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


Operator: TypeAlias = Callable[[Genome, Material, Random], Genome]
#: An operator as it is written here: what comes of it is checked afterwards, and None is "cannot apply".
_Change: TypeAlias = Callable[[Genome, Material, Random], Genome | None]


# -- what every prompt keeps to ---------------------------------------------------------------------------------------


def faults(genome: Genome, material: Material) -> list[str]:
    """What is wrong with a prompt, in words; nothing if it keeps to the material's limits."""
    found = []
    if genome.words > material.most_words:
        found.append(f"it has {genome.words} words and most_words is {material.most_words}")
    if len(genome.examples) > material.most_examples:
        found.append(f"it shows {len(genome.examples)} examples and most_examples is {material.most_examples}")
    if len(set(genome.examples)) < len(genome.examples):
        found.append("it shows an example twice")
    if unknown := [id for id in genome.examples if id not in material.examples]:
        found.append(f"it shows {unknown[0]!r}, which is not among the examples")
    if max(Counter(map(str.strip, genome.clauses)).values(), default=0) > MOST_COPIES:
        found.append(f"it says the same clause more than {MOST_COPIES} times")
    if sum(SLOT in clause for clause in genome.clauses) > 1:
        found.append(f"more than one of its clauses takes the input ({SLOT})")
    if not genome.clauses and not any(genome.labels):
        found.append("it is empty: it has neither text nor labels")
    return found


def mend(genome: Genome, material: Material) -> Genome:
    """The prompt itself if nothing is wrong with it, else the nearest one that keeps to the limits."""
    if not faults(genome, material):
        return genome
    known = [id for id in dict.fromkeys(genome.examples) if id in material.examples]
    fitted = _fitted(replace(genome, examples=tuple(known[: material.most_examples])), material.most_words)
    if not fitted.clauses and not any(fitted.labels):
        named = (pair for pair in material.labels if any(pair))
        fitted = replace(fitted, labels=next(named, ("Input", "Output")))
    return fitted


def _fitted(genome: Genome, most_words: int) -> Genome:
    """Without surplus copies and slots, and not too long.

    What goes first is the last clause of the longest section; the slot stays, and only a last clause is cut inside.
    """
    sections: dict[str, list[str]] = {name: [] for name in SECTIONS}
    copies: Counter[str] = Counter()
    slots = 0
    for name, clause in _placed(genome):
        copies[clause.strip()] += 1
        slots += SLOT in clause
        if copies[clause.strip()] <= MOST_COPIES and not (SLOT in clause and slots > 1):
            sections[name].append(clause)
    loose = {name: sum(_length(clause) for clause in sections[name] if SLOT not in clause) for name in SECTIONS}
    words = sum(_length(clause) for clauses in sections.values() for clause in clauses)
    left = sum(map(len, sections.values()))
    while words > most_words and left > 1:
        longest = max(SECTIONS, key=loose.__getitem__)
        clauses = sections[longest]
        gone = _length(clauses.pop(-2 if SLOT in clauses[-1] else -1))
        loose[longest] -= gone
        words, left = words - gone, left - 1
    if words > most_words:
        sections = {name: [" ".join(text.split()[:most_words]) for text in part] for name, part in sections.items()}
    fitted: dict[str, Any] = {name: tuple(clauses) for name, clauses in sections.items()}
    return replace(genome, **fitted)


def _length(clause: str) -> int:
    return len(clause.split())


def _placed(genome: Genome) -> Iterator[tuple[str, str]]:
    return ((name, clause) for name, section in genome.sections.items() for clause in section)


# -- clauses ----------------------------------------------------------------------------------------------------------


def _free(genome: Genome) -> list[tuple[str, int]]:
    """The places of all clauses that may change: not the one that takes the input."""
    return [
        (name, at) for name, part in genome.sections.items() for at, clause in enumerate(part) if SLOT not in clause
    ]


def _with(genome: Genome, name: str, clauses: Iterable[str]) -> Genome:
    section: dict[str, Any] = {name: tuple(clauses)}
    return replace(genome, **section)


def _set(genome: Genome, place: tuple[str, int], *clauses: str) -> Genome:
    """The genome with other clauses, or none, in one place."""
    name, at = place
    section = getattr(genome, name)
    return _with(genome, name, (*section[:at], *clauses, *section[at + 1 :]))


def _at(genome: Genome, place: tuple[str, int]) -> str:
    clause: str = getattr(genome, place[0])[place[1]]
    return clause


def _insert(genome: Genome, material: Material, rng: Random) -> Genome | None:
    new = [(name, text) for name, bank in _bank(material) for text in bank if text not in getattr(genome, name)]
    if not new:
        return None
    name, clause = rng.choice(new)
    section = getattr(genome, name)
    # What stands last may be the slot: an answer is expected right behind it.
    ends = len(section) - 1 if section and SLOT in section[-1] else len(section)
    at = rng.randint(0, ends)
    return _with(genome, name, (*section[:at], clause, *section[at:]))


def _delete(genome: Genome, material: Material, rng: Random) -> Genome | None:
    places = _free(genome)
    return _set(genome, rng.choice(places)) if places else None


def _swap(genome: Genome, material: Material, rng: Random) -> Genome | None:
    places = _free(genome)
    if len(places) < 2:
        return None
    one, other = rng.sample(places, 2)
    return _set(_set(genome, one, _at(genome, other)), other, _at(genome, one))


def _duplicate(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """Said again, right there or at the end of its section: what is repeated late is remembered."""
    said = Counter(map(str.strip, genome.clauses))
    places = [place for place in _free(genome) if said[_at(genome, place).strip()] < MOST_COPIES]
    if not places:
        return None
    place = rng.choice(places)
    clause = _at(genome, place)
    if rng.random() < 0.5:
        return _set(genome, place, clause, clause)
    last = max(at for name, at in _free(genome) if name == place[0])
    return _set(genome, (place[0], last), _at(genome, (place[0], last)), clause)


def _reorder(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """One section in another order; the slot keeps its place."""
    places = _free(genome)
    sections = [name for name in SECTIONS if len({_at(genome, place) for place in places if place[0] == name}) > 1]
    if not sections:
        return None
    name = rng.choice(sections)
    own = [place for place in places if place[0] == name]
    for place, clause in zip(own, _other_order([_at(genome, place) for place in own], rng)):
        genome = _set(genome, place, clause)
    return genome


def _other_order(values: Sequence[str], rng: Random) -> list[str]:
    """The values in an order that is not the present one; there are at least two different ones."""
    mixed = list(values)
    while mixed == list(values):
        rng.shuffle(mixed)
    return mixed


def _replace(genome: Genome, material: Material, rng: Random) -> Genome | None:
    bank = dict(_bank(material))
    new = [
        (place, text)
        for place in _free(genome)
        for text in bank.get(place[0], ())
        if text not in getattr(genome, place[0])
    ]
    if not new:
        return None
    place, clause = rng.choice(new)
    return _set(genome, place, clause)


def _transplant(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """A section as the bank would have it: one or two of its clauses, or now and then none."""
    banks = [(name, bank) for name, bank in _bank(material) if bank]
    if not banks:
        return None
    name, bank = rng.choice(banks)
    slots = [clause for clause in getattr(genome, name) if SLOT in clause]
    fresh = rng.sample(bank, min(len(bank), rng.choice((0, 1, 1, 1, 2))))
    return _with(genome, name, (*fresh, *slots))


def _bank(material: Material) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the bank has for each section, short enough to fit and in the order of the sections."""
    for name in SECTIONS:
        yield name, tuple(text for text in material.clauses.get(name, ()) if _length(text) <= material.most_words)


# -- words, examples, labels ------------------------------------------------------------------------------------------


def _reword(edit: Edit, genome: Genome, material: Material, rng: Random) -> Genome | None:
    places = _free(genome)
    rng.shuffle(places)
    for place in places:
        clause = edited(_at(genome, place), edit, rng)
        if clause is not None:
            return _set(genome, place, clause)
    return None


def _add_example(genome: Genome, material: Material, rng: Random) -> Genome | None:
    new = _unshown(genome, material)
    if not new or len(genome.examples) >= material.most_examples:
        return None
    at = rng.randint(0, len(genome.examples))
    return replace(genome, examples=(*genome.examples[:at], rng.choice(new), *genome.examples[at:]))


def _drop_example(genome: Genome, material: Material, rng: Random) -> Genome | None:
    if not genome.examples:
        return None
    at = rng.randrange(len(genome.examples))
    return replace(genome, examples=genome.examples[:at] + genome.examples[at + 1 :])


def _swap_example(genome: Genome, material: Material, rng: Random) -> Genome | None:
    new = _unshown(genome, material)
    if not new or not genome.examples:
        return None
    at = rng.randrange(len(genome.examples))
    return replace(genome, examples=(*genome.examples[:at], rng.choice(new), *genome.examples[at + 1 :]))


def _reorder_examples(genome: Genome, material: Material, rng: Random) -> Genome | None:
    if len(genome.examples) < 2:
        return None
    return replace(genome, examples=tuple(_other_order(genome.examples, rng)))


def _unshown(genome: Genome, material: Material) -> list[str]:
    return [id for id in material.examples if id not in genome.examples]


def _change_labels(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """Not where the head takes the input up itself, in words of its own that the examples share."""
    new = [pair for pair in material.labels if pair != genome.labels]
    slotted = any(SLOT in clause for clause in genome.clauses)
    return replace(genome, labels=rng.choice(new)) if new and not slotted else None


def _checked(change: _Change) -> Operator:
    def apply(genome: Genome, material: Material, rng: Random) -> Genome:
        genome = mend(genome, material)
        changed = change(genome, material, rng)
        return genome if changed is None or faults(changed, material) else changed

    return apply


_CHANGES: dict[str, _Change] = {
    "clause insert": _insert,
    "clause delete": _delete,
    "clause swap": _swap,
    "clause duplicate": _duplicate,
    "clause reorder": _reorder,
    "clause replace": _replace,
    "section transplant": _transplant,
    **{f"word {name}": partial(_reword, edit) for name, edit in EDITS.items()},
    "example add": _add_example,
    "example drop": _drop_example,
    "example swap": _swap_example,
    "example reorder": _reorder_examples,
    "labels change": _change_labels,
}
#: Each gives a prompt that keeps to the material's limits, whatever it is given; one that cannot apply gives its prompt
#: back unchanged.
OPERATORS: Mapping[str, Operator] = {name: _checked(change) for name, change in _CHANGES.items()}


# -- two prompts ------------------------------------------------------------------------------------------------------


def crossover(a: Genome, b: Genome, rng: Random) -> Genome:
    """A child of two prompts, section by section: one parent's, or both cut and joined at aligned clause boundaries.

    Two different single clauses are joined inside, at a word they share.  Labels are a pair of one parent, and so is
    the clause that takes the input up, if any.  The child is no longer than the longer parent, shows no more examples
    than the parent with more, and shows none twice: of valid parents it is valid.
    """
    host = rng.choice((a, b))
    sections: dict[str, tuple[str, ...]] = {}
    for name in SECTIONS:
        mine, yours = ([text for text in getattr(parent, name) if SLOT not in text] for parent in (a, b))
        sections[name] = tuple(_crossed(mine, yours, rng))
    sections["format"] += tuple(text for text in host.clauses if SLOT in text)
    examples = tuple(dict.fromkeys(_crossed(list(a.examples), list(b.examples), rng, inside=False)))
    most = max(len(a.examples), len(b.examples))
    child = Genome(**sections, examples=examples[:most], labels=host.labels)
    child = _fitted(child, max(a.words, b.words))
    return child if child.clauses or any(child.labels) else a


def _crossed(mine: Sequence[str], yours: Sequence[str], rng: Random, inside: bool = True) -> Sequence[str]:
    """One of two lists, or both joined: where one is at a share of its length, so is the other."""
    if rng.random() < 0.4:
        return rng.choice((mine, yours))
    if rng.random() < 0.5:
        mine, yours = yours, mine
    if inside and len(mine) == len(yours) == 1:
        mixed = blend(mine[0], yours[0], rng)
        return rng.choice((mine, yours)) if mixed is None else [mixed]
    cuts = sorted((rng.random(), rng.choice((1.0, rng.random()))))
    (left, right), (from_, to) = ([round(cut * len(values)) for cut in cuts] for values in (mine, yours))
    # Two cuts close together may fall between all that there is.
    return [*mine[:left], *yours[from_:to], *mine[right:]] or (mine if yours else [])
