"""Refs that the server moves itself: all of a change or nothing, marked in the reflogs as a push's are."""

import asyncio
import re
from pathlib import Path

from api_server.git import durable
from api_server.git.errors import BranchMovedError, GitError, NameTakenError
from api_server.git.processes import run
from api_server.git.received_push import REFLOGS, Push, RefUpdate, reflog_identity
from api_server.git.ref_locks import move_refs
from api_server.git.ref_names import check_branch_name

#: `move_refs` waits itself, and looks whether what is in the way is held by anybody.
_IMPATIENT = (("core.filesRefLockTimeout", "0"), ("core.packedRefsTimeout", "0"))
#: What git says of a ref that does not stand where the update expects it, or that another one is in the way of.
_REFUSED = re.compile(r"exists|but expected|unable to resolve reference")


async def move(repository: Path, push: Push) -> None:
    """Moves each branch or tag from where `push` says that it stands.

    Raises `InvalidNameError` and `NameTakenError` for a new one that cannot be, or not beside those that exist,
    `BranchMovedError` where somebody else was faster, `RepositoryLockedError` where somebody else is just moving one;
    then nothing has moved. What it raises beside that, like `StorageUnavailableError`, leaves that open.
    """
    creates = [update for update in push.updates if update.kind == "create"]
    for update in creates:
        check_branch_name(update.ref.split("/", 2)[2])
    try:
        await move_refs(repository, lambda descriptor: _update(repository, push, descriptor))
    except GitError as problem:
        if _REFUSED.search(problem.stderr) is None:
            raise
        if creates:
            raise NameTakenError("The name cannot stand beside those that exist.") from problem
        raise BranchMovedError("The branch has moved; read it again and repeat.") from problem
    await asyncio.to_thread(_sync, repository, push)


async def _update(repository: Path, push: Push, descriptor: int) -> None:
    await run(
        ["update-ref", "--stdin", "-z"],
        repository=repository,
        configuration=(*REFLOGS, *_IMPATIENT),
        extra_environment=reflog_identity(push),
        stdin="".join(map(_command, push.updates)).encode(),
        pass_fds=(descriptor,),
    )


def _sync(repository: Path, push: Push) -> None:
    durable.sync_objects(repository, ())  # libgit2 has made new folders there for the objects
    durable.sync_refs(repository, [update.ref for update in push.updates])


def _command(update: RefUpdate) -> str:
    """git-update-ref(1), the form of `-z`."""
    if update.kind == "delete":
        return f"delete {update.ref}\0{update.old}\0"
    return f"update {update.ref}\0{update.new}\0{update.old}\0"
