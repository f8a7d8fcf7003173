"""`/-/testing/failures`: ordered answers."""

import asyncio
import datetime
import itertools
import re
from pathlib import Path
from typing import Any

import aiohttp
import gitlab
import pytest
from aiohttp import hdrs

from api_server.testing import failures
from api_server.testing.steering import fits
from tests.api_server.testing.states import Controls
from tests.support.forge import Client, Forge
from tests.support.git_client import Git, git_url


@pytest.fixture
async def controls(testing_forge: Forge) -> Controls:
    return Controls(testing_forge, await testing_forge.user("failing"))


async def test_the_next_requests_fail_and_then_no_more(controls: Controls) -> None:
    api = controls.whose.api
    failure = await controls.fail(
        method="get", path="/api/v4/projects/*", status=429, headers={"Retry-After": 7}, times=2
    )
    assert failure | {"id": 0, "user": ""} == {
        "id": 0, "method": "GET", "path": "/api/v4/projects/*", "user": "", "status": 429,
        "headers": {"Retry-After": "7"}, "body": None, "delay": 0.0, "cut": False, "times": 2, "left": 2,
    }  # fmt: skip
    assert (await api.get("/projects")).status == 200
    assert (await api.get("/projects/a%2Fb/jobs")).status == 404
    assert (await api.delete("/projects/a%2Fb")).status == 404
    assert (await controls.forge.root.get("/projects/a%2Fb")).status == 404
    for _ in range(2):
        limited = await api.get("/projects/a%2Fb?page=1")
        assert (limited.status, limited.body) == (429, {"message": "429 Too Many Requests"})
        assert limited.headers["Retry-After"] == "7"
    assert (await api.get("/projects/a%2Fb")).body == {"message": "404 Project Not Found"}
    assert await controls.left(failure) == 0
    met = await controls.requests(status=429)
    assert [one["failure"] for one in met] == [failure["id"]] * 2
    assert [one["response"] for one in met] == [limited.body] * 2


async def test_bodies_and_headers_to_order(controls: Controls) -> None:
    api = controls.whose.api
    await controls.fail(
        path="**", status=502, body="<html>Bad Gateway</html>", headers={"Content-Type": "text/html"}
    )
    await controls.fail(
        path="**", status=200, body="[{broken", headers={"Content-Type": "application/json; v=1"}
    )
    await controls.fail(method="*", path="*", status=422, body={"message": ["no"]})
    await controls.fail(path="**", headers={"RateLimit-Remaining": "0", "X-Total": "many"})
    bad = await api.post("/projects", {"name": "x"})
    assert (bad.status, bad.body, bad.headers["Content-Type"]) == (
        502,
        "<html>Bad Gateway</html>",
        "text/html",
    )
    with pytest.raises(ValueError, match="Expecting property name"):
        await api.get("/user")
    assert (await api.get("/user")).body == {"message": ["no"]}
    real = await api.get("/projects")
    assert (real.status, real.body) == (200, [])
    assert (real.headers["RateLimit-Remaining"], real.headers["X-Total"]) == ("0", "many")
    first = (await controls.requests(status=502))[0]
    assert (first["body"], first["response"]) == ({"name": "x"}, "<html>Bad Gateway</html>")


async def test_pages_git_and_files_fail_too(controls: Controls, tmp_path: Path) -> None:
    base, anyone = controls.forge.base, controls.forge.anonymous
    for path in ("/explore-this", "/a/b.git/info/refs", "/a/b/-/raw/main/x%2Fy"):
        await controls.fail(path=path, user=None, status=503)
        assert (await anyone.get(f"{base}{path}?service=git-upload-pack")).status == 503
        assert (await anyone.get(f"{base}{path}?service=git-upload-pack")).status != 503


