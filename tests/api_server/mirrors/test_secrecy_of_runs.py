"""Where a mirror's password could be found, and is not."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web

from api_server.git import processes
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, database, mails, text_of, with_credentials
from tests.api_server.mirrors.targets import BASIC, PASSWORD, Http, process_list
from tests.support.forge import Forge


async def test_the_password_is_found_nowhere(
    working: Forge,
    target: BareRepository,
    http_target: Http,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not in the process list during a run, nor in logs, database, answers, mails or git's own traces afterwards."""
    http, url = http_target
    seen: list[str] = []
    plain_environment = processes.child_environment
    traces = {name: str(tmp_path / name) for name in ("GIT_TRACE", "GIT_TRACE_CURL", "GIT_TRACE2_EVENT")}
    monkeypatch.setattr(
        processes, "child_environment", lambda *arguments: plain_environment(*arguments) | traces
    )

    async def look(_request: web.Request) -> None:
        seen.extend(await asyncio.to_thread(process_list))

    http.before = look
    mirrored = await Mirrored.create(working, with_credentials(url), keep_divergent_refs=True)
    target.set_refs({MAIN: target.commit("theirs")})
    await mirrored.push(
        {MAIN: mirrored.source.commit("ours"), "refs/heads/x": mirrored.source.commit("ours")}
    )
    seen.append(str(await mirrored.reaches("failed")))
    http.before = lambda _request: web.Response(status=500, text=f"{PASSWORD} {with_credentials(url)}")
    await mirrored.hurry()
    await mirrored.sync()
    await mirrored.hurry()
    seen.append(str(await mirrored.reaches("to_retry", run=2)))
    (mail,) = await mails(working, mirrored.mirror["id"])
    seen += [text_of(mail), *capfd.readouterr(), await _whole_database(working)]
    seen += [Path(trace).read_text() for trace in traces.values()]
    for proof in (
        "git-remote-http",
        mirrored.mirror["url"],
        "mirror run failed",
        "Authorization: Basic <redacted>",
    ):
        assert any(proof in text for text in seen), proof
    forms = [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), BASIC]
    assert [form for form in forms for text in seen if form in text] == []


async def _whole_database(forge: Forge) -> str:
    tables = await database(forge).rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    texts = []
    for table in tables:
        rows = await database(forge).rows(f"SELECT t::text AS text FROM {table.tablename} t")
        texts += [row.text for row in rows]
    return "\n".join(texts)
