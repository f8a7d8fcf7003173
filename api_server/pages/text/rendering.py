"""Markdown and source as pages show them.

A child process renders each text once. The result is cached by content, and completed with links to whatever the text
names and this viewer may see. A text that takes too much time or memory, or is too large, is shown as it was written.
"""

import asyncio
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import markupsafe
import orjson
from aiohttp import web
from cachetools import LRUCache

from api_server.code.reading import opened, reading
from api_server.git import references
from api_server.git.commits import read_text
from api_server.git.errors import GitError
from api_server.git.processes import once, start_program
from api_server.git.repositories import Repository
from api_server.git.spawning import child_environment
from api_server.namespaces.resources import Project
from api_server.pages import queries
from api_server.pages.sessions import Visitor
from api_server.pages.text.markdown import TextContext
from api_server.services import Key, Services
from api_server.web import context
from api_server.web.errors import ApiError
from api_server.web.routes import caller_or_anonymous
from common.concurrency import TooBusy

#: Maximum size of a text that is shown as Markdown, and of a source that is shown with colours.
MAX_MARKDOWN = 2**20
MAX_SOURCE = 256 * 1024
#: Size of the cache of results, in characters.
_KEPT = 16 * 2**20
#: Seconds that a page waits for a child, however busy the machine is. The child's processor time has its own limit.
_TIMEOUT = 15.0
#: Maximum number of children for one page: after a text that ends its child, another one goes on with the next text.
_MAX_CHILDREN = 3
#: Maximum number of users, of merge requests and of commits that the texts of a page can link to.
_MAX_NAMED = 100
_ROOT = str(Path(__file__).parents[3])
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from api_server.pages.text import child; child.main()"
)

#: Strings of HTML, and `[kind, name, text]` for possible references. None: the text is shown as it was written.
Parts = list[str | list[str]] | None

RENDERED = Key[LRUCache[bytes, Parts]]("rendered_texts")


def setup(services: Services) -> None:
    services[RENDERED] = LRUCache(maxsize=_KEPT, getsizeof=_size)


def _size(parts: Parts) -> int:
    return 100 + sum(map(len, parts or ()))


async def markdown(
    request: web.Request,
    visitor: Visitor,
    project: Project | None,
    texts: Sequence[str | None],
    ref: str = "",
    folder: str = "",
) -> list[markupsafe.Markup]:
    """Return each of the texts as HTML, with its own element around it, or "" if it is empty.

    The texts belong to `project`. Their relative links start in `folder` at `ref`, or at the root of the default
    branch. Users, merge requests and commits that they name are linked if the visitor may see them. Call this once for
    all texts of a page.
    """
    base_url = context.services(request).settings.base_url
    text_context = TextContext(base_url)
    if project is not None:
        text_context = TextContext(base_url, project.full_path, ref or project.default_branch, folder)
    tasks = [{"text": text or "", "at": attrs.asdict(text_context)} for text in texts]
    rendered = await _render(request, tasks, MAX_MARKDOWN)
    references = (part for parts in rendered for part in parts or () if not isinstance(part, str))
    links = await _links(request, visitor, project, references)
    return [_rendered(text or "", parts, links) for text, parts in zip(texts, rendered, strict=True)]


async def coloured_lines(request: web.Request, name: str, source: str) -> list[markupsafe.Markup] | None:
    """Return the lines of a file as HTML with syntax colours, or None if there are no colours for it."""
    (parts,) = await _render(request, [{"text": source, "name": name}], MAX_SOURCE)
    return None if parts is None else [markupsafe.Markup(part) for part in parts]  # noqa: S704 (of the child)


def _rendered(
    text: str, parts: Parts, links: Mapping[tuple[str, str], markupsafe.Markup]
) -> markupsafe.Markup:
    """Return a text as HTML in a section, at whose end all elements of the text end: an `<li>` in it cannot belong to a
    list around it."""
    if not text.strip():
        return markupsafe.Markup("")
    if parts is None:
        return markupsafe.Markup('<section class="markdown"><pre class="prose">{}</pre></section>').format(
            text
        )
    html = [
        part if isinstance(part, str) else links.get((part[0], part[1]), markupsafe.escape(part[2]))
        for part in parts
    ]
    return markupsafe.Markup(f'<section class="markdown">{"".join(html)}</section>')  # noqa: S704 (of the child)


