"""`/-/testing/requests`: recorded requests and their answers."""

import gzip
import io
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server.testing import OWN_AGENT, journal
from common.static_paths import NO_FILE
from tests.api_server.testing.states import Controls
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url


@pytest.fixture
async def controls(testing_forge: Forge) -> Controls:
    return Controls(testing_forge, await testing_forge.user("watched"))


async def test_a_request_is_shown_with_its_answer(testing_forge: Forge, controls: Controls) -> None:
    who = controls.whose
    sent = {"name": "App", "path": "app", "topics": ["a", "b"]}
    made = await who.api.post("/projects", sent)
    await who.api.get(f"/projects/{who.username}%2Fapp/jobs?scope[]=failed&scope[]=success&page=1")
    first, second = await controls.requests()
    assert first["id"] == made.headers["X-Request-Id"]
    assert [first[name] for name in ("method", "path", "query", "body")] == [
        "POST", "/api/v4/projects", {}, sent,
    ]  # fmt: skip
    assert (first["status"], first["user"], first["failure"]) == (201, who.username, None)
    assert first["response"] == made.body | {"runners_token": first["response"]["runners_token"]}
    assert first["response_size"] == int(made.headers["Content-Length"])
    assert first["time"] <= second["time"]
    assert 0 < first["duration"] < 60
    assert second["path"] == f"/api/v4/projects/{who.username}%2Fapp/jobs"
    assert second["query"] == {"scope": ["failed", "success"], "page": "1"}
    assert (second["body"], second["body_size"], second["response"]) == (None, 0, [])


async def test_filters_select_and_delete_only_what_they_say(testing_forge: Forge, controls: Controls) -> None:
    project = await testing_forge.project(controls.whose)
    other = Controls(testing_forge, await testing_forge.user("other"))
    for who in (controls.whose, other.whose):
        await who.api.get(f"/projects/{project['id']}")
        await who.api.get(f"/projects/{project['id']}/jobs")
    await controls.whose.api.get("/projects/app%2fnone")
    of_project = f"/api/v4/projects/{project['id']}"
    assert [one["path"] for one in await controls.requests(path=of_project)] == [of_project]
    assert [one["status"] for one in await controls.requests(path="/api/v4/projects/*")] == [200, 404]
    assert len(await controls.requests(path="**/jobs", method="get")) == 1
    assert len(await controls.requests(path="/api/v4/projects/app%252Fnone", status=404)) == 1
    assert await controls.requests(path="/projects/*") == []
    gone = await controls.ask("DELETE", f"/requests?user={controls.whose.username}&status=404")
    assert gone.status == 204
    assert await controls.requests(status=404) == []
    assert (await controls.ask("DELETE", f"/requests?user={controls.whose.username}")).status == 204
    assert await controls.requests() == []
    assert [one["status"] for one in await other.requests()] == [404, 404]


async def test_credentials_are_hidden(testing_forge: Forge, controls: Controls) -> None:
    who = controls.whose
    project = await testing_forge.project(who)
    variables = f"/projects/{project['id']}/variables"
    await who.api.post(variables, {"key": "DEPLOY_TOKEN", "value": "hunter-2"})
    await who.api.post(variables, {"key": "LOUD", "value": "hunter-3", "masked": True})
    await who.api.get(f"{variables}?private_token={who.token}", headers={"Cookie": "s=hunter-4"})
    await who.api.put(
        "/user", data="note=password=hunter-5", headers={"Authorization": f"Bearer {who.token}"}
    )
    await testing_forge.root.post(f"/users/{who.id}/personal_access_tokens", {"name": "t", "scopes": ["api"]})
    listed = (await controls.ask("GET", "/requests")).body
    assert "DEPLOY_TOKEN" in str(listed)
    for secret in ("hunter-2", "hunter-3", "hunter-4", who.token, str(testing_forge.root.token)):
        assert secret not in str(listed)


async def test_credentials_are_hidden_in_whatever_way_they_come(controls: Controls) -> None:
    api = controls.whose.api
    project = await controls.forge.project(controls.whose)
    variables = f"/projects/{project['id']}/variables"
    await api.post(variables, data={"key": "LOUD", "value": "hunter-1", "masked": "true"})
    await api.put(f"{variables}/LOUD", {"value": "hunter-2"})
    await api.put(f"{variables}/LOUD?value=hunter-3")
    await api.post(variables, {"key": "SHY", "value": "hunter-4", "masked_and_hidden": True})
    in_pieces = '{"password": "hunter-5"}'  # as curl sends it without a Content-Type
    await api.post("/user", data=in_pieces, headers={"Content-Type": "application/x-www-form-urlencoded"})
    await api.post("/user", data=in_pieces, headers={"Content-Type": "text/plain"})
    await api.post("/user", {"tokens": ["hunter-6"], "password": ["hunter-7"]})
    form = aiohttp.FormData({"password": "hunter-8"}, default_to_multipart=True)
    await api.post("/user", data=form)
    await controls.forge.anonymous.get(
        f"{controls.forge.base}/a/b.git/info/refs", headers={"Authorization": "Basic cm9vdDpodW50ZXItOQ=="}
    )
    listed = str((await controls.ask("GET", "/requests")).body)
    assert listed.count("LOUD") > 3
    assert "hunter-" not in listed
    assert "cm9vdDpod" not in listed


