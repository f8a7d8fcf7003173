"""The processes that `scripts/up` starts and ends."""

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from forgelet.local.processes import Child


def test_a_signal_waits_until_the_look_at_a_child_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler raises; in the middle of Popen.poll() that could keep `up` from ending."""
    child = Child("A child", ["sleep", "60"], log=tmp_path / "log")
    poll, looked = child.process.poll, []

    def interrupted() -> Any:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        looked.append(poll())
        return looked[-1]

    monkeypatch.setattr(child.process, "poll", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: exit(1))
    try:
        with pytest.raises(SystemExit):
            child.has_ended()
        assert looked == [None]
    finally:
        signal.signal(signal.SIGTERM, before)
        monkeypatch.undo()
        child.stop()
