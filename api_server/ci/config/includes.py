"""`include`: reads the files that a configuration names, of this project, of others and of the web, and merges them
below the file that names them."""

import base64
import hashlib
from collections.abc import Iterator
from typing import Any, Literal

from attrs import define, field, frozen

from api_server.ci.config import keywords, rules
from api_server.ci.config.checks import flatten
from api_server.ci.config.context import Context, Repository
from api_server.ci.config.errors import Budget, ConfigError, FilesWanted
from api_server.ci.config.variables import expand
from api_server.ci.config.yaml_text import load
from api_server.outbound.destinations import without_secrets

_INTEGRITY = "sha256-"
_SHA256_BYTES = 32


@frozen
class Entry:
    """One thing to include; variables in its texts have yet to be replaced."""

    kind: Literal["local", "file", "remote"]
    #: Paths, or one URL.
    locations: tuple[str, ...]
    rules: list[Any] | None = None
    project: str = ""
    ref: str | None = None
    #: The SHA-256 that the file at the URL has to have.
    digest: bytes | None = field(default=None, repr=False)


def entries(value: Any) -> list[Entry]:
    """The string, hash and list forms of `include` as one list. Raises ConfigError."""
    items = value if isinstance(value, list) else [value]
    given = [item for item in items if item is not None]
    return [_entry({_kind(item): item} if isinstance(item, str) else item) for item in given]


def _kind(text: str) -> str:
    return "remote" if "://" in text else "local"


def _entry(item: Any) -> Entry:
    if errors := list(keywords.INCLUDE("include", item)):
        raise ConfigError(*errors)
    rules = item.get("rules")
    if item.get("project") is not None:
        files = item["file"] if isinstance(item["file"], list) else [item["file"]]
        if not files:
            raise ConfigError("include:file can't be blank")
        return Entry("file", tuple(files), rules, project=item["project"], ref=item.get("ref"))
    if item.get("remote") is not None:
        return Entry("remote", (item["remote"],), rules, digest=_digest(item.get("integrity")))
    return Entry("local", (item["local"],), rules)


def _digest(integrity: str | None) -> bytes | None:
    if integrity is None:
        return None
    if not integrity.startswith(_INTEGRITY):
        raise ConfigError(f"include:integrity should start with '{_INTEGRITY}'")
    try:
        digest = base64.b64decode(integrity.removeprefix(_INTEGRITY), validate=True)
    except ValueError:  # also of text that is no ASCII
        digest = b""
    if len(digest) != _SHA256_BYTES:
        raise ConfigError(f"include:integrity should be a SHA-256 in Base64 after '{_INTEGRITY}'")
    return digest


MAX_FILES = 150
MAX_NESTING = 20
MAX_TOTAL_BYTES = 4 * 1024 * 1024
#: Repositories beside the pipeline's own whose paths are listed for wildcards and `exists`.
MAX_LISTED = 10
MAX_WARNINGS = 100
_ENDINGS = (".yml", ".yaml")
#: The web, as far as it has files to be listed.
_NOWHERE = Repository()


