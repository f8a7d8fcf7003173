"""Pushed content is served by the edge only to those who may read it, and anonymous callers cost a process little."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest

from common.serving import serving
from storage_edge import app
from storage_edge.app import served
from storage_edge.settings import Settings as EdgeSettings
from tests.support.forge import Answer, Forge, Person, running_forge
from tests.support.git_client import Git, git_url, push_files
from tests.support.ports import free_port
from tests.support.server_process import ServerProcess, server_process
from tests.support.waiting import until
from tests.support.wire import request, talk

STORAGE_TOKEN = "storage-token-of-the-tests"
PURGE_TOKEN = "purge-token-of-the-tests"


@attrs.frozen
class Joined:
    """A service with an edge in front of it."""

    forge: Forge
    edge: str

    async def get(self, path: str, **options: Any) -> Answer:
        """Request a path from the edge, with no credentials except those in `path`."""
        return await self.forge.anonymous.get(f"{self.edge}{path}", **options)

    async def link(self, path: str, person: Person) -> str:
        """Return where the service redirects `person` for `path`: a path of the edge, with her token."""
        answer = await person.api.get(f"{self.forge.base}{path}")
        assert answer.status == 302, answer
        location = str(answer.headers["Location"])
        assert location.startswith(self.edge)
        return location.removeprefix(self.edge)


@asynccontextmanager
async def join(database_url: str, folder: Path, **settings: Any) -> AsyncIterator[Joined]:
    """Run a service that redirects its users to a running edge; `settings` are the service's."""
    port = free_port()
    edge = f"http://127.0.0.1:{port}"
    told = {"edge_urls": [edge], "edge_purge_token": PURGE_TOKEN}
    async with running_forge(database_url, folder / "service", **told, **settings) as forge:
        chosen = EdgeSettings(
            origin_check_interval=0.0,  # tests count the requests to the service
            origin=forge.base,
            storage_token=STORAGE_TOKEN,
            purge_token=PURGE_TOKEN,
            data_dir=folder / "edge",
            port=port,
        )
        async with serving(served(app.create_app(chosen), chosen)):
            changed = await forge.root.put(
                "/application/settings",
                {
                    "static_objects_external_storage_url": edge,
                    "static_objects_external_storage_auth_token": STORAGE_TOKEN,
                },
            )
            assert changed.status == 200
            yield Joined(forge, edge)


@pytest.fixture(scope="module")
async def joined(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Joined]:
    async with join(new_database(), tmp_path_factory.mktemp("joined")) as joined:
        yield joined


async def _project(joined: Joined, folder: Path, visibility: str) -> tuple[Person, dict[str, Any], str]:
    """Create an owner and her project with a README; return both with the project's path."""
    alice = await joined.forge.user("alice")
    project = await joined.forge.project(alice, visibility=visibility)
    await push_files(joined.forge, folder, project, alice, {"README.md": "first\n"})
    return alice, project, f"/{project['path_with_namespace']}"


async def test_a_public_file_is_fetched_once_and_served_to_everybody(joined: Joined, tmp_path: Path) -> None:
    _, _, path = await _project(joined, tmp_path / "w", "public")
    user = await joined.forge.anonymous.get(f"{joined.forge.base}{path}/-/raw/main/README.md")
    assert (user.status, user.headers["Location"]) == (302, f"{joined.edge}{path}/-/raw/main/README.md")
    first, second = [await joined.get(f"{path}/-/raw/main/README.md") for _ in range(2)]
    assert (first.status, first.body) == (second.status, second.body) == (200, "first\n")
    assert "fwd=uri-miss" in first.headers["Cache-Status"]
    assert "; hit" in second.headers["Cache-Status"]
    assert "Surrogate-Key" not in first.headers


async def test_line_breaks_in_names_pass_the_edge_and_break_nothing(joined: Joined, tmp_path: Path) -> None:
    alice, project, path = await _project(joined, tmp_path / "w", "private")
    odd = {"a\r\nX-Y: z/c\n.svg": "<svg/>\n"}
    await push_files(joined.forge, tmp_path / "odd", project, alice, odd, branch="odd")
    name, folder = "a%0D%0AX-Y:%20z/c%0A.svg", "a%0D%0AX-Y%3A+z"
    for rest in (f"raw/odd/{name}", f"archive/odd/x%0Ay.zip?path={folder}"):
        answer = await joined.get(await joined.link(f"{path}/-/{rest}", alice))
        assert answer.status == 200, rest
        assert "X-Y" not in answer.headers
    missing = await joined.get(await joined.link(f"{path}/-/raw/main/no%0D%0AX-Y:%20z", alice))
    assert (missing.status, "X-Y" in missing.headers) == (404, False)


