"""Endpoints 1 to 3: which jobs are listed, in which order, page by page."""

import re

import pytest

from api_server.ci.pipelines.states import STATUSES
from tests.support.ci import ci_project, happen
from tests.support.forge import Forge, new_name

NO_SCOPE = {"error": "scope does not have a valid value"}
MATRIX = "".join(f"job {number}:\n  script: echo\n" for number in range(5))
BRIDGE = "build:\n  script: echo\nother:\n  trigger: {project: nowhere/at-all}\n  when: manual\n"


@pytest.fixture(scope="session")
async def five(forge):
    """A project with five pending jobs."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(MATRIX)
    return project, pipeline


def ids(answer) -> list[int]:
    return [job["id"] for job in answer.body]


async def test_jobs_of_a_project_come_newest_first_with_the_retried_ones_and_without_bridges(forge):
    """Row 1."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(BRIDGE)
    first = (await project.jobs(pipeline))["build"]["id"]
    await happen(forge, first, "drop")
    second = (await project.api.post(f"{project.url}/jobs/{first}/retry")).body["id"]
    assert ids(await project.api.get(f"{project.url}/jobs")) == [second, first]


async def test_jobs_of_a_pipeline_hide_retried_ones_unless_asked(forge):
    """Row 2."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(BRIDGE)
    first = (await project.jobs(pipeline))["build"]["id"]
    await happen(forge, first, "drop")
    second = (await project.api.post(f"{project.url}/jobs/{first}/retry")).body["id"]
    where = f"{project.url}/pipelines/{pipeline['id']}/jobs"
    assert ids(await project.api.get(where)) == [second]
    assert ids(await project.api.get(f"{where}?include_retried=false")) == [second]
    assert ids(await project.api.get(f"{where}?include_retried=True")) == [second, first]
    refused = await project.api.get(f"{where}?include_retried=maybe")
    assert (refused.status, refused.body) == (400, {"error": "include_retried is invalid"})


async def test_bridges_of_a_pipeline(forge):
    """Row 3: downstream_pipeline is null when not created; only bridges; the keys of a bridge."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(BRIDGE)
    answer = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/bridges?scope=manual")
    assert answer.headers["X-Total"] == "1"
    (bridge,) = answer.body
    assert set(bridge) == {
        "id", "status", "stage", "name", "ref", "tag", "coverage", "allow_failure", "created_at", "started_at",
        "finished_at", "erased_at", "duration", "queued_duration", "user", "commit", "pipeline", "web_url",
        "project", "archived", "downstream_pipeline",
    }  # fmt: skip
    assert (bridge["name"], bridge["status"], bridge["downstream_pipeline"]) == ("other", "manual", None)
    assert set(bridge["pipeline"]) >= {"created_at", "updated_at", "web_url"}
    assert (
        await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/bridges?scope=failed")
    ).body == []


@pytest.mark.parametrize("query", ["scope=pending", "scope[]=pending", "scope[]=failed&scope[]=pending"])
async def test_scope_is_a_text_or_a_list(five, query):
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs"):
        assert len((await project.api.get(f"{project.url}/{path}?{query}")).body) == 5
        assert (await project.api.get(f"{project.url}/{path}?scope[]=failed")).body == []


async def test_scope_as_a_hash_counts_by_its_values_in_the_projects_list_only(five):
    """Rows 1 and 2."""
    project, pipeline = five
    assert len((await project.api.get(f"{project.url}/jobs?scope[0]=pending&scope[1]=failed")).body) == 5
    for list_of in ("jobs", "bridges"):
        refused = await project.api.get(
            f"{project.url}/pipelines/{pipeline['id']}/{list_of}?scope[0]=pending"
        )
        assert (refused.status, refused.body) == (400, NO_SCOPE)


@pytest.mark.parametrize("query", ["scope=unknown", "scope[]=pending&scope[]=unknown", "scope[][a]=pending"])
async def test_an_unknown_scope_is_refused_in_all_three_lists(five, query):
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs", f"pipelines/{pipeline['id']}/bridges"):
        refused = await project.api.get(f"{project.url}/{path}?{query}")
        assert (refused.status, refused.body) == (400, NO_SCOPE)


async def test_all_thirteen_statuses_are_accepted_as_scope(five):
    """4.1 and decision D4."""
    project, _ = five
    assert len(STATUSES) == 13
    query = "&".join(f"scope[]={status}" for status in STATUSES)
    assert len((await project.api.get(f"{project.url}/jobs?{query}")).body) == 5


