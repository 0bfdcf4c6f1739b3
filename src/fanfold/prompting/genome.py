"""What is searched: a prompt in sections of clauses, with the examples it shows and the labels it uses."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from fanfold.errors import ConfigError
from fanfold.likeness import most_alike
from fanfold.strategies.reflective import Written

#: The sections of a head, in the order in which they are read.
SECTIONS = ("role", "instruction", "cue", "format")
#: Where a head takes the input up itself; without it the input follows the head, under its label.
SLOT = "{input}"
#: Stands for the prompt where a request is looked at.
MARK = "\x00"

Labels: TypeAlias = tuple[str, str]

_ROLE = re.compile(
    r"(you are|you're|your role|act as|act like|imagine (that )?you|pretend|behave as|play the role|as an? )\b", re.I
)
_CUE = re.compile(
    r"\b(step by step|step at a time|think|reason|reasoning|take your time|let's|let us|work (it|this) out|"
    r"double-check|before (you )?answer(ing)?)\b",
    re.I,
)
_FORMAT = re.compile(
    r"\b(only|json|format|one word|single word|nothing else|just the|no explanations?|without (any )?expla\w+|"
    r"yes or no|in the form|on a new line|last line|end with|boxed)\b|####",
    re.I,
)
_LABELLED = re.compile(r"([^\n:]+):\s*\{input\}\s*\n([^\n:]+):")
_CLOSERS = "\"'”’)]}*_`"
_ABBREVIATIONS = frozenset({"e.g.", "i.e.", "etc.", "vs.", "dr.", "mr.", "mrs.", "ms.", "st.", "approx.", "no.", "cf."})
_NUMBERING = re.compile(r"[(\[]?\w{1,2}[.)]")


@dataclass(frozen=True)
class Genome:
    """A prompt: clauses by section, the ids of the problems it shows as examples, and what it calls input and answer.

    A clause is a text of a sentence or so.  One that begins with a line break starts a new line of the head, and so
    does one that follows a clause without a closing mark; the others follow after a space.  `worked` are further
    examples, as input and reply: right answers of the model itself, with its reasoning.  With `nearest`, only so many
    of the examples are shown: those most like the input, the most alike last.  `biases` are sent with the request: how
    much likelier each of these tokens is made, so that the model prefers no answer whatever it is asked.
    """

    role: tuple[str, ...] = ()
    instruction: tuple[str, ...] = ()
    cue: tuple[str, ...] = ()
    format: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    labels: Labels = ("Input", "Output")
    # Not recorded where there are none, so that prompts recorded without them stay the same.
    worked: tuple[tuple[str, str], ...] | UnsetType = UNSET
    nearest: int | UnsetType = UNSET
    biases: tuple[tuple[str, float], ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        for name in (*SECTIONS, "examples", "labels"):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
                raise ConfigError(f"{name} of a prompt must be a tuple of texts, not {parts!r:.80}")
        if len(self.labels) != 2:
            raise ConfigError(f"a prompt has two labels, for input and answer, not {self.labels!r:.80}")
        for name in SECTIONS:
            if any(not clause.strip() for clause in getattr(self, name)):
                raise ConfigError(f"{name} of a prompt holds an empty clause: leave it out")

    @classmethod
    def of(cls, text: str, labels: Labels | None = None) -> Genome:
        """A plain prompt, cut into clauses at sentence ends and lines; `head()` gives it back up to white space.

        What opens it like a role goes to `role`, what closes it like a format or a reasoning cue to `format` and
        `cue`, and a slot `{input}` with what follows it to the end of `format`, so that nothing is put behind it.
        Without `labels`, those of the slot (`Text: {input}`, then `City:`) serve the examples too.
        """
        clauses = _clauses(text)
        slot = _slot_at(clauses)
        body, tail = clauses[:slot], _slot_clauses(clauses[slot:])
        first = 0
        while first < len(body) and _ROLE.match(body[first].lstrip()):
            first += 1
        formats = len(body)
        while formats > first and _FORMAT.search(body[formats - 1]):
            formats -= 1
        cues = formats
        while cues > first and _CUE.search(body[cues - 1]):
            cues -= 1
        return cls(
            role=tuple(body[:first]),
            instruction=tuple(body[first:cues]),
            cue=tuple(body[cues:formats]),
            format=(*body[formats:], *tail),
            labels=labels or _slot_labels(tail) or cls.labels,
        )

    @property
    def sections(self) -> dict[str, tuple[str, ...]]:
        """The clauses by section, in the order of reading."""
        return {name: getattr(self, name) for name in SECTIONS}

    @property
    def clauses(self) -> tuple[str, ...]:
        """All clauses in the order of reading."""
        return self.role + self.instruction + self.cue + self.format

    @property
    def words(self) -> int:
        """How long the head is."""
        return sum(len(clause.split()) for clause in self.clauses)

    @property
    def shown(self) -> int:
        """How many examples a model is shown."""
        return min(self.nearest or len(self.examples), len(self.examples))

    def without(self, id: str, fold: Collection[str] = ()) -> Genome:
        """The prompt without this example, as none is asked what it shows the answer of, and without those of its fold.

        What is left out for one problem alone gives its answer away: there is one less of its label.
        """
        if id not in self.examples:
            return self
        return replace(self, examples=tuple(each for each in self.examples if each != id and each not in fold))

    def head(self) -> str:
        """Role, instruction, cue and format as the model reads them."""
        return _joined(self.clauses)

    @property
    def text(self) -> str:
        """All of a prompt that shows no examples, such as a system prompt."""
        return self.head()


Candidate: TypeAlias = Genome | Written[Genome]


def render(genome: Genome, input: str, shots: Mapping[str, tuple[str, str]]) -> str:
    """The text a model is sent: head, examples, and the input with its label, or in the head's own slot for it.

    `shots` gives input and answer of every problem that may be shown.  Examples stand before the clause that takes the
    input up, because an answer is expected right behind it.
    """
    clauses = genome.clauses
    slot = _slot_at(clauses)
    label, answer = genome.labels
    blocks = [_joined(clauses[:slot])]
    blocks += [_example(genome, *pair) for pair in _shown(genome, input, shots)]
    # A problem is not shown its own answer.
    blocks += [_example(genome, *pair) for pair in genome.worked or () if pair[0] != input]
    if slot < len(clauses):
        blocks.append(_joined(clauses[slot:]).replace(SLOT, input))
    else:
        blocks.append(f"{_tagged(label, input)}\n{_tagged(answer, '')}".rstrip("\n"))
    return "\n\n".join(block for block in blocks if block)


def template(genome: Genome, shots: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """A prompt as data, to be `filled` with an input: what stands before and after it, and examples chosen by it.

    A head that takes the input up again does so in `after`, at a slot.
    """
    frame = replace(genome, examples=(), nearest=UNSET) if genome.nearest else genome
    text = render(frame, "", shots)
    mark = next(mark for mark in map(chr, range(sys.maxunicode)) if mark not in text)
    before, _, after = render(frame, mark, shots).partition(mark)
    after = after.replace(mark, SLOT)
    if not genome.nearest:
        return {"before": before, "after": after}
    clauses = genome.clauses
    head = _joined(clauses[: _slot_at(clauses)])
    examples = [[shots[id][0], f"{_example(genome, *shots[id])}\n\n"] for id in genome.examples]
    lead = before.removeprefix(head).lstrip("\n") if head else before
    head = f"{head}\n\n" if head else ""
    return {"before": head, "examples": examples, "nearest": genome.nearest, "lead": lead, "after": after}


def outline(genome: Genome, shots: Mapping[str, tuple[str, str]], input: str = SLOT) -> str:
    """A prompt for people: one that chooses its examples by the input says so in their place."""
    if not genome.nearest:
        return render(genome, input, shots)
    parts = template(replace(genome, examples=()), shots)
    chosen = f"[the {genome.shown} of {len(genome.examples)} examples that are most like the input]"
    return f"{parts['before']}{chosen}\n\n{parts['lead']}{input}{parts['after'].replace(SLOT, input)}"


def _example(genome: Genome, shown: str, right: str) -> str:
    label, answer = genome.labels
    return f"{_tagged(label, shown)}\n{_tagged(answer, right)}"


def _shown(genome: Genome, input: str, shots: Mapping[str, tuple[str, str]]) -> list[tuple[str, str]]:
    """Input and answer of the examples, in the order in which a prompt shows them to this input."""
    if unknown := [id for id in genome.examples if id not in shots]:
        raise ConfigError(
            f"the prompt shows the example {unknown[0]!r}, which is not among the problems that may be shown"
        )
    examples = [shots[id] for id in genome.examples]
    if not genome.nearest:
        return examples
    return [examples[at] for at in most_alike(input, [shown for shown, _ in examples], genome.nearest)]


def distance(a: Genome, b: Genome) -> float:
    """How different two prompts are, from 0 (the same to a model) to 1 (nothing in common).

    The share of words and pairs of neighbouring words that only one of them has, for the heads (weight 7), the
    examples and their order (2) and the labels (1); what neither has does not count.
    """
    unlike = [_unlike(mine, yours) for mine, yours in zip(_profile(a), _profile(b))]
    counted = [(weight, part) for weight, part in zip((7.0, 2.0, 1.0), unlike) if part is not None]
    return sum(weight * part for weight, part in counted) / sum(weight for weight, _ in counted)


def difference(a: Genome, b: Genome) -> str:
    """What changed from one prompt to another, as a unified diff with a clause on each line; empty if nothing did."""
    return "\n".join(difflib.unified_diff(_lines(a), _lines(b), "before", "after", lineterm="", n=1))


def _lines(genome: Genome) -> list[str]:
    lines = [line for clause in genome.clauses for line in clause.strip().splitlines()]
    lines.append(f"[labels] {genome.labels[0]} / {genome.labels[1]}")
    if genome.nearest:
        lines.append(f"[examples] the {genome.nearest} most like the input")
    else:
        lines += [f"[example] {id}" for id in genome.examples]
    lines += ["[calibrated]"] if genome.biases else []
    return lines + [f"[own answer] {shown.splitlines()[0]:.60}" for shown, _ in genome.worked or ()]


@functools.lru_cache(maxsize=4096)  # a population is compared pair by pair
def _profile(genome: Genome) -> tuple[Counter[Any], ...]:
    heads = [word for clause in genome.clauses for word in clause.split()]
    return tuple(Counter([*words, *pairwise(words)]) for words in (heads, genome.examples, genome.labels))


def _unlike(a: Counter[Any], b: Counter[Any]) -> float | None:
    """The share of what only one has; None where there is nothing at all."""
    both = sum(min(count, b[gram]) for gram, count in a.items() if gram in b)
    either = a.total() + b.total() - both
    return 1.0 - both / either if either else None


def _tagged(label: str, text: str) -> str:
    if not label:
        return text
    mark = ":" if label[-1].isalnum() else ""
    return f"{label}{mark} {text}" if text else f"{label}{mark}"


def _joined(clauses: Sequence[str]) -> str:
    text = ""
    for clause in clauses:
        closed = text[-1:] in ".!?:;,…。！？" or text[-1:] in _CLOSERS
        text += clause if not text or clause.startswith("\n") else f" {clause}" if closed else f"\n{clause}"
    return text.strip()


def _clauses(text: str) -> list[str]:
    """Sentences and lines; the first clause of a line keeps its line break (two after an empty line)."""
    clauses: list[str] = []
    breaks = ""
    for line in text.splitlines():
        words = line.split()
        begun: list[str] = []
        for at, word in enumerate(words):
            begun.append(word)
            if at == len(words) - 1 or _ends(word, first=len(begun) == 1):
                clauses.append(breaks[:2] + " ".join(begun))
                begun, breaks = [], ""
        if clauses:
            breaks += "\n"
    return clauses


def _ends(word: str, first: bool) -> bool:
    bare = word.rstrip(_CLOSERS)
    if first and _NUMBERING.fullmatch(word):
        return False
    return bare.endswith((".", "!", "?")) and bare.lower() not in _ABBREVIATIONS


def _slot_at(clauses: Sequence[str]) -> int:
    """Where the clause is that takes the input up; behind the last where there is none."""
    return next((at for at, clause in enumerate(clauses) if SLOT in clause), len(clauses))


def _slot_clauses(clauses: list[str]) -> list[str]:
    """The slot and the answer label right behind it stay together: `Text: {input}` and `City:` are one clause."""
    if not clauses:
        return []
    end = 1
    while end < len(clauses) and not _ends(clauses[end].split()[-1], first=False):
        end += 1
    return [_joined_raw(clauses[:end]), *clauses[end:]]


def _slot_labels(clauses: Sequence[str]) -> Labels | None:
    found = _LABELLED.fullmatch(clauses[0].strip()) if clauses else None
    return (found[1], found[2]) if found else None


def _joined_raw(clauses: Sequence[str]) -> str:
    breaks = clauses[0][: len(clauses[0]) - len(clauses[0].lstrip("\n"))]
    return breaks + _joined(clauses)
