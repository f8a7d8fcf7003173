"""Settings of a process: attrs classes filled from a TOML file, the environment and flags, in this order.

The metadata of a field describe its valid values (`number`, `url`, `matching` and so on).
"""

import difflib
import ipaddress
import os
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

import attrs
import click
import typed_settings
from click.core import ParameterSource
from typed_settings import SecretStr
from typed_settings.loaders import EnvLoader
from typed_settings.types import LoadedSettings, LoaderMeta, OptionList

from common.config_errors import Command, ConfigError


@attrs.frozen
class Form:
    """The form of a setting's value, or of each text in its list. An empty text is valid if `may_be_empty`."""

    name: str
    fits: Callable[[Any], bool]
    may_be_empty: bool = True


_FORM = "form"
_FILE_OF = "file of"
_NEEDS = "needs"
_DIFFERS = "differs"

Metadata = dict[str, Any]


def number(minimum: float, maximum: float) -> Metadata:
    """Return the metadata of a field with a number in this range. Whole bounds mean a whole number."""
    if isinstance(minimum, int):
        name = f"a whole number from {minimum} to {maximum}"
    else:
        name = f"a number from {minimum:g} to {maximum:g}"
    return {_FORM: Form(name, lambda value: minimum <= value <= maximum)}


# Ranges that many settings have. Unreasonable values are refused: they have a digit too many, or another unit.


def port(minimum: int = 1) -> Metadata:
    """Return the metadata of a field with a port. `minimum` is 0 if the field's help says what 0 means."""
    return number(minimum, 65535)


def count(minimum: int = 1) -> Metadata:
    """Return the metadata of a field with a number of things."""
    return number(minimum, 10**9)


def size(minimum: int = 1) -> Metadata:
    """Return the metadata of a field with a number of bytes."""
    return number(minimum, 2**50)


def whole_seconds(minimum: int = 1) -> Metadata:
    """Return the metadata of a field with a lifetime in whole seconds."""
    return number(minimum, 10**9)


def timeout(minimum: float = 0.1) -> Metadata:
    """Return the metadata of a field with a timeout in seconds. A shorter one would only keep the process busy."""
    return number(minimum, 86400.0)


def url(*schemes: str, bare: bool = False, several: bool = False) -> Metadata:
    """Return the metadata of a field with URLs of these schemes. `bare` URLs have only a host and a port. With
    `several`, a text may contain more than one, separated by spaces."""
    examples = " or ".join(f"{scheme}://{_AFTER_SCHEME.get(scheme, 'host')}" for scheme in schemes)
    kind = "one or more URLs with spaces between them," if several else "a URL"
    name = f"{kind} such as {examples}{' without a path' if bare else ''}"

    def fits(text: str) -> bool:
        return all(_is_url(item, schemes, bare=bare) for item in (text.split() if several else [text]))

    return {_FORM: Form(name, fits)}


def network() -> Metadata:
    """Return the metadata of a field with IP addresses and networks."""
    return {_FORM: Form("an address or a network such as 10.0.0.0/8", _is_network)}


def matching(name: str, pattern: str, *, may_be_empty: bool = True) -> Metadata:
    """Return the metadata of a field whose texts match `pattern` as a whole. `name` describes such a text."""
    fits = re.compile(pattern).fullmatch
    return {_FORM: Form(name, lambda text: fits(text) is not None, may_be_empty)}


def host() -> Metadata:
    """Return the metadata of a field with an address to listen on. An empty text would mean all addresses of the
    machine."""
    return matching("an address or the name of a host", r"[\w.:%-]+", may_be_empty=False)


def token() -> Metadata:
    """Return the metadata of a field with a token for a header field."""
    return matching("visible ASCII characters without spaces", r"[\x21-\x7e]+")


def file_of(secret: str) -> Metadata:
    """Return the metadata of a field with the path of a file that holds the setting `secret`, because process lists
    show flags."""
    return {_FILE_OF: secret}


def needs(other: str) -> Metadata:
    """Return the metadata of a field that has an effect only together with the field `other`."""
    return {_NEEDS: other}


def other_than(other: str) -> Metadata:
    """Return the metadata of a field whose value must differ from the field `other`, unless both are empty."""
    return {_DIFFERS: other}


def form_of(field: "attrs.Attribute[Any]") -> Form | None:
    """Return the form of the field's values, if its metadata have one."""
    form: Form | None = field.metadata.get(_FORM)
    return form


def secret_in(field: "attrs.Attribute[Any]") -> str | None:
    """Return the name of the setting that is in the file which this field names."""
    name: str | None = field.metadata.get(_FILE_OF)
    return name


