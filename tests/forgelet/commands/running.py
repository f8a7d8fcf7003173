"""Running commands in this process, with the server of a test."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from forgelet.command_line import forgelet
from tests.support.forge import Forge


async def run(forge: Forge, *arguments: str, given: str | None = None) -> Result:
    """Run a command with the server's settings and with `given` as standard input; return its result."""
    settings = forge.settings
    return await asyncio.to_thread(
        of_server, settings.database_url, settings.data_dir, *arguments, given=given
    )


def of_server(
    url: str, data_dir: Path, *arguments: str, given: str | None = None, **environment: str
) -> Result:
    """Run a command as `run` does, with a server that need not run."""
    own = {
        "FORGELET_API_DATABASE_URL": url,
        "FORGELET_API_DATA_DIR": str(data_dir),
        "FORGELET_DATA_DIR": None,
        "FORGELET_SETTINGS": None,
    }
    return CliRunner().invoke(forgelet, arguments, env=own | environment, input=given)


def answer(done: Result) -> Any:
    """Return the JSON that the command printed with --json."""
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def mistake(done: Result) -> str:
    """Return the message with which the command refused, without any change."""
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("Error: ")
