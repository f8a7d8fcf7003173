"""Our programs, each run in a new process in which their imports are done already, so that many runs take little time.

As a script, read one JSON object per line, `{"module", "arguments", "environment", "folder", "unprivileged"}`, run
`python -m <module>` in a fork, and write `{"status", "output", "errors"}`.
"""

import contextlib
import encodings.idna  # noqa: F401 - host names need it; the account `nobody` may be unable to read it
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

_CHECKOUT = Path(__file__).resolve().parents[2]
_NOBODY = 65534
_SECONDS = 60


@attrs.frozen
class Ended:
    """The result of a program."""

    status: int
    output: str
    errors: str


class Programs:
    """Runs of the loaded modules."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path,
        unprivileged: bool = False,
    ) -> Ended:
        """Run the module and wait for its end. `unprivileged` runs it as the account nobody if we are root."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "unprivileged": unprivileged,
        }
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return Ended(**json.loads(self._process.stdout.readline()))


@contextlib.contextmanager
def preloaded(*modules: str) -> Iterator[Programs]:
    """Import the modules once in another process; yield the object that runs them."""
    with subprocess.Popen(
        [sys.executable, "-P", __file__, *modules],
        env={**os.environ, "PYTHONPATH": str(_CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Programs(process)


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            _become(asked, output.fileno(), errors.fileno())
        _, status = os.waitpid(child, 0)
        texts = {}
        for name, file in (("output", output), ("errors", errors)):
            file.seek(0)
            texts[name] = file.read().decode()
    return {"status": os.waitstatus_to_exitcode(status), **texts}


def _become(asked: dict[str, Any], output: int, errors: int) -> None:
    signal.alarm(_SECONDS)  # ends a program that works although it should fail
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    if asked["unprivileged"] and os.geteuid() == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    sys.argv[1:] = asked["arguments"]
    for name in (asked["module"], f"{asked['module']}.__main__"):
        sys.modules.pop(name, None)  # the module that runs is imported again
    status: Any = 0
    try:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def run_server(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become the API server, or the command if there is one, with no output."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    if command:
        os.execvpe(command[0], command, environment)
    os.environ.clear()
    os.environ.update(environment)
    importlib.import_module("api_server.__main__").main([], prog_name="api_server")


if __name__ == "__main__":
    # Names of hosts need this codec; the account of some runs cannot read it later.
    for module in (*sys.argv[1:], "encodings.idna"):
        importlib.import_module(module)
    gc.freeze()  # otherwise the collector of a run would copy all pages of the loaded modules
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(_run(json.loads(line)))}\n")
        sys.stdout.flush()
