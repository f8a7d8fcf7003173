"""What mirrors cannot be, and the words that say so (decision D6)."""

import asyncio
from typing import Any

import pytest

from tests.api_server.mirrors.service import SHOWN, URL
from tests.support.forge import Forge

BLANK = "can't be blank"


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({}, {"error": "url is missing"}),
        ({"url": ""}, {"message": {"url": [BLANK]}}),
        ({"url": URL, "auth_method": "x"}, {"error": "auth_method does not have a valid value"}),
        ({"url": URL, "enabled": "maybe"}, {"error": "enabled is invalid"}),
        ({"url": URL, "only_protected_branches": None}, {"message": {"only_protected_branches": [BLANK]}}),
        (
            {"url": URL, "only_protected_branches": True, "mirror_branch_regex": "x"},
            {"error": "only_protected_branches, mirror_branch_regex are mutually exclusive"},
        ),
        (
            {"url": URL, "host_keys": ["ssh-ed25519 nonsense"]},
            {"message": "Invalid SSH host key(s): ssh-ed25519 nonsense"},
        ),
        ({"url": URL, "host_keys": ["x"] * 11}, {"message": "too many host keys (maximum is 10)"}),
        (
            {"url": "ftp://target.example.org/x"},
            {"message": {"url": ["is blocked: Only allowed schemes are http, https, ssh, git"]}},
        ),
        (
            {"url": SHOWN},
            {"message": {"url": ["has asterisks for credentials; send the user name and the password"]}},
        ),
    ],
)
async def test_what_cannot_be_created_is_refused_in_words(
    answering: Forge, values: dict[str, Any], body: dict[str, Any]
) -> None:
    project = await answering.project()
    answer = await answering.root.post(f"/projects/{project['id']}/remote_mirrors", values)
    assert (answer.status, answer.body) == (400, body)
    assert (await answering.root.get(f"/projects/{project['id']}/remote_mirrors")).body == []


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("git@target.example.org:app.git", "Only allowed schemes are http, https, ssh, git"),
        ("ext::sh -c id", "URI is invalid"),
        (
            "https://-oProxyCommand=x@target.example.org/x",
            "Username needs to start with an alphanumeric character",
        ),
        ("ssh://-oProxyCommand=x/x", "Hostname or IP address invalid"),
        ("http://localhost/x.git", "Requests to localhost are not allowed"),
        ("http://127.0.0.1/x.git", "Requests to loopback addresses are not allowed"),
        ("http://[::1]/x.git", "Requests to loopback addresses are not allowed"),
        ("https://10-1-2-3.example.org/x.git", "Requests to the local network are not allowed"),
        ("https://[::ffff:10.0.0.1]/x.git", "Requests to the local network are not allowed"),
        ("http://169.254.169.254/x.git", "Requests to the link local network are not allowed"),
        ("http://100.64.0.1/x.git", "Requests to the shared address space are not allowed"),
        ("http://255.255.255.255/x.git", "Requests to the limited broadcast address are not allowed"),
        (f"https://{'a' * 1025}/x.git", "Host is too long (maximum is 1024 characters)"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_urls_that_must_not_be_called_are_blocked(
    answering: Forge, method: str, url: str, text: str
) -> None:
    """GitLab's texts (A.4), when a mirror is made and when its URL is changed."""
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    if method == "PUT":
        path += f"/{(await answering.root.post(path, {'url': URL})).body['id']}"
    answer = await answering.root.request(method, path, json={"url": url})
    assert (answer.status, answer.body) == (400, {"message": {"url": [f"is blocked: {text}"]}})


async def test_a_name_that_does_not_resolve_yet_may_be_mirrored_to(answering: Forge) -> None:
    """As in GitLab; each run resolves it again."""
    project, url = await answering.project(), "https://unknown.invalid/x.git"
    path = f"/projects/{project['id']}/remote_mirrors"
    made = await answering.root.post(path, {"url": url})
    assert (made.status, made.body["url"]) == (201, url)
    changed = await answering.root.put(f"{path}/{made.body['id']}", {"url": "https://other.invalid/x.git"})
    assert (changed.status, changed.body["url"]) == (200, "https://other.invalid/x.git")


async def test_one_url_is_mirrored_to_once_per_project_whatever_its_credentials(answering: Forge) -> None:
    project, other = await answering.project(), await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    assert (await answering.root.post(path, {"url": URL})).status == 201
    for url in (
        URL,
        "https://target.example.org/group/app.git",
        "https://x@Target.example.org:443/group/app.git/",
    ):
        answer = await answering.root.post(path, {"url": url})
        assert (answer.status, answer.body) == (400, {"message": {"url": ["has already been taken"]}})
    second = await answering.root.post(path, {"url": "https://target.example.org/group/other.git"})
    answer = await answering.root.put(f"{path}/{second.body['id']}", {"url": URL})
    assert (answer.status, answer.body) == (400, {"message": {"url": ["has already been taken"]}})
    assert (await answering.root.post(f"/projects/{other['id']}/remote_mirrors", {"url": URL})).status == 201


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("form", ["{base}/{path}.git", "{base}/{path}", "{with_user}/{path}.git/"])
async def test_a_project_is_not_mirrored_to_itself(answering: Forge, form: str, method: str) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    if method == "PUT":
        path += f"/{(await answering.root.post(path, {'url': URL})).body['id']}"
    with_user = answering.base.replace("://", "://alice:secret@")
    url = form.format(base=answering.base, with_user=with_user, path=project["path_with_namespace"])
    answer = await answering.root.request(method, path, json={"url": url})
    text = "You cannot mirror a repository to itself."
    assert (answer.status, answer.body) == (400, {"message": {"base": [text]}})


async def test_ten_mirrors_may_be_enabled(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    wanted = [{"url": f"https://t{n}.example.org/x.git", "enabled": True} for n in range(12)]
    made = await asyncio.gather(*(answering.root.post(path, values) for values in wanted))
    assert sorted(answer.status for answer in made) == [201] * 10 + [400] * 2
    refusal = {"message": {"base": ["Maximum number of push mirrors (10) exceeded for this project."]}}
    assert [answer.body for answer in made if answer.status == 400] == [refusal] * 2
    disabled = await answering.root.post(path, {"url": "https://more.example.org/x.git"})
    assert disabled.status == 201
    refused = await answering.root.put(f"{path}/{disabled.body['id']}", {"enabled": True})
    assert (refused.status, refused.body) == (400, refusal)
    enabled = next(answer.body for answer in made if answer.status == 201)
    assert (await answering.root.put(f"{path}/{enabled['id']}", {"enabled": True})).status == 200
