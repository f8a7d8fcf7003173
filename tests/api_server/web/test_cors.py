"""Pages of other sites may ask the API, and read what it answers."""

import pytest

from tests.support.forge import Forge

SITE = "https://app.example.org"
FIELDS = ("Access-Control-Allow-Origin", "Access-Control-Expose-Headers")


@pytest.mark.parametrize(
    ("path", "status"), [("/projects", 200), ("/user", 401), ("/projects/999999999", 404)]
)
async def test_an_answer_says_that_the_site_may_read_it(forge: Forge, path: str, status: int) -> None:
    person = forge.anonymous if status == 401 else forge.root
    answer = await person.get(path, headers={"Origin": SITE})
    assert answer.status == status
    assert answer.headers["Access-Control-Allow-Origin"] == SITE
    exposed = answer.headers["Access-Control-Expose-Headers"].split(",")
    assert ("X-Next-Page" in exposed) is (status == 200)
    assert "Content-Type" not in exposed


async def test_nothing_is_said_of_sites_to_whom_is_none(forge: Forge) -> None:
    answer = await forge.root.get("/projects")
    assert answer.status == 200
    assert not any(name in answer.headers for name in FIELDS)


async def test_a_site_may_ask_what_it_may_send(forge: Forge) -> None:
    answer = await forge.anonymous.request(
        "OPTIONS",
        "/projects/1/jobs",
        headers={
            "Origin": SITE,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "PRIVATE-TOKEN",
        },
    )
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == SITE
    assert answer.headers["Access-Control-Allow-Methods"] == "GET"
    assert answer.headers["Access-Control-Allow-Headers"] == "PRIVATE-TOKEN"
    assert answer.headers["Access-Control-Max-Age"] == "600"
