"""The built-in runner itself: a thread that asks for jobs, and one for each job that it plays."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from forgelet.runner.protocol import (
    Asking,
    Connection,
    Gone,
    JobInHand,
    Unreachable,
    is_known,
    register,
    uploads,
)
from forgelet.runner.rules import Played, Rules, played

#: Jobs that are played side by side.
MOST_JOBS = 50
#: Seconds between two looks at the service's clock while a job lasts, and before the service is asked again that did
#: not answer, or had no patience.
LOOK, PAUSE = 0.2, 0.2
#: Seconds after which the service hears that a job goes on.
SIGN_OF_LIFE = 60.0


class BuiltInRunner:
    """Plays jobs of the service at `url`, as `rules` say. `recall` and `remember` keep its token, which it gets as an
    administrator, with `root_token`: that of a runner of this `kind`, in parameters of `POST /user/runners`."""

    def __init__(
        self,
        url: str,
        rules: Rules,
        *,
        root_token: str,
        kind: Mapping[str, Any],
        recall: Callable[[], str | None],
        remember: Callable[[str], None],
    ) -> None:
        self._url = url
        self._rules = rules
        self._root_token = root_token
        self._kind = kind
        self._recall = recall
        self._remember = remember
        self._stop = threading.Event()
        self._room = threading.BoundedSemaphore(MOST_JOBS)
        self._asking = Asking(Connection(url), "")

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """For the length of the block, at whose beginning the service knows the runner. Raises `Unreachable`, and
        `Gone`. What is being played at the end is let go of."""
        self._asking.token = self._known_token()
        thread = threading.Thread(target=self._ask_for_jobs, name="built-in runner", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._asking.connection.cut()

    def _known_token(self) -> str:
        known = self._recall()
        if known is None or not is_known(self._asking.connection, known):
            known = register(self._asking.connection, self._root_token, self._kind)
            self._remember(known)
        return known

    def _ask_for_jobs(self) -> None:
        while not self._stop.is_set():
            self._room.acquire()
            began = time.monotonic()
            job = self._next_job()
            if job is not None:
                threading.Thread(target=self._play, args=(job,), name="job", daemon=True).start()
                continue
            self._room.release()
            if time.monotonic() - began < PAUSE:
                self._stop.wait(PAUSE)
        self._asking.connection.close()

    def _next_job(self) -> Mapping[str, Any] | None:
        try:
            return self._asking.next_job()
        except Unreachable:
            return None
        except Gone:  # somebody has removed the runner
            with contextlib.suppress(Unreachable, Gone):
                self._asking.token = self._known_token()
            return None

    def _play(self, payload: Mapping[str, Any]) -> None:
        connection = Connection(self._url)
        try:
            with contextlib.suppress(Gone, Unreachable):
                self._to_its_end(payload, JobInHand(connection, int(payload["id"]), str(payload["token"])))
        finally:
            connection.close()
            self._room.release()

    def _to_its_end(self, payload: Mapping[str, Any], job: JobInHand) -> None:
        variables = {one["key"]: one["value"] for one in payload["variables"]}
        try:
            wanted = played(variables, self._rules.values_for(variables))
        except ValueError as problem:
            job.log(f"ERROR: Job failed: {problem}\n")
            job.end("failed", "runner_system_failure", None)
            return
        job.log(_opening(payload, wanted))
        longest = float(payload["runner_info"]["timeout"])
        if not self._last(job, min(wanted.duration, longest)):
            return
        reason, exit_code = wanted.failure_reason, wanted.script_exit_code
        if wanted.duration > longest:
            reason, exit_code = "job_execution_timeout", None
        try:
            for upload in uploads(payload["artifacts"], wanted.artifacts, succeeds=reason is None):
                job.upload(upload)
        except ValueError as problem:
            job.log(f"ERROR: Uploading artifacts failed: {problem}\n")
            reason, exit_code = "runner_system_failure", None
        if wanted.log is None:
            job.log(_closing(reason, exit_code))
        job.end("success" if reason is None else "failed", reason, exit_code)

    def _last(self, job: JobInHand, seconds: float) -> bool:
        """Waits until the job has been running for so long; False where the runner ends before."""
        said = time.monotonic()
        while seconds > 0:
            left = seconds - job.seconds()
            if left <= 0:
                break
            if self._stop.wait(min(left, LOOK)):
                return False
            if time.monotonic() - said > SIGN_OF_LIFE:
                said = time.monotonic()
                job.go_on()
        return True


def _opening(payload: Mapping[str, Any], wanted: Played) -> str:
    """What a log begins with, or all of it."""
    if wanted.log is not None:
        return wanted.log
    commands = [f"$ {command}" for step in payload["steps"] for command in step["script"]]
    return "\n".join(["Played by the built-in runner; no command is executed.", *commands, ""])


def _closing(reason: str | None, exit_code: int | None) -> str:
    if reason is None:
        return "Job succeeded\n"
    return f"ERROR: Job failed: {reason if exit_code is None else f'exit code {exit_code}'}\n"
