"""Write `src/fanfold/capabilities.toml` from the public table of litellm and its own checks of parameters.

Run it with a Python that has litellm: `.venv-peers/litellm/bin/python tools/capabilities.py`.  The models are those
of `prices.toml` and those named on the command line, in the same way.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

PACKAGE = Path(__file__).parents[1] / "src/fanfold"
#: A value of each parameter that no model has by default.
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["END"],
    "seed": 1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logprobs": True,
    "n": 2,
}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
HAS = {
    "tools": "supports_function_calling",
    "schema": "supports_response_schema",
    "images": "supports_vision",
    "caching": "supports_prompt_caching",
    "batch": "input_cost_per_token_batches",
    "adaptive": "supports_adaptive_thinking",
}
#: Providers whose models reason unless told otherwise.
ALWAYS = ("openai", "azure", "groq", "together_ai", "xai", "deepseek")
#: What the table lacks, by the beginning of PROVIDER/MODEL: Gemini refuses penalties since 2.5 and only advises against
#: other sampling, Mistral and Groq differ from what litellm passes on, and most models that reason do so by default.
OWN: dict[str, dict[str, Any]] = {
    "gemini/": {"refuses": ["frequency_penalty", "presence_penalty"], "effort": "medium"},
    "gemini/gemini-2.5-flash-lite": {"effort": None},
    "mistral/": {"refuses": []},
    "groq/": {"refuses": ["logprobs", "n"]},
    "groq/qwen": {"efforts": ["none"]},
}
#: Providers whose names at litellm differ from ours.
NAMES = {"together": "together_ai", "bedrock": "bedrock_converse"}


def accepts(provider: str, model: str, parameters: dict[str, Any]) -> bool:
    with contextlib.suppress(Exception), contextlib.redirect_stdout(sys.stderr):
        litellm.get_optional_params(model=model, custom_llm_provider=provider, drop_params=False, **parameters)
        return True
    return False


def row(provider: str, model: str) -> dict[str, Any]:
    """What is known of one model; a parameter that goes only without reasoning is `steady`."""
    facts = litellm.model_cost.get(model) or litellm.model_cost.get(f"{provider}/{model}") or {}
    reasons = bool(facts.get("supports_reasoning"))
    flags = {"none", "minimal", "xhigh", "max"}
    own = {name for name in flags if facts.get(f"supports_{name}_reasoning_effort")}
    off = {"none"} if provider == "anthropic" else set()  # it reasons only when asked to
    usual = [name for name in EFFORTS if name in own | off or name not in flags]
    efforts = [name for name in usual if reasons and accepts(provider, model, {"reasoning_effort": name})]
    refuses = [name for name, value in VALUES.items() if not accepts(provider, model, {name: value})]
    still = {"reasoning_effort": "none"}
    steady = [name for name in refuses if "none" in efforts and accepts(provider, model, {name: VALUES[name], **still})]
    refuses = [name for name in refuses if name not in steady]
    by_default = provider in ALWAYS and efforts and ("none" not in efforts or "temperature" in steady)
    if facts.get("supports_sampling_params") is False:
        refuses = sorted({*refuses, "temperature", "top_p", "top_k"})
    elif provider == "anthropic" and reasons:
        steady += ["temperature", "top_k"]
    values = {
        "refuses": refuses,
        "steady": steady,
        "efforts": facts.get("reasoning_effort_levels") or efforts,
        "effort": "medium" if by_default else None,
        "context": facts.get("max_input_tokens"),
        "output": facts.get("max_output_tokens"),
        "has": [name for name, key in HAS.items() if facts.get(key)]
        + ["responses"] * (facts.get("mode") == "responses"),  # and no chat completions
    }
    for start, own in OWN.items():
        values |= own if f"{provider}/{model}".startswith(start) else {}
    return values


def place(name: str) -> tuple[str, str]:
    """Provider and model, as litellm calls them, of a name in the price table."""
    provider, slash, model = name.partition("/")
    if slash:
        return NAMES.get(provider, provider), model
    if name.startswith("gemini-"):
        return "gemini", name  # not the same model of Vertex AI
    known = litellm.model_cost.get(name) or next(
        (row for key, row in litellm.model_cost.items() if key.endswith(f"/{name}")), {}
    )
    return known.get("litellm_provider", ""), name


def main() -> None:
    prices = tomllib.loads((PACKAGE / "models/prices.toml").read_text())["models"]
    names = {name: place(name) for name in prices} | {name: place(name) for name in sys.argv[1:]}
    lines = [
        "# What models take, from litellm's public table: parameters that they refuse, those that they take only while",
        "# they do not reason (steady), efforts of reasoning, the largest input and output, what they have.",
        "# `effort` is what a model does by default. Written by tools/capabilities.py.",
        f'as_of = "{datetime.date.today()}"',
        "",
        "[models]",
    ]
    for name, (provider, model) in names.items():
        facts = row(provider, model) if provider else {}
        text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in facts.items() if value)
        if text:
            lines.append(f'"{name}" = {{ {text} }}')
    (PACKAGE / "capabilities.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
