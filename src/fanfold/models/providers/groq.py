"""Groq: OpenAI's chat protocol and batches below a path of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fanfold.limits import Quota
from fanfold.models.providers.openai import OpenAI, OpenAIBatches

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

PATH = "/openai/v1"


class GroqBatches(OpenAIBatches):
    """As OpenAI's, with smaller files."""

    max_bytes = 100_000_000


class Groq(OpenAI):
    """Open models, answered quickly."""

    name = "groq"
    default_url = f"https://api.groq.com{PATH}"
    key_variable = "GROQ_API_KEY"
    url_variable = "GROQ_BASE_URL"
    parameters: ClassVar[Mapping[str, str]] = {**OpenAI.parameters, "reasoning_format": "reasoning_format"}
    batches = GroqBatches
    family = ""
    examples: ClassVar[Sequence[str]] = ("openai/gpt-oss-20b", "openai/gpt-oss-120b")

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.groq import GroqDialect

        return GroqDialect

    def address(self, url: str) -> str:
        # Groq's own client takes its address without the path, and reads the same variable.
        url = super().address(url)
        return url if url.endswith("/v1") else url + PATH

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        return "overloaded" if status == 498 else super().error_kind(status, error)  # the flex tier is full

    def quota(self, headers: Mapping[str, str]) -> Quota | None:
        quota = super().quota(headers)
        if quota is None:
            return None
        # Its count of requests is for a day, which says nothing about the next minute.
        return dataclasses.replace(quota, requests_limit=None, requests_remaining=None, requests_reset=None)
