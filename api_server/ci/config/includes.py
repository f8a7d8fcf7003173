"""`include`: reads the files that a configuration names, local, from other projects or remote, and merges
them below the file that names them."""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from attrs import define, evolve, field, frozen

from api_server.ci.config import inputs, keywords, rules
from api_server.ci.config.checks import flatten
from api_server.ci.config.context import Context, OtherProject, Repository, no_artifact
from api_server.ci.config.errors import Budget, CiConfigError, FilesNeeded
from api_server.ci.config.interpolation import interpolated
from api_server.ci.config.variables import expand
from api_server.ci.config.yaml_text import load_file
from api_server.outbound.destinations import without_secrets

_INTEGRITY = "sha256-"
_SHA256_BYTES = 32


@frozen
class Entry:
    """One entry of `include`; the variables in its texts are not replaced yet."""

    kind: Literal["local", "file", "remote", "component", "template", "artifact"]
    #: Paths, one URL, or the address of one component.
    locations: tuple[str, ...]
    rules: list[Any] | None = None
    project: str = ""
    ref: str | None = None
    #: The job that created the artifact.
    job: str = ""
    #: Values for the `spec:inputs` of the files.
    inputs: dict[str, Any] = field(factory=dict)
    #: The SHA-256 that the file at the URL must have.
    digest: bytes | None = field(default=None, repr=False)


#: Kinds of entries whose value is a single string.
_SINGLE: tuple[Literal["local", "component", "template"], ...] = ("local", "component", "template")


def entries(value: Any) -> list[Entry]:
    """Return the string, hash and list forms of `include` as one list. Raise CiConfigError."""
    items = value if isinstance(value, list) else [value]
    present = [item for item in items if item is not None]
    return [_entry({_kind(item): item} if isinstance(item, str) else item) for item in present]


def _kind(text: str) -> str:
    return "remote" if "://" in text else "local"


def _entry(item: Any) -> Entry:
    if errors := list(keywords.INCLUDE("include", item)):
        raise CiConfigError(*errors)
    rules, inputs = item.get("rules"), item.get("inputs") or {}
    if item.get("project") is not None:
        files = item["file"] if isinstance(item["file"], list) else [item["file"]]
        if not files:
            raise CiConfigError("include:file can't be blank")
        return Entry("file", tuple(files), rules, project=item["project"], ref=item.get("ref"), inputs=inputs)
    if item.get("remote") is not None:
        return Entry("remote", (item["remote"],), rules, inputs=inputs, digest=_digest(item.get("integrity")))
    if item.get("artifact") is not None:
        return Entry("artifact", (item["artifact"],), rules, job=item["job"], inputs=inputs)
    kind = next(kind for kind in _SINGLE if item.get(kind) is not None)
    return Entry(kind, (item[kind],), rules, inputs=inputs)


def _digest(integrity: str | None) -> bytes | None:
    if integrity is None:
        return None
    if not integrity.startswith(_INTEGRITY):
        raise CiConfigError(f"include:integrity should start with '{_INTEGRITY}'")
    try:
        digest = base64.b64decode(integrity.removeprefix(_INTEGRITY), validate=True)
    except ValueError:  # also raised for text that is not ASCII
        digest = b""
    if len(digest) != _SHA256_BYTES:
        raise CiConfigError(f"include:integrity should be a SHA-256 in Base64 after '{_INTEGRITY}'")
    return digest


MAX_FILES = 150
MAX_NESTING = 20
MAX_TOTAL_BYTES = 4 * 1024 * 1024
#: Maximum number of projects that components are taken from.
MAX_COMPONENT_PROJECTS = 30
MAX_WARNINGS = 100
_ENDINGS = (".yml", ".yaml")
_TEMPLATE_ENDING = ".gitlab-ci.yml"
#: The paths of the component of this name in its project.
_COMPONENT_PATHS = ("templates/{}.yml", "templates/{}/template.yml")
#: The repository of remote files, which has no files to list.
_NOWHERE = Repository()


