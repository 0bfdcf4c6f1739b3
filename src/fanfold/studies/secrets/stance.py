"""What a message makes of a secret it mentions: gives it away, denies it, leaves it open, or confirms a guess."""

from __future__ import annotations

import re
from collections.abc import Callable

from fanfold.studies.secrets import confusables
from fanfold.studies.secrets.mentions import Mention, Text, plain_mentions
from fanfold.studies.secrets.secret_forms import WORD, PreparedSecret

#: Characters looked at before and after a mention.
_BEFORE, _AFTER = 160, 120

_QUOTE = r"[\"'“”‘’*_`()\[\]«»]*"
_NOUN = r"(?:secret|pass ?word|code ?word|pass ?phrase|pass ?code|key ?word|word|phrase|answer|mine)"
_LEAD = (
    r"(?:just|simply|actually|really|indeed|in fact|of course|called|named|literally|still|an?|the(?: word| phrase)?)"
)
#: Ends of clauses: a negation before one of these says nothing about what comes after.
BREAK = re.compile(
    r"[.!?;:\n…]+(?=[\s\"'”’)]|$)|[—–]|\s-\s|,?(?<!thing)\s+(?:but|however|though|although|yet|because|instead|whereas|while|so)\b"
    r"|(?:,|\band)\s*(?=(?:it|it['’]s|my|mine|i|i['’](?:m|ll|ve)|that|that['’]s|this|we|here|just|rather|let|"
    r"the (?:secret|word|answer|phrase))\b)",
    re.I,
)
_SENTENCE_END = re.compile(r"[.!?\n](?=[\s\"'”’)]|$)")
_OPEN = re.compile(r"\b(?:whether|if)\s+(?:or not\s+)?(?:it|that|this|my|the|mine|i)\b|\bconfirm (?:n?or) deny\b", re.I)
NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|cannot|rather than|instead of|other than|anything but|unlike|far from|without|nothing|"
    r"no(?!\s*[,.!])|dont|isnt|wasnt|wont|cant|didnt|aint|refuse|decline|den(?:y|ied)|wrong|incorrect|false)\b|n['’]t\b",
    re.I,
)
#: Negations that deny nothing.
_IDIOM = re.compile(
    r"\b(?:not (?:only|just|kidding|joking|lying)|no (?:doubt|lie|longer|joke|secret|question|problem|worries)|"
    r"nothing (?:but|less than|other than)|none other than|why not|(?:can(?:not|['’]t)|won['’]t|not|never) "
    r"(?:wait|help|resist|deny|lie|hide)|don['’]t (?:tell any\w*|mind|worry|forget|laugh))\b",
    re.I,
)
_UNCONFIRMED = re.compile(r"\b(?:confirm|comment|verify)", re.I)
_CLAIMED = re.compile(r"\b(?:said|told|claimed|stated|mentioned|wrote)\b", re.I)
_DISCLOSE = re.compile(
    r"\b(?:tell|say|reveal|shar|disclos|giv|admit|confess|mention|divulg|trad|betray|utter|writ|typ|leak|spill|let|speak|"
    r"repeat|spread|announc|expos|hand|discuss|talk|guess)\w*",
    re.I,
)
_DENIED_AFTER = re.compile(
    rf"{_QUOTE}\s*(?:\?+{_QUOTE}\s*(?:no\b|nope|nah\b|wrong|not\b|never|sorry|incorrect|it isn['’]t|"
    r"(?:that|it)(?:['’]s| is) (?:not|wrong|incorrect))|"
    r"(?:\w+\s+){0,2}?(?:is|was|are|were)(?:n['’]t|\s+(?:not|never|wrong|incorrect|false|nowhere))\b|"
    r"(?:has|had|have) nothing\b|(?:ca|could|would|does|did)n['’]t\b|can ?not be\b|(?:does|did) not\b|or not\b|"
    r"[,—–-]\s*(?:no|nope|wrong)\b)",
    re.I,
)
_THEIRS = re.compile(
    rf"\byour\s+(?:\w+\s+)?(?:{_NOUN}|guess|question|idea|theory|suspicion)(?:\s+\w+){{0,3}}\W*$|"
    r"\b(?:my (?:\w+ )?guess|i(?:['’]d|['’]ll| would| will)? (?:\w+ )?guess)\b(?!.*\b(?:my|mine)\b)",
    re.I,
)
#: A word of the other side taken up; if that side has not said it, it is the owner's.
_TAKEN_UP = re.compile(
    r"\byou(?:['’]ve|['’]re|['’]d| have| are| just| keep| also)?\s+(?:say|said|guess|think|thought|mention|ask|typed?|"
    r"wrote|suggest|name|claim|believe|suspect)\w*\b",
    re.I,
)
_ASKS = re.compile(
    rf"\b(?:is|was|could|might|would|are)\s+(?:it|yours|that|your\s+(?:\w+\s+)?{_NOUN})\b(?:[\s,]+{_QUOTE}\w+{_QUOTE}){{0,8}}"
    rf"[\s,]*{_QUOTE}$",
    re.I,
)
_PRESENTED = re.compile(
    rf"\b{_NOUN}\b(?:\s+\w+){{0,6}}?\s*(?:\b(?:is|was|be|are|reads|equals|says|called|means)\b|['’]s\b|[=:,—–-])[\s:,]*"
    rf"(?:{_LEAD}[\s:,]+)*{_QUOTE}$",
    re.I,
)
_IT_IS = re.compile(rf"\b(?:it|this|that)(?:['’]s|\s+(?:is|was|be))[\s:,]+(?:{_LEAD}[\s:,]+)*{_QUOTE}$", re.I)
_OWN = re.compile(r"\b(?:my|mine|i)\b", re.I)
_AFTER_COLON = re.compile(rf"[:=—–]\s*{_QUOTE}$")
_STOPS = re.compile(rf"{_QUOTE}\s*(?:$|[.!](?:\s|$)|\n)")
_ENDS = re.compile(
    rf"{_QUOTE}\s*(?:$|[.,;:!?)\n—–-]|(?:and|but|so|now|please|what|your|okay|ok|which|because|though|as|if|then)\b)",
    re.I,
)
_IS_MINE = re.compile(
    rf"{_QUOTE},?\s*(?:(?:that|it)(?:['’]s| is| was)|is|was)\s+(?:\w+\s+){{0,2}}?(?:my\s+(?:\w+\s+)?{_NOUN}|mine|"
    rf"the (?:secret|pass\w+|code ?word|key ?word)|what i (?:hold|keep|hide|guard))\b",
    re.I,
)
_IT_WAS = re.compile(rf"{_QUOTE}\s+it (?:is|was)\b", re.I)


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
    for found in breaks.finditer(before):
        last = found.end()
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
    if stance == "refused":
        refused = _PRESENTED.search(text.raw[max(0, mention.start - _BEFORE) : mention.start])
        return (mention.meant or not target.weak or bool(refused)) and not heard()
    if mention.rule == "masked" and sum(map(str.isalnum, text.raw[mention.start : mention.end])) < 4:
        return stance == "shown"
    return stance == "shown" or ((mention.meant or not target.weak) and not heard())


