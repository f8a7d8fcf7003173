"""A running server for tests: its addresses and controls."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from forgelet.testing.api import Api, ApiError, Connections


class SharedError(Exception):
    """A call would change a server that the tests of others use, too."""


@dataclasses.dataclass(frozen=True)
class Ready:
    """The content of a server's ready file. For one that was started by hand, all but `url` and `root_token` may be
    unknown."""

    url: str
    root_token: str
    edge_url: str | None = None
    data_dir: str | None = None
    pid: int | None = None
    version: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Ready":
        """Read the content of a ready file. Raise `LookupError` or `TypeError` if it is not valid."""
        needed = {"url": str(content["url"]), "root_token": str(content["root_token"])}
        fields: dict[str, Any] = {field.name: content.get(field.name) for field in dataclasses.fields(cls)}
        return cls(**fields | needed)


class Controls(Api):
    """The controls of a server for tests, below `/-/testing`."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections, below="-/testing")

    def request(self, method: str, path: str, body: object = None) -> Any:
        try:
            return super().request(method, path, body)
        except ApiError as refused:
            if refused.status in (404, 405) and not isinstance(refused.message, dict):
                raise ApiError(
                    method, f"/-/testing/{path}", refused.status,
                    "this server has no controls: start it by `forgelet up --testing`",
                ) from None  # fmt: skip
            raise


class Forgelet:
    """The server that `ready` describes. `is_shared`: tests of other processes use it, too."""

    def __init__(self, ready: Ready, *, is_shared: bool = False) -> None:
        self.url = ready.url.rstrip("/")
        self.api_url = f"{self.url}/api/v4"
        self.edge_url = ready.edge_url
        self.root_token = ready.root_token
        self.data_dir = ready.data_dir
        self.pid = ready.pid
        self.version = ready.version
        self.is_shared = is_shared
        self._connections = Connections(self.url)
        self._controls = Controls(self._connections)
        self._failures: list[str] = []
        #: The API as the administrator `root`.
        self.api = self.api_of(self.root_token)

    def __repr__(self) -> str:
        return f"<Forgelet {self.url}>"

    def api_of(self, token: str | None) -> Api:
        """Return the API as the owner of `token`, or anonymously without one."""
        return Api(self._connections, token or "")

    def close(self) -> None:
        """Close our connections. The server continues to run."""
        self._connections.close()

    def reset(self) -> None:
        """Restore the state after the server's start. Raise `SharedError`."""
        self._alone("reset")
        self._failures.clear()
        self._controls.post("reset")

    def snapshot(self) -> str:
        """Save the present state, and return its id for `restore`."""
        return str(self._controls.post("snapshot")["id"])

    def restore(self, snapshot: str) -> None:
        """Return to a saved state. Raise `SharedError`."""
        self._alone("restore")
        self._controls.post("restore", {"id": snapshot})

    def now(self) -> str:
        """Return the service's time in the form `2027-01-01T00:00:00Z`."""
        return str(self._controls.get("clock")["now"])

    def advance(self, seconds: float) -> str:
        """Move the clock forward, run the work that becomes due, and return the new time. Raise `SharedError`."""
        self._alone("advance")
        return str(self._controls.post("clock", {"advance": seconds})["now"])

    def set_clock(self, now: str) -> str:
        """Set the clock to a time such as `2027-01-01T00:00:00Z`. Raise `SharedError`."""
        self._alone("set_clock")
        return str(self._controls.post("clock", {"now": now})["now"])

    def settle(self) -> None:
        """Wait until no background work (deliveries, mirrors, pipelines) is due. Raise `TimeoutError` if that takes too
        long."""
        pending = self._controls.post("settle")["left"]
        if pending:
            raise TimeoutError(f"the server still has to do: {', '.join(map(str, pending))}")

    def requests(self, **filters: object) -> list[dict[str, Any]]:
        """Return the recorded requests with their answers, oldest first. Filters are `method`, `path`, `status` and
        `user` (a user name)."""
        requests: list[dict[str, Any]] = self._controls.get("requests", **_without_none(filters))
        return requests

    def forget_requests(self, **filters: object) -> None:
        """Remove the matching requests from the record. Filters are those of `requests`."""
        self._controls.delete(f"requests?{urlencode(_without_none(filters))}")

    def fail(
        self,
        method: str = "*",
        path: str = "*",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: object = None,
        delay: float | None = None,
        cut: bool | int | None = None,
        times: int | None = None,
        user: str | None = None,
    ) -> dict[str, Any]:
        """Make the next matching requests fail, `times` times or until the test ends, and return the failure with `id`
        and `left`.

        In `path`, `*` does not match a slash and `**` does: `/api/v4/projects/**`. `user` is a user name.
        """
        values = {
            "method": method, "path": path, "status": status, "headers": headers, "body": body,
            "delay": delay, "cut": cut, "times": times, "user": user,
        }  # fmt: skip
        failure: dict[str, Any] = self._controls.post("failures", _without_none(values))
        self._failures.append(str(failure["id"]))
        return failure

    def failures(self) -> list[dict[str, Any]]:
        """Return the failures that were ordered by `fail` and have not occurred yet."""
        return [failure for failure in self._controls.get("failures") if failure["left"]]

    def stop_failing(self) -> None:
        """Cancel the failures that were ordered by `fail`."""
        while self._failures:
            with contextlib.suppress(ApiError, OSError):  # it has occurred, or the server has ended
                self._controls.delete(f"failures/{self._failures.pop()}")

    def _alone(self, method: str) -> None:
        if self.is_shared:
            raise SharedError(
                f"{method}() would change the server under the tests of others, who share it: let each worker have its"
                " own (without forgelet_shared), or keep to a namespace (gitlab_user, gitlab_group, gitlab_project)"
            )


def _without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
