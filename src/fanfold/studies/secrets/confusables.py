"""Letters in disguise: which characters, words and codes can stand for letters, and how such a text is read back."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

#: Characters of other scripts that pass for a Latin letter. Capitals are listed apart because case changes the look:
#: a Greek capital Nu is an N, the small one a v.
_LOOKALIKES = {
    "a": "аАɑαΑᴀᎪ⍺",
    "b": "вВЬьʙβΒᏴ฿",
    "c": "сСϲϹᴄᏟ¢",
    "d": "ԁᴅᎠժ",
    "e": "еЕεΕєЄᴇᎬҽ€",
    "f": "ꜰϝƒ",
    "g": "ɡɢԌᏀց",
    "h": "һНнΗʜᎻհ",
    "i": "іІιΙɪıᎥ",
    "j": "јЈʝᴊᎫ",
    "k": "кКκΚᴋᏦ",
    "l": "ӏӀʟᏞ∣ǀ£",
    "m": "мМΜᴍᎷ",
    "n": "пиИηΝɴո",
    "o": "оОοΟσᴏօ",
    "p": "рРρΡᴘᏢ",
    "q": "ԛզ",
    "r": "гяЯʀᎡ",
    "s": "ѕЅꜱᏚ",
    "t": "тТτΤᴛᎢ",
    "u": "υսᴜμ",
    "v": "νѵᴠᏙ",
    "w": "ԝшωᴡᎳ",
    "x": "хХχΧ×",
    "y": "уУүγΥʏ¥",
    "z": "ᴢΖζᏃ",
}
_BRAILLE = "⠁⠃⠉⠙⠑⠋⠛⠓⠊⠚⠅⠇⠍⠝⠕⠏⠟⠗⠎⠞⠥⠧⠺⠭⠽⠵"
#: First code points of alphabets that Unicode's own compatibility mapping leaves alone: flags, white on black, tags.
_ALPHABETS = (0x1F1E6, 0x1F150, 0x1F170, 0xE0061)
LETTERS = "abcdefghijklmnopqrstuvwxyz"

#: Letters turned upside down; the text is then read from its end.
FLIPPED = str.maketrans("ɐɔǝɟƃᵷɥᴉɾʞןɯɹʇʌʍʎnubqdp", "acefgghijklmrtvwyunqbpd")
FLIPPED_ONLY = frozenset("ɐɔǝɟƃᵷɥᴉɾʞןɯɹʇʌʍʎ")

#: Digits and signs that stand for a letter.
LEET = {"a": "4@", "b": "8", "e": "3", "g": "96", "i": "1!|", "l": "1|!", "o": "0", "s": "5$", "t": "7+", "z": "2"}
#: Leet and plain text brought to one form without signs, to see cheaply whether the exact pattern is worth trying.
CANON = str.maketrans(
    {
        **dict.fromkeys(chr(code) for code in range(128) if not chr(code).isalnum()),
        **{sign: letter for letter, signs in LEET.items() for sign in signs},
        **dict.fromkeys("1!|l", "i"),
    }
)

_MORSE = (
    "a.- b-... c-.-. d-.. e. f..-. g--. h.... i.. j.--- k-.- l.-.. m-- n-. o--- p.--. q--.- r.-. s... t- u..- v...- "
    "w.-- x-..- y-.-- z--.. 0----- 1.---- 2..--- 3...-- 4....- 5..... 6-.... 7--... 8---.. 9----."
)
MORSE = {entry[1:]: entry[0] for entry in _MORSE.split()}
_NATO = (
    "alpha alfa bravo charlie delta echo foxtrot golf hotel india juliet juliett kilo lima mike november oscar papa "
    "quebec romeo sierra tango uniform victor whiskey whisky xray yankee zulu"
)
NATO = {word: word[0] for word in _NATO.split()}
_DIGITS = "zero one two three four five six seven eight nine"
DIGITS = {word: str(number) for number, word in enumerate(_DIGITS.split())}
#: The words that stand for a letter or a digit.
SPOKEN = {
    char: [word for word, stands in (NATO | DIGITS).items() if stands == char] for char in (NATO | DIGITS).values()
}

_COMMON = """
a able about above across act action actually add after again against agent ago agree agreed agreement all allow
almost alone along already also although always am among an and another answer any anyone anything are around as ask
asked at away back bad balance base be because become been before begin behind being believe best better between big
bit both break bring but buy by call came can cannot care careful carefully case catch certain chance change choice
choose clear clever close clue code collect collected come comes common complete confirm conversation cool correct
could couple course cut date day deal dear decide deny did different do does doing done down each early easy else end
ends enough even ever every everyone everything exact exactly example exchange fact fair far fast feel few final find
fine first five follow for forward four free friend friends from full fun further future game gave get gets getting
give given gives go god goes going gone good got great group guess guesses had half hand happy hard has have he head
hear heard hello help her here hi high him hint hints his hold hope how however i idea if important in indeed inside
instead interest interested into is issue it its just keep kind knew know known last late later lead learn least leave
left less let letter letters level lie like likely line list little live long look lose lost lot made main make makes
man many matter may maybe me mean means message messages might mind mine minute missing moment more most move much
must mutual my name near need never new news next nice night no nobody none nor not note nothing now number of off
offer offers often ok okay old on once one ones only open opinion option or other others our out over own pair part
party pass password patient people person phrase piece place plan play player players please point points possible
power prefer present problem promise proof prove put question questions quick quite ran rather read ready real really
reason refuse remember reply rest resume return reveal right risk round rule rules run safe said same save saw say
saying says score second secret secrets see seem send sense set several share shared sharing she short should show
side sign simple since six small so some someone something soon sorry sound sounds start started state stay step still
stop story strategy such sure take taken talk team tell ten test than thank thanks that the their them then there
these they thing things think third this those thought three through time times to today together told too took top
total toward trade trading true trust truth try turn turns two type under understand until up upon us use used value
very wait want wants was way ways we well went were what when where whether which while who whole whose why will win
winner with within without won wonder word words work world worth would write wrong yeah year years yes yet you your
yours
"""
#: Thumbs up, a wave, smiles, a handshake and the like.
_GESTURES = (
    "\U0001f44d\U0001f44b\U0001f642\U0001f600\U0001f60a\U0001f609\U0001f604"
    "\U0001f602\U0001f91d\U0001f389\U00002705\U0001f512\U0001f92b\U0001f914"
)
#: Words that turn up in any conversation about trading secrets. As a secret, such a word shows only in a revealing
#: place; as a part of a split word, it proves nothing.
COMMON = frozenset([*_COMMON.split(), *_GESTURES])
_PREDICATES = """
able bad big clear clever close common complete correct cool different easy exact fair far final fine free full fun
good gone great hard here high important interesting known last long lost mine missing near new nice not now off old
on out over own possible ready real right safe same secret short simple small still sure there true up very well worth
wrong yours
"""
#: Of those, the ones that "my secret is ..." precedes in innocence.
PREDICATES = frozenset(_PREDICATES.split())

_EVERYDAY = """
air animal arm art baby ball bank bar bear bed bell bird blood blue board boat body book bottle bowl box boy bread
bridge brother building burn bus business camp car card castle chair child children church city class clock cloud coat
coffee cold color colour computer cook corner country cow cup dance dark dinner doctor door draw dream dress drink
drive drop ear earth egg evening eye eyes face fall family farm father field fight fire fish floor flower fly food
foot forest form glass gold grass green ground hair hat heart hill history home horse hour house ice island job king
kitchen lady lake land law leaf leg lemon light lunch machine map mark market meal meat milk mirror money month moon
morning mother mountain mouth music needle nose nothing ocean office page paint paper park pen picture plant pool pot
price queen rain record red rest ring river road rock roll roof room rose sand school sea season seat sense shape
sheet ship shirt shoe shop shot silver sister skin sky sleep snow soap song space spot spring square stage star
station stick stone store storm street string summer sun swim table tail tea tool tooth town toy train tree trip truck
voice walk wall war watch water wave weather week white wife wild wind window winter wolf woman wood yard yellow
"""
#: Things that everybody mentions. As a secret of one word, they are weak, too.
EVERYDAY = frozenset(_EVERYDAY.split())
_ANADROMES = """
animal decaf deer deliver denim desserts devil diaper dog doom draw drawer edam edit emit evil faced flow god gulp
gums guns keel keels keep knits lager lamina leek leper lever liar lived loop loot looter loots maps meet mined mood
moor namer nametag naps nuts pals pans part parts peek peels pets pins plug pool pools pots rail ram rats raw redraw
reed regal regas repaid repel retool revel reviled reward rood room saw slap sleek sleep sloop smart smug snap snip
snoops snug spam span speed spoons spot star step stink stool stop strap straw stressed strop stun tide time tool tops
tram trams trap tuba warder warts was wolf yam
"""
#: Words that are other words backwards.
ANADROMES = frozenset(_ANADROMES.split())

_MARKS = ((0x300, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE00, 0xFE0F), (0xFE20, 0xFE2F))
_QUOTES = dict(zip("’‘ʼ´“”«»„‐‑", '\'\'\'\'"""""--'))
_FILLERS = "\u034f\u115f\u1160\u3164\uffa0"
_MOST_KEPT = 20_000


