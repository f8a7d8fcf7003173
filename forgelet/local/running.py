"""What a `forgelet up` writes down while it runs, so that commands find its settings, addresses and database."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from importlib import metadata

import attrs

from common.mistakes import Mistake
from forgelet.local.data_directory import PATIENCE, RUNNING, DataDirectory


@attrs.frozen(kw_only=True)
class Running:
    """Written to a file that only its owner can read, since variables may hold secrets."""

    pid: int
    version: str
    api_url: str
    edge_url: str | None
    #: `FORGELET_...`, as both processes have them.
    variables: Mapping[str, str]


@contextlib.contextmanager
def written_down(
    data: DataDirectory, api_url: str, edge_url: str | None, variables: Mapping[str, str]
) -> Iterator[None]:
    """Lets commands that know `data` know for as long as the block lasts; it has to be `opened`."""
    told = {name: text for name, text in variables.items() if name.startswith("FORGELET_")}
    running = Running(
        pid=os.getpid(),
        version=metadata.version("forgelet"),
        api_url=api_url,
        edge_url=edge_url,
        variables=told,
    )
    data.remember(RUNNING, json.dumps(attrs.asdict(running)))
    try:
        yield
    finally:
        data.forget(RUNNING)


def found_running(data: DataDirectory) -> Running | None:
    """What the one that runs has written; None where none runs. Raises `Mistake` where another command uses `data` for
    long.

    What a killed one has written does not count: its hold on the folder has ended with it, and whoever holds the folder
    next forgets it.
    """
    deadline = time.monotonic() + PATIENCE
    while data.is_held():
        if text := data.recall(RUNNING):
            return Running(**json.loads(text))
        if time.monotonic() > deadline:
            raise Mistake(
                f"forgelet is just starting in {data.path}, or another command works there: try again"
            )
        time.sleep(0.05)
    return None
