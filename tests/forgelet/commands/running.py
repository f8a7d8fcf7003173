"""Running commands in this process, against the server of a test."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from forgelet.command_line import forgelet
from tests.support.forge import Forge


async def run(forge: Forge, *arguments: str, given: str | None = None) -> Result:
    """How the command ended, with `given` as standard input; the settings are those of the server."""
    settings = forge.settings
    return await asyncio.to_thread(
        of_server, settings.database_url, settings.data_dir, *arguments, given=given
    )


def of_server(
    url: str, data_dir: Path, *arguments: str, given: str | None = None, **environment: str
) -> Result:
    """As `run`, of a server that need not run."""
    own = {
        "FORGELET_API_DATABASE_URL": url,
        "FORGELET_API_DATA_DIR": str(data_dir),
        "FORGELET_DATA_DIR": None,
        "FORGELET_SETTINGS": None,
    }
    return CliRunner().invoke(forgelet, arguments, env=own | environment, input=given)


def answer(done: Result) -> Any:
    """What it printed with --json."""
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def mistake(done: Result) -> str:
    """The sentence by which it refused, changing nothing."""
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("Error: ")
