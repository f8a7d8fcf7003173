"""Starts a forgelet, makes a world in it, and lets schemathesis ask it by its description."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from common.mistakes import Command, Mistake
from forgelet.testing import starting
from forgelet.testing.server import Forgelet
from scripts.fuzz import world

_CHECKOUT = Path(__file__).resolve().parents[2]
#: Seconds that a run may take.
_PATIENCE = 3 * 3600


@click.command(cls=Command)
@click.argument("operations", nargs=-1)
@click.option(
    "--cases", default=5000, show_default=True, type=click.IntRange(min=1), help="Drawn ones, about."
)
@click.option(
    "--borders", is_flag=True, help="Also the ends of each parameter's range: some 20,000 cases more."
)
@click.option("--seed", default=1, show_default=True, type=int, help="Another one draws other cases.")
def fuzz(operations: tuple[str, ...], cases: int, borders: bool, seed: int) -> None:
    """Asks OPERATIONS (their ids in the description, such as list_projects; all without any) what the description
    allows and forbids.

    Ends with status 1 where an answer is not what it promises, or the service's log tells of an error.
    """
    python = os.environ.get("FORGELET_OPENAPI_PYTHON", "")
    if not os.access(python, os.X_OK):
        raise Mistake(
            "FORGELET_OPENAPI_PYTHON has to name a Python with schemathesis: scripts/fuzz/run sees to it."
        )
    with tempfile.TemporaryDirectory(prefix="forgelet-fuzz-") as name:
        folder = Path(name)
        with starting.running("--no-edge", "--data-dir", str(folder / "data")) as service:
            command = _command(python, service, operations, cases, borders=borders, seed=seed)
            found_some = _ask(command, service, folder)
        errors = list(_errors(folder / "data" / "logs" / "api.log"))
        counts = json.loads((folder / "counts.json").read_text())
    for error in errors:
        click.echo(f"In the log: {error}")
    click.echo(
        f"{counts['cases']} cases of {counts['operations']} operations; {len(errors)} errors in the log."
    )
    sys.exit(found_some or bool(errors))


def _command(
    python: str, service: Forgelet, operations: tuple[str, ...], cases: int, *, borders: bool, seed: int
) -> list[str]:
    shared = -(-cases // (len(operations) or len(_described(service))))
    command = [python, "-P", "-m", "schemathesis.cli", "run", f"{service.url}/api/v4/openapi.json"]
    command += ["--checks", "all", "--continue-on-failure", "--no-color", "--warnings", "off"]
    command += [
        "--phases",
        "coverage,fuzzing" if borders else "fuzzing",
        "-n",
        str(shared),
        "--seed",
        str(seed),
    ]
    # A run repeats: what an earlier one has found does not come first. No text has a NUL in it.
    command += ["--generation-database", "none", "--generation-allow-x00", "false"]
    command += ["--suppress-health-check", "all"]
    return command + [word for operation in operations for word in ("--include-operation-id", operation)]


def _described(service: Forgelet) -> list[str]:
    """The ids of all operations."""
    paths = service.api.get("openapi.json")["paths"]
    return [operation["operationId"] for item in paths.values() for operation in item.values()]


def _ask(command: list[str], service: Forgelet, folder: Path) -> bool:
    """Whether schemathesis has found something."""
    made = attrs.asdict(world.make(service.url, service.root_token))
    snapshot = service.snapshot()
    (folder / "world.json").write_text(json.dumps(made | {"url": service.url, "snapshot": snapshot}))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(_CHECKOUT),
        "SCHEMATHESIS_HOOKS": "scripts.fuzz.hooks",
        "FORGELET_FUZZ_WORLD": str(folder / "world.json"),
        "FORGELET_FUZZ_COUNTS": str(folder / "counts.json"),
    }
    done = subprocess.run(command, cwd=folder, env=environment, timeout=_PATIENCE, check=False)
    return done.returncode != 0


def _errors(log: Path) -> Iterator[str]:
    """Its lines of errors, and those with a traceback."""
    for line in log.read_text(errors="replace").splitlines():
        told = json.loads(line) if line.startswith("{") else {"event": line}
        if told.get("level") in (None, "error", "critical") or "exception" in told:
            yield line


fuzz(prog_name="scripts/fuzz/run")
