"""Start of a server for tests, or use of one that another process or a person has started.

The server's standard input is a named pipe. Every process that uses the server holds its writing end open, which the
kernel closes with the process, however it ends. The server ends after the last of them (`forgelet up --until-eof`).
"""

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forgelet.testing.api import ApiError
from forgelet.testing.server import Forgelet, Ready

COMMAND = (sys.executable, "-P", "-m", "forgelet", "up", "--testing", "--until-eof")
#: Seconds for a start. `up` gets the same limit and reports what it waits for. The variable among the `settings` of a
#: server takes precedence.
START_TIMEOUT, START_TIMEOUT_VARIABLE = 120.0, "FORGELET_START_TIMEOUT"
#: Seconds in addition to those that `up` itself takes to end its processes.
END_SECONDS = 30.0
LINES_SHOWN = 20
#: Variables that would change the server, or measure its processes together with the tests.
_NOT_FOR_THE_SERVER = ("FORGELET_", "COVERAGE_", "COV_CORE_")


class CannotStart(Exception):
    """The server cannot start. The text is its own sentence and the place of its log."""


@contextlib.contextmanager
def running(
    *options: str, folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Forgelet]:
    """Run a server for the duration of the block or of this process, and yield it. `options` go to `forgelet up
    --testing`, and `settings` are variables such as `FORGELET_API_TIER`. Log and ready file are in `folder`; without
    one they are removed at the end. Raise `CannotStart`."""
    with contextlib.ExitStack() as ending:
        work_folder = folder or Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="forgelet-")))
        process, hold, ready = _start(work_folder, options, settings or {})
        ending.callback(_wait_for_end, process)
        ending.callback(os.close, hold)
        forgelet = Forgelet(ready)
        ending.callback(forgelet.close)
        yield forgelet


def shared(*options: str, folder: Path, settings: Mapping[str, str] | None = None) -> Forgelet:
    """Return the one server of all processes that name this `folder`. It ends after the last of them. Once it could not
    be started, raise `CannotStart` in every process."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = folder / "failed"
        if failed.exists():
            raise CannotStart(failed.read_text())
        if ready := _join(folder):
            return Forgelet(ready, is_shared=True)
        try:
            process, _, ready = _start(folder, options, settings or {})
        except CannotStart as problem:
            failed.write_text(str(problem))
            raise
        process.returncode = 0  # not waited for: other processes may use the server longer than this one
    return Forgelet(ready, is_shared=True)


def _join(folder: Path) -> Ready | None:
    """Return the server that already runs, and hold it until this process ends. Return None if none runs."""
    try:
        hold = os.open(folder / "hold", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # there is no pipe yet, or its reader has ended
        return None
    ready = _ready(folder)
    if ready is None:
        os.close(hold)
    return ready


def _start(
    folder: Path, options: Sequence[str], settings: Mapping[str, str]
) -> tuple["subprocess.Popen[bytes]", int, Ready]:
    """Start a server. Return its process, our end of its pipe, and the content of its ready file."""
    pipe, log = folder / "hold", folder / "up.log"
    pipe.unlink(missing_ok=True)
    (folder / "ready.json").unlink(missing_ok=True)  # of a server that was killed
    os.mkfifo(pipe, 0o600)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    hold = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    base = {name: text for name, text in os.environ.items() if not name.startswith(_NOT_FOR_THE_SERVER)}
    settings = {START_TIMEOUT_VARIABLE: str(START_TIMEOUT), **settings}
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*COMMAND, *options, "--ready-file", str(folder / "ready.json")],
                stdin=reading,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**base, **settings},
                start_new_session=True,  # Ctrl-C is for the tests, which end first
            )
        ready = _wait_until_ready(process, folder, settings[START_TIMEOUT_VARIABLE])
    except BaseException:
        os.close(hold)
        raise
    finally:
        os.close(reading)
    return process, hold, ready


def _wait_until_ready(process: "subprocess.Popen[bytes]", folder: Path, timeout: str) -> Ready:
    """Wait for the ready file and return its content. Wait a little longer than `up` itself, to get its sentence."""
    try:
        deadline = time.monotonic() + float(timeout) + END_SECONDS
    except ValueError:  # `up` refuses it with a sentence
        deadline = time.monotonic() + END_SECONDS
    try:
        while (ready := _ready(folder)) is None:
            if process.poll() is not None:
                raise CannotStart(
                    f"forgelet ended with {process.returncode} before it was ready. {_last_log_lines(folder)}"
                )
            if time.monotonic() > deadline:
                raise CannotStart(f"forgelet was not ready after {timeout} s. {_last_log_lines(folder)}")
            time.sleep(0.01)
    except BaseException:
        process.terminate()
        _wait_for_end(process)
        raise
    return ready


def _wait_for_end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # its child processes end with it
        process.wait()


def _ready(folder: Path) -> Ready | None:
    try:
        return Ready.of(json.loads((folder / "ready.json").read_text()))
    except FileNotFoundError:
        return None


def _last_log_lines(folder: Path) -> str:
    log = folder / "up.log"
    lines = log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
    return "\n".join([f"Its last words (all of them: {log}):", *(f"  {line}" for line in lines)])


def of_file(path: Path) -> Ready:
    """Return the content of this ready file. Raise `CannotStart`."""
    try:
        return Ready.of(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise CannotStart(f"{path} is not the ready file of a server that runs: {problem}") from None


def of_url(url: str, root_token: str | None) -> Ready:
    """Return the server at `url`. Raise `CannotStart`."""
    if not re.match("https?://.", url):
        raise CannotStart(f"--forgelet-url is {url!r}; it has to begin with http:// or https://")
    if not root_token:
        raise CannotStart(f"set FORGELET_ROOT_TOKEN to the administrator's token of {url}")
    return Ready(url, root_token)


def version_of(forgelet: Forgelet) -> str:
    """Return the version that the server reports, such as `17.11.0`. Raise `CannotStart` if it is no GitLab."""
    try:
        return str(forgelet.api.get("version")["version"])
    except (ApiError, OSError, ValueError, LookupError, TypeError) as problem:
        raise CannotStart(
            f"{forgelet.url} does not answer as a GitLab does to its administrator: {problem}"
        ) from None
