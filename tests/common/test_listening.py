"""A socket that a supervisor hands over in place of host and port."""

import socket

import pytest

from common.mistakes import Mistake
from common.serving import inherited


def test_a_socket_is_taken_by_its_number_and_not_handed_on() -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.set_inheritable(True)
        with inherited(ours.fileno()) as taken:
            assert taken.getsockname() == ours.getsockname()
            assert not taken.get_inheritable()
            taken.detach()


def test_what_is_no_socket_is_one_sentence() -> None:
    with open("/dev/null") as file:  # noqa: PTH123 - its number
        number = file.fileno()
        with pytest.raises(Mistake, match=f"^listen_fd names {number}, which is no open socket: "):
            inherited(number)