def deep_merge(weak: dict[str, Any], strong: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """Both hashes as one: hashes are merged all the way down, anything else is taken from `strong`."""
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
    """A file that was read, and the project and commit of the file that names it."""

    type: str
    location: str
    context: Repository
    #: Where it is, but for those of the web.
    source: Repository | None = None
    #: For `file`: project and ref as they were written.
    extra: dict[str, str] = field(factory=dict)


@frozen
class _Place:
    """Where a text is from: what `local` means in it, and who reads what else it names."""

    #: None: the web, where no project is. What is included there is read as anybody may, and knows no variables.
    repository: Repository | None
    #: What led here, outermost first.
    chain: tuple[Included, ...] = ()


@define
class Reader:
    """Reads one configuration with all it includes; `included` are the files it took, in order."""

    context: Context
    budget: Budget
    included: list[Included] = field(factory=list)
    warnings: list[str] = field(factory=list)
    _bytes: int = 0
    #: Files of the web that have not been fetched yet.
    _wanted: dict[str, None] = field(factory=dict)
    _variables: dict[bool, dict[str, str]] = field(factory=dict)
    #: Of the repositories of other projects, by id: each has its paths listed once.
    _contexts: dict[int, Context] = field(factory=dict)

    def read(self, text: str) -> dict[str, Any]:
        """The hash of `text` and its includes: later includes win over earlier ones, the text over all.

        Raises ConfigError, and FilesWanted for those of the web that the context has not got.
        """
        merged = self._read(text, _Place(self.context.repository))
        if self._wanted:
            raise FilesWanted(tuple(self._wanted))
        return merged

    def _read(self, text: str, place: _Place) -> dict[str, Any]:
        own = load(text, self.budget, lambda sentence: self._warn(sentence, place))
        merged: dict[str, Any] = {}
        for entry in entries(own.pop("include", None)):
            if not self._applies(entry, place):
                continue
            for found, content in self._files(entry, place):
                merged = deep_merge(merged, self._file(found, content, place), self.budget)
        return deep_merge(merged, own, self.budget) if merged else own

    def _warn(self, sentence: str, place: _Place) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            at = f"`{place.chain[-1].location}`: " if place.chain else ""
            self.warnings.append(at + sentence)

    def _known(self, place: _Place, *, public: bool) -> dict[str, str]:
        """Variables, masked ones too unless what they are for is `public`."""
        if place.repository is None:
            return {}
        if public not in self._variables:
            self._variables[public] = (self.context.public if public else self.context).known()
        return self._variables[public]

    def _applies(self, entry: Entry, place: _Place) -> bool:
        if entry.rules is None:
            return True
        known = self._known(place, public=False)
        rule = rules.first_match(flatten(entry.rules) or [], known, self._context_in(place))
        return rule is not None and rule.get("when") != "never"

    def _context_in(self, place: _Place) -> Context:
        """The context whose paths are those of the place."""
        if place.repository is self.context.repository:
            return self.context
        repository = place.repository or _NOWHERE
        if id(repository) not in self._contexts:
            if len(self._contexts) >= MAX_LISTED:
                raise ConfigError(
                    f"Wildcards and `exists` are for the files of up to {MAX_LISTED} other projects"
                )
            self._contexts[id(repository)] = self.context.among(repository)
        return self._contexts[id(repository)]

    def _files(self, entry: Entry, place: _Place) -> Iterator[tuple[Included, str]]:
        shown = self._known(place, public=True)
        if entry.kind == "remote":
            yield from self._remote(entry, place)
        elif entry.kind == "file":
            project, ref = expand(entry.project, shown), expand(entry.ref or "", shown)
            source = self.context.project(project, ref or None, place.repository is None)
            extra = {"project": project, **({"ref": ref} if ref else {})}
            for location in entry.locations:
                path = _checked(expand(location, shown))
                found = Included("file", path, self._context_of(place), source, extra)
                yield found, _text_of(source, path, f"Project `{project}` file")
        else:
            for path in self._local_paths(expand(entry.locations[0], shown), place):
                found = Included("local", path, self._context_of(place), place.repository)
                yield found, _text_of(place.repository, path, "Local file")

    def _context_of(self, place: _Place) -> Repository:
        return place.repository or self.context.repository

    def _local_paths(self, path: str, place: _Place) -> list[str]:
        if place.repository is None:
            raise ConfigError(f"Local file `{_checked(path)}` does not have project!")
        if "*" not in path:
            return [_checked(path)]
        path = path.lstrip("/")
        try:
            found = self._context_in(place).paths.included(path)
        except ValueError as error:
            raise ConfigError(f"Local file `{path}`: {error}") from None
        if not found:
            self._warn(f"No file matches `{path}`", place)
        return [_checked(one) for one in found]

    def _remote(self, entry: Entry, place: _Place) -> Iterator[tuple[Included, str]]:
        (location,) = entry.locations
        url = expand(location, self._known(place, public=False))
        shown = without_secrets(expand(location, self._known(place, public=True)))
        if not location.lower().endswith(_ENDINGS):
            _checked(shown)
        file = self.context.remote.get(url)
        if file is None:
            self._count()
            self._wanted[url] = None
            return
        if file.problem is not None:
            raise ConfigError(f"Remote file `{shown}` {file.problem}")
        if entry.digest is not None and hashlib.sha256(file.content).digest() != entry.digest:
            raise ConfigError(f"Remote file `{shown}` is not the one that include:integrity names!")
        content = file.content.decode(errors="replace")
        yield (
            Included("remote", shown, self._context_of(place)),
            _not_empty(content, f"Remote file `{shown}`"),
        )

    def _count(self) -> None:
        if len(self.included) + len(self._wanted) >= MAX_FILES:
            raise ConfigError(f"Maximum of {MAX_FILES} nested includes are allowed!")

    def _file(self, found: Included, content: str, place: _Place) -> dict[str, Any]:
        chain = (*place.chain, found)
        if any(
            one.location == found.location and one.source is found.source and one.type == found.type
            for one in place.chain
        ):
            names = " -> ".join(one.location for one in chain)
            raise ConfigError(f"{found.type.capitalize()} file `{found.location}` includes itself: {names}")
        if len(place.chain) >= MAX_NESTING:
            raise ConfigError(f"Includes are nested deeper than {MAX_NESTING} levels")
        self._count()
        self._bytes += len(content)
        if self._bytes > MAX_TOTAL_BYTES:
            raise ConfigError(f"The included files are too big: more than {MAX_TOTAL_BYTES} bytes")
        self.included.append(found)
        try:
            return self._read(content, _Place(found.source, chain))
        except ConfigError as error:
            named = f"`{found.location}`: "
            raise ConfigError(*(one if "`" in one else named + one for one in error.errors)) from None


def _checked(path: str) -> str:
    """The path without its leading slash. Raises ConfigError for what cannot be a YAML file."""
    if not path.lower().endswith(_ENDINGS):
        raise ConfigError(f"Included file `{path}` does not have YAML extension!")
    return path.lstrip("/")


def _text_of(repository: Repository | None, path: str, what: str) -> str:
    try:
        text = repository.read(path) if repository is not None else None
    except ConfigError as error:
        raise ConfigError(*(f"{what} `{path}`: {one}" for one in error.errors)) from None
    if text is None:
        raise ConfigError(f"{what} `{path}` does not exist!")
    return _not_empty(text, f"{what} `{path}`")


def _not_empty(text: str, what: str) -> str:
    if not text.strip():
        raise ConfigError(f"{what} is empty!")
    return text
