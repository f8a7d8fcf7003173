"""What happens thousands of times a second is said once a second."""

import structlog
from structlog.testing import capture_logs

from common.logs import ThrottledLog


def test_one_line_a_second_about_one_thing_and_how_many_were_left_out() -> None:
    now = [0.0]
    with capture_logs() as lines:
        log = ThrottledLog(structlog.get_logger(), clock=lambda: now[0])
        for _ in range(5):
            log.warning("away", reason="no answer")
        log.warning("away", about="another", reason="no answer")
        log.error("full")
        now[0] = 0.99
        log.warning("away", reason="no answer")
        now[0] = 1.0
        log.warning("away", reason="no answer")
        now[0] = 2.0
        log.warning("away", reason="no answer")
    assert lines == [
        {"event": "away", "reason": "no answer", "log_level": "warning"},
        {"event": "away", "reason": "no answer", "log_level": "warning"},
        {"event": "full", "log_level": "error"},
        {"event": "away", "reason": "no answer", "left_out": 5, "log_level": "warning"},
        {"event": "away", "reason": "no answer", "log_level": "warning"},
    ]
