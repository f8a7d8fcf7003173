"""Where the passphrase of a backup comes from: a file, the environment or a prompt; never the command line."""

import os
import sys
from pathlib import Path

import click

from common.mistakes import Mistake

VARIABLE = "FORGELET_BACKUP_PASSPHRASE"


def passphrase(file: Path | None, *, is_new: bool) -> str:
    """Raises `Mistake`. A new one is asked for twice."""
    if file is not None:
        try:
            found = file.read_text("utf-8")
        except OSError as problem:
            raise Mistake(f"The passphrase file {file} cannot be read: {problem.strerror}") from None
        except UnicodeDecodeError:
            raise Mistake(f"The passphrase file {file} is not text") from None
        found = found.strip("\r\n")
        where = f"The passphrase in {file}"
    elif VARIABLE in os.environ:
        found, where = os.environ[VARIABLE], f"The passphrase in {VARIABLE}"
    elif sys.stdin.isatty():
        found = str(click.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new, err=True))
        where = "The passphrase"
    else:
        raise Mistake(f"There is no passphrase: give --passphrase-file or {VARIABLE}")
    if not found:
        raise Mistake(f"{where} is empty")
    return found
