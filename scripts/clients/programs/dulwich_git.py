"""Clone, fetch and push as users of dulwich do, and print a line for each call."""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calls import TOKEN, api, call, person, with_credentials
from dulwich import porcelain
from dulwich.client import HTTPUnauthorized, get_transport_and_path
from dulwich.repo import Repo

WHO = {"username": "root", "password": TOKEN}
AUTHOR = b"Alice <alice@example.org>"


def silent(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call the function, and discard its progress messages."""
    return function(*args, outstream=io.BytesIO(), errstream=io.BytesIO(), **options)


def commit(folder: str, name: str, text: str) -> bytes:
    (Path(folder) / name).write_text(text)
    porcelain.add(folder, [str(Path(folder) / name)])
    sha: bytes = porcelain.commit(folder, f"Write {name}".encode(), author=AUTHOR, committer=AUTHOR)
    return sha


def clones(place: str, url: str) -> None:
    with call("reading", "clone"):
        silent_clone(url, f"{place}/first")
        assert Path(f"{place}/first", "README.md").read_text().startswith("# app")
    with call("reading", "clone with credentials in the URL"):
        porcelain.clone(with_credentials(url, "root", TOKEN), f"{place}/second", errstream=io.BytesIO())
        assert Path(f"{place}/second", "README.md").exists()
    with call("reading", "ls_remote"):
        result = porcelain.ls_remote(with_credentials(url, "root", TOKEN))
        refs = getattr(result, "refs", result)
        assert refs[b"HEAD"] == refs[b"refs/heads/main"]
    with call("reading", "clone without credentials is refused"):
        refused(HTTPUnauthorized, lambda: porcelain.clone(url, f"{place}/none", errstream=io.BytesIO()))


def pushes(place: str, url: str) -> None:
    with call("writing", "push"):
        head = commit(f"{place}/first", "a.txt", "a\n")
        silent(porcelain.push, f"{place}/first", url, "refs/heads/main", **WHO)
        assert api("GET", "projects/1/repository/branches/main")["commit"]["id"] == head.decode()
    with call("writing", "push of a new branch"):
        silent(porcelain.push, f"{place}/first", url, "refs/heads/main:refs/heads/topic/one", **WHO)
        assert api("GET", "projects/1/repository/branches/topic%2Fone")["name"] == "topic/one"
    with call("writing", "push of a tag with a message"):
        porcelain.tag_create(f"{place}/first", b"v1.0", author=AUTHOR, message=b"Version 1", annotated=True)
        silent(porcelain.push, f"{place}/first", url, "refs/tags/v1.0", **WHO)
        assert api("GET", "projects/1/repository/tags/v1.0")["message"] == "Version 1"
    with call("writing", "push of a name that is no UTF-8"):
        name, message = "Jürgen <juergen@example.org>".encode("latin-1"), "Grüße".encode("latin-1")
        head = porcelain.commit(
            f"{place}/first", message, author=name, committer=name, encoding=b"ISO-8859-1"
        )
        silent(porcelain.push, f"{place}/first", url, "refs/heads/main:refs/heads/latin", **WHO)
        entity = api("GET", f"projects/1/repository/commits/{head.decode()}")
        assert (entity["author_name"], entity["title"]) == ("Jürgen", "Grüße"), entity


def fetches(place: str, url: str) -> None:
    with call("reading", "fetch"):
        silent_fetch(f"{place}/second", url)
    with call("reading", "pull"):
        silent(porcelain.pull, f"{place}/second", url, "refs/heads/main", **WHO)
        assert Path(f"{place}/second", "a.txt").read_text() == "a\n"
    with call("reading", "clone of the newest commit only"):
        porcelain.clone(url, f"{place}/shallow", depth=1, errstream=io.BytesIO(), **WHO)
        with Repo(f"{place}/shallow") as repo:
            assert len(list(repo.get_walker())) == 1


def refusals(place: str, url: str) -> None:
    with call("writing", "push that would lose commits is refused"):
        commit(f"{place}/shallow", "b.txt", "b\n")
        head = commit(f"{place}/first", "c.txt", "c\n")
        silent(porcelain.push, f"{place}/first", url, "refs/heads/main", **WHO)
        client, path = get_transport_and_path(url, **WHO)
        with Repo(f"{place}/shallow") as repo:
            mine = repo.head()
            answer = client.send_pack(
                path, lambda _: {b"refs/heads/main": mine}, repo.generate_pack_data, progress=lambda _: None
            )
        assert (answer.ref_status or {}).get(b"refs/heads/main"), answer.ref_status
        assert api("GET", "projects/1/repository/branches/main")["commit"]["id"] == head.decode()
    with call("writing", "push of a guest is refused"):
        guest = person("guest")
        api("POST", "projects/1/members", user_id=guest["id"], access_level=10)
        credentials = {"username": "guest", "password": guest["token"]}
        refused(
            Exception,
            lambda: silent(
                porcelain.push, f"{place}/first", url, "refs/heads/main:refs/heads/of-guest", **credentials
            ),
        )
        names = [branch["name"] for branch in api("GET", "projects/1/repository/branches")]
        assert "of-guest" not in names, names


def the_end(place: str, url: str) -> None:
    with call("writing", "a branch is deleted"):
        silent(porcelain.push, f"{place}/first", url, ":refs/heads/topic/one", **WHO)
        assert "topic/one" not in [branch["name"] for branch in api("GET", "projects/1/repository/branches")]
    with call("reading", "clone of a public project by its address without .git"):
        api("PUT", "projects/1", visibility="public")
        porcelain.clone(url.removesuffix(".git"), f"{place}/public", errstream=io.BytesIO())
        assert Path(place, "public/c.txt").exists()


def main(place: str) -> None:
    url = api("POST", "projects", name="app", initialize_with_readme=True)["http_url_to_repo"]
    for calls in (clones, pushes, fetches, refusals, the_end):
        calls(place, url)


def silent_clone(url: str, folder: str) -> None:
    porcelain.clone(url, folder, errstream=io.BytesIO(), **WHO)


def silent_fetch(folder: str, url: str) -> None:
    result = silent(porcelain.fetch, folder, url, **WHO)
    assert b"refs/tags/v1.0" in result.refs


def refused(kind: type[Exception], function: Callable[[], Any]) -> None:
    """Raise `AssertionError` if the function does not raise an exception of that `kind`."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            function()
        except kind:
            return
    raise AssertionError("was not refused")


with tempfile.TemporaryDirectory() as place:
    main(place)
    sys.stdout.flush()