async def _render(request: web.Request, tasks: Sequence[Mapping[str, Any]], max_length: int) -> list[Parts]:
    """Return the result of each task, from the cache if it is there."""
    services = context.services(request)
    cache = services[RENDERED]
    keys = [hashlib.sha256(orjson.dumps(task)).digest() for task in tasks]
    rendered: dict[bytes, Parts] = {key: cache[key] for key in keys if key in cache}
    new = {
        key: task
        for key, task in zip(keys, tasks, strict=True)
        if key not in rendered and task["text"].strip() and len(task["text"]) <= max_length
    }
    with suppress(TooBusy, ApiError):  # if the service is too busy, the texts are shown as they were written
        for _ in range(_MAX_CHILDREN):
            if not new:
                break
            async with reading(services, caller_or_anonymous(request)):
                results, in_time = await _run_child(list(new.values()))
            fresh = dict(zip(new, results, strict=False))
            if len(fresh) < len(new) and in_time:
                fresh[list(new)[len(fresh)]] = None  # the text that has ended the child
            rendered |= fresh
            cache.update(fresh)
            new = {key: task for key, task in new.items() if key not in fresh} if in_time else {}
    return [rendered.get(key) for key in keys]


async def _run_child(tasks: Sequence[Mapping[str, Any]]) -> tuple[list[Parts], bool]:
    """Return the results of the tasks that were done before the child ended, and whether it ended in time. If it did
    and results are missing, the first task without one has exceeded the limits; otherwise this machine is too busy."""
    output = bytearray()
    command = [sys.executable, "-I", "-c", _PROGRAM, _ROOT]
    async with start_program(
        command, name="text", environment=child_environment(), with_stdin=True, time_limit=_TIMEOUT
    ) as child:
        child.feed(once(orjson.dumps(tasks)))
        with suppress(GitError, ConnectionError):
            async for chunk in child.output():
                output += chunk
        in_time = not child.timed_out
    return [orjson.loads(line) for line in output.split(b"\n")[:-1]], in_time


async def _links(
    request: web.Request, visitor: Visitor, project: Project | None, references: Iterable[list[str]]
) -> dict[tuple[str, str], markupsafe.Markup]:
    """Return links to those of the named things that exist and that the visitor may see, by kind and name."""
    names: dict[str, dict[str, str]] = {"merge_request": {}, "user": {}, "commit": {}}
    for kind, name, text in references:
        if len(names[kind]) < _MAX_NAMED:
            names[kind][name] = text
    links: dict[tuple[str, str], markupsafe.Markup] = {}
    if names["user"] and visitor.user is not None:
        links |= await _users(request, names["user"])
    if project is None or not project.reads_repository:
        return links
    if names["merge_request"]:
        links |= await _merge_requests(request, project, names["merge_request"])
    if names["commit"]:
        repository = await opened(context.services(request), project)
        links |= await asyncio.to_thread(_commits, repository, project, names["commit"])
    return links


async def _users(request: web.Request, names: Mapping[str, str]) -> dict[tuple[str, str], markupsafe.Markup]:
    users = await queries.users_named(context.services(request).database, [*{*names, *map(str.lower, names)}])
    users_by_name = {user.username.lower(): user for user in users}
    return {
        ("user", name): _link(f"/{user.username}", user.name, text)
        for name, text in names.items()
        if (user := users_by_name.get(name.lower())) is not None
    }


async def _merge_requests(
    request: web.Request, project: Project, names: Mapping[str, str]
) -> dict[tuple[str, str], markupsafe.Markup]:
    rows = await queries.merge_requests_numbered(
        context.services(request).database, project.id, [int(name) for name in names]
    )
    below = f"/{project.full_path}/-/merge_requests"
    return {
        ("merge_request", str(row.iid)): _link(f"{below}/{row.iid}", row.title, f"!{row.iid}") for row in rows
    }


def _commits(
    repository: Repository, project: Project, names: Mapping[str, str]
) -> dict[tuple[str, str], markupsafe.Markup]:
    links = {}
    for name in names:
        if (sha := references.commit_id(repository, name)) is not None:
            title = read_text(repository, sha).message.partition("\n")[0]
            address = f"/{project.full_path}/-/commit/{sha}"
            links["commit", name] = _link(address, title[:200], name[:8], "mono")
    return links


def _link(address: str, title: str, text: str, kind: str = "") -> markupsafe.Markup:
    attributes = markupsafe.Markup(' class="{}"').format(kind) if kind else ""
    return markupsafe.Markup('<a href="{}" title="{}"{}>{}</a>').format(address, title, attributes, text)
