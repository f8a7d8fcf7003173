"""Tags that the server makes itself."""

from pygit2.enums import ObjectType

from api_server.git.commit_text import Person
from api_server.git.failures import storing
from api_server.git.ref_names import check_branch_name
from api_server.git.repositories import Repository


def new_target(repository: Repository, name: str, commit: str, message: str | None, tagger: Person) -> str:
    """The id at which a new tag is to stand: the commit's, or with a message that of an object made for it.

    Raises `InvalidNameError`, `StorageUnavailableError`.
    """
    check_branch_name(name)
    if not message:
        return commit
    who = tagger.signature()
    hours, minutes = divmod(abs(tagger.offset), 60)
    zone = f"{'-' if tagger.offset < 0 else '+'}{hours:02}{minutes:02}"
    text = message.replace("\0", "").rstrip("\n")
    head = f"object {commit}\ntype commit\ntag {name}\ntagger {who.name} <{who.email}> {who.time} {zone}\n"
    with storing():
        return str(repository.write(ObjectType.TAG, f"{head}\n{text}\n".encode()))