async def test_after_a_push_the_next_request_sees_it(joined: Joined, tmp_path: Path) -> None:
    alice, project, path = await _project(joined, tmp_path / "w", "public")
    assert (await joined.get(f"{path}/-/raw/main/README.md")).body == "first\n"
    git = Git(tmp_path / "w")
    await git.commit_files({"README.md": "second\n"})
    await git("push", "--quiet", git_url(joined.forge, project["path_with_namespace"], alice), "HEAD:main")
    assert (await joined.get(f"{path}/-/raw/main/README.md")).body == "second\n"


async def test_after_a_project_is_made_private_no_stranger_gets_its_files(
    joined: Joined, tmp_path: Path
) -> None:
    alice, project, path = await _project(joined, tmp_path / "w", "public")
    for file in ("raw/main/README.md", "archive/main/x.zip", "archive/main.tb2"):
        assert (await joined.get(f"{path}/-/{file}")).status == 200
    assert (await alice.api.put(f"/projects/{project['id']}", {"visibility": "private"})).status == 200
    for file in ("raw/main/README.md", "archive/main/x.zip", "archive/main.tb2"):
        assert (await joined.get(f"{path}/-/{file}")).status == 404


@pytest.mark.parametrize("how", ["deleted", "moved", "hidden", "group"])
async def test_whatever_takes_access_away_is_seen_at_once(joined: Joined, tmp_path: Path, how: str) -> None:
    alice = await joined.forge.user("alice")
    group = await joined.forge.group(alice)
    project = await joined.forge.project(alice, visibility="public", namespace_id=group["id"])
    await push_files(joined.forge, tmp_path / "w", project, alice, {"README.md": "first\n"})
    path = f"/{project['path_with_namespace']}/-/raw/main/README.md"
    assert (await joined.get(path)).status == 200
    url = f"/projects/{project['id']}"
    change = {
        "deleted": lambda: alice.api.delete(url),
        "moved": lambda: alice.api.put(url, {"path": f"{project['path']}-moved"}),
        "hidden": lambda: alice.api.put(url, {"repository_access_level": "private"}),
        "group": lambda: alice.api.delete(f"/groups/{group['id']}"),
    }[how]
    assert (await change()).status in (200, 202)
    # The old path of a project that has moved still leads to it.
    assert (await joined.get(path)).status == (200 if how == "moved" else 404)


async def test_a_private_file_is_kept_once_and_checked_for_each_user(joined: Joined, tmp_path: Path) -> None:
    alice, _, path = await _project(joined, tmp_path / "w", "private")
    file = f"{path}/-/raw/main/README.md"
    link = await joined.link(file, alice)
    assert [(await joined.get(link)).body for _ in range(2)] == ["first\n"] * 2
    assert (await joined.get(file)).status == 404
    assert (await joined.get(f"{file}?token=flso-wrong")).status == 401
    stranger = await joined.forge.user("carol")
    hers = (await stranger.api.post("/user/static_object_token/rotate")).body["token"]
    assert (await joined.get(f"{file}?token={hers}")).status == 404
    answer = await joined.get(link)
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "private, no-cache")


async def test_after_the_token_is_replaced_the_next_fetch_is_refused(joined: Joined, tmp_path: Path) -> None:
    alice, _, path = await _project(joined, tmp_path / "w", "private")
    link = await joined.link(f"{path}/-/raw/main/README.md", alice)
    assert (await joined.get(link)).status == 200
    await alice.api.post("/user/static_object_token/rotate")
    assert (await joined.get(link)).status == 401
    renewed = await joined.link(f"{path}/-/raw/main/README.md", alice)
    assert (await joined.get(renewed)).status == 200
    assert parse_qs(urlsplit(link).query)["token"] != parse_qs(urlsplit(renewed).query)["token"]


async def test_200_requests_for_one_cold_archive_make_one_origin_request(
    joined: Joined, tmp_path: Path
) -> None:
    alice = await joined.forge.user("alice")
    project = await joined.forge.project(alice, visibility="public")
    lines = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(40_000))
    await push_files(joined.forge, tmp_path / "w", project, alice, {"data": lines})
    path = f"/{project['path_with_namespace']}/-/archive/main/x.tar.gz"
    # A push purges once more from the queue, and a request after a purge does not join one before it.
    await until(lambda: _is_idle(joined.forge))
    before = await _archives(joined.forge)

    async def fetch() -> bytes:
        async with joined.forge.session.get(f"{joined.edge}{path}") as answer:
            assert answer.status == 200
            return hashlib.sha256(await answer.read()).digest()

    digests = await asyncio.gather(*(fetch() for _ in range(200)))
    assert len(set(digests)) == 1
    assert await _archives(joined.forge) - before == 1


