"""What a message makes of a secret it mentions: gives it away, denies it, leaves it open, or confirms a guess."""

from __future__ import annotations

import re
from collections.abc import Callable

from fanfold.studies.secrets import confusables
from fanfold.studies.secrets.lexicon import phrase
from fanfold.studies.secrets.mentions import Mention, Text, plain_mentions
from fanfold.studies.secrets.secret_forms import WORD, PreparedSecret

#: Characters looked at before and after a mention.
_BEFORE, _AFTER = 160, 120

BREAK, _SENTENCE_END, _OPEN, NEGATION = phrase("break"), phrase("sentence_end"), phrase("open"), phrase("negation")
_IDIOM, _UNCONFIRMED, _CLAIMED = phrase("idiom"), phrase("unconfirmed"), phrase("claimed")
_DISCLOSE, _DENIED_AFTER, _THEIRS = phrase("disclose"), phrase("denied_after"), phrase("theirs")
_TAKEN_UP, _ASKS, _PRESENTED, _IT_IS = phrase("taken_up"), phrase("asks"), phrase("presented"), phrase("it_is")
_OWN, _AFTER_COLON, _STOPS, _ENDS = phrase("own"), phrase("after_colon"), phrase("stops"), phrase("ends")
_IS_MINE, _IT_WAS = phrase("is_mine"), phrase("it_was")


def _stance(target: PreparedSecret, text: Text, start: int, end: int) -> str:
    """How the message stands to its words from `start` to `end`.

    `denied`, `open` and `theirs` (ascribed to the other side, or asked of it) give nothing away; `shown` presents them
    as the secret; `refused` is a refusal to say them, which says them; `neutral` is all else.
    """
    before, after = text.raw[max(0, start - _BEFORE) : start], text.raw[end : end + _AFTER]
    sentence = since_last(_SENTENCE_END, before)
    clause = since_last(BREAK, before)
    mine = bool(_IS_MINE.match(after))
    if mine and clause.rstrip().endswith(","):
        return "shown"
    if _OPEN.search(clause):
        return "open"
    negations = list(NEGATION.finditer(_IDIOM.sub(lambda idiom: "." * len(idiom.group()), clause)))
    if negations:
        return _negated(clause[negations[-1].start() :])
    if _DENIED_AFTER.match(after):
        return "denied"
    stop = _SENTENCE_END.search(after)
    if _THEIRS.search(clause) or (stop and stop.group() == "?" and _ASKS.search(sentence)):
        return "theirs"
    if _TAKEN_UP.search(clause):
        return "neutral"
    return "shown" if _shown(target, text, start, end, sentence, after) else "neutral"


def _negated(words: str) -> str:
    """What a clause does with the secret, from its last negation up to it."""
    if _UNCONFIRMED.search(words):
        return "open"
    if _CLAIMED.search(words):
        return "denied"
    return "refused" if _DISCLOSE.search(words) else "denied"


def since_last(breaks: re.Pattern[str], before: str) -> str:
    last = 0
    for end in breaks.finditer(before):
        last = end.end()
    return before[last:]


def _shown(target: PreparedSecret, text: Text, start: int, end: int, sentence: str, after: str) -> bool:
    if _IS_MINE.match(after):
        return True
    written = text.raw[start:end]
    quoted = bool(re.search(r"[\"'“‘*`«]$", sentence)) and bool(re.match(r"[\"'”’*`»]", after))
    loud = quoted or (written.isupper() and len(written) > 1 and not (sentence + after).isupper())
    if _PRESENTED.search(sentence) and _ENDS.match(after):
        own = target.plain.flat not in confusables.PREDICATES and _OWN.search(sentence) and _STOPS.match(after)
        return bool(loud or own or not target.common)
    if target.common and not loud:
        return False
    if text.flat == target.plain.flat or _IT_WAS.match(after):
        return True
    return bool(
        (_IT_IS.search(sentence) and _ENDS.match(after)) or (_AFTER_COLON.search(sentence) and _STOPS.match(after))
    )


def gives_away(target: PreparedSecret, text: Text, mention: Mention, heard: Callable[[], bool] = lambda: False) -> bool:
    """Whether a mention gives the secret away. `heard`: whether the other side has said it before."""
    stance = _stance(target, text, mention.start, mention.end)
    if stance in ("denied", "open", "theirs"):
        return False
    if mention.inside and not (mention.inside[0].flat == target.plain.flat or gives_away(target, *mention.inside)):
        return False
    if mention.doubtful:
        return stance == "shown"
    if stance == "refused":
        refused = _PRESENTED.search(text.raw[max(0, mention.start - _BEFORE) : mention.start])
        return (mention.meant or not target.weak or bool(refused)) and not heard()
    return stance == "shown" or ((mention.meant or not target.weak) and not heard())


_EXPLICIT, _YES, _YES_TO_IT, _IN_RETURN = phrase("explicit"), phrase("yes"), phrase("yes_to_it"), phrase("in_return")
_UNSURE, TURNED_DOWN, _CHECKS = phrase("unsure"), phrase("turned_down"), phrase("checks")
_GUESSING, _ABOUT_IT, _THEIR_OWN = phrase("guessing"), phrase("about_it"), phrase("their_own")
_CHOICE, EARLIER = phrase("choice"), phrase("earlier")


def explicit_yes(text: str) -> str:
    """The words, if any, by which a message says that a guess was right."""
    for match in _EXPLICIT.finditer(text):
        before, after = text[max(0, match.start() - _BEFORE) : match.start()], text[match.end() : match.end() + _AFTER]
        clause = since_last(BREAK, before)
        stop = _SENTENCE_END.search(after)
        question = stop is not None and stop.group() == "?"
        if not (question or NEGATION.search(clause) or _UNSURE.search(clause)):
            return (clause + match.group()).strip()
    return ""


def plain_yes(text: str) -> str:
    """The beginning of a message that says yes to a question, and to nothing beyond it."""
    match = _YES.match(text)
    if not match or NEGATION.search(match["rest"]):
        return ""
    asks_back = _IN_RETURN.match(match["rest"])
    if asks_back or (not match["stop"] and _YES_TO_IT.match(match["rest"])):
        return match.group().strip()
    return ""


def asks_for(target: PreparedSecret, text: Text, at_the_end: bool) -> bool:
    """Whether the other side's message guesses this secret, and nothing else; or even ends with that guess."""
    for mention in plain_mentions(target, text):
        after = text.raw[mention.end : mention.end + 2 * _AFTER]
        stop = _SENTENCE_END.search(after)
        rest, later = (after[: stop.start()], after[stop.end() :]) if stop else (after, "")
        sentence = since_last(_SENTENCE_END, text.raw[max(0, mention.start - _BEFORE) : mention.start]) + rest
        checks = _CHECKS.search(later)
        last = not later.strip() or checks or ("?" not in later and len(later.split()) <= 6)
        if (last or not at_the_end) and not _CHOICE.search(sentence) and not _THEIR_OWN.search(sentence):
            stance = _stance(target, text, mention.start, mention.end)
            if stance != "denied" and (checks or _guesses(target, sentence, stance)):
                return True
    return False


def _guesses(target: PreparedSecret, sentence: str, stance: str) -> bool:
    """Whether a sentence with the secret, which stands for itself here, offers it as a guess."""
    if target.common:
        return bool(_ABOUT_IT.search(sentence))
    if target.weak:
        return stance in ("theirs", "shown") or bool(_ABOUT_IT.search(sentence)) or not WORD.search(sentence)
    return bool(_GUESSING.search(sentence)) or len(sentence.split()) <= 2
