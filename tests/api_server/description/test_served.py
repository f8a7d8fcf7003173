"""`GET /api/v4/openapi.json`."""

from tests.support.forge import Forge

PATH = "/openapi.json"


async def test_everybody_may_read_it(forge: Forge) -> None:
    answer = await forge.anonymous.get(PATH, expect=200)
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.body["openapi"] == "3.1.0"
    assert answer.body["paths"]["/openapi.json"]["get"]["security"] == []


async def test_what_a_client_has_is_not_sent_again(forge: Forge) -> None:
    first = await forge.anonymous.get(PATH)
    again = await forge.anonymous.get(PATH, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status == 304
    assert "Accept-Encoding" in first.headers["Vary"]


async def test_it_is_the_same_for_those_who_cannot_unpack_it(forge: Forge) -> None:
    packed = await forge.anonymous.get(PATH, headers={"Accept-Encoding": "gzip"})
    plain = await forge.anonymous.get(PATH, headers={"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.body == plain.body
