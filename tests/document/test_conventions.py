"""Rules of all areas: paths, bodies, parameters, identifiers, moments, pages, credentials, versions."""

import re
from typing import Any

import pytest

from tests.support.forge import Forge
from tests.support.invitations import new_address

from .pipelines import Ci
from .statements import DOCUMENT, says

MILLISECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
#: The document's endpoints, by their numbers.
ENDPOINTS = {
    int(number): (method, path)
    for number, method, path in re.findall(r"^\| (\d+) \| ([A-Z]+) `([^`]+)` \|", DOCUMENT, re.MULTILINE)
}

UNAUTHORIZED, NO_ROUTE = {"message": "401 Unauthorized"}, {"error": "404 Not Found"}


def _paths(number: int) -> list[tuple[str, str]]:
    """Return the methods and paths of an endpoint with unknown ids. For invitations the document has only the end of
    the path."""
    method, path = ENDPOINTS[number]
    found = [path] if number < 31 else [f"/{kind}/:id{path}" for kind in ("projects", "groups")]
    return [(method, re.sub(r":\w+", str(2**40), one)) for one in found]


def test_the_document_has_34_endpoints() -> None:
    assert sorted(ENDPOINTS) == list(range(1, 35))


@says(
    "conventions 1",
    "This single document covers all nine parts for six areas of the service's HTTP API: (1) CI jobs, (2) external"
    " status checks on merge requests, (3) project remote (push) mirrors, (4) audit events, (5) invitations to groups"
    " and projects, (6) external storage for repository static objects. All paths are relative to"
    " `{base_url}/api/v4`, except static object serving (area 6), which uses the repository-level paths given there.",
    "The service is a source-hosting and CI platform with a JSON HTTP API. This document specifies these capabilities:",
    "| Personal access token | header `PRIVATE-TOKEN: <ACCESS_TOKEN>` | all endpoints except those below |",
    "All paths are under the prefix `/api/v4` of `{base_url}`.",
)
@pytest.mark.parametrize("number", sorted(ENDPOINTS))
async def test_every_endpoint_is_there_and_takes_an_access_token(forge: Forge, number: int) -> None:
    """Without a token the answer is 401; two endpoints take the token of a job."""
    for method, path in _paths(number):
        refused = await forge.anonymous.request(method, path, json={})
        assert (refused.status, refused.body) == (401, UNAUTHORIZED)
        if number not in (4, 5):
            known = await forge.root.request(method, path, json={})
            assert (known.status, known.body) not in ((401, UNAUTHORIZED), (404, NO_ROUTE)), known
            assert known.status != 405, known
        elsewhere = await forge.root.request(method, f"{forge.base}{path}", json={})
        # a page asks strangers to sign in
        assert elsewhere.status in (404, 405) or elsewhere.headers["Location"].startswith("/-/sign_in")


@says(
    "conventions 2",
    "Request and response bodies are JSON. Parameters may be sent as form fields, query string, or a JSON body"
    " (examples use form fields, query strings and a JSON body for job play).",
)
async def test_parameters_in_each_form(forge: Forge) -> None:
    project = await forge.project()
    path = f"/projects/{project['id']}/invitations"
    for form in ("data", "json", "params"):
        sent: dict[str, Any] = {form: {"email": new_address(), "access_level": "30"}}
        answer = await forge.root.request("POST", path, **sent)
        assert (answer.status, answer.body) == (201, {"status": "success"})
        assert answer.headers["Content-Type"].startswith("application/json")
    assert len((await forge.root.get(path)).body) == 3


@says(
    "conventions 3",
    "`:id` is a project (or group) identifier: an integer ID or the URL-encoded full path, except where a table says"
    " integer only.",
)
async def test_identifiers(forge: Forge) -> None:
    group = await forge.group()
    project = await forge.project(namespace_id=group["id"])
    for kind, made, path in (
        ("projects", project, project["path_with_namespace"]),
        ("groups", group, group["full_path"]),
    ):
        for named in (made["id"], path.replace("/", "%2F")):
            assert (await forge.root.get(f"/{kind}/{named}/audit_events")).status == 200


@says(
    "conventions 4",
    "Timestamps are ISO 8601 strings (UTC with millisecond precision in most responses) unless stated otherwise.",
)
async def test_moments(ci: Ci) -> None:
    job = await ci.show("finished")
    assert all(MILLISECONDS.fullmatch(job[name]) for name in ("created_at", "started_at", "finished_at"))


@says(
    "conventions 5",
    "List endpoints are paginated, 20 items per page by default (see Limits).",
    "keyset pagination for the job list since release 15.9; for instance audit events since 15.11; for group audit"
    " events since 15.2; for project audit events since 15.10.",
)
async def test_lists_have_pages(forge: Forge, ci: Ci) -> None:
    group = await forge.group()
    pipeline = f"{ci.url}/pipelines/{ci.pipeline['id']}"
    for path in (
        f"{ci.url}/jobs",
        f"{pipeline}/jobs",
        f"{pipeline}/bridges",
        f"{ci.url}/external_status_checks",
        f"{ci.url}/remote_mirrors",
        "/audit_events",
        f"/groups/{group['id']}/audit_events",
        f"{ci.url}/audit_events",
        f"{ci.url}/invitations",
    ):
        assert (await forge.root.get(path)).headers["X-Per-Page"] == "20"
        by_keyset = await forge.root.get(f"{path}?pagination=keyset&order_by=id&per_page=1")
        assert (by_keyset.status, "X-Page" in by_keyset.headers) == (200, False)


@says(
    "conventions 6",
    "Array query parameters use the bracket form `scope[]=<value>`.",
    "Entity type `Service::Audit::InstanceScope` since 16.2. Custom role assignment on invitation (`member_role_id`)"
    " since 16.6. Retry of trigger jobs since 17.0 (earlier releases do not support it).",
)
async def test_arrays_have_brackets(ci: Ci) -> None:
    """Additions of later releases are tried with their areas."""
    both = (await ci.get("/jobs?scope[]=failed&scope[]=manual")).body
    assert {job["status"] for job in both} == {"failed", "manual"}
