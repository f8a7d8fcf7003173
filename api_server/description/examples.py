"""Examples of operations: what a service has really answered, written down by `python -m scripts.api_examples`."""

from importlib import resources
from typing import Any

import orjson

from api_server.description.values import Schema

_NAME = "recorded"


def recorded() -> dict[str, Any]:
    """By operation: `request` (JSON, or null without a body), `status`, and `response` (JSON, a text, or null)."""
    text = resources.files("api_server.description").joinpath("examples.json").read_bytes()
    found: dict[str, Any] = orjson.loads(text)
    return found


def show(operation: Schema, example: dict[str, Any] | None) -> None:
    """Puts the example where the operation tells of bodies."""
    if example is None:
        return
    told = operation["responses"][str(example["status"])]
    for about, value in ((told, example["response"]), (operation.get("requestBody"), example["request"])):
        if about is not None and value is not None:
            for content in about.get("content", {}).values():
                content["examples"] = {_NAME: {"value": value}}
