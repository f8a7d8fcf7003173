"""The few words of HTTP that running a local forgelet needs: JSON requests to its own API, with a token."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from api_server.testing import OWN_AGENT

SECONDS = 30.0
#: Loopback is reached directly, whatever proxy the environment names.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ApiError(Exception):
    """An answer other than 2xx, or none; `status` is 0 when nothing answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """`/api/v4` of the service at `base_url`, as the user whom `token` belongs to."""

    def __init__(self, base_url: str, token: str) -> None:
        self.base_url = base_url
        self.token = token

    def get(self, path: str, **query: str) -> Any:
        return self._request("GET", f"{path}?{urllib.parse.urlencode(query)}" if query else path)

    def find(self, path: str) -> Any:
        """The resource at `path`, or None when the service answers 404."""
        try:
            return self.get(path)
        except ApiError as problem:
            if problem.status == 404:
                return None
            raise

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, body)

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("PUT", path, body)

    def steer(self, path: str, body: dict[str, Any]) -> Any:
        """POST to a control of a server for tests: `path` is below /-/testing."""
        return self._request("POST", path, body, below="/-/testing")

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, below: str = "/api/v4"
    ) -> Any:
        request = urllib.request.Request(
            f"{self.base_url}{below}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "PRIVATE-TOKEN": self.token,
                "Content-Type": "application/json",
                "User-Agent": OWN_AGENT,
            },
        )
        try:
            with _direct.open(request, timeout=SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as refused:
            text = refused.read(300).decode(errors="replace")
            raise ApiError(refused.code, f"{method} {path} answered {refused.code}: {text}") from None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise ApiError(0, f"{method} {path} failed: {problem}") from None


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200 within two seconds."""
    try:
        with _direct.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def encoded(path: str) -> str:
    """A full path as the API takes it in place of a number: `demo/app` is `demo%2Fapp`."""
    return urllib.parse.quote(path, safe="")