class Folding(dict[int, str]):
    """A table for `str.translate`: every character to its plain form (compatible, caseless, without accents).

    What cannot be seen becomes nothing. One character is folded without regard to its neighbours, so that a place in
    the folded text leads back to a place in the original.
    """

    def __init__(self, lookalikes: Mapping[str, str]) -> None:
        super().__init__({ord(char): plain for char, plain in {**_QUOTES, **lookalikes}.items()})

    def __missing__(self, code: int) -> str:
        plain = _plain(chr(code))
        if len(self) < _MOST_KEPT:
            self[code] = plain
        return plain


def _plain(char: str) -> str:
    if unicodedata.category(char) == "Cf" or char in _FILLERS or _is_mark(char):
        return ""
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", char).casefold())
    return unicodedata.normalize("NFC", "".join(part for part in parts if not _is_mark(part))).casefold()


def _is_mark(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _MARKS) or 0xE0100 <= ord(char) <= 0xE01EF


def _lookalikes() -> dict[str, str]:
    table = {char: letter for letter, chars in _LOOKALIKES.items() for char in chars}
    table.update(zip(_BRAILLE, LETTERS))
    for first in _ALPHABETS:
        table.update({chr(first + i): letter for i, letter in enumerate(LETTERS)})
    return table


FOLD = Folding({})
SKELETON = Folding(_lookalikes())
#: The characters that only look like a Latin letter.
ALIKE = frozenset(_lookalikes())