async def test_late_answers(controls: Controls) -> None:
    await controls.fail(path="/api/v4/user", delay=0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await controls.whose.api.get("/user")
    assert (answer.status, answer.body["username"]) == (200, controls.whose.username)
    assert loop.time() - began >= 0.2
    late = await controls.fail(path="/api/v4/user", delay=300)
    asked = asyncio.create_task(controls.whose.api.get("/user"))
    while await controls.left(late):
        await asyncio.sleep(0.01)
    assert (await controls.whose.api.get("/user")).status == 200  # requests of others are not delayed
    everybodys = (await controls.ask("GET", "/requests?path=/api/v4/user")).body
    waiting = next(one for one in everybodys if one["failure"] == late["id"])
    assert (waiting["status"], waiting["duration"]) == (None, None)
    asked.cancel()


async def test_cut_off_before_and_within_the_answer(controls: Controls) -> None:
    whole = await controls.whose.api.get("/user")
    size = int(whole.headers["Content-Length"])
    # aiohttp repeats a GET once by itself
    reset = await controls.fail(path="/api/v4/user", cut=True, times=2)
    async with aiohttp.ClientSession() as session:
        fresh = Client(session, controls.forge.base, controls.whose.token)
        with pytest.raises(aiohttp.ClientOSError):
            await fresh.get("/user")
        await controls.fail(path="/api/v4/user", cut=10)
        with pytest.raises(aiohttp.ClientPayloadError, match=f"received 10 of {size} bytes"):
            await fresh.get("/user")
        await controls.fail(path="/api/v4/user", cut=0, status=500)
        with pytest.raises(aiohttp.ClientPayloadError, match="received 0 of"):
            await fresh.get("/user")
        await controls.fail(path="/api/v4/user", cut=size)
        assert (await fresh.get("/user")).body == whole.body
    seen = await controls.requests(path="/api/v4/user")
    assert [one["status"] for one in seen] == [200, None, None, 200, 500, 200]
    assert seen[1]["failure"] == reset["id"]


async def test_failures_are_listed_and_cancelled_one_by_one(controls: Controls) -> None:
    first, second = [await controls.fail(path="/api/v4/user", status=500) for _ in range(2)]
    assert (await controls.ask("DELETE", f"/failures/{first['id']}")).status == 204
    gone = await controls.ask("DELETE", f"/failures/{first['id']}")
    assert (gone.status, gone.body) == (404, {"message": f"There is no failure {first['id']}."})
    ids = [one["id"] for one in (await controls.ask("GET", "/failures")).body]
    assert second["id"] in ids
    assert first["id"] not in ids
    refused = await controls.ask("DELETE", f"/failures?user={controls.whose.username}")
    assert refused.status == 400
    assert (await controls.whose.api.get("/user")).status == 500


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([], "The body is not a JSON object."),
        ({"paht": "/x", "status": 500}, "A failure has no 'paht'; did you mean path?"),
        (
            {"status": 500},
            "path is missing: a pattern such as /api/v4/projects/*/jobs, or ** for every path.",
        ),
        ({"path": "api/v4", "status": 500}, "path has to begin with / or **"),
        ({"path": "/x?page=1", "status": 500}, "path stands for a path without its query."),
        ({"path": "/x"}, "Nothing fails: name status, headers, delay or cut."),
        ({"path": "/x", "body": "x", "delay": 1}, "body is without status"),
        ({"path": "/x", "status": "502"}, "status has to be a whole number from 200 to 599."),
        ({"path": "/x", "status": True}, "status has to be a whole number from 200 to 599."),
        ({"path": "/x", "status": 500, "times": 0}, "times has to be a whole number from 1 to 1000000."),
        ({"path": "/x", "delay": 301}, "delay has to be a number of seconds from 0 to 300."),
        ({"path": "/x", "cut": -1}, "cut has to be true, or the number of bytes"),
        ({"path": "/x", "cut": True, "status": 500}, "cut is true: no answer is begun"),
        ({"path": "/x", "headers": ["a"]}, "headers has to be an object"),
        ({"path": "/x", "headers": {"a b": "c"}}, "headers cannot hold 'a b'."),
        ({"path": "/x", "headers": {"Content-Length": 3}}, "headers cannot hold 'Content-Length'."),
        ({"path": "/x", "headers": {"A": "b\r\nC: d"}}, "headers: A has to be a text of one line"),
        ({"path": "/x", "method": "GET /"}, "method has to be an HTTP method such as GET."),
    ],
)
async def test_what_is_wrong_is_told_in_a_sentence(testing_forge: Forge, sent: Any, message: str) -> None:
    answer = await testing_forge.anonymous.post(f"{testing_forge.base}/-/testing/failures", sent)
    assert answer.status == 400, answer
    assert answer.body["message"].startswith(message), answer.body


async def test_those_that_are_used_up_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_FAILURES", 2)
    values = {"method": None, "path": "/a", "user": None, "status": 500, "headers": {}, "body": None}
    values |= {"delay": 0.0, "cut": False, "times": 1}
    ordered = failures.Failures()

    async def nobody() -> None:
        return None

    for _ in range(2):
        ordered.order(values)
    with pytest.raises(Exception, match="Bad Request"):
        ordered.order(values)
    met = await ordered.take(hdrs.METH_GET, "/a", nobody)
    assert met is not None
    assert ordered.order(values) in ordered.all()
    assert met not in ordered.all()


async def test_other_servers_have_no_controls(forge: Forge) -> None:
    for path in ("requests", "failures"):
        assert (await forge.anonymous.get(f"{forge.base}/-/testing/{path}")).status == 404
    assert (await forge.anonymous.post(f"{forge.base}/-/testing/failures", {"path": "**"})).status in (
        404,
        405,
    )


