"""What fails while the service runs is seen by `doctor`, with the reason and the remedy, as on all other pages."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from common.loop_watch import LOOP_WATCH, Held
from forgelet.doctor import processes
from forgelet.doctor.examination import examine
from forgelet.doctor.findings import DiagnosedInstance, Finding
from tests.api_server.operations.scene import PURGE_TOKEN, SECRET, Scene, failing_scene
from tests.support.forge import Forge


def environment(scene: Scene) -> dict[str, str]:
    """The variables of the scene's server."""
    settings, nowhere = scene.forge.settings, f"127.0.0.1:{scene.nobody}"
    given = {
        "database_url": settings.database_url,
        "data_dir": settings.data_dir,
        "port": urlsplit(scene.forge.base).port,
        "object_store_url": f"file://{scene.store}",
        "smtp_url": f"smtp://forge:{SECRET}@{nowhere}",
        "edge_urls": f"http://{nowhere}",
        "edge_purge_token": PURGE_TOKEN,
    }
    return {f"FORGELET_API_{name.upper()}": str(value) for name, value in given.items()}


async def test_what_fails_is_said_with_its_reason_within_seconds(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    async with failing_scene(new_forge, tmp_path) as scene:
        await scene.break_all()
        await scene.queue_unknown(1)
        expected = {
            "mirror ": "Failed to connect",
            "delivery ": "Connection refused",
            "mail ": "SMTPConnectError",
            "edge ": "does not answer",
            "store ": "its folder is gone",
            "runner ": "there is no runner that may take them",
            "task ": "TaskNotFound",
        }
        findings: list[Finding] = []

        def are_seen() -> bool:
            said = [one.what for one in findings]
            return all(
                any(line.startswith(kind) and reason in line for line in said)
                for kind, reason in expected.items()
            )

        async with asyncio.timeout(30):
            while not are_seen():
                examined = await examine(environment(scene))
                findings = [one for found in examined.findings.values() for one in found]
        failed = [one for one in findings if one.state == "failed"]
        assert all(one.remedy for one in failed)
        text = "".join(one.text for one in findings)
        assert SECRET not in text
        assert PURGE_TOKEN not in text
        by_check = {check: [one.state for one in found] for check, found in examined.findings.items()}
        for check in ("edges", "mail", "object store"):  # which it looks at by itself too
            assert by_check[check] == ["failed"], check


async def test_what_held_the_event_loop_longest_is_named(forge: Forge) -> None:
    watch = forge.server.app[LOOP_WATCH]
    for seconds in (0.2, 2.8, 0.4):
        watch._record(Held(time.monotonic(), seconds, seconds, route="GET /slow", project="7"))
    settings = attrs.evolve(forge.settings, port=urlsplit(forge.base).port)
    findings = await processes.api_server(DiagnosedInstance({}, settings, None, forge.session))
    watch._longest.clear()
    assert [one.state for one in findings] == ["ok", "warning"]
    assert findings[1].what == (
        "the API server says of its event loop: 0 minutes ago GET /slow of 7 held the event loop for 2.8 s"
    )
