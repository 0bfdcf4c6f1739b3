"""A model inside this process, at no cost: the provider of `local/smollm2` and `local/PATH.gguf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.limits import Limits
from fanfold.models.pricing import FREE, Price
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.contract import Endpoint
from fanfold.models.transport import Connector

#: A small machine may take minutes for an answer.
LEAST_TIMEOUT = 600.0


class Local(Compatible):
    """Runs GGUF weights with llama.cpp; its ids begin like those of a compatible server, as in older ledgers."""

    batches = None
    anywhere = False
    remote = False
    key_variable = ""
    examples = ("smollm2",)
    streams = None
    options = ("slots", "context", "threads")

    def price(self, model: str) -> Price | None:
        return FREE

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        from fanfold.models.local import LINE, LocalTransport

        transport = LocalTransport.of(model, **options)
        return Endpoint(
            self,
            "local:",
            price=FREE,
            limits=Limits(in_flight=LINE * transport.slots, adaptive=False),
            timeout=LEAST_TIMEOUT,
            raw=True,
            connect=Connector.of(LocalTransport.of, model, options),
        )
