"""The child process: it reads a list of tasks as JSON, and writes a line of JSON for each as soon as it is done.

A text that exceeds the limits ends the process. The lines for this text and for those after it are then missing.
"""

import resource
import sys
from typing import Any

import orjson

from api_server.pages.text import colours, markdown
from api_server.pages.text.colours import Budget
from api_server.pages.text.markdown import TextContext, TooNested

#: Limits of processor time, in seconds, and of memory, in bytes, for all tasks together.
CPU_SECONDS = 5
MEMORY_BYTES = 384 * 2**20
#: Maximum number of characters of a text as HTML. A longer one is shown as it was written.
MAX_HTML = 4 * 2**20
#: The share of syntax colours in these limits: seconds of processor time, and characters of source.
_COLOURS = (1.5, 512 * 1024)


def main() -> None:
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    _limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    budget = Budget(*_COLOURS)
    for task in orjson.loads(sys.stdin.buffer.read()):
        sys.stdout.buffer.write(orjson.dumps(_result(task, budget)) + b"\n")
        sys.stdout.buffer.flush()


def _limit(limit_id: int, maximum: int) -> None:
    """Lower a limit of the process, unless it is lower already because of the setting for all child processes."""
    _, hard = resource.getrlimit(limit_id)
    limit = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(limit_id, (limit, limit))


def _result(task: dict[str, Any], budget: Budget) -> list[Any] | None:
    """Return the parts of a text as HTML (strings, and references as lists) or the lines of a source. Return None if it
    has to be shown as it was written."""
    if "name" in task:
        coloured = budget.coloured(task["text"], colours.lexer_of_file(task["name"], task["text"]))
        parts: list[Any] = [] if coloured is None else coloured.removesuffix("\n").split("\n")
    else:
        try:
            rendered = markdown.to_parts(task["text"], TextContext(**task["at"]), budget)
        except TooNested:
            return None
        parts = markdown.join_strings(rendered)
    return parts if parts and sum(map(len, parts)) <= MAX_HTML else None
