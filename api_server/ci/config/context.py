"""The context of planning: the pipeline's variables and the repository that it belongs to."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from attrs import evolve, field, frozen

from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.patterns import PathSet
from api_server.ci.config.variables import Variable, expand_all, overlay, values

#: Maximum number of refs that one configuration may compare with; each comparison is work for git.
MAX_COMPARED = 20
#: Maximum number of repositories, with the pipeline's own, whose paths are listed for wildcards and `exists`.
MAX_LISTED = 11


def _no_file(_: str) -> str | None:
    return None


def _no_paths() -> Collection[str]:
    return ()


def _not_known() -> Collection[str] | None:
    return None


def _no_ref(_: str) -> Collection[str] | None:
    raise CiConfigError("rules:changes:compare_to is not a valid ref")


def _no_commit(_: str | None) -> None:
    return None


@frozen(kw_only=True, eq=False)
class Repository:
    """The commit of the pipeline. Paths are relative to its root, without a leading slash."""

    #: Return the text of the file at a path, or None. Raise CiConfigError if it is too large.
    read: Callable[[str], str | None] = _no_file
    #: Return git's id of the content of the file or folder at a path, whatever its size.
    content_id: Callable[[str], str | None] = _no_file
    #: Return all paths of the commit; called at most once per plan, only for wildcards and `exists`.
    paths: Callable[[], Collection[str]] = _no_paths
    #: Return the paths that the push or merge request changed, or None if unknown; then every `changes` rule
    #: matches. Called only for `changes`.
    changed: Callable[[], Collection[str] | None] = _not_known
    #: Return the paths that changed since the merge base with a ref, or None as above. Raise CiConfigError if
    #: there is no such ref.
    changed_since: Callable[[str], Collection[str] | None] = _no_ref
    #: Full path of the project, and the commit.
    project: str = ""
    sha: str = ""


@frozen(kw_only=True)
class Version:
    """The target of a version in a component's address."""

    repository: Repository
    #: The tag, if it is a semantic version.
    semantic: str | None = None


@frozen(kw_only=True)
class OtherProject:
    """A project whose files may be included."""

    #: Return the repository at a branch, a tag or a commit (None: the default branch), or None if there is no
    #: such ref.
    at: Callable[[str | None], Repository | None] = _no_commit
    #: Return the target of a version: any ref, `1.2`, `1`, or `~latest`. None if there is no such version.
    version: Callable[[str], Version | None] = _no_commit


def no_project(_path: str, _public: bool) -> OtherProject | None:
    """Return None: the project does not exist, or the user of the pipeline may not read it."""
    return None


def no_templates(_: str) -> str | None:
    raise CiConfigError("this service has no templates, because its setting ci_templates_dir is not set")


def no_artifact(_job: str, _path: str) -> str:
    raise CiConfigError("Including configs from artifacts is only allowed when triggering child pipelines")


@frozen(kw_only=True)
class RemoteFile:
    """The content at a URL, or the end of a sentence that says why it is unknown."""

    content: bytes = b""
    problem: str | None = None


@frozen(kw_only=True)
class Context:
    """The pipeline to plan for.

    `predefined` are the `CI_*` variables of `predefined.pipeline_variables`. They are weaker than the file's
    own, and rules read from them everything about the pipeline (ref, tag, source, default branch).
    `overrides` are the variables of instance, group, project and of the user who started the pipeline, which
    are stronger than the file's.
    """

    #: The project whose time budget planning uses.
    project_id: int = 0
    predefined: tuple[Variable, ...] = ()
    overrides: tuple[Variable, ...] = ()
    #: Values for the `spec:inputs` of the file itself.
    inputs: Mapping[str, Any] = field(factory=dict)
    repository: Repository = field(factory=Repository)
    #: Return the project at a full path, read with the rights of the user who starts the pipeline or, if
    #: True, of the public.
    project: Callable[[str, bool], OtherProject | None] = no_project
    #: Return the text of the operator's template at a path, or None. Raise CiConfigError if there are no
    #: templates.
    template: Callable[[str], str | None] = no_templates
    #: Return the text at a path in the archive of a job (by name) of the parent pipeline. Raise CiConfigError
    #: if there is none.
    artifact: Callable[[str, str], str] = no_artifact
    #: Remote files by URL, as far as they have been fetched.
    remote: Mapping[str, RemoteFile] = field(factory=dict)
    #: The repository among whose files `exists` and wildcards look, if it is not the pipeline's.
    elsewhere: Repository | None = None
    #: Results of `changed_since`; copies of this context share them and their limit.
    _since: dict[str, PathSet | None] = field(factory=dict, eq=False, repr=False)
    #: Results of `paths_of`, shared in the same way.
    _listed: dict[Repository, PathSet] = field(factory=dict, eq=False, repr=False)

    def among(self, repository: Repository) -> "Context":
        """Return a copy that uses another repository's files for `exists`. The changed paths remain those of
        the pipeline."""
        return evolve(self, elsewhere=repository)

    @property
    def host(self) -> str:
        """This service's name in addresses of components; empty for a text without a commit."""
        predefined = values(self.predefined)
        return predefined.get("CI_SERVER_FQDN", "")

    @property
    def public(self) -> "Context":
        """A copy without masked variables, for names and messages, which more people can read than logs."""
        if not any(variable.masked for variable in self.overrides):
            return self
        return evolve(self, overrides=tuple(variable for variable in self.overrides if not variable.masked))

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The variables that are known without the file's, by name and with unexpanded values."""
        return {variable.key: variable for variable in overlay(self.predefined, self.overrides)}

    def values(self, *layers: tuple[Variable, ...]) -> dict[str, str]:
        """Return the values of all variables, with references expanded; `layers` are those of the file,
        weakest first."""
        return values(expand_all(overlay(self.predefined, *layers, self.overrides)))

    def values_in_job(self, name: str, stage: str, variables: tuple[Variable, ...]) -> dict[str, str]:
        return {**self.values(variables), "CI_JOB_NAME": name, "CI_JOB_STAGE": stage}

    @property
    def paths(self) -> PathSet:
        return self.paths_of(self.elsewhere or self.repository)

    def paths_of(self, repository: Repository) -> PathSet:
        """Return the paths of a commit. Raise CiConfigError if they are too many, or those of too many
        commits."""
        if repository not in self._listed:
            if len(self._listed) >= MAX_LISTED:
                raise CiConfigError(
                    f"Wildcards and `exists` are for the files of up to {MAX_LISTED - 1} other projects"
                )
            self._listed[repository] = PathSet(frozenset(repository.paths()))
        return self._listed[repository]

    @cached_property
    def changed(self) -> PathSet | None:
        changed = self.repository.changed()
        return None if changed is None else PathSet(frozenset(changed))

    def changed_since(self, ref: str) -> PathSet | None:
        """Return the paths that changed since the merge base with `ref`, or None if unknown.

        Raise CiConfigError if there is no such ref.
        """
        if ref not in self._since:
            if len(self._since) >= MAX_COMPARED:
                raise CiConfigError(f"rules:changes:compare_to is for at most {MAX_COMPARED} different refs")
            changed = self.repository.changed_since(ref)
            self._since[ref] = None if changed is None else PathSet(frozenset(changed))
        return self._since[ref]
