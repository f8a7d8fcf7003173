"""The commit that merging would make, for who wants to try it out: kept under a ref beside the head's."""

from aiohttp import web

from api_server.code.repository.committing import acting_person
from api_server.git import new_commits
from api_server.git.commits import commit_data
from api_server.git.errors import MergeConflictError, NothingToMergeError
from api_server.git.new_commits import NewCommit
from api_server.git.ref_moves import set_internal_ref
from api_server.git.references import branch
from api_server.git.repositories import Repository, repositories
from api_server.merge_requests import queries
from api_server.merge_requests.changes import merge_ref
from api_server.merge_requests.mergeability import check_mergeability
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.errors import invalid


async def merge_commit(request: web.Request, project: Project, iid: int) -> str:
    """Its SHA: of the head and the target as they are. Raises 400 where they cannot be merged."""
    database = context.database(request)
    await check_mergeability(request.config_dict, await queries.find(database, project.id, iid))
    found = await queries.find(database, project.id, iid)
    repository = repositories(request).open(project.id)
    target = branch(repository, found.target_branch)
    if found.state != "opened" or found.mergeability != "mergeable" or target is None:
        raise _not_mergeable()
    parents = [target.commit, found.head_sha]
    ref = merge_ref(found.iid)
    if ref in repository.references:
        known = str(repository.references[ref].target)
        if commit_data(repository, known)["parent_ids"] == parents:
            return known
    return await _made(request, repository, found, target.commit, ref)


async def _made(
    request: web.Request, repository: Repository, found: MergeRequest, target: str, ref: str
) -> str:
    person = acting_person(request)
    message = f"Merge {found.head_sha} into {target}"
    try:
        made = await new_commits.merge(repository, found.head_sha, target, NewCommit(message, person, person))
    except (MergeConflictError, NothingToMergeError):
        raise _not_mergeable() from None
    async with context.database(request).transaction() as transaction:
        await queries.lock(transaction, found.id)  # whoever deletes it removes the ref
        await set_internal_ref(repository, ref, made)
    return made


def _not_mergeable() -> Exception:
    return invalid("Merge request is not mergeable")
