"""Values that fit a JSON Schema, as a simulated model gives them: seeded, short, and without any meaning."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any


def invent(schema: Any, rng: random.Random, words: Sequence[str], root: Any = None, depth: int = 0) -> Any:
    """A value that fits a schema; below a certain depth only what it requires."""
    root = schema if root is None else root
    if not isinstance(schema, Mapping):
        return {}
    if "$ref" in schema:
        return invent(_referred(schema["$ref"], root), rng, words, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            options = schema[name]
            # Deep inside, null ends what would never end.
            chosen = next((option for option in options if option.get("type") == "null"), None) if depth > 3 else None
            return invent(chosen or options[0], rng, words, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        names = schema.get("required", ()) if depth > 3 else schema.get("properties", ())
        fields = schema.get("properties", {})
        return {name: invent(fields.get(name, {}), rng, words, root, depth + 1) for name in names}
    if kind == "array":
        size = max(schema.get("minItems", 0), 0 if depth > 3 else min(2, schema.get("maxItems", 2)))
        return [invent(schema.get("items", {}), rng, words, root, depth + 1) for _ in range(size)]
    return _scalar(kind, schema, rng, words)


def _scalar(kind: str, schema: Mapping[str, Any], rng: random.Random, words: Sequence[str]) -> Any:
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        high = max(low, schema.get("maximum", schema.get("exclusiveMaximum", low + 101) - 1))
        return rng.randint(int(low), int(high)) if kind == "integer" else round(rng.uniform(low, high), 2)
    text = " ".join(rng.choices(words, k=rng.randint(1, 4)))
    return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]


def _referred(reference: str, root: Any) -> Any:
    schema = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        schema = schema.get(name, {}) if name and isinstance(schema, Mapping) else schema
    return schema
