"""What the plug-in gives to the tests of a client's author, and that all of it is gone after Ctrl-C."""

import json
import re
import signal
from pathlib import Path

from tests.support.waiting import until

from .sessions import TESTS, ended, is_gone, session


async def test_a_session_of_tests(tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_options = --runner\n")
    with session(tmp_path, "one_process", PGOPTIONS="-c search_path=mine", PGSERVICE="mine") as running:
        await until(lambda: waits.exists() or running.poll() is not None, seconds=150)
        running.send_signal(signal.SIGINT)
        status, output = ended(running)
    expected = set(re.findall(r"def (test_\w+)", (TESTS / "one_process.py").read_text())) - {
        "test_the_last_one"
    }
    assert set(re.findall(r"::(test_\w+)\S* PASSED", output)) == expected, output
    assert not re.search(r" (FAILED|ERROR) ", output), output
    assert status == 2
    pid, data_dir = json.loads(waits.read_text())
    assert is_gone(pid)
    assert not Path(data_dir).exists()


def test_a_server_that_does_not_start_tells_why(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_options = --no-such-option\n")
    with session(tmp_path, "one_process", "-k", "test_the_server or test_requests", "-rN") as running:
        status, output = ended(running)
    assert status == 1
    assert output.count("forgelet ended with 2 before it was ready") == 2
    assert output.count("Error: No such option '--no-such-option'") == 2
    assert "Traceback" not in output
    assert "During handling" not in output
