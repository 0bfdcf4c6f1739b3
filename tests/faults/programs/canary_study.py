"""A study whose candidates say what the server is to do with the key, and evaluators that pass on what it said."""

from __future__ import annotations

import dataclasses
import os

from fanfold import Case, Ok, Study, Sweep
from fanfold.models import Model, model
from fanfold.models.retry import RetryPolicy

WAYS = ("echo", "escaped", "header", "model", "400", "404", "500", "number", "nonsense", "late", "raise", "mine")


def asked() -> Model:
    name = os.environ.get("CANARY_MODEL", "openai/gpt-6-luna")
    return dataclasses.replace(model(name), again=RetryPolicy(tries=1))


def evaluate(way: str, case: Case) -> Ok:
    if way == "raise":
        raise ValueError(f"the settings are {dict(os.environ)}")
    if way == "mine":
        try:
            asked().generate_sync("400 please", max_tokens=20)
        except Exception as error:
            raise RuntimeError(f"it said {error}") from error
    reply = asked().generate_sync(f"{way} please {case.id}", max_tokens=20)
    return Ok(float(len(reply.text)), {"text": reply.text, "reply": repr(reply)})


async def evaluate_async(way: str, case: Case) -> Ok:
    if way == "raise":
        raise ValueError(f"the settings are {dict(os.environ)}")
    reply = await asked().generate(f"{way} please {case.id}", max_tokens=20)
    return Ok(float(len(reply.text)), {"text": reply.text, "reply": repr(reply)})


def ways() -> list[str]:
    return os.environ.get("CANARY_WAYS", " ".join(WAYS)).split()


study = Study(Sweep(ways()), evaluate, ["a", "b"])
concurrent = Study(Sweep(ways()), evaluate_async, ["a", "b"])
