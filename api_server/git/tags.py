"""Tags that the server makes and removes itself."""

import pygit2
from pygit2.enums import ObjectType

from api_server.git import references
from api_server.git.changes import Person
from api_server.git.errors import NameTakenError, NotFoundError
from api_server.git.names import TAGS, check_branch_name
from api_server.git.repositories import Repository


def new_target(repository: Repository, name: str, commit: str, message: str | None, tagger: Person) -> str:
    """The id at which a new tag is to stand: the commit's, or with a message that of an object made for it.

    Raises `InvalidNameError`.
    """
    check_branch_name(name)
    if not message:
        return commit
    who = tagger.signature()
    hours, minutes = divmod(abs(tagger.offset), 60)
    zone = f"{'-' if tagger.offset < 0 else '+'}{hours:02}{minutes:02}"
    text = message.replace("\0", "").rstrip("\n")
    head = f"object {commit}\ntype commit\ntag {name}\ntagger {who.name} <{who.email}> {who.time} {zone}\n"
    return str(repository.write(ObjectType.TAG, f"{head}\n{text}\n".encode()))


def create(repository: Repository, name: str, target: str) -> None:
    """Raises `NameTakenError`."""
    try:
        repository.references.create(TAGS + name, target)
    except (pygit2.GitError, ValueError, OSError) as problem:
        raise NameTakenError(f"The tag {name!r} cannot stand beside those that exist.") from problem


def delete(repository: Repository, name: str) -> str:
    """The id at which the tag stood. Raises `NotFoundError`."""
    found = references.tag(repository, name)
    if found is None:
        raise NotFoundError(f"The tag {name!r} does not exist.")
    repository.references.delete(TAGS + name)
    return found.target
