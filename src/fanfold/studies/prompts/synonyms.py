"""Words of prompts and instructions that can stand for each other, by the place where they stand.

One group per line: its entries mean the same and fit the same grammar, so exchanging them leaves a sentence a sentence.
An entry belongs to one group of its kind only, so that a long chain of exchanges never leaves the meaning it began
with.  Words that name the answers of common tasks (yes, no, true, positive, negative) are left out on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Said of an order or an infinitive: at the start of a clause, after "to", "and", "please" and the like.
VERBS = """
answer with / reply with / respond with
answer in / reply in / respond in
answer only / reply only / respond only
answer as / reply as / respond as
name / identify / state
give / provide / supply
give me / tell me
output / print / return
find / determine / establish
read / go through / read through
check / verify / double-check
think / reason
think about / reflect on / consider
solve / work out / figure out
explain / clarify / spell out
show / present / lay out
choose / select / pick
use / employ / make use of
ignore / disregard / pay no attention to
list / enumerate / itemise
calculate / compute
estimate / approximate
classify / categorise / label
decide whether / determine whether / judge whether
extract / pull out / take out
rewrite / rephrase / reword
summarise / sum up / condense
complete / finish
start with / begin with / open with
start by / begin by
end with / close with / conclude with
make sure that / ensure that / see to it that
make sure to / be sure to / take care to
follow / stick to / keep to
remember that / keep in mind that / bear in mind that
help / assist
describe / portray / depict
write down / note down / put down
focus on / concentrate on / pay attention to
point out / indicate
look for / search for
assume / suppose
understand / grasp / comprehend
limit / restrict / confine
repeat / restate
act as / play the role of / take the role of
convert / transform
count / tally
sort / order / arrange
delete / remove
notice / spot / detect
evaluate / assess / appraise
review / examine / inspect
analyse / study / look into
confirm / validate
justify / defend
plan / map out / outline
break down / take apart
split / divide
imagine / picture
avoid / stay away from
"""

NOUNS = """
answer / reply / response
answers / replies / responses
question / query
questions / queries
text / passage
problem / exercise
problems / exercises
task / job / assignment
step / stage
steps / stages
result / outcome
results / outcomes
example / instance
examples / instances
instructions / directions
rules / requirements
explanation / clarification
reasoning / thinking / thought process
details / particulars
mistake / error
mistakes / errors
expert / specialist / professional
assistant / helper / aide
teacher / tutor / instructor
approach / method / technique
approaches / methods / techniques
part / portion
parts / portions
topic / subject / theme
category / class
categories / classes
sentiment / feeling / mood
opinion / view
format / layout
goal / aim / objective
context / background
summary / overview / digest
option / choice / alternative
options / choices / alternatives
calculation / computation
calculations / computations
conclusion / verdict
hint / clue
hints / clues
difference / distinction
commentary / remarks / comments
expertise / know-how
"""

ADJECTIVES = """
short / brief / concise
clear / lucid / unambiguous
careful / attentive / diligent
correct / accurate
exact / precise
final / concluding
complete / full / entire
simple / easy / straightforward
helpful / useful
important / essential / vital
relevant / pertinent
logical / rational
detailed / thorough / in-depth
experienced / skilled / seasoned
great / excellent / outstanding
given / provided
necessary / needed / required
additional / extra / further
wrong / incorrect / mistaken
different / distinct
difficult / tricky
smart / clever / bright
honest / truthful / sincere
polite / courteous
friendly / warm
reliable / trustworthy / dependable
main / principal / chief
quick / rapid
neutral / impartial / unbiased
numeric / numerical
informal / casual
unnecessary / needless / superfluous
"""

OTHERS = """
carefully / closely / attentively
only the / just the
only a / just a
only one / just one
with only / with just
exactly / precisely
briefly / concisely
clearly / plainly
quickly / rapidly / swiftly
correctly / accurately
finally / lastly / in the end
thoroughly / in depth / in detail
step by step / one step at a time / stage by stage
logically / rationally
systematically / methodically
entirely / completely / fully
mainly / chiefly / mostly
usually / normally / typically
often / frequently
immediately / right away / at once
independently / on your own / by yourself
politely / courteously
therefore / thus / hence
please / kindly
for example / for instance
in order to / so as to
instead of / rather than
based on / on the basis of
at least / no less than
at most / no more than
if needed / if necessary / where needed
mentioned / referred to
let's / let us
do not / don't
cannot / can't
without any / with no
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What may be put before a verb to make it more careful or more exact, one at a time.
MODIFIERS = ("carefully", "briefly", "clearly", "exactly", "first", "always", "simply", "directly", "please")
#: What a sentence can do without.
FILLERS = _words("""
please kindly very really quite just simply basically actually also carefully closely always clearly now
the a an that so then well
""")
#: What a sentence must not lose, or it says the opposite.
KEPT = _words("not no never none nor neither don't do cannot can't without unless except only if either or")

#: After one of these stands a verb; at the start of a clause too.
_BEFORE_VERBS = _words("""
to us and then please kindly must should will can always never first not don't let's now also just simply only
carefully closely briefly clearly directly exactly
""")
#: After one of these a noun of the table is as likely a verb: "you answer", "that answers".
_DOUBTFUL = _words("you i we they he she it who that which")
#: What takes "a" although it begins with a vowel, and "an" although it does not, by their first letters.
_A = ("one", "uni", "use", "usu", "eu")
_AN = ("hour", "honest", "honour", "heir")


def _table(*kinds: str) -> Mapping[tuple[str, ...], tuple[str, ...]]:
    """Every entry, as its words, with the others of its group."""
    table: dict[tuple[str, ...], tuple[str, ...]] = {}
    for line in "\n".join(kinds).split("\n"):
        group = [entry.strip() for entry in line.split("/") if entry.strip()]
        for entry in group:
            key = tuple(entry.split())
            if key in table:
                raise ValueError(f"{entry!r} is in two groups of synonyms: {line!r}")
            table[key] = tuple(other for other in group if other != entry)
    return table


_VERBS = _table(VERBS)
_NAMES = _table(NOUNS, ADJECTIVES)
_OTHERS = _table(OTHERS)
#: The longest entry in words.
LONGEST = max(len(key) for table in (_VERBS, _NAMES, _OTHERS) for key in table)
#: The words with which an order can open.
ORDERS = frozenset(key[0] for key in _VERBS)


def synonyms(words: tuple[str, ...], before: str | None) -> tuple[str, ...]:
    """What can stand for these words (in lower case) after the word `before`, None at the start of a clause.

    The same word can be a verb and a noun ("answer with", "the answer"), and only its place tells which; where the
    place does not tell, nothing can stand for it.
    """
    if words in _OTHERS:
        return _OTHERS[words]
    if opens_verb(before):
        return _VERBS.get(words, ())
    return () if before in _DOUBTFUL else _NAMES.get(words, ())


def opens_verb(before: str | None) -> bool:
    """Whether a verb is due after this word (in lower case), None at the start of a clause."""
    return before is None or before in _BEFORE_VERBS


def article(word: str) -> str:
    """`a` or `an`, whichever goes before the word."""
    word = word.lower()
    if word.startswith(_AN):
        return "an"
    return "an" if word.startswith(tuple("aeiou")) and not word.startswith(_A) else "a"
