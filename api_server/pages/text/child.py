"""What the child process does: read a list of tasks as JSON, and write one line of JSON for each as soon as it is done.

A text that takes too much ends the process, which leaves its line and those that follow unwritten.
"""

import resource
import sys
from typing import Any

import orjson

from api_server.pages.text import colours, markdown
from api_server.pages.text.colours import Budget
from api_server.pages.text.markdown import Surroundings, TooNested

#: Seconds of the processor, and bytes, for all tasks together.
CPU_SECONDS = 5
MEMORY_BYTES = 384 * 2**20
#: Of a text as HTML, in characters; what becomes longer is shown as it was written.
MOST_HTML = 4 * 2**20
#: What colours may take of that: seconds, and characters of source.
_COLOURS = (1.5, 512 * 1024)


def main() -> None:
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    _limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    budget = Budget(*_COLOURS)
    for task in orjson.loads(sys.stdin.buffer.read()):
        sys.stdout.buffer.write(orjson.dumps(_done(task, budget)) + b"\n")
        sys.stdout.buffer.flush()


def _limit(which: int, most: int) -> None:
    """What it was started with may be less, as a setting for all children says."""
    _, hard = resource.getrlimit(which)
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (limit, limit))


def _done(task: dict[str, Any], budget: Budget) -> list[Any] | None:
    """Return parts of HTML (strings, and references as lists), or the lines of a source. None: it stays as it is."""
    if "name" in task:
        coloured = budget.coloured(task["text"], colours.lexer_of_file(task["name"], task["text"]))
        parts: list[Any] = [] if coloured is None else coloured.removesuffix("\n").split("\n")
    else:
        try:
            rendered = markdown.to_parts(task["text"], Surroundings(**task["at"]), budget)
        except TooNested:
            return None
        parts = markdown.joined(rendered)
    return parts if parts and sum(map(len, parts)) <= MOST_HTML else None
