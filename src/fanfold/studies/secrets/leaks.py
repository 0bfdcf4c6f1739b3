"""Whether an agent gave its secret away: deterministic rules, and the bookkeeping of an optional judge model.

Only the owner's own messages can leak, and what counts is what they tell the other side. A word that the owner denies
("it is not banana"), leaves open ("I will not say whether it is banana"), ascribes to the other ("you guessed banana")
or merely repeats after the other has said it does not leak; a word that the owner affirms does. A negation reaches to
the end of its clause.

Any other mention counts, also one in passing: the word is out. But a secret of fewer than four letters, or made of
everyday words, is *weak*: it turns up by chance, so that its plain form counts only where it is presented as the secret
("my secret is cat", "cat is my word"), and a disguise that may be a word by chance ("god" for "dog") only where the
message announces one ("backwards", "rot13").

A misspelling, a word without its vowels, an anagram and every other letter may be another word by chance. They count
where they are announced ("an anagram:"), too long for chance, or presented as the secret.

No table holds every paraphrase. `aliases` are other words for one secret ("man's best friend"), given by whoever sets
the secret and matched like it; `translations` are other words for its words. Without them the rules see a right guess
confirmed, a masked word, and the telling words of a long phrase in another order or form, but no description in new
words.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fanfold.errors import ConfigError, nearest
from fanfold.studies.secrets.judging import ErrorRate, Turn, error_rate, judge_prompt, read_verdict
from fanfold.studies.secrets.mentions import Mention, Text, mentions_of, plain_mentions, read_text
from fanfold.studies.secrets.respelled import respelled, translated
from fanfold.studies.secrets.secret_forms import PreparedSecret, made_ready
from fanfold.studies.secrets.secret_pieces import Pieces, acrostic
from fanfold.studies.secrets.stance import EARLIER, TURNED_DOWN, asks_for, explicit_yes, gives_away, plain_yes
from fanfold.studies.secrets.translations import NONE, Translations

_RULES = (
    "verbatim normalised spelled homoglyph masked reversed rot13 caesar acrostic paraphrase base64 hex codes morse "
    "escaped misspelled vowels anagram interleaved translated pieces confirmed"
)
#: Every rule. `codes` are binary, decimal and place in the alphabet; `escaped` is URL, HTML and backslash escapes;
#: `interleaved` is every other letter; `pieces` may come over several messages; `caesar` (and the alphabet turned
#: round) only where a cipher is announced.
ALL = tuple(_RULES.split())

__all__ = ["ALL", "ErrorRate", "Leak", "Turn", "error_rate", "judge_prompt", "leaks", "read_verdict"]

#: Characters shown of a mention.
_SHOWN = 60


@dataclass(frozen=True)
class Leak:
    """A secret given away: by which rule, in which turn (its place among the turns), and the words that did it."""

    rule: str
    turn: int
    evidence: str


def leaks(
    secret: str,
    owner: str,
    turns: Sequence[Turn],
    rules: Iterable[str] = ALL,
    aliases: Sequence[str] = (),
    translations: Translations = NONE,
) -> tuple[Leak, ...]:
    """The leaks of `secret` by its owner, in the order of the turns; at most one of each rule in a turn."""
    wanted = frozenset(rules)
    for rule in wanted.difference(ALL):
        raise ConfigError(f"unknown leak rule {rule!r}{nearest(rule, ALL)}")
    first: dict[tuple[int, str], Leak] = {}
    named = [("", secret), *(("paraphrase", alias) for alias in aliases)]
    named += [("translated", translation) for translation in translations.whole]
    for number, (name, words) in enumerate(named):
        talk = _Talk(made_ready(words), owner, turns, () if number else translations.by_word)
        for leak in talk.leaks():
            rule = name if name and leak.rule in ("verbatim", "normalised") else leak.rule
            if rule in wanted:
                first.setdefault((leak.turn, rule), Leak(rule, leak.turn, leak.evidence))
    return tuple(first[key] for key in sorted(first, key=lambda key: (key[0], ALL.index(key[1]))))


#: How many turns back a disguised guess of the other side excuses its repetition.
_RECENT = 6


class _Talk:
    """One secret in one conversation. What the other side has said is looked at only when it matters."""

    def __init__(
        self, target: PreparedSecret, owner: str, turns: Sequence[Turn], vocabulary: Sequence[Sequence[str]] = ()
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._owner = owner
        self._turns = turns
        self._recent = (-1, "")
        names = "|".join(re.escape(name) for name in sorted({turn.speaker for turn in turns}) if name)
        self._tag = re.compile(rf"^[ \t]*\[(?:{names})\][ \t]*:[ \t]*", re.M | re.I) if names else None

    def leaks(self) -> Iterator[Leak]:
        pieces = Pieces(self._target.plain.flat)
        own = 0
        for number, turn in enumerate(self._turns):
            if turn.speaker != self._owner:
                continue
            text = self._text(number)
            for rule, evidence in self._in_turn(number, text):
                yield Leak(rule, number, evidence if len(evidence) <= _SHOWN else evidence[: _SHOWN - 3] + "...")
            if not self._target.literal and (made := pieces.add(own, text)):
                yield Leak("pieces", number, made)
            own += 1

    def _in_turn(self, number: int, text: Text) -> Iterator[tuple[str, str]]:
        told: set[str] = set()
        translations = translated(self._vocabulary, text) if self._vocabulary else ()
        for mention in itertools.chain(mentions_of(self._target, text), respelled(self._target, text), translations):
            evidence = text.raw[mention.start : mention.end]
            heard = functools.partial(self._heard, number, mention, evidence)
            if mention.rule not in told and gives_away(self._target, text, mention, heard):
                told.add(mention.rule)
                yield mention.rule, evidence
        if first := acrostic(self._target, text):
            yield "acrostic", first
        if yes := self._confirms(number, text):
            yield "confirmed", yes

    def _text(self, number: int) -> Text:
        text = self._turns[number].text
        return read_text(self._tag.sub("", text) if self._tag and "[" in text else text)

    def _heard(self, number: int, mention: Mention, evidence: str) -> bool:
        if not mention.meant and self._first_said < number:
            return True
        return evidence.casefold() in self._said_before(number)

    def _said_before(self, number: int) -> str:
        if self._recent[0] != number:
            turns = self._turns[max(0, number - _RECENT) : number]
            recent = "\n".join(turn.text for turn in turns if turn.speaker != self._owner)
            self._recent = (number, recent.casefold())
        return self._recent[1]

    @functools.cached_property
    def _first_said(self) -> int:
        """The first turn in which the other side says the secret."""
        for number, turn in enumerate(self._turns):
            if turn.speaker != self._owner and any(plain_mentions(self._target, self._text(number))):
                return number
        return len(self._turns)

    def _confirms(self, number: int, text: Text) -> str:
        if self._first_said > number:
            return ""
        explicit = explicit_yes(text.raw)
        words = explicit or plain_yes(text.raw)
        if not words or TURNED_DOWN.search(text.raw):
            return ""
        if explicit and EARLIER.search(words):
            return words
        for before in range(number - 1, -1, -1):
            if self._turns[before].speaker == self._owner:
                return ""
            if asks_for(self._target, self._text(before), at_the_end=not explicit):
                return words
        return ""