async def test_offset_pages_have_all_headers(five):
    """2.1: rows 1 to 3."""
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs"):
        answer = await project.api.get(f"{project.url}/{path}?per_page=2&page=2&scope[]=pending")
        assert len(answer.body) == 2
        assert {name: answer.headers[f"X-{name}"] for name in ("Page", "Next-Page", "Prev-Page", "Per-Page")} == {
            "Page": "2", "Next-Page": "3", "Prev-Page": "1", "Per-Page": "2"
        }  # fmt: skip
        assert (answer.headers["X-Total"], answer.headers["X-Total-Pages"]) == ("5", "3")
        assert re.findall(r'rel="(\w+)"', answer.headers["Link"]) == ["prev", "next", "first", "last"]
        assert "scope%5B%5D=pending" in answer.headers["Link"]


@pytest.mark.parametrize("query", ["", "&scope[]=pending", "&scope[]=pending&scope[]=running"])
async def test_keyset_walks_all_jobs_once_without_counting(five, query):
    """2.2; beyond GitLab on the pipeline's jobs too (decision D3)."""
    project, pipeline = five
    for path in ("jobs", f"pipelines/{pipeline['id']}/jobs"):
        url, found = f"{project.url}/{path}?pagination=keyset&per_page=2{query}", []
        while url:
            answer = await project.api.get(url)
            assert "X-Total" not in answer.headers
            found += ids(answer)
            following = re.fullmatch(r'<(.*)>; rel="next"', answer.headers.get("Link", ""))
            url = following[1] if following else ""
            assert not url.rpartition("&")[2].startswith("cursor=")
        assert found == sorted(found, reverse=True)
        assert len(set(found)) == len(found) == 5


@pytest.mark.parametrize("query", ["order_by=name&sort=asc", "order_by=id&sort=asc", "sort=asc"])
async def test_keyset_in_another_order_is_405_and_offset_passes_it_over(five, query):
    """2.2."""
    project, _ = five
    refused = await project.api.get(f"{project.url}/jobs?pagination=keyset&{query}")
    text = "Keyset pagination is not yet available for this type of request"
    assert (refused.status, refused.body) == (405, {"error": text})
    assert len((await project.api.get(f"{project.url}/jobs?{query}")).body) == 5


async def test_a_broken_cursor_is_400(five):
    project, _ = five
    refused = await project.api.get(f"{project.url}/jobs?pagination=keyset&cursor=broken")
    assert (refused.status, refused.body) == (400, {"error": "cursor is invalid"})


async def test_lists_of_pipelines_of_other_projects_are_404(five, forge):
    project, _ = five
    other = await ci_project(forge)
    pipeline = await other.pipeline()
    for path in ("jobs", "bridges", ""):
        answer = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/{path}".rstrip("/"))
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_ids_that_are_no_numbers_are_400(five):
    project, _ = five
    bad = {"jobs/x": "job_id", "pipelines/x/jobs": "pipeline_id", "pipelines/x/bridges": "pipeline_id"}
    for path, name in bad.items():
        answer = await project.api.get(f"{project.url}/{path}")
        assert (answer.status, answer.body) == (400, {"error": f"{name} is invalid"})


async def test_a_project_is_addressed_by_its_encoded_path_too(five):
    project, _ = five
    assert len((await project.api.get(f"/projects/{project.path.replace('/', '%2F')}/jobs")).body) == 5


async def test_the_list_of_jobs_is_limited_for_each_user(forge: Forge):
    """Row 1: 429 with the text and Retry-After."""
    with forge.changed_settings(jobs_rate_limit=2):
        project = await ci_project(forge)
        answers = [await project.api.get(f"{project.url}/jobs") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        text = "This endpoint has been requested too many times. Try again later."
        assert answers[2].body == {"message": {"error": text}}
        assert 0 < int(answers[2].headers["Retry-After"]) <= 60
        other = await forge.user("other", admin=True)
        assert (await other.api.get(f"{project.url}/jobs")).status == 200


async def test_an_empty_list_is_one_page(forge):
    project = await forge.project(name=new_name("empty"))
    answer = await forge.root.get(f"/projects/{project['id']}/jobs")
    assert (answer.body, answer.headers["X-Total"], answer.headers["X-Total-Pages"]) == ([], "0", "1")
