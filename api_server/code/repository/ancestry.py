"""`/repository/commits/:sha/refs`, `/signature` and `/repository/merge_base`: how commits descend from each other, and
who answers for them."""

from collections.abc import Sequence
from typing import Literal

import attrs
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository import entities
from api_server.code.repository.access import opened, url_of
from api_server.code.repository.finding import commit_named
from api_server.code.repository.pages import listed, on_page
from api_server.git import commits, references
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web.answers import json_value
from api_server.web.errors import invalid, not_found
from api_server.web.pagination import Paginated
from api_server.web.params import CommaList
from api_server.web.routes import Routes

routes = Routes()

_NAMESPACES = {"branch": [BRANCHES], "tag": [TAGS], "all": [BRANCHES, TAGS]}
#: Of which one common ancestor is looked for.
MOST_REFS = 100


@attrs.frozen(kw_only=True)
class ListRefsOfCommit(Paginated):
    id: str
    sha: str
    type: Literal["branch", "tag", "all"] = "all"


@attrs.frozen(kw_only=True)
class OneCommit:
    id: str
    sha: str


@attrs.frozen(kw_only=True)
class FindMergeBase:
    id: str
    refs: CommaList[str]


@routes.get("/projects/{id}/repository/commits/{sha}/refs", access=project(opens="repository"))
async def list_refs_of_commit(request: web.Request, wanted: ListRefsOfCommit, found: Project) -> web.Response:
    """The branches, then the tags from which a commit can be reached, each by name."""
    repository = await opened(request, found)
    sha = commit_named(repository, wanted.sha)
    async with reading(request):
        named = await commits.refs_containing(repository, sha, *_NAMESPACES[wanted.type])
    shown = [_ref(name) for name in on_page(wanted, named)]
    return await listed(request, wanted, shown, len(named))


@routes.get("/projects/{id}/repository/commits/{sha}/signature", access=project(opens="repository"))
async def show_signature(request: web.Request, wanted: OneCommit, found: Project) -> web.Response:
    """With what a commit is signed: by an unknown key, since users have none here."""
    repository = await opened(request, found)
    signed_with = commits.signature_type(repository, commit_named(repository, wanted.sha))
    if signed_with is None:
        raise not_found("Signature")
    return json_value(
        {"signature_type": signed_with, "verification_status": "unknown_key", "commit_source": "gitaly"}
    )


def _ref(name: str) -> dict[str, str]:
    kind = "branch" if name.startswith(BRANCHES) else "tag"
    return {"type": kind, "name": name.split("/", 2)[2]}


@routes.get("/projects/{id}/repository/merge_base", access=project(opens="repository"))
async def find_merge_base(request: web.Request, wanted: FindMergeBase, found: Project) -> web.Response:
    """The best commit from which all of two or more branches, tags or commits descend."""
    repository = await opened(request, found)
    shas = _resolved(repository, wanted.refs)
    async with reading(request):
        sha = await commits.merge_base(repository, *shas)
    if sha is None:
        raise not_found("Merge Base")
    return json_value(entities.commit(repository, sha, url_of(request, found)))


def _resolved(repository: Repository, refs: Sequence[str]) -> list[str]:
    """The commits of these refs. Raises 400 in GitLab's words."""
    if len(refs) < 2:
        raise invalid("Provide at least 2 refs")
    if len(refs) > MOST_REFS:
        raise invalid(f"Provide at most {MOST_REFS} refs")
    found = [references.resolve(repository, ref) for ref in refs]
    if unknown := [ref for ref, one in zip(refs, found, strict=True) if one is None]:
        raise invalid(f"Could not find {'ref' if len(unknown) == 1 else 'refs'}: {', '.join(unknown)}")
    return [one.commit for one in found if one is not None]
