"""Child processes that never outlive us: how they are started, watched and stopped."""

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

#: Seconds in which a start has to be over, unless `--start-timeout` says otherwise.
START_TIMEOUT = 60.0
#: Seconds between two lines that say what a start waits for.
REPORT_SECONDS = 10.0
#: What asks `up` to end.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAUNCH = Path(__file__).with_name("launch.py")


class CannotStart(ConfigError):
    """Something a person has to put right, in one sentence."""


class StartWait:
    """The time limit of a start: `timeout` seconds from now on, and a line by `tell` every ten seconds."""

    def __init__(self, timeout: float = START_TIMEOUT, tell: Callable[[str], None] = lambda _: None) -> None:
        self._timeout = timeout
        self._tell = tell
        self._begun = time.monotonic()
        self._next_report = REPORT_SECONDS

    def check(self, what: str, logs: Path) -> None:
        """To be called as long as `what` is waited for. Raise `CannotStart` once the timeout is over."""
        waited = time.monotonic() - self._begun
        if waited > self._timeout:
            raise CannotStart(
                f"{what} was not ready after {self._timeout:g} s (logs: {logs}); --start-timeout waits longer"
            )
        if waited >= self._next_report:
            self._next_report += REPORT_SECONDS
            self._tell(f"Waiting for {what}, {waited:.0f} s of at most {self._timeout:g} s ...")


class Account(NamedTuple):
    """The Unix account that a child runs as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, uid: int) -> "Account":
        """The account `uid`; one without an entry in the user database gets its number as name and group."""
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return cls(str(uid), uid, uid)
        return cls(entry.pw_name, uid, entry.pw_gid)

    @classmethod
    def named(cls, *names: str) -> "Account":
        """The first of `names` that exists on this machine."""
        for name in names:
            with contextlib.suppress(KeyError):
                return cls.of(pwd.getpwnam(name).pw_uid)
        raise CannotStart(f"None of the accounts {', '.join(names)} exists on this machine")

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def popen_arguments(self) -> dict[str, Any]:
        """What makes `subprocess` run a program as this account, nothing when that is the one we are."""
        return {} if self.is_ours else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def may_run(self, program: Path) -> bool:
        """Whether this account can execute `program`; tried, since folders above it and ACLs count too."""
        return self._succeeds([str(program), "--version"])

    def may_enter(self, directory: Path) -> bool:
        """Whether this account can make `directory` its working directory."""
        return self._succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(directory)])

    def _succeeds(self, command: Sequence[str]) -> bool:
        try:
            done = subprocess.run(
                command, cwd="/", capture_output=True, check=False, **self.popen_arguments()
            )
        except OSError:
            return False
        return done.returncode == 0


def current_account() -> Account:
    return Account.of(os.geteuid())


class Child:
    """A process in a session of its own, so that Ctrl-C at the terminal reaches only us.

    The kernel sends it `stop_signal` when the thread that started it ends, however that happens (Linux);
    start children from a thread that lives as long as they should. It begins with SIGHUP ignored, which is harmless
    until it listens to it. What it writes is added to `log`. It `inherits` open files by their numbers, and where
    it `waits` it reads its standard input until `go_on`.
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
        """Tell a child that `waits` that what it needs is there, and give it further variables of its environment."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as given:  # it may have ended
            given.write(json.dumps(variables).encode())

    def has_ended(self) -> bool:
        # What a signal's handler raises in the middle of poll() can leave a lock of Popen taken for good.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            return self.process.poll() is not None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def account_of_end(self) -> str:
        """How the process ended, with the line that it wrote about the reason, not one before it on the same log."""
        code = self.process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        said = reason_in_log(self.log, self._log_begins)
        return f"{how}{f': {said}' if said else ''} (log: {self.log})"

    def ask_to_stop(self) -> None:
        """Once: to many programs a second signal says that they are to end at once."""
        if not self._is_asked and not self.has_ended():
            self._is_asked = True
            self.process.send_signal(self._stop_signal)

    def stop(self, timeout: float = 5.0, hurried: Callable[[], bool] = lambda: False) -> None:
        """Ends the process and whatever is left of its session within about `timeout` seconds, at once when `hurried`
        says so."""
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
    """Asks every process that works in one of `directories` to stop, kills those still there after `timeout` seconds,
    and then whatever works below: what they had started.

    Our children work in folders of their own, so this finds the ones that a killed `up` left behind (Linux).
    """
    deadline = time.monotonic() + timeout
    asked: set[int] = set()
    while found := _processes_in(directories):
        overdue = time.monotonic() > deadline
        _signal(found if overdue else found - asked, signal.SIGKILL if overdue else stop_signal)
        asked |= found
        time.sleep(0.05)
    while found := _processes_in(directories, below=True):
        _signal(found, signal.SIGKILL)
        time.sleep(0.05)


def is_any_in(*directories: Path) -> bool:
    """Whether a process works in one of `directories` or below."""
    return bool(_processes_in(directories, below=True))


def _signal(processes: set[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _processes_in(directories: Sequence[Path], *, below: bool = False) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            place = (entry / "cwd").readlink()
            if place in directories or (
                below and any(directory in place.parents for directory in directories)
            ):
                found.add(int(entry.name))
    return found - {os.getpid()}


def make_passable(directory: Path) -> None:
    """Makes `directory` if it is missing, for other accounts to enter whatever our umask is."""
    if not directory.is_dir():
        directory.mkdir(parents=True)
        directory.chmod(0o755)


#: What gives the reason for an end, the surest sign first: the system has refused something; a program of ours, git or
#: PostgreSQL, says that it gives up. What it writes after that, as of cleaning up, is no reason.
_REASONS = (
    "|".join(os.strerror(number) for number in (ENOSPC, EDQUOT, EROFS, EIO, ENOMEM, EMFILE, ENFILE)),
    r"\b(?:FATAL|PANIC): |^fatal: |\w: (?:error|fatal): |\[remote rejected\]",
    r"\S",
)


def reason_in(text: str) -> str:
    """The line of a program's output that says why it has ended, or nothing: the last one where none says more."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for reason in _REASONS for line in reversed(lines) if re.search(reason, line)), "")


def reason_in_log(log: Path, begin: int = 0) -> str:
    """As `reason_in`, of the last 8 KiB of `log`, from the byte `begin` on."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - 8192))
        return reason_in(file.read().decode(errors="replace"))
    return ""


def _launched(command: Sequence[str], account: Account, stop_signal: signal.Signals) -> list[str]:
    account_ids = "-" if account.is_ours else f"{account.uid}:{account.gid}"
    launch = (sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), str(int(stop_signal)), account_ids)
    return [*launch, *command]
