"""The built-in runner, which requests jobs like any runner, and plays them without executing anything.

The outcome of a job is given by its variables, and otherwise by the first matching rule of the rule file. One thread
requests jobs, and each running job has a thread of its own.
"""

import contextlib
import difflib
import fnmatch
import gzip
import io
import json
import math
import secrets
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import attrs
import yaml

from api_server.ci.runners.job_response import FAILURE_REASONS
from common.config_errors import ConfigError
from forgelet.testing.api import Answer, Api, ApiError

#: The prefix of the variables, which is followed by a field's name in capitals.
PREFIX = "FORGELET_"
RESULTS = ("success", "failed", *sorted(FAILURE_REASONS))
LONGEST = 7 * 86_400
MAX_EXIT_CODE = 255


@attrs.frozen(kw_only=True)
class Played:
    """The outcome of a job. Artifacts are texts by path in the job's folder."""

    #: `success`, `failed`, or the reason for the failure.
    result: str = "success"
    #: The exit code of a job whose script fails; by default 1.
    exit_code: int | None = None
    #: The whole log; by default a log as a runner would write it.
    log: str | None = None
    #: The duration in seconds of the service's clock.
    duration: float = 0.0
    artifacts: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def failure_reason(self) -> str | None:
        """The reason for the failure, or None for success."""
        if self.result == "failed":
            return "script_failure"
        return None if self.result == "success" else self.result

    @property
    def script_exit_code(self) -> int | None:
        """The exit code of the script, or None if no script has failed."""
        if self.failure_reason != "script_failure":
            return None
        return 1 if self.exit_code is None else self.exit_code


def played(variables: Mapping[str, str], otherwise: Mapping[str, Any]) -> Played:
    """Return the outcome. Variables take precedence over `otherwise`, the values of a rule. Raise `ValueError` with a
    sentence about an invalid variable."""
    values = dict(otherwise)
    for name, check in FIELDS.items():
        variable = PREFIX + name.upper()
        if text := variables.get(variable):
            values[name] = check(variable, _READ.get(name, _as_it_is)(variable, text))
    return Played(**values)


def _result(name: str, value: Any) -> str:
    if value not in RESULTS:
        raise ValueError(f"{name} has to be success, failed or a reason to fail: {', '.join(RESULTS[2:])}")
    return str(value)