def deep_merge(weak: dict[str, Any], strong: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """Return both hashes as one: hashes are merged recursively, anything else is taken from `strong`."""
    budget.spend(len(weak) + len(strong))
    merged = dict(weak)
    for key, value in strong.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = deep_merge(below, value, budget)  # noqa: PLW2901
        merged[key] = value
    return merged


@frozen
class Included:
    """A file that was read, with the project and commit of the file that includes it."""

    type: str
    location: str
    context: Repository
    #: The repository that contains it; None for remote files, templates and artifacts.
    source: Repository | None = None
    #: Its path in the repository.
    path: str = ""
    #: For `file`: project and ref as written; for `artifact`: the job that created it.
    extra: dict[str, str] = field(factory=dict)
    #: The values for its `spec:inputs`.
    inputs: dict[str, Any] = field(factory=dict)
    #: The context of a component, for itself and for its includes.
    component: Mapping[str, str | None] = field(factory=dict)


@frozen
class _IncludeSource:
    """The origin of a text, which determines the meaning of `local` in it and the rights with which its
    includes are read."""

    #: None for a remote file. Its includes are read with the rights of the public and without variables.
    repository: Repository | None
    #: The includes that led here, outermost first.
    chain: tuple[Included, ...] = ()


@define
class Reader:
    """Reads one configuration with all its includes; `included` are the files read, in order."""

    context: Context
    budget: Budget
    included: list[Included] = field(factory=list)
    warnings: list[str] = field(factory=list)
    _bytes: int = 0
    #: Remote files that have not been fetched yet.
    _needed: dict[str, None] = field(factory=dict)
    _variables: dict[bool, dict[str, str]] = field(factory=dict)
    _component_projects: set[str] = field(factory=set)

    def read(self, text: str) -> dict[str, Any]:
        """Return the hash of `text` and its includes: later includes win over earlier ones, the text over
        all.

        Raise CiConfigError, and FilesNeeded for remote files that the context does not have.
        """
        inputs.check_arguments(self.context.inputs)
        merged = self._read(text, _IncludeSource(self.context.repository), self.context.inputs)
        if self._needed:
            raise FilesNeeded(tuple(self._needed))
        return merged

    def _read(self, text: str, origin: _IncludeSource, arguments: Mapping[str, Any]) -> dict[str, Any]:
        own_content = self._content(text, origin, arguments)
        merged: dict[str, Any] = {}
        for entry in entries(own_content.pop("include", None)):
            if not self._applies(entry, origin):
                continue
            for file, content in self._files(entry, origin):
                included = self._file(evolve(file, inputs=entry.inputs), content, origin)
                merged = deep_merge(merged, included, self.budget)
        return deep_merge(merged, own_content, self.budget) if merged else own_content

    def _content(self, text: str, origin: _IncludeSource, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of the file itself, with its inputs replaced. Its errors name the file if it is
        included."""
        try:
            header, content = load_file(text, self.budget, lambda sentence: self._warn(sentence, origin))
            variables = {} if origin.repository is None else self.context.variables
            component = next(
                (included.component for included in reversed(origin.chain) if included.component), {}
            )
            return interpolated(header, content, arguments, variables, component, self.budget)
        except CiConfigError as error:
            raise CiConfigError(*(self._prefix(origin) + sentence for sentence in error.errors)) from None

    @staticmethod
    def _prefix(origin: _IncludeSource) -> str:
        return f"`{origin.chain[-1].location}`: " if origin.chain else ""

    def _warn(self, sentence: str, origin: _IncludeSource) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(self._prefix(origin) + sentence)

    def _values(self, origin: _IncludeSource, *, public: bool) -> dict[str, str]:
        """Return the variables; without masked ones if the result is `public`."""
        if origin.repository is None:
            return {}
        if public not in self._variables:
            self._variables[public] = (self.context.public if public else self.context).values()
        return self._variables[public]

    def _applies(self, entry: Entry, origin: _IncludeSource) -> bool:
        if entry.rules is None:
            return True
        values = self._values(origin, public=False)
        rule = rules.first_match(flatten(entry.rules) or [], values, self._context_in(origin))
        return rule is not None and rule.get("when") != "never"

    def _context_in(self, origin: _IncludeSource) -> Context:
        """Return the context with the paths of this source; a remote file has none, and the rights of the
        public."""
        if origin.repository is None:
            return evolve(
                self.context.among(_NOWHERE), project=lambda path, _: self.context.project(path, True)
            )
        return self.context.among(origin.repository)

    def _files(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        match entry.kind:
            case "remote":
                return self._remote(entry, origin)
            case "file":
                return self._project_files(entry, origin)
            case "component":
                return self._component(entry, origin)
            case "template":
                return self._template(entry, origin)
            case "artifact":
                return self._artifact(entry, origin)
            case "local":
                return self._local(entry, origin)

    def _project_files(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        public_variables = self._values(origin, public=True)
        name, ref = expand(entry.project, public_variables), expand(entry.ref or "", public_variables)
        project = self._project(name, origin)
        if project is None:
            raise CiConfigError(
                f"Project `{name}` not found or access denied! "
                "Make sure any includes in the pipeline configuration are correctly defined."
            )
        source = project.at(ref or None)
        if source is None:
            raise CiConfigError(f"Project `{name}` reference `{ref or 'HEAD'}` does not exist!")
        extra = {"project": name, **({"ref": ref} if ref else {})}
        for location in entry.locations:
            path = _checked(expand(location, public_variables))
            included = Included("file", path, self._context_of(origin), source, path, extra)
            yield included, _text_of(source.read, path, f"Project `{name}` file")

    def _project(self, name: str, origin: _IncludeSource) -> OtherProject | None:
        return self.context.project(name, origin.repository is None)

    def _local(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        location = expand(entry.locations[0], self._values(origin, public=True))
        repository = origin.repository
        if repository is None:
            raise CiConfigError(f"Local file `{_checked(location)}` does not have project!")
        for path in self._local_paths(location, origin):
            included = Included("local", path, repository, repository, path)
            yield included, _text_of(repository.read, path, "Local file")

    def _template(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        path = _checked(expand(entry.locations[0], self._values(origin, public=True)))
        if not path.endswith(_TEMPLATE_ENDING):
            raise CiConfigError(f"Template file `{path}` is not a valid location!")
        text = _text_of(self.context.template, path, "Template file")
        yield Included("template", path, self._context_of(origin)), text

    def _artifact(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        if origin.repository is None:  # a remote file must not read what a pipeline has made
            no_artifact("", "")
        public_variables = self._values(origin, public=True)
        path, job = (
            _checked(expand(entry.locations[0], public_variables)),
            expand(entry.job, public_variables),
        )
        text = _not_empty(self.context.artifact(job, path), f"File `{path}`")
        yield Included("artifact", path, self._context_of(origin), extra={"job_name": job}), text

    def _component(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        if origin.repository is None or not self.context.host:
            raise CiConfigError("Unable to use components outside of a project context")
        address = expand(entry.locations[0], self._values(origin, public=True))
        location, separator, version = address.partition("@")
        host, _, path = location.partition("/")
        if not separator or host != self.context.host:
            raise CiConfigError(f"Component '{address}' - the component path is not supported")
        name, _, component = path.rpartition("/")
        self._component_projects.add(name)
        if len(self._component_projects) > MAX_COMPONENT_PROJECTS:
            raise CiConfigError(f"Components may be taken from up to {MAX_COMPONENT_PROJECTS} projects")
        project = self._project(name, origin)
        if project is None:
            raise CiConfigError(
                f"Component '{address}' - project does not exist or you don't have sufficient permissions"
            )
        resolved = project.version(version)
        if resolved is None:
            raise CiConfigError(f"Component '{address}' - content not found")
        path, text = _component_file(resolved.repository, component, address)
        about = (component, resolved.repository.sha, resolved.semantic, version)
        yield (
            Included(
                "component",
                address,
                self._context_of(origin),
                resolved.repository,
                path,
                component=dict(zip(inputs.COMPONENT, about, strict=True)),
            ),
            text,
        )

    def _context_of(self, origin: _IncludeSource) -> Repository:
        return origin.repository or self.context.repository

    def _local_paths(self, path: str, origin: _IncludeSource) -> list[str]:
        if "*" not in path:
            return [_checked(path)]
        path = path.lstrip("/")
        try:
            paths = self._context_in(origin).paths.included(path)
        except ValueError as error:
            raise CiConfigError(f"Local file `{path}`: {error}") from None
        if not paths:
            self._warn(f"No file matches `{path}`", origin)
        return [_checked(local_path) for local_path in paths]

    def _remote(self, entry: Entry, origin: _IncludeSource) -> Iterator[tuple[Included, str]]:
        (location,) = entry.locations
        url = expand(location, self._values(origin, public=False))
        public_url = without_secrets(expand(location, self._values(origin, public=True)))
        if not location.lower().endswith(_ENDINGS):
            _checked(public_url)
        file = self.context.remote.get(url)
        if file is None:
            self._count()
            self._needed[url] = None
            return
        if file.problem is not None:
            raise CiConfigError(f"Remote file `{public_url}` {file.problem}")
        if entry.digest is not None and hashlib.sha256(file.content).digest() != entry.digest:
            raise CiConfigError(f"Remote file `{public_url}` is not the one that include:integrity names!")
        content = file.content.decode(errors="replace")
        yield (
            Included("remote", public_url, self._context_of(origin)),
            _not_empty(content, f"Remote file `{public_url}`"),
        )

    def _count(self) -> None:
        if len(self.included) + len(self._needed) >= MAX_FILES:
            raise CiConfigError(f"Maximum of {MAX_FILES} nested includes are allowed!")

    def _file(self, file: Included, content: str, origin: _IncludeSource) -> dict[str, Any]:
        chain = (*origin.chain, file)
        if any(
            included.location == file.location
            and included.source is file.source
            and included.type == file.type
            and included.inputs == file.inputs
            and included.extra.get("job_name") == file.extra.get("job_name")
            for included in origin.chain
        ):
            names = " -> ".join(included.location for included in chain)
            raise CiConfigError(f"{file.type.capitalize()} file `{file.location}` includes itself: {names}")
        if len(origin.chain) >= MAX_NESTING:
            raise CiConfigError(f"Includes are nested deeper than {MAX_NESTING} levels")
        self._count()
        self._bytes += len(content)
        if self._bytes > MAX_TOTAL_BYTES:
            raise CiConfigError(f"The included files are too big: more than {MAX_TOTAL_BYTES} bytes")
        self.included.append(file)
        try:
            # a template or an artifact resolves its includes like the file that includes it
            repository = origin.repository if file.type in ("template", "artifact") else file.source
            return self._read(content, _IncludeSource(repository, chain), file.inputs)
        except CiConfigError as error:
            prefix = f"`{file.location}`: "
            raise CiConfigError(*(text if "`" in text else prefix + text for text in error.errors)) from None


def _checked(path: str) -> str:
    """Return the path without its leading slash. Raise CiConfigError if it cannot be a YAML file."""
    if not path.lower().endswith(_ENDINGS):
        raise CiConfigError(f"Included file `{path}` does not have YAML extension!")
    return path.lstrip("/")


def _text_of(read: Callable[[str], str | None], path: str, kind: str) -> str:
    described = f"{kind} `{path}`"
    text = _read(read, path, described)
    if text is None:
        raise CiConfigError(f"{described} does not exist!")
    return _not_empty(text, described)


def _component_file(repository: Repository, name: str, address: str) -> tuple[str, str]:
    """Return the path and the text of the component. Raise CiConfigError."""
    for path in (template.format(name) for template in _COMPONENT_PATHS):
        text = _read(repository.read, path, f"Component '{address}'")
        if text is not None:
            return path, _not_empty(text, f"Component '{address}'")
    raise CiConfigError(f"Component '{address}' - content not found")


def _read(read: Callable[[str], str | None], path: str, named: str) -> str | None:
    try:
        return read(path)
    except CiConfigError as error:
        raise CiConfigError(*(f"{named}: {sentence}" for sentence in error.errors)) from None


def _not_empty(text: str, what: str) -> str:
    if not text.strip():
        raise CiConfigError(f"{what} is empty!")
    return text