async def test_what_is_no_text_is_told_by_its_size(
    testing_forge: Forge, controls: Controls, tmp_path: Path
) -> None:
    who = controls.whose
    project = await testing_forge.project(who)
    git = Git(tmp_path)
    await git.init()
    await git.commit(picture=bytes(range(256)) * 20)
    url = git_url(testing_forge, project["path_with_namespace"], who)
    await git("push", "--quiet", url, "main")
    await git("clone", "--quiet", url, "copy")
    push, fetched = [
        (await controls.requests(path=f"/{project['path_with_namespace']}.git/git-{service}-pack"))[-1]
        for service in ("receive", "upload")
    ]
    assert (push["user"], push["status"], push["body"], push["response"]) == (who.username, 200, None, None)
    assert push["body_size"] > 256
    assert fetched["response_size"] > 256
    form = aiohttp.FormData({"name": "with a picture"})
    form.add_field("avatar", io.BytesIO(b"\0" * 3000), filename="picture.png")
    await who.api.post("/projects", data=form)
    with_file = (await controls.requests(method="POST", path="/api/v4/projects"))[-1]
    assert (with_file["status"], with_file["body"]) == (201, None)
    assert with_file["body_size"] > 3000


async def test_forms_compressed_bodies_and_long_bodies(testing_forge: Forge, controls: Controls) -> None:
    who = controls.whose
    await who.api.post("/projects", data={"name": "of a form", "topics[]": "x"})
    json = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    await who.api.post("/projects", data=gzip.compress(b'{"name": "zipped"}'), headers=json)
    await who.api.post("/projects", {"name": "long", "description": "x" * journal.MAX_BODY_BYTES})
    await who.api.post("/projects", data="{broken", headers={"Content-Type": "application/json"})
    form, zipped, long, broken = await controls.requests(method="POST")
    assert form["body"] == {"name": "of a form", "topics": ["x"]}
    assert zipped["body"] == {"name": "zipped"}
    assert (long["body"], long["status"]) == (None, 201)
    assert long["body_size"] > journal.MAX_BODY_BYTES
    assert (broken["status"], broken["body"], broken["body_size"]) == (400, None, 7)


async def test_what_steers_or_watches_is_not_listed(testing_forge: Forge, controls: Controls) -> None:
    await controls.ask("GET", "/requests?path=/no/such")
    await controls.forge.anonymous.get(f"{testing_forge.base}/-/readiness")
    await controls.whose.api.get("/user", headers={"User-Agent": OWN_AGENT})
    await controls.whose.api.get(f"{testing_forge.base}{NO_FILE}")
    assert await controls.requests() == []
    assert (await controls.ask("GET", "/requests?path=/-/**")).body == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("since=1", "There is no filter 'since'; there are method, path, status, user."),
        ("status=4xx", "status has to be a number such as 404."),
        (
            "path=projects",
            "path has to begin with / or **, since it stands for a whole path: /api/v4/version.",
        ),
    ],
)
async def test_a_wrong_filter_is_told_in_a_sentence(controls: Controls, query: str, message: str) -> None:
    answer = await controls.ask("DELETE", f"/requests?{query}")
    assert (answer.status, answer.body) == (400, {"message": message})


async def test_pages_of_other_origins_cannot_look(testing_forge: Forge, controls: Controls) -> None:
    other = await controls.ask("GET", "/requests", headers={"Origin": "https://example.org"})
    assert (other.status, other.body) == (
        403,
        {"message": "Pages of other origins cannot steer this server."},
    )
    own = await controls.ask("GET", "/requests", headers={"Origin": testing_forge.base})
    assert own.status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("rebound.example.org", 403), ("localhost.example.org:80", 403), ("[::1", 400)),
        *(
            ("localhost:8080", 200),
            ("[::1]:80", 200),
            ("10.1.2.3", 200),
            ("LOCALHOST", 200),
            ("forgelet:8080", 200),
        ),
    ],
)
async def test_names_that_lead_here_cannot_look(controls: Controls, host: str, status: int) -> None:
    told = await controls.ask("GET", "/requests", headers={"Host": host})
    assert told.status == status, told


def entry(path: str, body: bytes = b"", status: int | None = 200) -> journal.Entry:
    heard = journal.RecordedBody("text/plain")
    heard(body)
    values: dict[str, Any] = {"time": None, "method": "GET", "query": "", "headers": {}}
    return journal.Entry(id="", path=path, body=heard, content_length=None, status=status, **values)


def test_nothing_is_kept_of_what_is_not_shown() -> None:
    heard = journal.RecordedBody("text/plain")
    for _ in range(10):
        heard(b"x" * (journal.MAX_BODY_BYTES // 8))
    assert (heard.content, len(heard._content), heard.size) == (None, 0, 10 * journal.MAX_BODY_BYTES // 8)


def test_what_is_kept_beside_bodies_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 20_000)
    kept = journal.Journal()
    for number in range(9):
        one = entry(f"/{number}")
        one.query, one.headers = "x" * 4_000, {"X-Long": "y" * 4_000}
        kept.begin(one)
        kept.end(one, 0.1)
    assert len(kept.matching(journal.Filter())) == 2


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = journal.Journal()
    everything = journal.Filter()
    monkeypatch.setattr(journal, "MAX_REQUESTS", 3)
    entries = [entry(f"/{number}") for number in range(5)]
    for one in entries:
        kept.begin(one)
        kept.end(one, 0.1)
    assert ([one.path for one in kept.matching(everything)], kept.dropped) == (["/2", "/3", "/4"], 2)
    monkeypatch.setattr(journal, "MAX_BYTES", 5_100)
    large = entry("/large", b"x" * 4_000)
    kept.begin(large)
    kept.end(large, 0.1)
    assert [one.path for one in kept.matching(everything)] == ["/large"]
    under_way = entry("/slow", b"x" * 4_000, status=None)
    kept.begin(under_way)
    kept.forget(everything)
    kept.end(under_way, 0.1)  # does not count any more
    assert (kept.matching(everything), kept.dropped, kept._bytes) == ([], 0, 0)