@pytest.fixture
async def client_controls(testing_forge: Forge) -> Controls:
    return Controls(testing_forge, await testing_forge.user("client"))


def client_of(controls: Controls) -> gitlab.Gitlab:
    return gitlab.Gitlab(
        controls.forge.base, private_token=controls.whose.token, retry_transient_errors=True, timeout=20
    )


async def test_python_gitlab_obeys_a_rate_limit(client_controls: Controls) -> None:
    await client_controls.fail(path="/api/v4/projects", status=429, headers={"Retry-After": "1"})

    def use() -> None:
        with client_of(client_controls) as client:
            assert client.projects.list(iterator=False, page=1) == []

    await asyncio.to_thread(use)
    seen = await client_controls.requests(path="/api/v4/projects")
    assert [one["status"] for one in seen] == [429, 200]
    refused, answered = [datetime.datetime.fromisoformat(one["time"]) for one in seen]
    assert answered - refused >= datetime.timedelta(seconds=1)


async def test_python_gitlab_tries_again_after_502_and_lost_connections(client_controls: Controls) -> None:
    gateway = await client_controls.fail(
        path="/api/v4/user", status=502, headers={"Content-Type": "text/html"}, body="<h1>"
    )
    reset = await client_controls.fail(path="/api/v4/user", cut=True, times=2)

    def use() -> None:
        with client_of(client_controls) as client:
            client.auth()
            assert client.user is not None
            assert client.user.username == client_controls.whose.username

    await asyncio.to_thread(use)
    seen = await client_controls.requests(path="/api/v4/user")
    assert [one["status"] for one in seen] == [502, None, None, 200]
    assert [one["failure"] for one in seen] == [gateway["id"], reset["id"], reset["id"], None]


async def test_python_gitlab_gives_up_where_it_is_not_told_to_try_again(client_controls: Controls) -> None:
    await client_controls.fail(path="/api/v4/user", status=500, times=100)

    def use() -> None:
        client = gitlab.Gitlab(client_controls.forge.base, private_token=client_controls.whose.token)
        with client, pytest.raises(gitlab.GitlabGetError, match="500 Internal Server Error"):
            client.auth()

    await asyncio.to_thread(use)
    assert len(await client_controls.requests(path="/api/v4/user")) == 1


async def test_git_meets_a_cut_and_a_second_clone_is_whole(
    testing_forge: Forge, client_controls: Controls, tmp_path: Path
) -> None:
    project = await testing_forge.project(client_controls.whose)
    git = Git(tmp_path)
    await git.init()
    await git.commit(picture=bytes(range(256)) * 200)
    url = git_url(testing_forge, project["path_with_namespace"], client_controls.whose)
    await git("push", "--quiet", url, "main")
    # the fetch's first request lists the refs, the second has the objects
    await client_controls.fail(path="/**.git/git-upload-pack", headers={"X-First": "yes"})
    cut = await client_controls.fail(path="/**.git/git-upload-pack", cut=400)
    said = await git("clone", "--quiet", url, "copy", fails=True)
    assert "early EOF" in said, said
    assert await client_controls.left(cut) == 0
    await git("clone", "--quiet", url, "copy")
    assert (tmp_path / "copy/picture").read_bytes() == bytes(range(256)) * 200
    unavailable = await client_controls.fail(path="/**.git/info/refs", status=503)
    said = await git("-C", "copy", "fetch", fails=True)
    assert "503" in said, said
    met = await client_controls.requests(path="/**.git/info/refs", status=503)
    assert [one["failure"] for one in met] == [unavailable["id"]]


_MEANING = {"**": ".*", "*": "[^/]*", "?": "[^/]"}


def plainly(pattern: str, path: str) -> bool:
    """Match the pattern as the documents define it, without regard to speed."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    expression = "".join(_MEANING.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, path) is not None


def test_they_mean_what_the_documents_say() -> None:
    paths = ["".join(path) for size in range(5) for path in itertools.product("ab/", repeat=size)]
    for parts in itertools.product(("a", "/", "?", "*", "**"), repeat=4):
        pattern = "".join(parts)
        assert [fits(pattern, path) for path in paths[::3]] == [plainly(pattern, path) for path in paths[::3]]


@pytest.mark.parametrize(
    "pattern", ["*****/x", "/" + "a*" * 400 + "b", "**a*" * 200 + "b", "**" * 300 + "x", "**a*a*a*b**a*a*a*c"]
)
def test_none_takes_for_ever(pattern: str) -> None:
    assert not fits(pattern, "/" + "a" * 5_000)
