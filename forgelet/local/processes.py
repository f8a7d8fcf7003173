"""Child processes that never outlive this one: starting, watching and stopping them."""

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from errno import EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS
from pathlib import Path
from typing import Any, NamedTuple

from common.config_errors import ConfigError

#: Seconds for a start, unless `--start-timeout` is given.
START_TIMEOUT = 60.0
#: Seconds between two lines that say what a start waits for.
REPORT_SECONDS = 10.0
#: The signals that end `up`.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAUNCH = Path(__file__).with_name("launch.py")


class CannotStart(ConfigError):
    """A problem that prevents the start and that a person has to solve, in one sentence."""


class StartWait:
    """The time limit of a start: `timeout` seconds from now on. Every ten seconds, `echo` is called with a line about
    what the start waits for."""

    def __init__(self, timeout: float = START_TIMEOUT, echo: Callable[[str], None] = lambda _: None) -> None:
        self._timeout = timeout
        self._echo = echo
        self._started_at = time.monotonic()
        self._next_report = REPORT_SECONDS

    def check(self, title: str, logs: Path) -> None:
        """Report that the start still waits for `title`. Raise `CannotStart` when the time is over."""
        waited = time.monotonic() - self._started_at
        if waited > self._timeout:
            raise CannotStart(
                f"{title} was not ready after {self._timeout:g} s (logs: {logs}); --start-timeout waits longer"
            )
        if waited >= self._next_report:
            self._next_report += REPORT_SECONDS
            self._echo(f"Waiting for {title}, {waited:.0f} s of at most {self._timeout:g} s ...")


class Account(NamedTuple):
    """The Unix account that runs a child."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, uid: int) -> "Account":
        """Return the account `uid`. Without an entry in the user database, its number is also its name and group."""
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return cls(str(uid), uid, uid)
        return cls(entry.pw_name, uid, entry.pw_gid)

    @classmethod
    def named(cls, *names: str) -> "Account":
        """Return the first of `names` that exists on this machine. Raise `CannotStart` if none does."""
        for name in names:
            with contextlib.suppress(KeyError):
                return cls.of(pwd.getpwnam(name).pw_uid)
        raise CannotStart(f"None of the accounts {', '.join(names)} exists on this machine")

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments that make `subprocess` run a program as this account; none for the current account."""
        return {} if self.is_ours else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def may_run(self, program: Path) -> bool:
        """Return whether this account can execute `program`. This is tried, because folders above it and ACLs
        matter."""
        return self._succeeds([str(program), "--version"])

    def may_enter(self, directory: Path) -> bool:
        """Return whether this account can make `directory` its working directory."""
        return self._succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(directory)])

    def _succeeds(self, command: Sequence[str]) -> bool:
        try:
            result = subprocess.run(
                command, cwd="/", capture_output=True, check=False, **self.popen_arguments()
            )
        except OSError:
            return False
        return result.returncode == 0


def current_account() -> Account:
    return Account.of(os.geteuid())