def has_to_be(field: "attrs.Attribute[Any]") -> str:
    """Return the end of the sentence `... has to be ...` for the field's values."""
    form, kind = form_of(field), _kind(field)
    if form is not None:
        return f"has to be {form.name}"
    if get_origin(kind) is Literal:
        *others, last = get_args(kind)
        return f"has to be {', '.join(others)} or {last}"
    return f"has to be {_NOUNS.get(kind, 'a text')}"


def fits(field: "attrs.Attribute[Any]", value: Any) -> bool:
    """Return whether a value of the field's type, or each of its list, has the field's form."""
    form = form_of(field)
    values = value if isinstance(value, list) else [value]
    return form is None or all(
        form.may_be_empty if item is None or str(item) == "" else form.fits(item) for item in values
    )


def contradiction(settings: Any, label: Callable[[str], str]) -> str | None:
    """Return a sentence about two settings that contradict each other, or None."""
    for field in attrs.fields(type(settings)):
        value = getattr(settings, field.name)
        needed, different = field.metadata.get(_NEEDS), field.metadata.get(_DIFFERS)
        if value and needed and not getattr(settings, needed):
            return f"{label(field.name)} is of no use without {label(needed)}"
        if value and different and value == getattr(settings, different):
            return f"{label(field.name)} has to differ from {label(different)}"
    return None


def out_of_text(field: "attrs.Attribute[Any]", text: str) -> Any:
    """Return the value for the text of a variable. Raise `ValueError`."""
    kind = _kind(field)
    if kind is bool:
        return _truth(text)
    if kind is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        return int(text)
    if kind is float and text.isascii() and "_" not in text:
        return float(text)
    if kind is Path:
        return _path(field, text, Path.cwd())
    if get_origin(kind) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind in (int, float) or not _is_choice(kind, text):
        raise ValueError
    return kind(text) if kind is SecretStr else text


def out_of_toml(field: "attrs.Attribute[Any]", value: Any, folder: Path) -> Any:
    """Return the value from a TOML file in `folder`, to which relative paths refer. Raise `ValueError`."""
    kind = _kind(field)
    if kind is Path and isinstance(value, str):
        return _path(field, value, folder)
    if get_origin(kind) is list and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (bool, int) and type(value) is kind:
        return value
    if kind not in (bool, int, float, Path) and isinstance(value, str) and _is_choice(kind, value):
        return kind(value) if kind is SecretStr else value
    raise ValueError


_NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    list[str]: "a list of texts",
}


def _kind(field: "attrs.Attribute[Any]") -> Any:
    """Return the field's type; for `Path | None`, `Path`."""
    kind = field.type
    if get_origin(kind) in (types.UnionType, Union):
        return next(arm for arm in get_args(kind) if arm is not type(None))
    return kind


