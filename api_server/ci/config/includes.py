"""`include: local`: the texts of other files of the repository, merged below the file that names them."""

from typing import Any

from attrs import define, field, frozen

from api_server.ci.config import keywords, rules
from api_server.ci.config.context import Context
from api_server.ci.config.errors import Budget, ConfigError
from api_server.ci.config.variables import expand
from api_server.ci.config.yaml_text import load

MAX_FILES = 150
MAX_NESTING = 20
MAX_WARNINGS = 100
MAX_TOTAL_BYTES = 4 * 1024 * 1024


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
class _Include:
    path: str
    rules: list[dict[str, Any]] | None


@define
class Reader:
    """Reads one configuration with all it includes; `paths` are the files it took, in order."""

    context: Context
    budget: Budget
    paths: list[str] = field(factory=list)
    warnings: list[str] = field(factory=list)
    _bytes: int = 0

    def read(self, text: str, chain: tuple[str, ...] = ()) -> dict[str, Any]:
        """The hash of `text` and its includes: later includes win over earlier ones, the text over all."""
        own = load(text, self.budget, lambda sentence: self._warn(sentence, chain))
        wanted = _entries(own.pop("include", None))
        if not wanted:
            return own
        merged: dict[str, Any] = {}
        known, shown = self.context.known(), self.context.public.known()
        for entry in wanted:
            if entry.rules is not None:
                rule = rules.first_match(entry.rules, known, self.context)
                if rule is None or rule.get("when") == "never":
                    continue
            for path in self._files(expand(entry.path, shown)):
                merged = deep_merge(merged, self._file(path, chain), self.budget)
        return deep_merge(merged, own, self.budget)

    def _warn(self, sentence: str, chain: tuple[str, ...]) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"`{chain[-1]}`: {sentence}" if chain else sentence)

    def _files(self, path: str) -> list[str]:
        path = path.lstrip("/")
        if not path.endswith((".yml", ".yaml")):
            raise ConfigError(f"Included file `{path}` does not have YAML extension!")
        if "*" not in path:
            return [path]
        try:
            found = self.context.paths.matching(path)
        except ValueError as error:
            raise ConfigError(f"Local file `{path}`: {error}") from None
        if not found:
            raise ConfigError(f"Local file `{path}` does not exist!")
        return found

    def _file(self, path: str, chain: tuple[str, ...]) -> dict[str, Any]:
        if path in chain:
            raise ConfigError(f"Local file `{path}` includes itself: {' -> '.join((*chain, path))}")
        if len(chain) >= MAX_NESTING or len(self.paths) >= MAX_FILES:
            raise ConfigError(f"Maximum of {MAX_FILES} includes, {MAX_NESTING} in one another, are allowed!")
        text = self.context.repository.read(path)
        if text is None:
            raise ConfigError(f"Local file `{path}` does not exist!")
        if not text.strip():
            raise ConfigError(f"Local file `{path}` is empty!")
        self._bytes += len(text)
        if self._bytes > MAX_TOTAL_BYTES:
            raise ConfigError(f"The included files are too big: more than {MAX_TOTAL_BYTES} bytes")
        self.paths.append(path)
        try:
            return self.read(text, (*chain, path))
        except ConfigError as error:
            named = f"`{path}`: "
            raise ConfigError(*(one if "`" in one else named + one for one in error.errors)) from None


def _entries(value: Any) -> list[_Include]:
    """The string, hash and list forms of `include` as one."""
    entries = []
    for item in value if isinstance(value, list) else [value] if value is not None else []:
        if isinstance(item, str) and "://" not in item:
            entries.append(_Include(item, None))
            continue
        if not isinstance(item, dict):
            raise ConfigError(
                f"include `{item}` is not supported: only files of this repository are (`local`)"
            )
        if foreign := [key for key in item if key not in {"local", "rules"}]:
            raise ConfigError(f"include config contains unknown keys: {', '.join(foreign)}")
        if errors := list(keywords.INCLUDE("include", item)):
            raise ConfigError(*errors)
        entries.append(_Include(item["local"], item.get("rules")))
    return entries
