"""What a configuration is planned against: the pipeline's variables and the repository it belongs to."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from attrs import evolve, field, frozen

from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.patterns import PathSet
from api_server.ci.config.variables import Variable, expand_all, overlay, values

#: Refs that one configuration may compare with; each costs git work.
MAX_COMPARED = 20


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


@frozen(kw_only=True)
class Repository:
    """The commit the pipeline is for. Paths are relative to its root, without a leading slash."""

    #: Text of the file at a path; None when there is none. Raises ConfigError for one that is too large.
    read: Callable[[str], str | None] = _no_file
    #: Git's name for the content of the file at a path, whatever its size.
    blob_id: Callable[[str], str | None] = _no_file
    #: All paths of the commit; asked at most once per plan, and only for wildcards and `exists`.
    paths: Callable[[], Collection[str]] = _no_paths
    #: Paths that the push or merge request changed; None when that is not known, and then `changes` holds. Asked only
    #: for `changes`.
    changed: Callable[[], Collection[str] | None] = _not_known
    #: Paths that differ from where the commit's history left that of a ref, None as above; ConfigError without the ref.
    changed_since: Callable[[str], Collection[str] | None] = _no_ref
    #: Full path of the project, and the commit.
    project: str = ""
    sha: str = ""


@frozen(kw_only=True)
class Version:
    """What the version in a component's address names."""

    repository: Repository
    #: The tag, if that is a semantic version.
    semantic: str | None = None


@frozen(kw_only=True)
class OtherProject:
    """A project whose files may be included."""

    #: The repository at a branch, a tag or a commit (None: at the default branch). None if there is no such ref.
    at: Callable[[str | None], Repository | None] = _no_commit
    #: What a version names: all that a ref may be, `1.2`, `1`, or `~latest`. None if there is no such version.
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
    """The content at a URL, or the end of a sentence about why it is not known."""

    content: bytes = b""
    problem: str | None = None


@frozen(kw_only=True)
class Context:
    """The pipeline to plan for.

    `predefined` are the `CI_*` variables of `predefined.pipeline_variables`: weaker than the file's own, and
    the source of everything that rules ask about the pipeline (ref, tag, source, default branch). `given` are
    the variables of instance, group, project and of whoever started the pipeline: stronger than the file's.
    """

    #: The project whose allowances planning uses.
    project_id: int = 0
    predefined: tuple[Variable, ...] = ()
    given: tuple[Variable, ...] = ()
    #: Values for the `spec:inputs` of the file itself.
    inputs: Mapping[str, Any] = field(factory=dict)
    repository: Repository = field(factory=Repository)
    #: The project at a full path, as who starts the pipeline may read it, or (True) as anybody may.
    project: Callable[[str, bool], OtherProject | None] = no_project
    #: Text of the operator's template at a path; None when there is none. Raises ConfigError without templates.
    template: Callable[[str], str | None] = no_templates
    #: Text at a path in the archive of a job (by name) of the parent pipeline. Raises ConfigError where there is none.
    artifact: Callable[[str, str], str] = no_artifact
    #: Files of the web by URL, as far as they have been fetched.
    remote: Mapping[str, RemoteFile] = field(factory=dict)
    #: What `changed_since` has found; copies of this context share it, and so its bound.
    _since: dict[str, PathSet | None] = field(factory=dict, eq=False, repr=False)

    def among(self, repository: Repository) -> "Context":
        """Return a copy with the files of another repository for `exists`. What has changed stays that of the
        pipeline."""
        return evolve(self, repository=evolve(self.repository, paths=repository.paths))

    @property
    def host(self) -> str:
        """This service's name in addresses of components; empty for a text without a commit."""
        predefined = values(self.predefined)
        return predefined.get("CI_SERVER_FQDN", "")

    @property
    def public(self) -> "Context":
        """Return a copy without masked variables, for names and messages, which more people read than logs."""
        if not any(variable.masked for variable in self.given):
            return self
        return evolve(self, given=tuple(variable for variable in self.given if not variable.masked))

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The variables that are known without the file's, by name and as they are written."""
        return {variable.key: variable for variable in overlay(self.predefined, self.given)}

    def known(self, *layers: tuple[Variable, ...]) -> dict[str, str]:
        """Return the values of all variables, expanded in each other; `layers` are those of the file, weakest first."""
        return values(expand_all(overlay(self.predefined, *layers, self.given)))

    def known_in_job(self, name: str, stage: str, variables: tuple[Variable, ...]) -> dict[str, str]:
        return {**self.known(variables), "CI_JOB_NAME": name, "CI_JOB_STAGE": stage}

    @cached_property
    def paths(self) -> PathSet:
        return PathSet(frozenset(self.repository.paths()))

    @cached_property
    def changed(self) -> PathSet | None:
        changed = self.repository.changed()
        return None if changed is None else PathSet(frozenset(changed))

    def changed_since(self, ref: str) -> PathSet | None:
        """Return the paths that differ from where the history left that of `ref`; None where they are not known.

        Raises ConfigError without such a ref.
        """
        if ref not in self._since:
            if len(self._since) >= MAX_COMPARED:
                raise CiConfigError(f"rules:changes:compare_to is for at most {MAX_COMPARED} different refs")
            changed = self.repository.changed_since(ref)
            self._since[ref] = None if changed is None else PathSet(frozenset(changed))
        return self._since[ref]
