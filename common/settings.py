"""Settings of a process: attrs classes filled from a TOML file, the environment and flags, in that order."""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click
import typed_settings

SettingsT = TypeVar("SettingsT")

#: Names the TOML file; each process reads its own section of it.
SETTINGS_FILE_VARIABLE = "FORGELET_SETTINGS"


def command(
    settings_class: type[SettingsT], *, section: str, env_prefix: str, run: Callable[[SettingsT], None]
) -> click.Command:
    """The command line of one process: a flag for every field of `settings_class`, then `run(settings)`.

    A field `port` is set by `[section] port` in the TOML file that FORGELET_SETTINGS names, overridden by the
    variable `<env_prefix>PORT`, overridden by `--port`. A value that does not fit ends the program with one sentence.
    """

    @click.command(name=section, context_settings={"show_default": True, "max_content_width": 110})
    @typed_settings.click_options(
        settings_class,
        loaders(section, env_prefix),
        # Lists in variables are `a,b`: the library's own separator, `:`, is part of URLs.
        converter=typed_settings.converters.TSConverter(strlist_sep=","),
        show_envvars_in_help=True,
    )
    def process(settings: SettingsT) -> None:
        if problem := problem_with(settings):
            raise click.UsageError(problem)
        try:
            settings = with_secrets_of_files(settings)
        except ValueError as problem:
            raise click.UsageError(str(problem)) from None
        run(settings)

    process.help = settings_class.__doc__
    return process


def loaders(section: str, env_prefix: str) -> list[typed_settings.loaders.Loader]:
    """Where values come from, weakest first."""
    return typed_settings.default_loaders(
        section, config_file_section=section, config_files_var=SETTINGS_FILE_VARIABLE, env_prefix=env_prefix
    )


@attrs.frozen
class _Form:
    """What the text of a setting, or each text of its list, has to be; nothing at all is right too."""

    name: str
    fits: Callable[[str], bool]


_FORM = "form"


def url(*schemes: str) -> dict[str, Any]:
    """The metadata of a field that holds URLs of these schemes."""
    examples = " or ".join(f"{scheme}://{_AFTER_SCHEME.get(scheme, 'host')}" for scheme in schemes)
    return {_FORM: _Form(f"a URL such as {examples}", lambda text: _is_url(text, schemes))}


def network() -> dict[str, Any]:
    """The metadata of a field that holds IP addresses and networks."""
    return {_FORM: _Form("an address or a network such as 10.0.0.0/8", _is_network)}


_HOLDS = "holds"


def file_of(secret: str) -> dict[str, Any]:
    """The metadata of a field that names a file which holds the setting `secret`: flags are in process lists."""
    return {_HOLDS: secret}


def with_secrets_of_files(settings: SettingsT) -> SettingsT:
    """`settings` with what such files hold, which counts more than what was given beside them. Raises ValueError where
    one has nothing to read."""
    held = {}
    for field in attrs.fields(type(settings)):  # type: ignore[arg-type]
        name, file = field.metadata.get(_HOLDS), getattr(settings, field.name)
        if name and file is not None:
            flag = f"--{field.name.replace('_', '-')}"
            held[name] = type(getattr(settings, name))(_read(flag, file))
    return attrs.evolve(settings, **held)  # type: ignore[misc]


def _read(flag: str, file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise ValueError(f"{flag} cannot be read: {problem.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{flag} is not a text: {file}") from None
    if not text:
        raise ValueError(f"{flag} is empty: {file}")
    return text


def problem_with(settings: Any) -> str | None:
    """Says which field does not have its form. The value is not shown: it may hold a password."""
    for field in attrs.fields(type(settings)):
        form, value = field.metadata.get(_FORM), getattr(settings, field.name)
        texts = [value] if isinstance(value, str) else value
        if form and not all(form.fits(text) for text in texts if text):
            return f"--{field.name.replace('_', '-')} has to be {form.name}"
    return None


#: What follows where it is not a host that is needed.
_AFTER_SCHEME = {"file": "/folder", "s3": "bucket"}
#: Without a host these mean a socket of this machine.
_LOCAL_TOO = frozenset({"postgresql", "postgres"})


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        if parts.scheme not in schemes or parts.port == 0:
            return False
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    if parts.scheme == "file":
        return not parts.netloc and parts.path.startswith("/")
    return bool(parts.hostname) or (parts.scheme in _LOCAL_TOO and text.startswith(f"{parts.scheme}://"))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