class Decoded(NamedTuple):
    """A piece of a text, from `start` to `end`, that says `text` to whoever decodes it by `rule`."""

    rule: str
    start: int
    end: int
    text: str


# Tokens start only at an edge and every repetition is of disjoint characters: linear on any input. The look back
# stands behind the first character, so that the search jumps from one possible first character to the next.
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z]?[a-z]*[A-Z0-9+/])[A-Za-z0-9+/_-]{4,}={0,6}")
_HEX = re.compile(
    r"[0-9c-fC-F\\%#=uU](?<![0-9A-Za-z].)(?:(?<=0)x|(?<=\\)x|(?<=[uU])\+)?(?:(?<=[0-9c-fC-F])|[0-9a-fA-F])[0-9a-fA-F]"
    r"(?:[\s:,;_-]{0,2}(?:0x|\\x|%|#|=|[uU]\+)?[0-9a-fA-F]{2})+(?![0-9A-Za-z])"
)
_BINARY = re.compile(r"[01](?<![0-9A-Za-z].)[01]{6,}(?:[\s,_-]{1,2}[01]{7,8})*(?![0-9A-Za-z])")
_NUMBERS = re.compile(r"[0-9](?<![0-9].)[0-9]{0,2}(?:[\s,.;:/|+-]{1,3}[0-9]{1,3}){2,}(?![0-9])")
_ODD = re.compile(r"[0-9%&\\]")
_DIGIT = re.compile("[0-9]")
_DOTS = re.compile(r"[.·•∙_−–—-]{1,6}(?:[ \t\n/|,]{1,4}[.·•∙_−–—-]{1,6})+")
_RARE_DASH = re.compile("[−–—_]")
_DASHES = str.maketrans("·•∙_−–—", "...----")
_BACKSLASH = re.compile(r"\\(?:u\{?([0-9a-fA-F]{4})\}?|x([0-9a-fA-F]{2})|([0-7]{3}))")