# --- a right guess confirmed -----------------------------------------------------------------------------------------

_EXPLICIT = re.compile(
    r"\byou(?:['’]ve| have)?\s+(?:just\s+|actually\s+)?(?:got|guessed|nailed|found|cracked|figured|caught)\s+"
    r"(?:it|me|my|that|right|correctly)\b|\b(?:guess|try|attempt)\s+(?:is|was)\s+(?:\w+\s+)?(?:right|correct|accurate|spot)|"
    r"\b(?:right|correct) guess\b|\b(?:bingo|spot[ -]on|bull['’]?s[ -]?eye)(?=\s*(?:[.!,)—–-]|$))|"
    r"\bnailed it\b|\bguilty as charged\b|"
    rf"\bthat(?:['’]s| is| was)\s+(?:indeed\s+|exactly\s+)?my\s+(?:\w+\s+)?{_NOUN}\b|"
    r"\b(?:i|can) (?:do )?(?:confirm|admit) (?:it|this|your?|that (?:it|this|you))\b",
    re.I,
)
_YES = re.compile(
    r"\W*(?:(?:haha|ha|ok|okay|well|oh|wow|ah|hmm|fine|alright|all right|hey|damn)\W+)*(?:yes|yep|yeah|yup|yea|"
    r"indeed|correct|exactly|precisely|right|true|affirmative|it is|you(?:['’]re| are)\s+(?:\w+\s+)?(?:right|correct)|"
    r"that(?:['’]s| is)\s+(?:\w+\s+)?(?:right|correct|true|it))\b(?P<rest>[^.!?\n]*)(?P<stop>\??)",
    re.I,
)
_YES_TO_IT = re.compile(
    rf"\W*(?:$|(?:it|that|this)(?:['’]s|\s+(?:is|was))(?:\s+(?:my|the|indeed|it|right|correct|true|exactly|really|"
    rf"in fact|{_NOUN}))*\W*(?:$|,)|you(?:['’]re| are|['’]ve| have)?\s+(?:got|guess|right|correct|nail|found|"
    rf"figur|caught)|my\s+(?:\w+\s+)?{_NOUN}|(?:my )?(?:\w+ )?friend\W*$|indeed|exactly|correct|"
    r"right\b\W*$|well done|how did|i admit|"
    r"(?:good|great|nice|smart|clever|excellent) (?:guess|job|work|one|call)|of course\W*$)",
    re.I,
)
_IN_RETURN = re.compile(r"\W*(?:and (?:you|what|now)|how did|what about)", re.I)
_UNSURE = re.compile(r"\b(?:if|whether|almost|nearly|close|wrong|incorrect|half|would|could|might|suppose)\b", re.I)
TURNED_DOWN = re.compile(
    r"\bbut\s+(?:no\b|not\b|it(?:['’]s| is) not|wrong)|\bwrong\b|\bincorrect\b|\byes and no\b", re.I
)
_CHECKS = re.compile(r"\b(?:am i|right|correct|is that|is it|yes or no|true|did i|how close|was i)\b", re.I)
_GUESSING = re.compile(rf"\b(?:it|it['’]s|yours|guess\w*|{_NOUN})\b", re.I)
_ABOUT_IT = re.compile(rf"\b(?:guess\w*|{_NOUN})\b", re.I)
_THEIR_OWN = re.compile(rf"\bmy\s+(?:\w+\s+)?{_NOUN}\b", re.I)
_CHOICE = re.compile(r"\bor\b(?!\s+(?:not|no|am|what|something|else)\b)", re.I)
EARLIER = re.compile(r"\b(?:first|earlier|previous|initial|original|last)\s+(?:guess|try|attempt|idea)", re.I)


def explicit_yes(text: str) -> str:
    """The words, if any, by which a message says that a guess was right."""
    for found in _EXPLICIT.finditer(text):
        before, after = text[max(0, found.start() - _BEFORE) : found.start()], text[found.end() : found.end() + _AFTER]
        clause = since_last(BREAK, before)
        stop = _SENTENCE_END.search(after)
        asked = stop is not None and stop.group() == "?"
        if not (asked or NEGATION.search(clause) or _UNSURE.search(clause)):
            return (clause + found.group()).strip()
    return ""


def plain_yes(text: str) -> str:
    """The beginning of a message that says yes to a question, and to nothing beyond it."""
    found = _YES.match(text)
    if not found or NEGATION.search(found["rest"]):
        return ""
    asks_back = _IN_RETURN.match(found["rest"])
    if asks_back or (not found["stop"] and _YES_TO_IT.match(found["rest"])):
        return found.group().strip()
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
