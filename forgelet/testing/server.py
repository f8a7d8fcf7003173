"""A server for tests that runs: where it is, and its controls."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from forgelet.testing.api import Api, ApiError, Connections


class SharedError(Exception):
    """What would change the server under the tests of others."""


@dataclasses.dataclass(frozen=True)
class Ready:
    """What a server says of itself in its ready file; all but `url` and `root_token` may be unknown of one that was
    started by hand."""

    url: str
    root_token: str
    edge_url: str | None = None
    data_dir: str | None = None
    pid: int | None = None
    version: str | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Ready":
        """Of what the file says. Raises `LookupError` or `TypeError` where it is no such file."""
        needed = {"url": str(said["url"]), "root_token": str(said["root_token"])}
        known: dict[str, Any] = {field.name: said.get(field.name) for field in dataclasses.fields(cls)}
        return cls(**known | needed)


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
    """The server that `ready` tells of. `is_shared` says that tests run against it that are not this process's."""

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
        """The API as the owner of `token`; without one, anonymously."""
        return Api(self._connections, token or "")

    def close(self) -> None:
        """Closes our connections; the server goes on."""
        self._connections.close()

    def reset(self) -> None:
        """Everything is as it was when the server had started. Raises `SharedError`."""
        self._alone("reset")
        self._failures.clear()
        self._controls.post("reset")

    def snapshot(self) -> str:
        """Keeps the state of this moment; its id is for `restore`."""
        return str(self._controls.post("snapshot")["id"])

    def restore(self, snapshot: str) -> None:
        """Goes back to a state that was kept. Raises `SharedError`."""
        self._alone("restore")
        self._controls.post("restore", {"id": snapshot})

    def now(self) -> str:
        """What the service's clock says: `2027-01-01T00:00:00Z`."""
        return str(self._controls.get("clock")["now"])

    def advance(self, seconds: float) -> str:
        """Moves the clock on; what became due has been done. Raises `SharedError`."""
        self._alone("advance")
        return str(self._controls.post("clock", {"advance": seconds})["now"])

    def set_clock(self, now: str) -> str:
        """Moves the clock to a moment: `2027-01-01T00:00:00Z`. Raises `SharedError`."""
        self._alone("set_clock")
        return str(self._controls.post("clock", {"now": now})["now"])

    def settle(self) -> None:
        """Waits until nothing is due in the background: deliveries, mirrors, pipelines."""
        left = self._controls.post("settle")["left"]
        if left:
            raise TimeoutError(f"the server still has to do: {', '.join(map(str, left))}")

    def requests(self, **filters: object) -> list[dict[str, Any]]:
        """What was asked and answered, the oldest first; `method`, `path`, `status` and `user` (who asked, by user
        name) filter, each that is not None."""
        listed: list[dict[str, Any]] = self._controls.get("requests", **_said(filters))
        return listed

    def forget_requests(self, **filters: object) -> None:
        """Strikes them out, filtered as above."""
        self._controls.delete(f"requests?{urlencode(_said(filters))}")

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
        """Makes the next requests fail that match (in `path`, `*` stays between two slashes and `**` goes beyond:
        `/api/v4/projects/**`; `user` is a user's name), until `times` are used up or the test ends. The answer has
        `id` and `left`."""
        wanted = {
            "method": method, "path": path, "status": status, "headers": headers, "body": body,
            "delay": delay, "cut": cut, "times": times, "user": user,
        }  # fmt: skip
        failure: dict[str, Any] = self._controls.post("failures", _said(wanted))
        self._failures.append(str(failure["id"]))
        return failure

    def failures(self) -> list[dict[str, Any]]:
        """Those that are still to come."""
        return [one for one in self._controls.get("failures") if one["left"]]

    def stop_failing(self) -> None:
        """Takes back what `fail` has asked for here."""
        while self._failures:
            with contextlib.suppress(ApiError, OSError):  # used up, or the server is gone
                self._controls.delete(f"failures/{self._failures.pop()}")

    def _alone(self, what: str) -> None:
        if self.is_shared:
            raise SharedError(
                f"{what}() would change the server under the tests of others, who share it: let each worker have its"
                " own (without forgelet_shared), or keep to a namespace (gitlab_user, gitlab_group, gitlab_project)"
            )


def _said(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
