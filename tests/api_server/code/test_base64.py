"""Contents of files in Base64: as Go's `base64.NewDecoder(base64.StdEncoding, …)` reads them, which is GitLab's."""

from api_server.code.committing import decoded
from api_server.web.errors import ApiError
from tests.support.forge import Forge

REFUSED = {"message": "400 Bad request - content is not valid base64"}
#: What is sent, and what Go makes of it; `None` is an error.
DECODED: dict[str, bytes | None] = {
    "": b"",
    "\n": b"",
    "aGVsbG8=": b"hello",
    "aGVsbG8=\n": b"hello",
    "aGVsbG8=\r\n": b"hello",
    "aGVsbG8=\n\n": b"hello",
    "\naGVsbG8=": b"hello",
    "aGVs\nbG8=": b"hello",
    "aGVs\r\nbG8=\r\n": b"hello",
    "aGVsb\rG8=": b"hello",
    "aGVsbG8\n=": b"hello",
    "aGVsbG9=": b"hello",
    "+/+/": b"\xfb\xff\xbf",
    "aGVsbG8": None,
    "aGVs bG8=": None,
    "aGVsbG8= ": None,
    "aGVsbG8=\t": None,
    "aGVsbG8==": None,
    "aGVsbG8=aGk=": None,
    "aGVsbG8=\naGk=": None,
    "aGVs=bG8": None,
    "-_-_": None,
    "a": None,
    "aQ=": None,
    "=": None,
    "====": None,
    "é": None,
    "aGk=\0": None,
}


def _decoded(content: str) -> object:
    try:
        return decoded(content, "base64")
    except ApiError as refused:
        return None if refused.body == REFUSED else refused.body


def test_base64_is_read_as_go_reads_it() -> None:
    assert {content: _decoded(content) for content in DECODED} == DECODED


async def test_files_and_commits_take_it_in_lines(forge: Forge) -> None:
    """As `base64 FILE`, Ruby's `Base64.encode64` and MIME write it."""
    project = await forge.project(initialize_with_readme=True)
    where = f"/projects/{project['id']}/repository"
    lines = {"content": "aGVs\r\nbG8=\r\n", "encoding": "base64"}
    new = {"branch": "main", "commit_message": "a"}
    made = await forge.root.post(f"{where}/files/one", new | lines)
    changed = await forge.root.put(f"{where}/files/README.md", new | lines)
    action = {"action": "create", "file_path": "two"} | lines
    committed = await forge.root.post(f"{where}/commits", new | {"actions": [action]})
    assert (made.status, changed.status, committed.status) == (201, 200, 201)
    for name in ("one", "README.md", "two"):
        assert (await forge.root.get(f"{where}/files/{name}/raw")).body == "hello"
