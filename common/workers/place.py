"""What a worker, one of several processes that serve as one, knows of itself: its supervisor's word, in a variable."""

import contextlib
import functools
import json
import os

import attrs

#: Where a supervisor tells a process that it is a worker.
VARIABLE = "FORGELET_WORKER"


@attrs.frozen(kw_only=True)
class Place:
    """`number` counts workers from 0. `public` and `operators` are the numbers of listening sockets (0: none). `line`
    is that of a socket whose other end the supervisor holds: it is told there of readiness, and its end shows there.
    `memory` is that of a file in which workers count together, each in a `section` of its own (`windows.py`).
    """

    number: int
    #: Whether another answers clients until this one is ready.
    late: bool
    public: int
    operators: int
    line: int
    memory: int
    section: int
    sections: int

    def tell_ready(self) -> None:
        """Clients are served from now on. A supervisor that is gone need not know."""
        with contextlib.suppress(OSError):
            os.write(self.line, b"r\0\0\0\0")  # `line.READY`


@functools.cache
def place() -> Place | None:
    """This process's; None where it serves alone. Its children are no workers."""
    told = os.environ.pop(VARIABLE, None)
    if told is None:
        return None
    found = Place(**json.loads(told))
    for descriptor in (found.public, found.operators, found.line, found.memory):
        if descriptor:
            os.set_inheritable(descriptor, False)
    return found
