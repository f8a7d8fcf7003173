"""How the suites of `expected/` run, and how their reports are read. A suite is the tests of a client's authors, in a
checkout of it, or a program of ours that uses an installed client."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs

from common.config_errors import ConfigError
from forgelet.testing.server import Forgelet
from scripts.clients.outcomes import (
    FOLDER,
    Expected,
    Outcome,
    from_calls,
    from_junit,
    from_playbook,
    from_tap,
    from_vitest,
    read,
)

PLUGINS = Path(__file__).with_name("plugins")
PROGRAMS = Path(__file__).with_name("programs")
#: Seconds; longer than the longest suite takes on a small machine.
TIMEOUT_SECONDS = 1800
#: The administrator's password for the test that signs in on a page.
ROOT_PASSWORD = "correct-horse-battery-9"


Run = Callable[[Path, Forgelet, Path], list[Outcome]]


@attrs.frozen
class Suite:
    """A suite. `run` takes the folder of the command line (a checkout, or where a client is installed), a server, and
    a folder for reports."""

    written: Expected
    run: Run

    def check(self, folder: Path) -> None:
        """Raise `ConfigError` if something that the suite needs is missing."""
        program = self.written.program
        if program and shutil.which(program) is None:
            raise ConfigError(f"The program {program} was not found; install it and try again")
        for path, what_to_do in self.written.needs.items():
            if not (folder / path).exists():
                raise ConfigError(f"{folder} has no {path}: {what_to_do}")


def _python_gitlab(checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
    report = folder / "report.xml"
    programs = checkout / ".venv/bin"
    command = "-m pytest -q -p no:docker -p no:cacheprovider -p forgelet_for_python_gitlab"
    command += " --script-launch-mode=subprocess -o junit_family=xunit1 tests/functional"
    _ran(
        [f"{programs}/python", *command.split(), f"--basetemp={folder}/pytest", f"--junitxml={report}"],
        checkout,
        # the suite starts `gitlab` and `python` by their names
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=str(PLUGINS),
        TMPDIR=str(folder),
        **_server(forgelet),
    )
    return from_junit(_written(report), "tests/functional/")


def _gitbeaker(checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for package, tests in (("rest", "test/e2e/nodejs"), ("cli", "test/e2e")):
        report = folder / f"{package}.json"
        command = f"run --config vitest.config.mjs --coverage.enabled=false --reporter=json {tests}"
        _ran(
            [
                "node",
                f"{checkout}/node_modules/vitest/vitest.mjs",
                *command.split(),
                f"--outputFile={report}",
            ],
            checkout / "packages" / package,
            GITLAB_URL=forgelet.url,
            GITLAB_PERSONAL_ACCESS_TOKEN=forgelet.root_token,
        )
        outcomes += from_vitest(_written(report), checkout / "packages")
    return outcomes


def _perl(checkout: Path, forgelet: Forgelet, _folder: Path) -> list[Outcome]:
    forgelet.api.put("users/1", {"password": ROOT_PASSWORD})
    outcomes: list[Outcome] = []
    for file in sorted(checkout.glob("t/*.t")):
        result = _ran(
            ["perl", "-Ilib", str(file.relative_to(checkout))],
            checkout,
            AUTHOR_TESTING="1",
            PERL_STRICTURES_EXTRA="0",
            GITLAB_API_V4_URL=f"{forgelet.url}/api/v4",
            GITLAB_API_V4_PRIVATE_TOKEN=forgelet.root_token,
            GITLAB_API_V4_ROOT_PASSWORD=ROOT_PASSWORD,
        )
        outcomes += from_tap(f"t/{file.name}", result.stdout, result.returncode)
    return outcomes


def _program(command: Sequence[str], checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
    """Run a program of ours. In `command`, `{folder}` stands for the folder of the command line and `{python}` for our
    interpreter."""
    arguments = [argument.format(folder=checkout, python=sys.executable) for argument in command]
    result = _ran(arguments, PROGRAMS, TMPDIR=str(folder), GOCACHE=str(folder / "go"), **_server(forgelet))
    return from_calls(result.stdout, result.returncode, result.stderr)


def _ansible(checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
    programs = checkout / "bin"
    outcomes: list[Outcome] = []
    for again in (False, True):
        result = _ran(
            [f"{programs}/ansible-playbook", "--inventory=localhost,", "ansible.yml"],
            PROGRAMS,
            ANSIBLE_HOME=str(folder),
            ANSIBLE_PYTHON_INTERPRETER=f"{programs}/python",
            ANSIBLE_STDOUT_CALLBACK="ansible.posix.json",
            ANSIBLE_LOCALHOST_WARNING="false",
            **_server(forgelet),
        )
        outcomes += from_playbook(result.stdout, result.stderr, changes_nothing=again)
    return outcomes


def _server(forgelet: Forgelet) -> dict[str, str]:
    return {"FORGELET_URL": forgelet.url, "FORGELET_TOKEN": forgelet.root_token}


def _ran(command: list[str], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def _written(report: Path) -> Path:
    if not report.exists():
        raise ConfigError(
            f"The suite ended before it wrote its report {report.name}; run it by hand to see why"
        )
    return report


#: The functions that run suites other than programs of ours.
_RUNS: Mapping[str, Run] = {
    "python-gitlab": _python_gitlab,
    "gitbeaker": _gitbeaker,
    "perl": _perl,
    "ansible": _ansible,
}
SUITES: Mapping[str, Suite] = {
    name: Suite(written, _RUNS.get(name) or partial(_program, written.command))
    for name, written in ((file.stem, read(file.stem)) for file in sorted(FOLDER.glob("*.toml")))
}
