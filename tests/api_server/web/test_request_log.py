"""What a request's line in the log must not do to its answer."""

import logging
import os

import structlog

from common import logs
from tests.support.forge import Forge


async def test_a_request_is_answered_where_its_line_cannot_be_written(forge: Forge) -> None:
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with open("/dev/full", "w") as full, open(os.devnull, "w") as nothing:  # noqa: PTH123
        logs.configure("json", stream=full)
        structlog.configure(cache_logger_on_first_use=False)
        try:
            answers = [await forge.anonymous.get(path) for path in ("/version", "/user", "/nothing")]
        finally:
            structlog.configure(**before)
            root.handlers[:] = handlers
            root.setLevel(level)
            os.dup2(nothing.fileno(), full.fileno())
    assert [answer.status for answer in answers] == [401, 401, 404]
