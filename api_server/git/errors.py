"""What can go wrong in a repository, in words a caller can show."""


class RepositoryError(Exception):
    """The common ancestor: the message is one sentence for the user."""


class RepositoryMissingError(RepositoryError):
    """There is no repository under this project id."""


class RepositoryExistsError(RepositoryError):
    """A repository under this project id exists already."""


class NotFoundError(RepositoryError):
    """A branch, tag, commit or path does not exist."""


class InvalidNameError(RepositoryError):
    """Not a name that git allows for a branch or tag."""


class NameTakenError(RepositoryError):
    """A branch or tag of this name, or one that would be its folder, exists already."""


class BranchMovedError(RepositoryError):
    """Somebody else moved the branch since it was read; read it again and repeat."""


class InvalidActionError(RepositoryError):
    """A file action does not fit the files of the branch."""


class MergeConflictError(RepositoryError):
    """Both sides changed the same places. `paths` are the files in conflict."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"Merge conflict in {', '.join(paths)}.")
        self.paths = paths


class NothingToMergeError(RepositoryError):
    """The target branch already contains the source."""
