"""What the Tab key offers, once a shell has taken what `forgelet completion` prints."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forgelet.command_line import forgelet
from tests.support.checkout import CHECKOUT


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_with_json_the_same(shell: str) -> None:
    shown: Any = CliRunner().invoke(forgelet, ["completion", shell])
    assert "_FORGELET_COMPLETE" in shown.stdout
    as_json = json.loads(CliRunner().invoke(forgelet, ["completion", shell, "--json"]).stdout)
    assert as_json == {"shell": shell, "script": shown.stdout.removesuffix("\n")}
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "/dev/stdin"], input=shown.stdout, text=True, check=True)


def test_bash_completes_commands_that_are_imported_when_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "forgelet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m forgelet "$@"\n')
    (tmp_path / "forgelet").chmod(0o755)
    script = CliRunner().invoke(forgelet, ["completion", "bash"]).stdout
    asked = (
        "COMP_WORDS=(forgelet user cre); COMP_CWORD=2; _forgelet_completion forgelet; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "create\n", done.stderr
