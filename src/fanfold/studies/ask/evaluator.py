"""One cell: a question goes to a model, and its answer comes back as text, or as a value that fits a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fanfold.calls import current_broker
from fanfold.errors import CallFailed, ConfigError
from fanfold.events import Notice
from fanfold.models import Model, Reply, model
from fanfold.models.catalogue import defined
from fanfold.models.requests import shape_of
from fanfold.schemas import fault
from fanfold.studies.ask.rows import Question
from fanfold.tables.writing import as_json
from fanfold.types import Case, Failed, Ok

_INSTRUCTION = "Reply with one JSON value that fits this JSON Schema, and with nothing else:\n"
#: What an error says that is about the schema and not about the rest of a request.
_OF_SCHEMAS = re.compile(r"schema|response_?format|structured output|output_config|additionalProperties|grammar", re.I)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class AskEvaluator:
    """Asks the case's model a question.

    The data of an outcome is `{"answer": ...}`, with `"finish"` where the model did not stop by itself; of a row that
    has no value for a column of the prompt it is `{"missing": [...]}`, and nothing is asked.
    """

    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: str | None = None
    schema: Mapping[str, Any] | None = None
    base_url: str | None = None
    limits: str = "adaptive"
    models: tuple[str, ...] = ()
    #: Makes a model of its name; None: as `fanfold.models.model` does.
    make: Callable[[str], Model] | None = None
    #: Whether answers are held to the schema; made-up ones of a rehearsal are not.
    checked: bool = True
    _asked: dict[str, Model] = field(default_factory=dict, init=False, repr=False, compare=False)
    #: Models whose provider has refused the schema.
    _refusing: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What an answer depends on, besides the question and the model."""
        names = ("system", "max_tokens", "temperature", "reasoning_effort", "schema", "base_url")
        definitions = defined(*self.models)
        return {name: getattr(self, name) for name in names} | ({"defined": definitions} if definitions else {})

    def check_ready(self) -> None:
        """Refuse a model that cannot be asked: one that nobody knows, or without a key."""
        for name in self.models:
            self.asked(name)

    def rehearsed(self) -> AskEvaluator:
        return replace(self, checked=False)

    def asked(self, name: str) -> Model:
        """The model of that name, made when it is first needed."""
        if name not in self._asked:
            make = self.make or (lambda name: model(name, base_url=self.base_url, limits=self.limits))
            self._asked[name] = make(name)
        return self._asked[name]

    async def __call__(self, question: Question, case: Case) -> Ok | Failed:
        if not isinstance(question, str) and "missing" in question:
            return Ok(0.0, question)
        prompt = question if isinstance(question, str) else question["prompt"]
        system = self.system if isinstance(question, str) else question["system"]
        asked = self.asked(case.id)
        if self.schema is None:
            reply = await self._generate(asked, prompt, system)
            return _refused(reply) or _ok(reply, reply.text)
        return await self._structured(asked, prompt, system)

    async def _generate(self, asked: Model, prompt: str, system: str | None, schema: Any = None) -> Reply:
        return await asked.generate(
            prompt,
            system=system,
            schema=schema,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            reasoning_effort=self.reasoning_effort,
        )

    async def _structured(self, asked: Model, prompt: str, system: str | None) -> Ok | Failed:
        """An answer that fits the schema; a model whose reply does not is told why, once."""
        native = self._native(asked)
        instruction = f"{_INSTRUCTION}{as_json(self.schema)}"
        text = f"{prompt}\n\n{instruction}"
        try:
            value, problem = await self._value(asked, prompt if native else text, system, native)
        except CallFailed as error:
            if not native or error.kind != "bad-request" or not _OF_SCHEMAS.search(str(error)):
                raise
            native = self._refused_by(asked, error)
            value, problem = await self._value(asked, text, system, native)
        if problem:
            text = f"{prompt}\n\nAn earlier reply did not fit the schema: {problem}. {instruction}"
            value, problem = await self._value(asked, text, system, native)
        return Failed("schema", problem) if problem else Ok(1.0, {"answer": value})

    def _refused_by(self, asked: Model, error: CallFailed) -> bool:
        """Remember that a provider does not take the schema, so that its model is told about it in the prompt."""
        if asked.id not in self._refusing:
            self._refusing.add(asked.id)
            text = f"{asked.id} does not take the schema and is told about it in the prompt ({error})"
            current_broker().emit(Notice(text, "parameters"))
        return False

    def _native(self, asked: Model) -> bool:
        """Whether the model's provider makes it keep to the schema, rather than the prompt."""
        if asked.id in self._refusing:
            return False
        try:
            shape_of(self.schema)
        except ConfigError:  # keywords that no provider takes
            return False
        has = asked.capabilities.has or ()  # servers that are not known may well ignore it
        return "tools" in has or ("schema" in has and asked.takes("schema"))

    async def _value(self, asked: Model, prompt: str, system: str | None, native: bool) -> tuple[Any, str]:
        """The value in a reply, and what is wrong with it under the schema, or ""."""
        try:
            if native:
                return (await self._generate(asked, prompt, system, self.schema)).parsed, ""
        except CallFailed as error:
            if self.checked and error.kind != "schema":
                raise
            return None, str(error) if self.checked else ""
        reply = await self._generate(asked, prompt, system)
        if (refused := _refused(reply)) is not None:
            raise CallFailed(refused.kind, refused.message)
        value, problem = read(reply.text, self.schema) if self.checked else (None, "")
        if problem and reply.finish == "length":
            raise CallFailed("length", f"the reply was cut inside its JSON: raise max_tokens ({problem})")
        return value, problem


def _ok(reply: Reply, answer: Any) -> Ok:
    return Ok(1.0, {"answer": answer} if reply.finish == "stop" else {"answer": answer, "finish": reply.finish})


def _refused(reply: Reply) -> Failed | None:
    """The failure of a reply without an answer in it."""
    if reply.finish in ("refusal", "filter"):
        return Failed(reply.finish, reply.refusal or "the provider's filter held the reply back")
    return None


def read(text: str, schema: Any) -> tuple[Any, str]:
    """The JSON value in a reply, and what is wrong with it under the schema, or ""."""
    text = text.rpartition("</think>")[2]  # where a server does not keep reasoning apart, it has drafts in it
    fenced = _FENCED.search(text)
    start, end = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0), len(text)
    problem = ""
    for part in (text, fenced[1] if fenced else "", text[start : max(text.rfind("}"), text.rfind("]")) + 1 or end]):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError) as error:
            problem = problem or f"it is not JSON ({error})"
            continue
        return value, fault(value, schema)
    return None, problem
