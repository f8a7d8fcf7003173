"""What callers name in a repository; what is not there is 404, in GitLab's words."""

from api_server.code.repository.found_file import FoundFile
from api_server.git import references, trees
from api_server.git.errors import NotFoundError
from api_server.git.references import Branch, Tag
from api_server.git.repositories import Repository
from api_server.web.errors import not_found


def branch_named(repository: Repository, name: str) -> Branch:
    branch = references.branch(repository, name)
    if branch is None:
        raise not_found("Branch")
    return branch


def tag_named(repository: Repository, name: str) -> Tag:
    tag = references.tag(repository, name)
    if tag is None:
        raise not_found("Tag")
    return tag


def commit_named(repository: Repository, name: str) -> str:
    """The full SHA of the commit that a branch, tag or SHA names."""
    resolved = references.resolve(repository, name)
    if resolved is None:
        raise not_found("Commit")
    return resolved.commit


def file_at(repository: Repository, ref: str, path: str) -> FoundFile:
    commit = commit_named(repository, ref)
    entry = trees.find_entry(repository, commit, path)
    if entry is None or not entry.is_blob:
        raise not_found("File")
    return FoundFile(entry, ref, commit)


def folder_named(repository: Repository, ref: str, folder: str, *, recursive: bool) -> trees.Folder:
    """A folder of a branch, tag or commit, `recursive` with all below it."""
    resolved = references.resolve(repository, ref)
    if resolved is None:
        raise not_found("Tree")
    try:
        return trees.open_folder(repository, resolved.commit, folder, recursive=recursive)
    except NotFoundError:
        raise not_found("invalid revision or path") from None