def _truth(text: str) -> bool:
    meanings: Mapping[str, bool] = {
        **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
        **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
    }
    try:
        return meanings[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _path(field: "attrs.Attribute[Any]", text: str, folder: Path) -> Path | None:
    if text and "\0" not in text:
        return (folder / text).resolve()
    if text or field.default is attrs.NOTHING:
        raise ValueError
    return None


def _is_choice(kind: Any, text: str) -> bool:
    if get_origin(kind) is list:
        return False
    return get_origin(kind) is not Literal or text in get_args(kind)


#: The text after the scheme if no host is needed.
_AFTER_SCHEME = {"file": "/folder", "s3": "bucket"}
#: The schemes whose URLs mean a socket of this machine if they have no host.
_LOCAL_TOO = frozenset({"postgresql", "postgres"})
_WEB = frozenset({"http", "https"})


def _is_url(text: str, schemes: tuple[str, ...], *, bare: bool) -> bool:
    try:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not text.isprintable():
            return False
        if parts.scheme in _LOCAL_TOO:
            return _is_connection_string(text, parts.netloc)
        if parts.port == 0:
            return False
    except ValueError:  # an invalid port, or half an IPv6 address
        return False
    if parts.scheme == "file":
        return not parts.netloc and parts.path.startswith("/")
    if parts.scheme in _WEB and (" " in text or parts.query or parts.fragment):
        return False
    if bare and (parts.path not in ("", "/") or "@" in parts.netloc):
        return False
    return bool(parts.hostname)


def _is_connection_string(text: str, netloc: str) -> bool:
    """Return whether the text is a connection string of PostgreSQL, with any number of hosts. Texts that cannot be
    decoded are refused because libpq would repeat them with the password. Raise `ValueError` for an invalid port."""
    hosts = netloc.rpartition("@")[2].split(",")
    if "://" not in text or any(urlsplit(f"//{host}").port == 0 for host in hosts):
        return False
    return re.search("%(?![0-9A-Fa-f]{2})|%00", text) is None


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


SettingsT = TypeVar("SettingsT")
#: A function that returns the name by which a setting was given: its flag, its variable, or its place in the file.
Label = Callable[[str], str]

#: The variable that names the TOML file. Each process reads its own section of the file.
SETTINGS_FILE_VARIABLE = "FORGELET_SETTINGS"
#: The key in the context's `meta` for the flags of a process that `command` runs.
FLAGS = "forgelet.flags"
#: The sections of that file.
SECTIONS = ("api_server", "edge")


@attrs.frozen(kw_only=True)
class Sources(Generic[SettingsT]):
    """The sources of a process's settings other than flags: `[section] port` in the file that FORGELET_SETTINGS
    names, overridden by the variable `<env_prefix>PORT`. All methods raise `ConfigError`."""

    settings_class: type[SettingsT]
    section: str
    env_prefix: str
    environment: Mapping[str, str] = attrs.field(factory=lambda: os.environ)

    def settings(self) -> SettingsT:
        """Return the settings without any flag, for commands that do not run the process."""
        values, labels = self.configured()
        for field in self.fields.values():
            if field.default is attrs.NOTHING and field.name not in values:
                raise self.missing(field.name)
        return checked(self.settings_class(**values), lambda name: labels.get(name, name))

    def configured(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values that are given, in their fields' types, and the name by which each was given. Warn on
        standard error of variables that name no setting: environments are shared, so that need not be an error."""
        values, labels = self.of_file()
        unknown = dict(self.unknown())
        for sentence in unknown.values():
            click.echo(f"Warning: {sentence}", err=True)
        for variable, text in self._variables():
            if variable in unknown:
                continue
            name = variable.removeprefix(self.env_prefix).lower()
            field = self.fields[name]
            try:
                values[name], labels[name] = out_of_text(field, text), variable
            except ValueError:
                raise ConfigError(f"{variable} {has_to_be(field)}") from None
        return values, labels

    def unknown(self) -> list[tuple[str, str]]:
        """Return the variables with our prefix that name no setting, each with a sentence."""
        variables = {self.variable(name) for name in self.fields}
        return [
            (variable, f"{variable} names no setting{_meant(variable.upper(), variables)}")
            for variable, _ in self._variables()
            if variable not in variables
        ]

    def variable(self, name: str) -> str:
        """Return the variable of the setting `name`."""
        return f"{self.env_prefix}{name.upper()}"

    def missing(self, name: str) -> ConfigError:
        """Return the error for a setting that has no default and is not given."""
        return ConfigError(
            f"The setting {name} is missing: set {self.variable(name)}, or {name} in section [{self.section}]"
            f" of the file that {SETTINGS_FILE_VARIABLE} names"
        )

    @property
    def fields(self) -> dict[str, "attrs.Attribute[Any]"]:
        """The settings by name."""
        return attrs.fields_dict(self.settings_class)  # type: ignore[arg-type]

    def _variables(self) -> list[tuple[str, str]]:
        variables = self.environment.items()
        return sorted((name, text) for name, text in variables if name.startswith(self.env_prefix))

    def of_file(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values in the file, in the same form as `configured`."""
        values: dict[str, Any] = {}
        labels: dict[str, str] = {}
        file = Path(self.environment.get(SETTINGS_FILE_VARIABLE, ""))
        for key, value in section_of(self.environment, self.section).items():
            name = key.replace("-", "_")
            field, label = self.fields.get(name), f"{key} in section [{self.section}] of {file}"
            if field is None:
                raise ConfigError(f"{label} names no setting{_meant(name, self.fields)}")
            try:
                values[name], labels[name] = out_of_toml(field, value, file.parent.absolute()), label
            except ValueError:
                raise ConfigError(f"{label} {has_to_be(field)}") from None
        return values, labels


def command(
    settings_class: type[SettingsT],
    *,
    section: str,
    env_prefix: str,
    run: Callable[[SettingsT], None],
    about: str | None = None,
) -> click.Command:
    """Return the command line of one process, with a flag for every field of `settings_class`. It calls
    `run(settings)`. Its help is `about`, or the docstring of the class.

    A field `port` is set by `--port`, otherwise by its `Sources`. An invalid value, or a `ConfigError` that `run`
    raises, ends the program with one sentence and status 2.
    """
    sources = Sources(settings_class=settings_class, section=section, env_prefix=env_prefix)
    return _Process(sources, run, about or settings_class.__doc__)


class _Process(Command):
    """A command that reads file and environment when it runs, so that their errors are reported like all others."""

    def __init__(
        self, sources: Sources[SettingsT], run: Callable[[SettingsT], None], about: str | None
    ) -> None:
        super().__init__(sources.section, help=about)
        self._sources, self._run = sources, run

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        command, arguments = self._built(), tuple(args)
        try:
            # The context's object belongs to typed-settings, not to a group that this command is in.
            context = command.make_context(info_name, args, *rest, **(extra | {"obj": {}}))
        except click.BadParameter as problem:
            field = self._sources.fields.get((problem.param and problem.param.name) or "")
            if field is None:
                raise
            if isinstance(problem, click.MissingParameter):
                raise self._sources.missing(field.name) from None
            raise ConfigError(f"{flag(field.name)} {has_to_be(field)}") from None
        context.meta[FLAGS] = arguments
        return context

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.command.invoke(ctx)

    def _built(self) -> click.Command:
        values, labels = self._sources.configured()

        @click.command(
            help=self.help,
            context_settings={"show_default": True, "max_content_width": 110},
        )
        @typed_settings.click_options(
            self._sources.settings_class,
            [_Values(self._sources.env_prefix, values)],
            converter=typed_settings.converters.TSConverter(),
            show_envvars_in_help=True,
        )
        @click.pass_context
        def process(context: click.Context, settings: Any) -> None:
            def label(name: str) -> str:
                by_flag = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
                return flag(name) if by_flag else labels.get(name, flag(name))

            self._run(checked(settings, label))

        for option in process.params:
            if not isinstance(option.type, click.Choice | click.types.BoolParamType) and not option.multiple:
                option.type = _Text(self._sources.fields[option.name or ""], option.type.name)
        return process


class _Text(click.ParamType[Any]):
    """The type of a flag: its text means the same as in a variable."""

    def __init__(self, field: "attrs.Attribute[Any]", name: str) -> None:
        self._field, self.name = field, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return out_of_text(self._field, value) if isinstance(value, str) else value
        except ValueError:
            self.fail(has_to_be(self._field), param, ctx)


class _Values(EnvLoader):
    """A loader that gives typed-settings the values that were already read, and the names of variables."""

    def __init__(self, env_prefix: str, values: dict[str, Any]) -> None:
        super().__init__(env_prefix)
        self._values = values

    def __call__(self, settings_cls: type, options: OptionList) -> LoadedSettings:  # noqa: ARG002 - names of the base
        return LoadedSettings(self._values, LoaderMeta(self))


def flag(name: str) -> str:
    """Return the flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


def checked(settings: SettingsT, label: Label) -> SettingsT:
    """Return the settings with the secrets from the files that some of them name. A file takes precedence over a value
    that is given directly.

    Raise `ConfigError` if a value does not have its form, or if two contradict each other. Values are not shown,
    because they may contain passwords.
    """
    from_files: dict[str, Any] = {}
    fields = attrs.fields_dict(type(settings))  # type: ignore[arg-type]
    for field in fields.values():
        name, file = secret_in(field), getattr(settings, field.name)
        if name and file is not None:
            text = _read(label(field.name), file)
            if not text:
                raise ConfigError(f"{label(field.name)} is empty: {file}")
            if not fits(fields[name], text):
                raise ConfigError(f"What {label(field.name)} names {has_to_be(fields[name])}: {file}")
            from_files[name] = type(getattr(settings, name))(text)
    for field in fields.values():
        if field.name not in from_files and not fits(field, getattr(settings, field.name)):
            raise ConfigError(f"{label(field.name)} {has_to_be(field)}")
    if problem := contradiction(settings, label):
        raise ConfigError(problem)
    return attrs.evolve(settings, **from_files)  # type: ignore[misc]


def _read(label: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise ConfigError(f"{label} cannot be read: {problem.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{label} is not a text: {file}") from None


def section_of(environment: Mapping[str, str], section: str) -> dict[str, Any]:
    """Return a section of the file that the environment names, or nothing without a file. Raise `ConfigError`."""
    path = environment.get(SETTINGS_FILE_VARIABLE)
    if not path:
        return {}
    file = Path(path)
    try:
        document = tomllib.loads(_read(SETTINGS_FILE_VARIABLE, file))
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{SETTINGS_FILE_VARIABLE} is not TOML: {problem}: {file}") from None
    for name, value in document.items():
        if name not in SECTIONS or not isinstance(value, dict):
            sections = " and ".join(f"[{section_name}]" for section_name in SECTIONS)
            raise ConfigError(f"{name} in {file} is no section of settings; these are {sections}")
    of_ours: dict[str, Any] = document.get(section, {})
    return of_ours


def _meant(name: str, names: Iterable[str]) -> str:
    """Return a hint at the setting that `name` may mean."""
    matches = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {matches[0]}?" if matches else ""
