"""A plug-in of pytest with which python-gitlab's functional tests run against a running forgelet instead of GitLab in
a container.

It is loaded by `-p` into the suite's own interpreter and uses nothing of this project. The suite's files stay
unchanged. The plug-in replaces the fixtures of pytest-docker, and the parts of the suite's `conftest.py` that use
`docker exec` (the token, the runner) or clean up after an earlier run. It limits the suite's fixed waits for a slow
server to half a second.
"""

import os
import time
import types
from typing import Any
from urllib.parse import urlsplit

import pytest

_CONFTEST = "tests.functional.conftest"
_LONGEST_WAIT = 0.5


class Services:
    """The replacement of pytest-docker's containers."""

    def port_for(self, _service: str, container_port: int) -> int:
        return urlsplit(os.environ["FORGELET_URL"]).port or container_port

    def wait_until_responsive(self, **_: object) -> None:
        """Return at once: the server runs already."""


@pytest.fixture(scope="session")
def docker_ip() -> str:
    return urlsplit(os.environ["FORGELET_URL"]).hostname or "127.0.0.1"


@pytest.fixture(scope="session")
def docker_services() -> Services:
    return Services()


def _token(*_: object, **__: object) -> str:
    return os.environ["FORGELET_TOKEN"]


def _registered(_command: list[str]) -> bytes:
    """Pretend to run `gitlab-runner register`: the server plays its jobs itself."""
    return b"registered"


def pytest_plugin_registered(plugin: Any) -> None:
    if getattr(plugin, "__name__", None) == _CONFTEST:
        plugin.set_token = _token
        plugin.check_output = _registered
        plugin.reset_gitlab = lambda _gl: None
        _hurry(plugin)
        _hurry(plugin.helpers)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        _hurry(module)


def _hurry(module: Any) -> None:
    """Give one module of the suite a `time` whose `sleep` is short. The client's own wait for `Retry-After` is not
    affected."""
    if getattr(module, "time", None) is time:
        module.time = types.SimpleNamespace(
            **{name: getattr(time, name) for name in dir(time) if not name.startswith("_")}
            | {"sleep": lambda seconds: time.sleep(min(seconds, _LONGEST_WAIT))}
        )