@pytest.mark.parametrize(
    ("settings", "status", "body"),
    [
        (
            {"archive_limit": 1000},
            413,
            "413: Request Entity Too Large: The archive has more than 1000 bytes\n",
        ),
        ({"disk_reserve": 2**60}, 503, "503: Service Unavailable"),
    ],
)
async def test_no_edge_keeps_the_refusal_of_an_archive(
    new_database: Callable[[], str], tmp_path: Path, settings: dict[str, int], status: int, body: str
) -> None:
    async with join(new_database(), tmp_path / "joined", **settings) as joined:
        _, _, path = await _project(joined, tmp_path / "w", "public")
        for _ in range(2):
            before = await _archives(joined.forge)
            answer = await joined.get(f"{path}/-/archive/main/x.tar")
            assert (answer.status, answer.body) == (status, body)
            assert await _archives(joined.forge) - before == 1


async def _is_idle(forge: Forge) -> bool:
    """Return whether the queue has nothing to do now: the consequences of a push may notify edges."""
    return not await forge.database.value("""
        SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing')
            AND (scheduled_at IS NULL OR scheduled_at <= now()))
    """)


async def _archives(forge: Forge) -> int:
    """Return the number of requests for archives that the service has answered; the last ones may be counted with a
    delay."""
    metrics = (await forge.anonymous.get(f"{forge.base}/-/metrics")).body
    counts = 'forgelet_http_request_duration_seconds_count{method="GET"'
    lines = [line for line in metrics.splitlines() if line.startswith(counts) and "/-/archive/" in line]
    return sum(round(float(line.rsplit(" ", 1)[1])) for line in lines)


MIB = 2**20
BODY = 8 * MIB
STRANGERS = 24
#: Maximum growth of the process in bytes, while all bodies together have 192 MiB.
ALLOWED = 40 * MIB


@pytest.fixture(scope="module")
async def server(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    async with server_process(new_database(), tmp_path_factory.mktemp("strangers"), work=False) as server:
        yield server


async def test_bodies_of_strangers_are_not_held(server: ServerProcess) -> None:
    port = int(server.base.rpartition(":")[2])
    head = request("POST", "/api/v4/groups", "Content-Type: application/json", f"Content-Length: {BODY}")
    before = server.peak_memory()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(talk(port)) for _ in range(STRANGERS)]
        for client in clients:
            client.writer.write(head + b" " * (BODY - 1))
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert answers == [(401, {"message": "401 Unauthorized"})] * STRANGERS
    assert server.peak_memory() - before < ALLOWED


@pytest.mark.parametrize("asks", [True, False])
async def test_curl_gets_its_answer_without_sending_all(
    server: ServerProcess, tmp_path: Path, *, asks: bool
) -> None:
    """Of a file of 400 MiB, nothing is sent if curl asks before, and otherwise only what is under way."""
    file = tmp_path / "large"
    with file.open("wb") as opened:
        opened.truncate(400 * MIB)
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--no-buffer", "--request", "POST", "--upload-file", str(file),
        "--header", "Expect: 100-continue" if asks else "Expect:", "--expect100-timeout", "30",
        "--write-out", '{"status": %{http_code}, "sent": %{size_upload}}', "--output", "/dev/null",
        f"{server.base}/api/v4/groups",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, _ = await asyncio.wait_for(process.communicate(), 60)
    outcome = json.loads(told)
    assert outcome["status"] == 401
    assert outcome["sent"] <= (0 if asks else 100 * MIB), outcome


async def test_open_files_do_not_run_out() -> None:
    """With 200 of them, half are for connections: further ones are refused, and accepted ones are served."""
    process = await asyncio.create_subprocess_exec(
        "prlimit", "--nofile=200:200", sys.executable, "-m", "storage_edge", "--port", "0", "--log-format", "json",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        while "port" not in (event := json.loads(await process.stderr.readline())):
            pass
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(talk(event["port"])) for _ in range(150)]
            for client in clients:
                client.writer.write(request("GET", "/-/liveness"))
            answers = [client.reader.readline() for client in clients]
            statuses = sorted([line.split()[1] for line in await asyncio.gather(*answers)])
            assert statuses == [b"200"] * 100 + [b"503"] * 50
        async with asyncio.timeout(20):
            while await _liveness(event["port"]) != 200:  # until it has noticed that they are closed
                await asyncio.sleep(0.01)
    finally:
        process.kill()
        await process.communicate()


async def _liveness(port: int) -> int:
    async with talk(port) as client:
        await client.send(request("GET", "/-/liveness"))
        return (await client.answer())[0]
