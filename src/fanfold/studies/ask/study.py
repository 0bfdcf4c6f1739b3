"""Builds the study: a table and a prompt become questions, the models become cases."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fanfold.encoding import digest, encode
from fanfold.errors import ConfigError
from fanfold.models import Model
from fanfold.models.requests import shape_of
from fanfold.plugins import Starter, StudyPlugin
from fanfold.schemas import check_schema, is_keyword
from fanfold.stop import MaxTrials
from fanfold.strategies import Sweep
from fanfold.studies.ask.conclusion import AskConclusion, AskFields, AskOutput
from fanfold.studies.ask.config import AskConfig
from fanfold.studies.ask.evaluator import AskEvaluator
from fanfold.studies.ask.rows import Question, Rows, Survey, rows_of, survey
from fanfold.studies.ask.shown import shown
from fanfold.studies.ask.template import Template
from fanfold.study import Study
from fanfold.tables import Table, open_table
from fanfold.types import Case


@dataclass(frozen=True)
class Asking:
    """A study that asks, with what was found out about its rows."""

    study: Study[Question]
    rows: Rows
    survey: Survey
    fields: AskFields
    #: The same for the same questions to the same models, so that the same command continues its run.
    run: str


def asking(
    config: AskConfig,
    table: Iterable[tuple[Mapping[str, Any], str]] | None = None,
    *,
    schema: Any = None,
    make: Callable[[str], Model] | None = None,
    count_different: bool = False,
) -> Asking:
    """What a config describes; `table` and `schema` take the place of those it names, `make` makes its models."""
    if not config.model:
        raise ConfigError("model is missing: name at least one, such as --model local/smollm2")
    schema = schema_of(config.schema if schema is None else schema)
    rows = rows_of(config, table)
    found = survey(rows, count_different=count_different)
    fields = AskFields.of(config.model, config.field, found.columns)
    system = None if config.system is None or rows.system is not None else Template.parse(config.system).fill({})
    evaluate = AskEvaluator(
        system,
        config.max_tokens,
        config.temperature,
        config.reasoning_effort,
        schema,
        config.base_url,
        config.preset,
        config.model,
        make,
    )
    output = None
    if config.output not in (None, "-"):
        output = AskOutput(Path(config.output), rows.table if isinstance(rows.table, Table) else None)
        if Path(config.source).resolve() == output.path.resolve():
            raise ConfigError(f"{config.output} is the table itself: give another file with -o")
    questions = Sweep(lambda: rows.questions())
    questions.fingerprint = f"{found.count:,} rows, {found.digest}"
    study = Study(
        questions,
        evaluate,
        [Case(name) for name in config.model],
        stop=MaxTrials(found.count),
        window=config.window,
        in_order=False,
        name="ask",
        conclude=AskConclusion(rows, found.count, fields, output, config.force),
    )
    settings = encode([evaluate.fingerprint, config.model, found.digest])
    stem = re.sub(r"[^A-Za-z0-9]", "-", Path(config.source or "rows").stem)[:40]
    return Asking(study, rows, found, fields, f"ask-{stem or 'rows'}-{digest(settings).hex()[:8]}")


def study(config: AskConfig) -> Study[Question]:
    """The study that `config` describes."""
    return asking(config).study


def sampled(asked: Asking, count: int, seed: int) -> tuple[Study[Question], int]:
    """The study for some of its rows, chosen at random, and how many different questions those ask."""
    places = frozenset(random.Random(seed).sample(range(asked.survey.count), count))
    questions = [question for place, question in enumerate(asked.rows.questions()) if place in places]
    different = {encode(question) for question in questions if isinstance(question, str) or "missing" not in question}
    return replace(asked.study, strategy=Sweep(questions), stop=MaxTrials(count)), len(different)


def run_options(config: AskConfig) -> dict[str, Any]:
    """Where it runs unless said otherwise."""
    return {"executor": "batch:auto" if config.batch else f"async:{config.in_flight}"}


def schema_of(schema: Any) -> Mapping[str, Any] | None:
    """A JSON Schema: as it is, of a file, or of a type such as a dataclass."""
    if schema is None or isinstance(schema, Mapping):
        return _checked(schema)
    if isinstance(schema, str | Path):
        try:
            return _checked(msgspec.json.decode(Path(schema).read_bytes()), str(schema))
        except FileNotFoundError:
            raise ConfigError(f"schema: there is no file {schema}: check the path") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"schema {schema} cannot be read as JSON: {error}") from error
    return shape_of(schema).schema


def _checked(schema: Any, where: str = "schema") -> Mapping[str, Any] | None:
    if schema is None:
        return None
    if not isinstance(schema, Mapping):
        raise ConfigError(f"{where} is not a JSON Schema but {schema!r:.60}: it must be an object")
    check_schema(schema, enforced=False)
    if schema and not any(map(is_keyword, schema)):
        raise ConfigError(
            f"{where}: none of its keys ({', '.join(map(str, schema))}) is a keyword of JSON Schema, so any answer "
            'would fit: write {"type": "object", "properties": {...}}'
        )
    return schema


def _prompt_for(source: str) -> dict[str, Any]:
    """A first prompt about the column with the longest texts, and a file for the answers."""
    head = [row for row, _ in itertools.islice(open_table(source), 50)]
    lengths = {name: sum(len(str(row.get(name))) for row in head) for name in (head or [{}])[0] if "}" not in name}
    if not lengths:
        raise ConfigError(f"{source} is empty: give at least one row")
    path = Path(source)
    ending = path.suffix if path.suffix in (".json", ".csv", ".tsv", ".parquet") else ".jsonl"
    prompt = f"Summarise in one sentence: {{{max(lengths, key=lambda name: lengths[name])}}}"
    return {"prompt": prompt, "output": f"{path.stem}-answers{ending}"}


plugin = StudyPlugin(
    AskConfig,
    study,
    run_options,
    shown=shown,
    starter=Starter(
        "Ask a model about every row of a table.",
        {"max_tokens": 100},
        data="source",
        model="model",
        needs_data=True,
        infer=_prompt_for,
        offer={"system": "Answer in French.", "schema": "answer.schema.json", "limit": 10, "batch": True},
    ),
)
