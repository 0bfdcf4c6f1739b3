"""A simulator inside this process, at no cost: the provider of `simulated/NAME`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fanfold.flights import SIMULATED
from fanfold.models.providers.contract import Endpoint
from fanfold.models.providers.openai import OpenAI
from fanfold.models.transport import Connector
from fanfold.simulator.config import SimulatorConfig


class Simulated(OpenAI):
    """Plays the model of a name: in the protocol of the provider that names its models so, else in OpenAI's."""

    batches = None
    family = ""
    key_variable = ""
    examples = ("model",)
    options = ("protocol", *(field.name for field in dataclasses.fields(SimulatorConfig)))

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        from fanfold.models.providers import find_provider, maker_of
        from fanfold.models.simulated import SimulatedTransport

        maker = maker_of(model)
        speaker = OpenAI() if maker is None else find_provider(maker)
        if isinstance(speaker, OpenAI):
            speaker = speaker.speaking(model, options.get("protocol"))
        options = {name: value for name, value in options.items() if name != "protocol"}
        connect = Connector.of(SimulatedTransport.of, model, options)
        connect()  # options that cannot be used are refused here
        dialect = speaker.dialect()
        path = urlsplit(speaker.default_url).path
        url = SIMULATED + (path if dialect is None else dialect.mounted(path))
        return Endpoint(speaker, url, "simulated", speaker.price(model), connect=connect)
