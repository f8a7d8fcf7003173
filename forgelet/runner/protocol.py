"""The runners' protocol over HTTP, as far as the built-in runner speaks it, and the files that a played job leaves."""

import contextlib
import fnmatch
import gzip
import http.client
import io
import json
import secrets
import socket
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import attrs

from api_server.testing import OWN_AGENT


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
#: Seconds beyond those that a request for a job waits at the service.
SECONDS = 60.0


class Unreachable(Exception):
    """Nothing answers: the service is starting, or ending."""


class Gone(Exception):
    """The service knows the runner's token, or the job in its hands, no more."""


@attrs.frozen
class Answer:
    """`body` is JSON, or null."""

    status: int
    body: Any
    headers: http.client.HTTPMessage


class Connection:
    """Requests to the service at `url`, which is loopback."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
        self._base = f"{parts.path.rstrip('/')}/api/v4"

    def ask(
        self, method: str, path: str, body: Any = None, *, data: bytes | None = None, **headers: str
    ) -> Answer:
        """Sends `body` as JSON, or `data` as it is; `headers` have `_` for `-`. Raises `Unreachable`."""
        sent = {"User-Agent": OWN_AGENT} | {name.replace("_", "-"): text for name, text in headers.items()}
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        try:
            self._connection.request(method, self._base + path, data, sent)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()  # the next request opens it again
            raise Unreachable(str(problem)) from None
        is_json = answer.headers.get_content_type() == "application/json"
        return Answer(answer.status, json.loads(text) if is_json and text else None, answer.headers)

    def close(self) -> None:
        self._connection.close()

    def cut(self) -> None:
        """From another thread: ends the request that is under way."""
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)


def register(connection: Connection, root_token: str, kind: Mapping[str, Any]) -> str:
    """Return the token of a new runner. Raises `Unreachable`, and `Gone` where the service refuses."""
    answer = connection.ask("POST", "/user/runners", kind, PRIVATE_TOKEN=root_token)
    if answer.status != 201:
        raise Gone(f"POST /user/runners answered {answer.status}: {answer.body}")
    return str(answer.body["token"])


def is_known(connection: Connection, runner_token: str) -> bool:
    """Whether the service knows the runner. Raises `Unreachable`."""
    sent = {"token": runner_token, "system_id": SYSTEM_ID, "info": INFO}
    return connection.ask("POST", "/runners/verify", sent).status == 200


@attrs.define
class Asking:
    """A runner that asks for jobs, one after the other."""

    connection: Connection
    token: str
    _last_update: str = ""

    def next_job(self) -> Mapping[str, Any] | None:
        """The service lets this wait until there is one, for a while. Raises `Unreachable`, and `Gone`."""
        sent = {"token": self.token, "system_id": SYSTEM_ID, "info": INFO, "last_update": self._last_update}
        answer = self.connection.ask("POST", "/jobs/request", sent)
        if answer.status in (401, 403):
            raise Gone
        if answer.status not in (201, 204):
            raise Unreachable(f"POST /jobs/request answered {answer.status}")
        self._last_update = answer.headers.get("X-GitLab-Last-Update", "")
        return answer.body if answer.status == 201 else None


@attrs.define
class JobInHand:
    """What is told the service of one job. Each method raises `Unreachable`, and `Gone` where the job is canceled, or
    is no more."""

    connection: Connection
    id: int
    token: str
    _sent: int = 0

    def log(self, text: str) -> None:
        """Adds to the log."""
        data = text.encode()
        if not data:
            return
        where = f"{self._sent}-{self._sent + len(data) - 1}"
        self._ask(
            "PATCH", f"/jobs/{self.id}/trace", data=data, Content_Range=where, Content_Type="text/plain"
        )
        self._sent += len(data)

    def upload(self, upload: Upload) -> None:
        boundary = secrets.token_hex(16)
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{_quoted(upload.filename)}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        data = head.encode() + upload.content + f"\r\n--{boundary}--\r\n".encode()
        path = f"/jobs/{self.id}/artifacts?{urlencode(upload.said)}"
        answer = self._ask("POST", path, data=data, Content_Type=f"multipart/form-data; boundary={boundary}")
        if answer.status != 201:
            raise ValueError(f"{upload.filename} was refused: {answer.body or answer.status}")

    def seconds(self) -> float:
        """How long it has been running, by the service's clock."""
        return float(self._ask("GET", "/job").body["duration"])

    def go_on(self) -> None:
        """Says that it is still being played."""
        self._ask("PUT", f"/jobs/{self.id}", {"state": "running"})

    def end(self, state: str, failure_reason: str | None, exit_code: int | None) -> None:
        said = {"state": state, "failure_reason": failure_reason, "exit_code": exit_code}
        self._ask("PUT", f"/jobs/{self.id}", said)

    def _ask(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        answer = self.connection.ask(method, path, body, JOB_TOKEN=self.token, **options)
        if answer.status in (401, 403, 404):
            raise Gone
        if answer.status >= 500:
            raise Unreachable(f"{method} {path} answered {answer.status}")
        return answer


def _quoted(name: str) -> str:
    return name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
