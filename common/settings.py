"""Settings of a process: attrs classes filled from a TOML file, the environment and flags, in that order."""

from collections.abc import Callable
from typing import TypeVar

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
        run(settings)

    process.help = settings_class.__doc__
    return process


def loaders(section: str, env_prefix: str) -> list[typed_settings.loaders.Loader]:
    """Where values come from, weakest first."""
    return typed_settings.default_loaders(
        section, config_file_section=section, config_files_var=SETTINGS_FILE_VARIABLE, env_prefix=env_prefix
    )
