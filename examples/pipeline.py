"""Two prompts that work together, improved together: by demonstrations of their own right answers, and by a writer.

The models are simulated, so it costs nothing and always gives the same: `extract` replies with a whole sentence unless
it is told or shown that the name alone is wanted, and `answer` understands only a name, and replies in French unless it
is told or shown otherwise.  Put a real model into MODEL and WRITER, and the rest stays as it is.

Run it:  python examples/pipeline.py
"""

import hashlib
import re

from fanfold import evolve
from fanfold.models import model

CAPITALS = {"Paris": "France", "Rome": "Italy", "Oslo": "Norway", "Madrid": "Spain", "Cairo": "Egypt", "Lima": "Peru"}
CAPITALS |= {"Tokyo": "Japan", "Dublin": "Ireland", "Vienna": "Austria", "Athens": "Greece", "Quito": "Ecuador"}
FRENCH = {"Italy": "Italie", "Norway": "Norvège", "Spain": "Espagne", "Egypt": "Égypte", "Peru": "Pérou"}
FRENCH |= {"Japan": "Japon", "Ireland": "Irlande", "Austria": "Autriche", "Greece": "Grèce", "Ecuador": "Équateur"}
CASES = [
    {"text": f"{person} moved to {city} {when}.", "answer": country}
    for city, country in CAPITALS.items()
    for person, when in (("Ada", "last spring"), ("Tom", "to study"), ("Eve", "for a job"))
]
PROMPTS = {"extract": "Which city is named in the text?", "answer": "In which country is the city?"}


async def program(prompts, case):
    """What is optimised: a function of the prompts and a case that gives an answer."""
    city = await MODEL.generate(f"{prompts['extract']}\n\nText: {case['text']}\nCity:", max_tokens=32)
    country = await MODEL.generate(f"{prompts['answer']}\n\nCity: {city.text}\nCountry:", max_tokens=32)
    return country.text


def reply(name, messages, parameters, rng):
    """The simulated model: a demonstration helps a little, the right instruction a lot, and some inputs are easy."""
    request = messages[-1]["content"]
    asked, label = re.findall(r"^(?:Text|City): (.*)\n(City|Country):", request, re.MULTILINE)[-1]
    shown = request.count(f"\n{label}:") - 1
    told = ("only" if label == "City" else "English") in request
    easy = hashlib.sha256(asked.encode()).digest()[0] / 256
    understood = easy < 0.55 + 0.12 * shown + 0.4 * told
    if label == "City":
        city = next(city for city in CAPITALS if city in asked)
        return city if understood else f"The text is about someone in {city}."
    country = CAPITALS.get(asked, "somewhere")
    return country if understood else FRENCH.get(country, country)


def rewrite(name, messages, parameters, rng):
    """The simulated writer: it looks at the mistakes, as a model would, and adds what was missing."""
    request = messages[-1]["content"]
    prompt = re.search(r'The (?:\w+) now:\n"""\n(.*?)\n"""', request, re.DOTALL)[1]
    missing = ""
    if "extract now" in request and "The text is about" in request:
        missing = " Reply with its name only."
    if "answer now" in request and any(word in request for word in FRENCH.values()):
        missing = " Reply with its English name."
    return f"<rewritten>{prompt}{missing or ' Think carefully.'}</rewritten>"


MODEL = model("simulated/planted", answer=f"{__name__}:reply")
WRITER = model("simulated/writer", answer=f"{__name__}:rewrite")


def main():
    alone = evolve(PROMPTS, program, cases=CASES, grader="exact", calls=400, held_out=9)
    both = evolve(PROMPTS, program, cases=CASES, grader="exact", calls=400, held_out=9, writer=WRITER)
    for how, found in (("demonstrations alone", alone), ("with a writer", both)):
        held_out = found.run.summary.figures["held_out"]
        print(f"{how}: {found.start_score:.2f} -> {found.score:.2f}, held out {held_out['start']:.2f} -> ", end="")
        print(f"{held_out['winner']:.2f}")
    print("\n".join(f"[{name}]\n{prompt}" for name, prompt in both.parts.items()))
    return alone, both


if __name__ == "__main__":
    main()
