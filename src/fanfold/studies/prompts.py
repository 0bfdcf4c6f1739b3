"""Evolve a prompt that makes a model name the city in a sentence: a small real task for a small real model.

The candidate decides the instruction, the labels, and which examples are shown in which order; a case is a sentence
whose city is known.  With no key set it runs on the embedded local model.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from fanfold.models import Model, model
from fanfold.schedules import AllCases, Racing
from fanfold.space import Choice, Int, Space
from fanfold.stop import MaxTrials
from fanfold.strategies import Genetic
from fanfold.study import Study
from fanfold.types import Case, Ok

CITIES = (
    "Paris", "Nairobi", "Lima", "Oslo", "Kyoto", "Toronto", "Cairo", "Sydney", "Berlin", "Mumbai",
    "Chicago", "Lisbon", "Havana", "Dublin", "Seoul", "Athens", "Vienna", "Boston", "Prague", "Madrid",
)  # fmt: skip
SENTENCES = (
    "My sister moved to {} last spring to work in a hospital.",
    "After the concert we took the night train back to {}.",
    "The old bridge in {} was closed for repairs until Monday.",
    "He learned to cook from his uncle, who runs a small restaurant in {}.",
    "Heavy rain delayed all flights leaving {} this morning.",
    "They met by chance in {} and wrote letters for years.",
    "The museum in {} shows paintings from the nineteenth century.",
)
EXAMPLES = (
    ("We spent our holidays in Rome, where it was far too hot.", "Rome"),
    ("The mayor of Denver opened the new library yesterday.", "Denver"),
    ("She studied law in Geneva before she became a pilot.", "Geneva"),
    ("Our parcel was sent to Manila by mistake.", "Manila"),
)
INSTRUCTIONS = (
    "",
    "Name the city mentioned in the sentence.",
    "Output only the city.",
    "Read the text and answer with one word: the city.",
    "You are a careful geographer. Find the city.",
    'Answer as JSON: {"city": ...}',
)
SPACE = Space(
    instruction=Choice(INSTRUCTIONS),
    label=Choice(("Sentence", "Text", "Input")),
    answer=Choice(("City", "Answer", "Output")),
    examples=Int(0, 3),
    order=Choice((0, 1, 2, 3)),
)


@dataclass(frozen=True)
class Config:
    """What is searched, and with which model."""

    model: str = field(default="local/smollm2", metadata={"help": "the model, as provider/name"})
    base_url: str | None = field(default=None, metadata={"help": "an OpenAI-compatible server that serves it"})
    trials: int = field(default=24, metadata={"help": "prompts to try"})
    cases: int = field(default=12, metadata={"help": "sentences each prompt is tried on"})
    population: int = field(default=8, metadata={"help": "prompts in a generation"})
    schedule: Literal["all", "racing"] = field(default="racing", metadata={"help": "racing drops the hopeless early"})
    seed: int = field(default=0, metadata={"help": "of the search and the sentences"})


#: Where the search begins: what one would write first, without any example.
FIRST = [
    {"instruction": instruction, "label": label, "answer": "Output", "examples": 0, "order": 0}
    for label in ("Text", "Input")
    for instruction in INSTRUCTIONS
]


def prompt(candidate: dict[str, Any], sentence: str) -> str:
    """The text a candidate makes of a sentence."""
    label, answer = candidate["label"], candidate["answer"]
    turned = EXAMPLES[candidate["order"] :] + EXAMPLES[: candidate["order"]]
    shown = [f"{label}: {text}\n{answer}: {city}" for text, city in turned[: candidate["examples"]]]
    parts = [candidate["instruction"], *shown, f"{label}: {sentence}\n{answer}:"]
    return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Evaluate:
    """Asks the model and compares the first line of its answer with the city."""

    model: str
    base_url: str | None = None

    @functools.cached_property
    def asked(self) -> Model:
        return model(self.model, base_url=self.base_url)

    async def __call__(self, candidate: dict[str, Any], case: Case) -> Ok:
        text = prompt(candidate, case.data["sentence"])
        reply = await self.asked.generate(text, max_tokens=8, temperature=0.0)
        said = (reply.text.strip().splitlines() or [""])[0].strip(" .\"'`*")
        return Ok(float(said.casefold() == case.data["city"].casefold()), data={"said": reply.text})


def study(config: Config) -> Study[dict[str, Any]]:
    """The search that `config` describes."""
    cities = [CITIES[(number * 7 + config.seed) % len(CITIES)] for number in range(config.cases)]
    cases = [
        Case(f"{number}-{city.lower()}", {"sentence": SENTENCES[number % len(SENTENCES)].format(city), "city": city})
        for number, city in enumerate(cities)
    ]
    return Study(
        Genetic(
            SPACE, population=config.population, elites=min(2, config.population - 1), seeds=FIRST[: config.population]
        ),
        Evaluate(config.model, config.base_url),
        cases,
        schedule=Racing(step=4) if config.schedule == "racing" else AllCases(),
        window=4,  # racing compares with what was known when a prompt was asked
        stop=MaxTrials(config.trials),
        seed=config.seed,
        name="prompts",
    )
