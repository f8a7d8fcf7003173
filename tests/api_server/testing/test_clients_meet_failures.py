"""What clients are made for is put to the test: they wait, try again, and say what they met."""

import asyncio
import datetime
from pathlib import Path

import gitlab
import pytest

from tests.api_server.testing.steered import Controls
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url


@pytest.fixture
async def controls(testing_forge: Forge) -> Controls:
    return Controls(testing_forge, await testing_forge.user("client"))


def client_of(controls: Controls) -> gitlab.Gitlab:
    return gitlab.Gitlab(
        controls.forge.base, private_token=controls.whose.token, retry_transient_errors=True, timeout=20
    )


async def test_python_gitlab_obeys_a_rate_limit(controls: Controls) -> None:
    await controls.fail(path="/api/v4/projects", status=429, headers={"Retry-After": "1"})

    def use() -> None:
        with client_of(controls) as client:
            assert client.projects.list(iterator=False, page=1) == []

    await asyncio.to_thread(use)
    seen = await controls.requests(path="/api/v4/projects")
    assert [one["status"] for one in seen] == [429, 200]
    refused, answered = [datetime.datetime.fromisoformat(one["time"]) for one in seen]
    assert answered - refused >= datetime.timedelta(seconds=1)


async def test_python_gitlab_tries_again_after_502_and_lost_connections(controls: Controls) -> None:
    gateway = await controls.fail(
        path="/api/v4/user", status=502, headers={"Content-Type": "text/html"}, body="<h1>"
    )
    reset = await controls.fail(path="/api/v4/user", cut=True, times=2)

    def use() -> None:
        with client_of(controls) as client:
            client.auth()
            assert client.user is not None
            assert client.user.username == controls.whose.username

    await asyncio.to_thread(use)
    seen = await controls.requests(path="/api/v4/user")
    assert [one["status"] for one in seen] == [502, None, None, 200]
    assert [one["failure"] for one in seen] == [gateway["id"], reset["id"], reset["id"], None]


async def test_python_gitlab_gives_up_where_it_is_not_told_to_try_again(controls: Controls) -> None:
    await controls.fail(path="/api/v4/user", status=500, times=100)

    def use() -> None:
        client = gitlab.Gitlab(controls.forge.base, private_token=controls.whose.token)
        with client, pytest.raises(gitlab.GitlabGetError, match="500 Internal Server Error"):
            client.auth()

    await asyncio.to_thread(use)
    assert len(await controls.requests(path="/api/v4/user")) == 1


async def test_git_meets_a_cut_and_a_second_clone_is_whole(
    testing_forge: Forge, controls: Controls, tmp_path: Path
) -> None:
    project = await testing_forge.project(controls.whose)
    git = Git(tmp_path)
    await git.init()
    await git.commit(picture=bytes(range(256)) * 200)
    url = git_url(testing_forge, project["path_with_namespace"], controls.whose)
    await git("push", "--quiet", url, "main")
    # the fetch's first request names what there is, the second has the objects
    await controls.fail(path="/**.git/git-upload-pack", headers={"X-First": "yes"})
    cut = await controls.fail(path="/**.git/git-upload-pack", cut=400)
    said = await git("clone", "--quiet", url, "copy", fails=True)
    assert "early EOF" in said, said
    assert await controls.left(cut) == 0
    await git("clone", "--quiet", url, "copy")
    assert (tmp_path / "copy/picture").read_bytes() == bytes(range(256)) * 200
    unavailable = await controls.fail(path="/**.git/info/refs", status=503)
    said = await git("-C", "copy", "fetch", fails=True)
    assert "503" in said, said
    met = await controls.requests(path="/**.git/info/refs", status=503)
    assert [one["failure"] for one in met] == [unavailable["id"]]