class Child:
    """A process in a session of its own, so that Ctrl-C at the terminal reaches only this process.

    The kernel sends it `stop_signal` when the thread that started it ends, for whatever reason (Linux), so start
    children from a thread that lives as long as they should. SIGHUP is ignored until the program handles it. Its output
    is appended to `log`. It inherits the open files in `inherits` by number, and if it `waits`, it reads its standard
    input until `go_on`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
        cwd: Path = Path("/"),
        stop_signal: signal.Signals = signal.SIGTERM,
        inherits: Sequence[int] = (),
        waits: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self._stop_signal = stop_signal
        self._is_asked = False
        with log.open("ab") as output:
            self._log_begins = output.tell()
            try:
                self.process = subprocess.Popen(
                    _launched(command, account or current_account(), stop_signal),
                    stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=cwd,
                    env=environment,
                    start_new_session=True,
                    pass_fds=inherits,
                )
            except OSError as problem:
                raise CannotStart(f"{name} cannot be started: {problem.strerror}: {command[0]}") from None

    def go_on(self, variables: Mapping[str, str]) -> None:
        """Let a waiting child continue, and give it further variables."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stream:  # it may have ended
            stream.write(json.dumps(variables).encode())

    def has_ended(self) -> bool:
        # If a signal handler raises an exception in the middle of poll(), a lock of Popen can stay locked for good.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            return self.process.poll() is not None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def account_of_end(self) -> str:
        """Return a description of how the process ended, with the line in its log that gives the reason."""
        code = self.process.returncode
        outcome = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        reason = reason_in_log(self.log, self._log_begins)
        return f"{outcome}{f': {reason}' if reason else ''} (log: {self.log})"

    def ask_to_stop(self) -> None:
        """Send the stop signal, but only once: to many programs a second signal means to end at once."""
        if not self._is_asked and not self.has_ended():
            self._is_asked = True
            self.process.send_signal(self._stop_signal)

    def stop(self, timeout: float = 5.0, hurried: Callable[[], bool] = lambda: False) -> None:
        """End the process and the rest of its session within about `timeout` seconds, or at once as soon as `hurried`
        returns true."""
        self.ask_to_stop()
        deadline = time.monotonic() + timeout
        while not self.has_ended():
            if hurried() or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def end_processes_in(*directories: Path, stop_signal: signal.Signals, timeout: float) -> None:
    """Ask every process that works in one of `directories` to stop. Kill those that are still there after `timeout`
    seconds, and then everything below: their children.

    Our children work in folders of their own, so this finds those that a killed `up` has left (Linux).
    """
    deadline = time.monotonic() + timeout
    signaled: set[int] = set()
    while pids := _processes_in(directories):
        overdue = time.monotonic() > deadline
        _signal(pids if overdue else pids - signaled, signal.SIGKILL if overdue else stop_signal)
        signaled |= pids
        time.sleep(0.05)
    while pids := _processes_in(directories, below=True):
        _signal(pids, signal.SIGKILL)
        time.sleep(0.05)


def is_any_in(*directories: Path) -> bool:
    """Return whether a process works in one of `directories` or below."""
    return bool(_processes_in(directories, below=True))


def _signal(processes: set[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _processes_in(directories: Sequence[Path], *, below: bool = False) -> set[int]:
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            folder = (entry / "cwd").readlink()
            if folder in directories or (
                below and any(directory in folder.parents for directory in directories)
            ):
                pids.add(int(entry.name))
    return pids - {os.getpid()}


def make_passable(directory: Path) -> None:
    """Create `directory` if it is missing, so that other accounts can enter it whatever the umask is."""
    if not directory.is_dir():
        directory.mkdir(parents=True)
        directory.chmod(0o755)


#: Patterns of a line with the reason why a program has ended, the most certain first: an error of the system, then an
#: error of our programs, of git or of PostgreSQL. Later lines, such as those about cleaning up, are less useful.
_REASONS = (
    "|".join(os.strerror(number) for number in (ENOSPC, EDQUOT, EROFS, EIO, ENOMEM, EMFILE, ENFILE)),
    r"\b(?:FATAL|PANIC): |^fatal: |\w: (?:error|fatal): |\[remote rejected\]",
    r"\S",
)


def reason_in(text: str) -> str:
    """Return the line of a program's output with the reason why it has ended, by default the last one with text."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for reason in _REASONS for line in reversed(lines) if re.search(reason, line)), "")


def reason_in_log(log: Path, start: int = 0) -> str:
    """Return `reason_in` of the last 8 KiB of `log`, from the byte `start` on."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 8192))
        return reason_in(file.read().decode(errors="replace"))
    return ""


def _launched(command: Sequence[str], account: Account, stop_signal: signal.Signals) -> list[str]:
    account_ids = "-" if account.is_ours else f"{account.uid}:{account.gid}"
    launch = (sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), str(int(stop_signal)), account_ids)
    return [*launch, *command]
