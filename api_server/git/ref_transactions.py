"""Refs that the server moves itself: all of a change or nothing, marked in the reflogs as a push's are."""

import re
from pathlib import Path

from api_server.git.errors import BranchMovedError, GitError, NameTakenError
from api_server.git.processes import run
from api_server.git.received_push import REFLOGS, Push, RefUpdate, reflog_identity
from api_server.git.ref_names import check_branch_name

#: What git says of a ref that does not stand where the update expects it, or that another one is in the way of.
_REFUSED = re.compile(r"exists|but expected|unable to resolve reference")


async def move(repository: Path, push: Push) -> None:
    """Moves each branch or tag from where `push` says that it stands.

    Raises `InvalidNameError` and `NameTakenError` for a new one that cannot be, or not beside those that exist,
    `BranchMovedError` where somebody else was faster; then nothing has moved.
    """
    creates = [update for update in push.updates if update.kind == "create"]
    for update in creates:
        check_branch_name(update.ref.split("/", 2)[2])
    try:
        await run(
            ["update-ref", "--stdin", "-z"],
            repository=repository,
            configuration=REFLOGS,
            extra_environment=reflog_identity(push),
            stdin="".join(map(_command, push.updates)).encode(),
        )
    except GitError as problem:
        if _REFUSED.search(problem.stderr) is None:
            raise
        if creates:
            raise NameTakenError("The name cannot stand beside those that exist.") from problem
        raise BranchMovedError("The branch has moved; read it again and repeat.") from problem


def _command(update: RefUpdate) -> str:
    """git-update-ref(1), the form of `-z`."""
    if update.kind == "delete":
        return f"delete {update.ref}\0{update.old}\0"
    return f"update {update.ref}\0{update.new}\0{update.old}\0"
