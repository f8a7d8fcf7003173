"""Settings of a process: attrs classes filled from a TOML file, the environment and flags, in that order."""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
import click
import typed_settings
from click.core import ParameterSource
from typed_settings.loaders import EnvLoader
from typed_settings.types import LoadedSettings, LoaderMeta, OptionList

from common.mistakes import Command, Mistake
from common.setting_forms import (
    contradiction,
    fits,
    has_to_be,
    out_of_text,
    out_of_toml,
    secret_in,
)

SettingsT = TypeVar("SettingsT")
#: Gives the name by which a setting was given: its flag, its variable, or its place in the file.
Label = Callable[[str], str]

#: Names the TOML file; each process reads its own section of it.
SETTINGS_FILE_VARIABLE = "FORGELET_SETTINGS"
#: Where the context of a process that `command` runs has its flags, as they were given.
FLAGS = "forgelet.flags"
#: The sections of that file.
SECTIONS = ("api_server", "edge")


@attrs.frozen(kw_only=True)
class Sources(Generic[SettingsT]):
    """Where the settings of one process come from beside its flags: `[section] port` in the file that FORGELET_SETTINGS
    names, overridden by the variable `<env_prefix>PORT`. All methods raise `Mistake`."""

    settings_class: type[SettingsT]
    section: str
    env_prefix: str
    environment: Mapping[str, str] = attrs.field(factory=lambda: os.environ)

    def settings(self) -> SettingsT:
        """The settings without any flag, for commands beside the process itself."""
        values, labels = self.given()
        for field in self.fields.values():
            if field.default is attrs.NOTHING and field.name not in values:
                raise self.missing(field.name)
        return checked(self.settings_class(**values), lambda name: labels.get(name, name))

    def given(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The values that are given, of their fields' types, and by which name each was. Tells on standard error of
        variables that name no setting: environments are shared, so that is no mistake for sure."""
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
                raise Mistake(f"{variable} {has_to_be(field)}") from None
        return values, labels

    def unknown(self) -> list[tuple[str, str]]:
        """Variables with our prefix that name no setting, each with a sentence that says so."""
        known = {self.variable(name) for name in self.fields}
        return [
            (variable, f"{variable} names no setting{_meant(variable.upper(), known)}")
            for variable, _ in self._variables()
            if variable not in known
        ]

    def variable(self, name: str) -> str:
        """The variable of the setting `name`."""
        return f"{self.env_prefix}{name.upper()}"

    def missing(self, name: str) -> Mistake:
        """What there is to say where a setting is not given that has no default."""
        return Mistake(
            f"The setting {name} is missing: set {self.variable(name)}, or {name} in section [{self.section}]"
            f" of the file that {SETTINGS_FILE_VARIABLE} names"
        )

    @property
    def fields(self) -> dict[str, "attrs.Attribute[Any]"]:
        """The settings by their names."""
        return attrs.fields_dict(self.settings_class)  # type: ignore[arg-type]

    def _variables(self) -> list[tuple[str, str]]:
        given = self.environment.items()
        return sorted((name, text) for name, text in given if name.startswith(self.env_prefix))

    def of_file(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What the file gives, as `given`."""
        values: dict[str, Any] = {}
        labels: dict[str, str] = {}
        file = Path(self.environment.get(SETTINGS_FILE_VARIABLE, ""))
        for key, value in section_of(self.environment, self.section).items():
            name = key.replace("-", "_")
            field, label = self.fields.get(name), f"{key} in section [{self.section}] of {file}"
            if field is None:
                raise Mistake(f"{label} names no setting{_meant(name, self.fields)}")
            try:
                values[name], labels[name] = out_of_toml(field, value, file.parent.absolute()), label
            except ValueError:
                raise Mistake(f"{label} {has_to_be(field)}") from None
        return values, labels


def command(
    settings_class: type[SettingsT],
    *,
    section: str,
    env_prefix: str,
    run: Callable[[SettingsT], None],
    about: str | None = None,
) -> click.Command:
    """The command line of one process: a flag for every field of `settings_class`, then `run(settings)`. Its help is
    `about`, or what the class says of itself.

    A field `port` is set by `--port`, or else by its `Sources`. Whatever does not fit, and each `Mistake` that `run`
    raises, ends the program with one sentence and status 2.
    """
    sources = Sources(settings_class=settings_class, section=section, env_prefix=env_prefix)
    return _Process(sources, run, about or settings_class.__doc__)


class _Process(Command):
    """Reads file and environment when it runs, since what is wrong with them is told like everything else."""

    def __init__(
        self, sources: Sources[SettingsT], run: Callable[[SettingsT], None], about: str | None
    ) -> None:
        super().__init__(sources.section, help=about)
        self._sources, self._run = sources, run

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        built, given = self._built(), tuple(args)
        try:
            # The object is the library's; that of a group of which this is a command is not.
            context = built.make_context(info_name, args, *rest, **(extra | {"obj": {}}))
        except click.BadParameter as problem:
            field = self._sources.fields.get((problem.param and problem.param.name) or "")
            if field is None:
                raise
            if isinstance(problem, click.MissingParameter):
                raise self._sources.missing(field.name) from None
            raise Mistake(f"{flag(field.name)} {has_to_be(field)}") from None
        context.meta[FLAGS] = given
        return context

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.command.invoke(ctx)

    def _built(self) -> click.Command:
        values, labels = self._sources.given()

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
    """A flag's text means what it does in a variable."""

    def __init__(self, field: "attrs.Attribute[Any]", name: str) -> None:
        self._field, self.name = field, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return out_of_text(self._field, value) if isinstance(value, str) else value
        except ValueError:
            self.fail(has_to_be(self._field), param, ctx)


class _Values(EnvLoader):
    """What was read already; the library asks it for the names of variables."""

    def __init__(self, env_prefix: str, values: dict[str, Any]) -> None:
        super().__init__(env_prefix)
        self._values = values

    def __call__(self, settings_cls: type, options: OptionList) -> LoadedSettings:  # noqa: ARG002 - its names
        return LoadedSettings(self._values, LoaderMeta(self))


def flag(name: str) -> str:
    """The flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


def checked(settings: SettingsT, label: Label) -> SettingsT:
    """`settings` with what the files hold that some of them name, which counts more than what was given beside them.

    Raises `Mistake` where a value does not have its form, or two contradict each other. Values are not shown: they may
    hold passwords.
    """
    held: dict[str, Any] = {}
    fields = attrs.fields_dict(type(settings))  # type: ignore[arg-type]
    for field in fields.values():
        name, file = secret_in(field), getattr(settings, field.name)
        if name and file is not None:
            text = _read(label(field.name), file)
            if not text:
                raise Mistake(f"{label(field.name)} is empty: {file}")
            if not fits(fields[name], text):
                raise Mistake(f"What {label(field.name)} names {has_to_be(fields[name])}: {file}")
            held[name] = type(getattr(settings, name))(text)
    for field in fields.values():
        if field.name not in held and not fits(field, getattr(settings, field.name)):
            raise Mistake(f"{label(field.name)} {has_to_be(field)}")
    if problem := contradiction(settings, label):
        raise Mistake(problem)
    return attrs.evolve(settings, **held)  # type: ignore[misc]


def _read(label: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise Mistake(f"{label} cannot be read: {problem.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise Mistake(f"{label} is not a text: {file}") from None


def section_of(environment: Mapping[str, str], section: str) -> dict[str, Any]:
    """What stands in a section of the file that the environment names, if it names one. Raises `Mistake`."""
    path = environment.get(SETTINGS_FILE_VARIABLE)
    if not path:
        return {}
    file = Path(path)
    try:
        found = tomllib.loads(_read(SETTINGS_FILE_VARIABLE, file))
    except tomllib.TOMLDecodeError as problem:
        raise Mistake(f"{SETTINGS_FILE_VARIABLE} is not TOML: {problem}: {file}") from None
    for name, value in found.items():
        if name not in SECTIONS or not isinstance(value, dict):
            known = " and ".join(f"[{one}]" for one in SECTIONS)
            raise Mistake(f"{name} in {file} is no section of settings; these are {known}")
    of_ours: dict[str, Any] = found.get(section, {})
    return of_ours


def _meant(name: str, known: Iterable[str]) -> str:
    """What whoever wrote `name` may have meant."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
