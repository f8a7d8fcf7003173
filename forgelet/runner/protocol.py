"""The runners' protocol over HTTP, as far as the built-in runner speaks it, and the files that a played job leaves."""

import fnmatch
import gzip
import io
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import attrs

from forgelet.testing.api import Answer, Api


@attrs.frozen(kw_only=True)
class Upload:
    """One file for `POST /jobs/:id/artifacts`."""

    filename: str
    content: bytes
    #: As `artifact_type`, `artifact_format` and `expire_in` are sent.
    said: Mapping[str, str]


#: Of a job whose CI file names no artifacts, but whose variables or rule do.
_ARCHIVE = {"artifact_type": "archive", "artifact_format": "zip", "paths": ["**"]}


def uploads(
    wanted: Sequence[Mapping[str, Any]] | None, files: Mapping[str, str], *, succeeds: bool
) -> Iterator[Upload]:
    """One for each item of `wanted`, which is `artifacts` of what a runner is told of the job, as far as `files` has
    some for it. Everything goes into an archive where the job names nothing."""
    for one in wanted or [_ARCHIVE]:
        when = one.get("when") or "on_success"
        if when != "always" and (when == "on_success") != succeeds:
            continue
        chosen = {path: text for path, text in files.items() if _is_wanted(one, path)}
        if chosen:
            yield _packed(one, chosen)


def _is_wanted(one: Mapping[str, Any], path: str) -> bool:
    def named(patterns: Sequence[str]) -> bool:
        return any(_fits(pattern, path) for pattern in patterns)

    wanted = one.get("untracked") or named(one.get("paths") or [])
    return bool(wanted) and not named(one.get("exclude") or [])


def _fits(pattern: str, path: str) -> bool:
    """A folder's name stands for all that is in it."""
    pattern = pattern.removeprefix("./").rstrip("/")
    return pattern in ("", ".", "**") or fnmatch.fnmatchcase(path, pattern) or path.startswith(f"{pattern}/")


def _packed(one: Mapping[str, Any], files: Mapping[str, str]) -> Upload:
    form = one.get("artifact_format") or "zip"
    said = {"artifact_type": one["artifact_type"], "artifact_format": form}
    if one.get("expire_in"):
        said["expire_in"] = str(one["expire_in"])
    name = str(one.get("name") or "artifacts")
    if form == "zip":
        return Upload(filename=f"{name}.zip", content=_zip(files), said=said)
    together = "".join(files.values()).encode()
    if form == "gzip":
        return Upload(filename=f"{name}.gz", content=gzip.compress(together, mtime=0), said=said)
    return Upload(filename=name, content=together, said=said)


def _zip(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            # of no time, so that the same files are the same archive
            archive.writestr(zipfile.ZipInfo(path), text)
    return packed.getvalue()


#: What is said of the runner; `release` steps are taken too, and nothing is released.
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
    """The service answers that it cannot: it is starting or ending."""


class Gone(Exception):
    """The service no longer knows the runner's token, or the job."""


def register(administrator: Api, tags: list[str]) -> str:
    """Make a runner of the instance and return its token. Raise `OSError` or `ApiError`."""
    runner = {"runner_type": "instance_type", "description": "Built-in runner", "tag_list": tags}
    return str(administrator.post("user/runners", runner)["token"])


def is_known(api: Api, runner_token: str) -> bool:
    """Return whether the service knows the runner. Raise `OSError`."""
    runner = {"token": runner_token, "system_id": SYSTEM_ID, "info": INFO}
    return api.ask("POST", "runners/verify", runner).status == 200


@attrs.define
class Asking:
    """A runner that asks for jobs, one after the other."""

    api: Api
    token: str
    _last_update: str = ""

    def next_job(self) -> Mapping[str, Any] | None:
        """Return the next job, or None if there was none for a while. Raise `OSError` or `Gone`."""
        sent = {"token": self.token, "system_id": SYSTEM_ID, "info": INFO, "last_update": self._last_update}
        answer = self.api.ask("POST", "jobs/request", sent)
        if answer.status in (401, 403):
            raise Gone
        if answer.status not in (201, 204):
            raise Unreachable(f"POST /jobs/request answered {answer.status}")
        self._last_update = answer.headers.get("X-GitLab-Last-Update", "")
        return answer.content if answer.status == 201 else None


@attrs.define
class JobInHand:
    """A job that is being played, as the service hears of it. Each method raises `OSError`, or `Gone` if the job is
    canceled or no longer exists."""

    api: Api
    id: int
    token: str
    _sent: int = 0

    def log(self, text: str) -> None:
        """Append `text` to the log."""
        data = text.encode()
        if not data:
            return
        where = f"{self._sent}-{self._sent + len(data) - 1}"
        self._ask("PATCH", f"jobs/{self.id}/trace", data, Content_Range=where, Content_Type="text/plain")
        self._sent += len(data)

    def upload(self, upload: Upload) -> None:
        boundary = secrets.token_hex(16)
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{_quoted(upload.filename)}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        data = head.encode() + upload.content + f"\r\n--{boundary}--\r\n".encode()
        path = f"jobs/{self.id}/artifacts?{urlencode(upload.said)}"
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
        said = {"state": state, "failure_reason": failure_reason, "exit_code": exit_code}
        self._ask("PUT", f"jobs/{self.id}", said)

    def _ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        answer = self.api.ask(method, path, body, JOB_TOKEN=self.token, **headers)
        if answer.status in (401, 403, 404):
            raise Gone
        if answer.status >= 500:
            raise Unreachable(f"{method} {path} answered {answer.status}")
        return answer


def _quoted(name: str) -> str:
    return name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
