"""How a process that is told to have several workers becomes their supervisor."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from common.mistakes import Mistake, binding
from common.shutdown import LAST_SECONDS

_ROOT = str(Path(__file__).parents[2])
#: Without what the program itself imports.
_PROGRAM = f"import sys; sys.path.insert(0, {_ROOT!r}); from common.workers.supervisor import main; main()"


def become_supervisor(settings: Any) -> NoReturn:
    """Replaces this program, which `settings` are of, by a supervisor, which keeps its process id; its workers are
    begun as this program was. Raises `Mistake` where the port cannot be listened on."""
    if settings.listen_fd:
        raise Mistake("listen_fd and workers contradict each other: workers listen on sockets of their own")
    with binding(settings.host, settings.port):
        _try_port(settings.host, settings.port)
    plan = {
        "command": [sys.executable, *sys.orig_argv[1:]],
        "workers": settings.workers,
        "host": settings.host,
        "port": settings.port,
        "operations_port": settings.operations_port,
        "grace": settings.shutdown_timeout + LAST_SECONDS + 1,
        "log": [settings.log_format, settings.log_level, settings.log_file and str(settings.log_file)],
    }
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-c", _PROGRAM, json.dumps(plan)])  # noqa: S606 - ourselves


def _try_port(host: str, port: int) -> None:
    """Raises OSError. Workers' sockets share their port, and would share it with a stranger's workers too."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)
        tried.listen(1)
