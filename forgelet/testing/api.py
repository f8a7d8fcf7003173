"""Requests to a server for tests: JSON there, JSON back, on connections that are kept."""

import contextlib
import http.client
import json
import select
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

SECONDS = 60.0
#: Of an answer in an error that is no JSON.
_BYTES_SHOWN = 300


class ApiError(Exception):
    """An answer other than 2xx, with its `status`, and what it says as `message`."""

    def __init__(self, method: str, path: str, status: int, message: object) -> None:
        super().__init__(f"{method} {path} answered {status}: {message}")
        self.status = status
        self.message = message


class Connections:
    """Connections to the one server at `base_url`, used again; for any number of threads."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        parts = urlsplit(base_url)
        self._https = parts.scheme == "https"
        self._place = parts.netloc
        self._path = parts.path.rstrip("/")
        self._idle: list[http.client.HTTPConnection] = []

    def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer. Raises `OSError` and `http.client.HTTPException`."""
        with self._connection() as connection:
            connection.request(method, f"{self._path}/{path}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers.get_content_type(), answer.read()

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = self._kept() or self._new()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.sock is None:  # the answer said `Connection: close`
            connection.close()
        else:
            self._idle.append(connection)

    def _kept(self) -> http.client.HTTPConnection | None:
        """One that the server has not closed meanwhile: a request is never sent twice."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _new(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        return kind(self._place, timeout=SECONDS)


class Api:
    """The API as the owner of `token` sees it (without one: anonymously). Paths are relative to `/api/v4`:
    `api.get("projects", search="x")`, `api.post("projects", {"name": "x"})`. All raise `ApiError`."""

    def __init__(self, connections: Connections, token: str | None = None, below: str = "api/v4") -> None:
        self._connections = connections
        self._below = below
        self._headers = {"PRIVATE-TOKEN": token} if token else {}

    def get(self, path: str, /, **query: object) -> Any:
        return self.request("GET", f"{path}?{urlencode(query, doseq=True)}" if query else path)

    def post(self, path: str, body: object = None) -> Any:
        return self.request("POST", path, body)

    def put(self, path: str, body: object = None) -> Any:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: object = None) -> Any:
        return self.request("PATCH", path, body)

    def delete(self, path: str, body: object = None) -> Any:
        return self.request("DELETE", path, body)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The answer: its JSON, its bytes where it is something else, None where it is empty."""
        headers, data = self._headers, None
        if body is not None:
            headers, data = {**headers, "Content-Type": "application/json"}, json.dumps(body).encode()
        status, content_type, answer = self._connections.request(
            method, f"{self._below}/{path.lstrip('/')}", headers, data
        )
        said = json.loads(answer) if answer and content_type == "application/json" else answer or None
        if not 200 <= status < 300:
            shown = said[:_BYTES_SHOWN] if isinstance(said, bytes) else said
            raise ApiError(method, path, status, shown)
        return said
