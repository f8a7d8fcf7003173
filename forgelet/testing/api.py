"""A client of the API: JSON requests and answers on persistent connections.

Tests of clients use it, and so does `forgelet up` with its built-in runner. It is synchronous and needs nothing but the
standard library, so that it fits into any program. No proxy of the environment is used.
"""

import contextlib
import http.client
import json
import select
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

SECONDS = 60.0
#: Maximum length of an answer without JSON in the message of an error.
_BYTES_SHOWN = 300


class ApiError(Exception):
    """An answer other than 2xx, with its `status`, and its content as `message`."""

    def __init__(self, method: str, path: str, status: int, message: object) -> None:
        super().__init__(f"{method} {path} answered {status}: {message}")
        self.status = status
        self.message = message


class Answer:
    """An answer. `content` is its JSON, its bytes if it is something else, or None if it is empty."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        is_json = headers.get_content_type() == "application/json"
        self.status = status
        self.headers = headers
        self.content: Any = json.loads(body) if body and is_json else body or None


class Connections:
    """Persistent connections to the server at `base_url`. Any number of threads may share them."""

    def __init__(self, base_url: str, *, user_agent: str | None = None, timeout: float = SECONDS) -> None:
        self.base_url = base_url
        parts = urlsplit(base_url)
        self._https = parts.scheme == "https"
        self._netloc = parts.netloc
        self._path = parts.path.rstrip("/")
        self._headers = {"User-Agent": user_agent} if user_agent else {}
        self._timeout = timeout
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """Send a request and return its answer with any status. Raise `OSError` if there is no complete answer."""
        with self._connection() as connection:
            try:
                connection.request(method, f"{self._path}/{path}", body, {**self._headers, **(headers or {})})
                answer = connection.getresponse()
                return Answer(answer.status, answer.headers, answer.read())
            except OSError:
                raise
            except http.client.HTTPException as problem:
                raise ConnectionError(f"{method} {path} has no valid answer: {problem!r}") from problem

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def cut(self) -> None:
        """Abort the requests of all threads. They raise `OSError`."""
        for connection in list(self._busy):
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = self._reusable() or self._new()
        self._busy.add(connection)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.sock is None:  # the answer had `Connection: close`
            connection.close()
        else:
            self._idle.append(connection)

    def _reusable(self) -> http.client.HTTPConnection | None:
        """Return an idle connection that the server has not closed, or None, because a request is never sent twice."""
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
        return kind(self._netloc, timeout=self._timeout)


class Api:
    """The API as the owner of `token` sees it; without one, anonymously.

    Paths are relative to `/api/v4`: `api.get("projects", search="x")`, `api.post("projects", {"name": "x"})`. All
    methods but `ask` raise `ApiError` if the answer is not 2xx, and all raise `OSError` if there is none.
    """

    def __init__(self, connections: Connections, token: str = "", below: str = "api/v4") -> None:
        self.connections = connections
        self.base_url = connections.base_url
        self.token = token
        self._below = below

    def with_token(self, token: str) -> "Api":
        """Return the same API as the owner of `token` sees it."""
        return Api(self.connections, token)

    def get(self, path: str, /, **query: object) -> Any:
        return self.request("GET", f"{path}?{urlencode(query, doseq=True)}" if query else path)

    def find(self, path: str) -> Any:
        """Return what is at `path`, or None if the answer is 404."""
        try:
            return self.get(path)
        except ApiError as refused:
            if refused.status == 404:
                return None
            raise

    def post(self, path: str, body: object = None) -> Any:
        return self.request("POST", path, body)

    def put(self, path: str, body: object = None) -> Any:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: object = None) -> Any:
        return self.request("PATCH", path, body)

    def delete(self, path: str, body: object = None) -> Any:
        return self.request("DELETE", path, body)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer's JSON, its bytes if it is something else, or None if it is empty."""
        answer = self.ask(method, path, body)
        if not 200 <= answer.status < 300:
            content = answer.content
            excerpt = content[:_BYTES_SHOWN] if isinstance(content, bytes) else content
            raise ApiError(method, path, answer.status, excerpt)
        return answer.content

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send `body` (bytes as they are, anything else as JSON), and return the answer with any status. The names of
        `headers` have `_` instead of `-`."""
        all_headers = {"PRIVATE-TOKEN": self.token} if self.token else {}
        if body is not None and not isinstance(body, bytes):
            all_headers["Content-Type"], body = "application/json", json.dumps(body).encode()
        all_headers |= {name.replace("_", "-"): text for name, text in headers.items()}
        return self.connections.request(method, f"{self._below}/{path.lstrip('/')}", all_headers, body)


def answers(url: str) -> bool:
    """Return whether a GET of `url` is answered with 200 within two seconds."""
    parts = urlsplit(url)
    connections = Connections(f"{parts.scheme}://{parts.netloc}", timeout=2)
    try:
        return connections.request("GET", parts.path.lstrip("/")).status == 200
    except OSError:
        return False
    finally:
        connections.close()