def decoded(text: str) -> Iterator[Decoded]:
    """Everything in `text` that may be a code, decoded once; each piece is no longer than what it was made of."""
    yield from _tokens(text)
    if "-" in text or _RARE_DASH.search(text):
        yield from _morse(text)
    if len(_DIGIT.findall(text)) > 2:
        yield from _numeric(text)


def _numeric(text: str) -> Iterator[Decoded]:
    for found in _HEX.finditer(text):
        digits = re.sub(r"0x|u\+|[^0-9a-f]", "", found.group().lower())
        yield Decoded("hex", *found.span(), _utf8(bytes.fromhex(digits[: len(digits) // 2 * 2])))
    for found in _BINARY.finditer(text):
        for width in ("8", "7", "7,8"):
            bits = re.findall(rf"[01]{{{width}}}", found.group())
            yield Decoded("codes", *found.span(), "".join(chr(int(bit, 2)) for bit in bits))
    for found in _NUMBERS.finditer(text):
        numbers = [int(number) for number in re.findall(r"\d+", found.group())]
        yield Decoded("codes", *found.span(), "".join(chr(n) if n > 31 else " " for n in numbers))
        yield Decoded("codes", *found.span(), "".join(LETTERS[n - 1] if 1 <= n <= 26 else " " for n in numbers))


def _morse(text: str) -> Iterator[Decoded]:
    for found in _DOTS.finditer(text):
        signs = re.split(r"([/|\n]|[ \t]{3,})|[ \t,]+", found.group().translate(_DASHES))
        yield Decoded("morse", *found.span(), "".join(" " if "/" in s else MORSE.get(s, " ") for s in signs if s))


def _tokens(text: str) -> Iterator[Decoded]:
    """Words that are no words: base64 and escapes. Wrapped base64 is also read as one."""
    pieces: list[Decoded] = []
    at = 0
    words = [word for word in text.split() if len(word) > 3 and not (word.islower() and word.isalpha())]
    for token in filter(_is_odd, words):
        at = text.index(token, at)
        found = [(each, _debase(each.group().rstrip("="))) for each in _BASE64.finditer(token)]
        pieces += [Decoded("base64", at + each.start(), at + each.end(), plain) for each, plain in found if plain]
        if "%" in token or "&" in token or "\\" in token:
            yield from _escaped(token, at)
        at += len(token)
    yield from pieces
    if len(pieces) > 1:
        yield Decoded("base64", pieces[0].start, pieces[-1].end, "".join(piece.text for piece in pieces))


def _is_odd(token: str) -> bool:
    tail = token[1:]
    return not tail.islower() or (not tail.isalpha() and _ODD.search(token) is not None)


def _debase(token: str) -> str:
    try:
        if token.isupper() and not re.search("[0189+/_-]", token):
            plain = _utf8(base64.b32decode(token + "=" * (-len(token) % 8)))
            if plain:
                return plain
        return _utf8(base64.urlsafe_b64decode(token.replace("+", "-").replace("/", "_") + "=" * (-len(token) % 4)))
    except binascii.Error:
        return ""


def _escaped(token: str, at: int) -> Iterator[Decoded]:
    plain = _BACKSLASH.sub(lambda code: chr(int(code[1] or code[2] or code[3], 8 if code[3] else 16)), token)
    plain = unquote(html.unescape(plain))
    if plain != token:
        yield Decoded("escaped", at, at + len(token), plain)


def _utf8(data: bytes) -> str:
    try:
        return data.decode().replace("\0", "")
    except UnicodeDecodeError:
        return ""


def shifted(text: str, by: int) -> str:
    """`text` with each Latin letter moved `by` places along the alphabet."""
    return text.translate(str.maketrans(LETTERS, LETTERS[by % 26 :] + LETTERS[: by % 26]))


def mirrored(text: str) -> str:
    """`text` with a for z, b for y and so on."""
    return text.translate(str.maketrans(LETTERS, LETTERS[::-1]))