def _exit_code(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_EXIT_CODE:
        raise ValueError(f"{name} has to be a whole number from 0 to {MAX_EXIT_CODE}")
    return value


def _log(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} has to be a text")  # noqa: TRY004 - users have written the value
    return value


def _duration(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= LONGEST:
        raise ValueError(f"{name} has to be a number of seconds from 0 to {LONGEST}")
    return float(value)


def _artifacts(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f'{name} has to be texts by their paths, such as {{"report.xml": "<testsuite/>"}}')
    for path in value:
        if not isinstance(path, str) or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"{name}: {str(path)[:100]!r} is no path of a file in the job's folder")
    return value


def _as_it_is(_name: str, text: str) -> str:
    return text


def _integer(_name: str, text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _number(_name: str, text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{name} is not valid JSON") from None


#: The fields of an outcome with their checks, and the functions that parse the texts of variables before the check.
FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    "result": _result,
    "exit_code": _exit_code,
    "log": _log,
    "duration": _duration,
    "artifacts": _artifacts,
}
_READ: Mapping[str, Callable[[str, str], Any]] = {
    "exit_code": _integer,
    "duration": _number,
    "artifacts": _json,
}


#: The conditions of a rule, and the job's variable that each is compared with.
CONDITIONS = {
    "project": "CI_PROJECT_PATH",
    "name": "CI_JOB_NAME",
    "stage": "CI_JOB_STAGE",
    "ref": "CI_COMMIT_REF_NAME",
}
MAX_RULES_BYTES = 2**20


@attrs.frozen
class Rule:
    """A rule: patterns by condition, in which `*` stands for anything, and values for fields of `Played`."""

    patterns: Mapping[str, str]
    values: Mapping[str, Any]

    def fits(self, variables: Mapping[str, str]) -> bool:
        return all(
            fnmatchcase(variables.get(CONDITIONS[condition], ""), pattern)
            for condition, pattern in self.patterns.items()
        )


@attrs.frozen
class Rules:
    """All rules of a file, in their order."""

    rules: tuple[Rule, ...] = ()

    def values_for(self, variables: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the values of the first rule that fits a job with these variables; none if no rule fits."""
        return next((rule.values for rule in self.rules if rule.fits(variables)), {})


def read_rules(file: Path) -> Rules:
    """Read a rule file. Raise `ConfigError` with the number of the line."""
    try:
        text = file.read_text()
    except OSError as problem:
        raise ConfigError(f"The rules of the runner cannot be read: {problem.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: the rules of the runner are not UTF-8") from None
    if len(text) > MAX_RULES_BYTES:
        raise ConfigError(f"{file}: the rules of the runner have more than {MAX_RULES_BYTES} characters")
    try:
        return Rules(tuple(_rules(_Loader(text))))
    except _InvalidRule as problem:
        raise ConfigError(f"{file}:{problem.line}: {problem}") from None
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise ConfigError(f"{file}:{line}: this is not valid YAML: {problem.problem}") from None
    except yaml.YAMLError as problem:
        raise ConfigError(f"{file}: this is not valid YAML: {problem}") from None


class _Loader(yaml.SafeLoader):
    """A YAML loader that keeps the position of values."""


class _InvalidRule(Exception):
    def __init__(self, sentence: str, node: yaml.Node) -> None:
        super().__init__(sentence)
        self.line = node.start_mark.line + 1


def _rules(loader: _Loader) -> Iterator[Rule]:
    document = loader.get_single_node()
    if document is None:
        return
    if not isinstance(document, yaml.SequenceNode):
        raise _InvalidRule("the rules have to be a list, each beginning with '- '", document)
    for item in document.value:
        if not isinstance(item, yaml.MappingNode):
            raise _InvalidRule("a rule has to be keys and values, such as 'name: deploy'", item)
        yield _rule(loader, item)


def _rule(loader: _Loader, item: yaml.MappingNode) -> Rule:
    patterns: dict[str, str] = {}
    values: dict[str, Any] = {}
    for key, node in item.value:
        name, value = str(key.value), loader.construct_object(node, deep=True)
        if name in patterns or name in values:
            raise _InvalidRule(f"{name} is there twice", key)
        if name in CONDITIONS:
            if not isinstance(value, str) or not value:
                raise _InvalidRule(
                    f"{name} has to be a text, in which * stands for anything; put it in quotes", node
                )
            patterns[name] = value
        elif name in FIELDS:
            try:
                values[name] = FIELDS[name](name, value)
            except ValueError as problem:
                raise _InvalidRule(str(problem), node) from None
        else:
            supported = [*CONDITIONS, *FIELDS]
            suggestions = difflib.get_close_matches(name, supported, n=1) or [", ".join(supported)]
            raise _InvalidRule(f"a rule has no {name[:50]!r}; did you mean {suggestions[0]}?", key)
    return Rule(patterns, values)


@attrs.frozen(kw_only=True)
class Upload:
    """One file for `POST /jobs/:id/artifacts`."""

    filename: str
    content: bytes
    #: The parameters `artifact_type`, `artifact_format` and `expire_in`.
    fields: Mapping[str, str]


#: The artifacts of a job whose CI file names none, but whose variables or rule do.
_ARCHIVE = {"artifact_type": "archive", "artifact_format": "zip", "paths": ["**"]}


def uploads(
    artifacts: Sequence[Mapping[str, Any]] | None, files: Mapping[str, str], *, succeeds: bool
) -> Iterator[Upload]:
    """Yield an upload for each of the job's `artifacts` (in the form of the runners' protocol) that matches any of
    `files`. If the job names no artifacts, all files go into one archive."""
    for artifact in artifacts or [_ARCHIVE]:
        when = artifact.get("when") or "on_success"
        if when != "always" and (when == "on_success") != succeeds:
            continue
        selected = {path: text for path, text in files.items() if _is_selected(artifact, path)}
        if selected:
            yield _packed(artifact, selected)


def _is_selected(artifact: Mapping[str, Any], path: str) -> bool:
    def named(patterns: Sequence[str]) -> bool:
        return any(_fits(pattern, path) for pattern in patterns)

    is_named = artifact.get("untracked") or named(artifact.get("paths") or [])
    return bool(is_named) and not named(artifact.get("exclude") or [])


def _fits(pattern: str, path: str) -> bool:
    """Return whether a path matches. The name of a folder matches everything in it."""
    pattern = pattern.removeprefix("./").rstrip("/")
    return pattern in ("", ".", "**") or fnmatch.fnmatchcase(path, pattern) or path.startswith(f"{pattern}/")


def _packed(artifact: Mapping[str, Any], files: Mapping[str, str]) -> Upload:
    form = artifact.get("artifact_format") or "zip"
    fields = {"artifact_type": artifact["artifact_type"], "artifact_format": form}
    if artifact.get("expire_in"):
        fields["expire_in"] = str(artifact["expire_in"])
    name = str(artifact.get("name") or "artifacts")
    if form == "zip":
        return Upload(filename=f"{name}.zip", content=_zip(files), fields=fields)
    together = "".join(files.values()).encode()
    if form == "gzip":
        return Upload(filename=f"{name}.gz", content=gzip.compress(together, mtime=0), fields=fields)
    return Upload(filename=name, content=together, fields=fields)


def _zip(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            # without a time, so that equal files give equal archives
            archive.writestr(zipfile.ZipInfo(path), text)
    return packed.getvalue()


#: The runner's description of itself. It accepts `release` steps, too, but releases nothing.
INFO = {
    "name": "built-in",
    "version": "forgelet",
    "platform": "none",
    "architecture": "none",
    "executor": "played",
    "features": {"multi_build_steps": True},
}
SYSTEM_ID = "s_built_in"


class Unreachable(ConnectionError):
    """The service answers that it is unavailable, because it is starting or ending."""


class Gone(Exception):
    """The service no longer knows the runner's token, or the job."""


def is_known(api: Api, runner_token: str) -> bool:
    """Return whether the service knows the runner. Raise `OSError`."""
    runner = {"token": runner_token, "system_id": SYSTEM_ID, "info": INFO}
    return api.ask("POST", "runners/verify", runner).status == 200


@attrs.define
class JobRequester:
    """A runner that requests jobs, one after the other."""

    api: Api
    token: str
    _last_update: str = ""

    def next_job(self) -> Mapping[str, Any] | None:
        """Return the next job, or None if there was none for a while. Raise `OSError` or `Gone`."""
        body = {"token": self.token, "system_id": SYSTEM_ID, "info": INFO, "last_update": self._last_update}
        answer = self.api.ask("POST", "jobs/request", body)
        if answer.status in (401, 403):
            raise Gone
        if answer.status not in (201, 204):
            raise Unreachable(f"POST /jobs/request answered {answer.status}")
        self._last_update = answer.headers.get("X-GitLab-Last-Update", "")
        return answer.content if answer.status == 201 else None


@attrs.define
class RunningJob:
    """A job in progress, and the requests that report on it. Each method raises `OSError`, or `Gone` if the job is
    canceled or no longer exists."""

    api: Api
    id: int
    token: str
    _size: int = 0

    def log(self, text: str) -> None:
        """Append `text` to the log."""
        data = text.encode()
        if not data:
            return
        span = f"{self._size}-{self._size + len(data) - 1}"
        self._ask("PATCH", f"jobs/{self.id}/trace", data, Content_Range=span, Content_Type="text/plain")
        self._size += len(data)

    def upload(self, upload: Upload) -> None:
        boundary = secrets.token_hex(16)
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{_quoted(upload.filename)}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        data = head.encode() + upload.content + f"\r\n--{boundary}--\r\n".encode()
        path = f"jobs/{self.id}/artifacts?{urlencode(upload.fields)}"
        answer = self._ask("POST", path, data, Content_Type=f"multipart/form-data; boundary={boundary}")
        if answer.status != 201:
            raise ValueError(f"{upload.filename} was refused: {answer.content or answer.status}")

    def seconds(self) -> float:
        """Return how long the job has been running, by the service's clock."""
        return float(self._ask("GET", "job").content["duration"])

    def go_on(self) -> None:
        """Report that the job is still running."""
        self._ask("PUT", f"jobs/{self.id}", {"state": "running"})

    def end(self, state: str, failure_reason: str | None, exit_code: int | None) -> None:
        update = {"state": state, "failure_reason": failure_reason, "exit_code": exit_code}
        self._ask("PUT", f"jobs/{self.id}", update)

    def _ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        answer = self.api.ask(method, path, body, JOB_TOKEN=self.token, **headers)
        if answer.status in (401, 403, 404):
            raise Gone
        if answer.status >= 500:
            raise Unreachable(f"{method} {path} answered {answer.status}")
        return answer


def _quoted(name: str) -> str:
    return name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")


#: Maximum number of jobs that are played at the same time.
MAX_JOBS = 50
#: Seconds between two requests for the service's clock during a job, and before another request to a service that did
#: not answer.
LOOK, PAUSE = 0.2, 0.2
#: Seconds until the runner tries to register again after that was refused.
UNTIL_REGISTERED_AGAIN = 10.0
#: Seconds after which the runner reports that a job is still running.
SIGN_OF_LIFE = 60.0


class BuiltInRunner:
    """A runner that plays the service's jobs by `rules`. It registers itself as `administrator`, as a runner of this
    `kind` (the parameters of `POST /user/runners`), and stores its own token by `remember`, so that `recall` returns it
    the next time."""

    def __init__(
        self,
        administrator: Api,
        rules: Rules,
        *,
        kind: Mapping[str, Any],
        recall: Callable[[], str | None],
        remember: Callable[[str], None],
    ) -> None:
        self._administrator = administrator
        self._rules = rules
        self._kind = kind
        self._recall = recall
        self._remember = remember
        self._stop = threading.Event()
        self._free_slots = threading.BoundedSemaphore(MAX_JOBS)
        self._requester = JobRequester(administrator.with_token(""), "")

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Register the runner and let it play jobs for the duration of the block. Jobs that are running at the end are
        left as they are. Raise `OSError` or `ApiError`."""
        self._requester.token = self._valid_token()
        thread = threading.Thread(target=self._ask_for_jobs, name="built-in runner", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._requester.api.connections.cut()

    def _valid_token(self) -> str:
        token = self._recall()
        if token is None or not is_known(self._requester.api, token):
            token = str(self._administrator.post("user/runners", self._kind)["token"])
            self._remember(token)
        return token

    def _ask_for_jobs(self) -> None:
        while not self._stop.is_set():
            self._free_slots.acquire()
            requested_at = time.monotonic()
            job = self._next_job()
            if job is not None:
                threading.Thread(target=self._play, args=(job,), name="job", daemon=True).start()
                continue
            self._free_slots.release()
            if time.monotonic() - requested_at < PAUSE:
                self._stop.wait(PAUSE)
        self._requester.api.connections.close()

    def _next_job(self) -> Mapping[str, Any] | None:
        try:
            return self._requester.next_job()
        except OSError:
            return None
        except Gone:  # the runner has been deleted
            try:
                self._requester.token = self._valid_token()
            except (OSError, ApiError):  # its group may have been deleted, too
                self._stop.wait(UNTIL_REGISTERED_AGAIN)
            return None

    def _play(self, payload: Mapping[str, Any]) -> None:
        job = RunningJob(self._requester.api, int(payload["id"]), str(payload["token"]))
        try:
            with contextlib.suppress(Gone, OSError):
                self._play_to_end(payload, job)
        finally:
            self._free_slots.release()

    def _play_to_end(self, payload: Mapping[str, Any], job: RunningJob) -> None:
        variables = {variable["key"]: variable["value"] for variable in payload["variables"]}
        try:
            outcome = played(variables, self._rules.values_for(variables))
        except ValueError as problem:
            job.log(f"ERROR: Job failed: {problem}\n")
            job.end("failed", "runner_system_failure", None)
            return
        job.log(_opening(payload, outcome))
        longest = float(payload["runner_info"]["timeout"])
        if not self._wait_until(job, min(outcome.duration, longest)):
            return
        reason, exit_code = outcome.failure_reason, outcome.script_exit_code
        if outcome.duration > longest:
            reason, exit_code = "job_execution_timeout", None
        try:
            for upload in uploads(payload["artifacts"], outcome.artifacts, succeeds=reason is None):
                job.upload(upload)
        except ValueError as problem:
            job.log(f"ERROR: Uploading artifacts failed: {problem}\n")
            reason, exit_code = "runner_system_failure", None
        if outcome.log is None:
            job.log(_closing(reason, exit_code))
        job.end("success" if reason is None else "failed", reason, exit_code)

    def _wait_until(self, job: RunningJob, seconds: float) -> bool:
        """Wait until the job has been running for `seconds`. Return False if the runner ends before that."""
        reported_at = time.monotonic()
        while seconds > 0:
            remaining = seconds - job.seconds()
            if remaining <= 0:
                break
            if self._stop.wait(min(remaining, LOOK)):
                return False
            if time.monotonic() - reported_at > SIGN_OF_LIFE:
                reported_at = time.monotonic()
                job.go_on()
        return True


def _opening(payload: Mapping[str, Any], outcome: Played) -> str:
    """Return the beginning of the log, or all of it if the rule has one."""
    if outcome.log is not None:
        return outcome.log
    commands = [f"$ {command}" for step in payload["steps"] for command in step["script"]]
    return "\n".join(["Played by the built-in runner; no command is executed.", *commands, ""])


def _closing(reason: str | None, exit_code: int | None) -> str:
    if reason is None:
        return "Job succeeded\n"
    return f"ERROR: Job failed: {reason if exit_code is None else f'exit code {exit_code}'}\n"
