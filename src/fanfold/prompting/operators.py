"""How a prompt is changed without a model: by clauses, words, examples and labels, and by crossing two prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

from fanfold.prompting.genome import SECTIONS, SLOT, Genome
from fanfold.prompting.material import MOST_COPIES, Material, Part, faults, fit, length, mend
from fanfold.prompting.wording import EDITS, Edit, blend, edited

Operator: TypeAlias = Callable[[Genome, Material, Random], Genome]
#: An operator as it is written here: what comes of it is checked afterwards, and None is "cannot apply".
_Change: TypeAlias = Callable[[Genome, Material, Random], Genome | None]


# -- clauses ----------------------------------------------------------------------------------------------------------


def _free(genome: Genome, material: Material) -> list[tuple[str, int]]:
    """The places of all clauses that may change: not the one that takes the input, nor those that are fixed."""
    return [
        (name, at)
        for name, section in genome.sections.items()
        for at, clause in enumerate(section)
        if SLOT not in clause and clause.strip() not in material.fixed
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
    places = _free(genome, material)
    return _set(genome, rng.choice(places)) if places else None


def _swap(genome: Genome, material: Material, rng: Random) -> Genome | None:
    places = _free(genome, material)
    if len(places) < 2:
        return None
    one, other = rng.sample(places, 2)
    return _set(_set(genome, one, _at(genome, other)), other, _at(genome, one))


def _duplicate(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """Said again, right there or at the end of its section: what is repeated late is remembered."""
    said = Counter(map(str.strip, genome.clauses))
    places = [place for place in _free(genome, material) if said[_at(genome, place).strip()] < MOST_COPIES]
    if not places:
        return None
    place = rng.choice(places)
    clause = _at(genome, place)
    if rng.random() < 0.5:
        return _set(genome, place, clause, clause)
    last = max(at for name, at in _free(genome, material) if name == place[0])
    return _set(genome, (place[0], last), _at(genome, (place[0], last)), clause)


def _reorder(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """One section in another order; the slot keeps its place."""
    places = _free(genome, material)
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
        for place in _free(genome, material)
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
    fresh = rng.sample(bank, min(len(bank), rng.choice((0, 1, 1, 1, 2))))
    loose = {at for section, at in _free(genome, material) if section == name}
    stay = [clause for at, clause in enumerate(getattr(genome, name)) if at not in loose]
    return _with(genome, name, (*fresh, *stay))


def _bank(material: Material) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the bank has for each section, short enough to fit and in the order of the sections."""
    for name in SECTIONS:
        yield name, tuple(text for text in material.clauses.get(name, ()) if length(text) <= material.most_words)


# -- words, examples, labels ------------------------------------------------------------------------------------------


def _reword(edit: Edit, genome: Genome, material: Material, rng: Random) -> Genome | None:
    places = _free(genome, material)
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


def change_choice(genome: Genome, material: Material, rng: Random) -> Genome | None:
    """Another wording of one of the parts that have several."""
    if not (choices := material.choices):
        return None
    part = rng.choice(choices)
    changed = [_chosen(genome, part, wording) for wording in part.wordings]
    return rng.choice([other for other in changed if other != genome])


def varied(genome: Genome, material: Material, rng: Random) -> Genome:
    """The prompt with every choice made at random."""
    for part in material.choices:
        genome = _chosen(genome, part, rng.choice(part.wordings))
    return genome


def _chosen(genome: Genome, part: Part, wording: str) -> Genome:
    own = {other.strip() for other in part.wordings if other}
    for name in SECTIONS:
        for at, clause in enumerate(getattr(genome, name)):
            if clause.strip() in own:
                return _set(genome, (name, at), *([wording] if wording else []))
    section = getattr(genome, part.section)
    ends = len(section) - bool(section and SLOT in section[-1])
    return _with(genome, part.section, (*section[:ends], *([wording] if wording else []), *section[ends:]))


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
#: For material with parts that have several wordings.
CHOICES: Mapping[str, Operator] = {"choice change": _checked(change_choice)}


# -- two prompts ------------------------------------------------------------------------------------------------------


def crossover(a: Genome, b: Genome, rng: Random) -> Genome:
    """A child of two prompts, section by section: one parent's, or both cut and joined at aligned clause boundaries.

    Two different single clauses are joined inside, at a word they share.  Labels are a pair of one parent, and so is
    the clause that takes the input up, if any.  The child is no longer than the longer parent, shows no more examples
    than the parent with more, and shows none twice: of valid parents it is valid.
    """
    host = rng.choice((a, b))
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        mine, yours = ([text for text in getattr(parent, name) if SLOT not in text] for parent in (a, b))
        sections[name] = tuple(_crossed(mine, yours, rng))
    sections["format"] += tuple(text for text in host.clauses if SLOT in text)
    examples = tuple(dict.fromkeys(_crossed(list(a.examples), list(b.examples), rng, inside=False)))
    most = max(len(a.examples), len(b.examples))
    child = Genome(**sections, examples=examples[:most], labels=host.labels)
    child = fit(child, max(a.words, b.words))
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
