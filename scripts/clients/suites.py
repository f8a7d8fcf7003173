"""How each suite is run: what has to be there, its command, and what its report says.

A suite is the tests of a client's authors, in a checkout of it, or a program of ours that uses an installed client.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from common.config_errors import ConfigError
from forgelet.testing.server import Forgelet
from scripts.clients.outcomes import Outcome, from_calls, from_junit, from_playbook, from_tap, from_vitest

PLUGINS = Path(__file__).with_name("plugins")
PROGRAMS = Path(__file__).with_name("programs")
#: Where Debian's packages have the sources of libraries for Go.
GOPATH = Path("/usr/share/gocode")
#: Longer than the longest suite takes on a small machine.
TIMEOUT_SECONDS = 1800
#: Set for the test that signs in on a page.
ROOT_PASSWORD = "correct-horse-battery-9"


@attrs.frozen
class Suite:
    """`needs` are files below the folder that is named (a checkout, or where a client is installed), or absolute ones,
    with what to do where one is missing; `run` is given that folder, a server and a folder for reports. `options` are
    further ones of the server."""

    title: str
    needs: Mapping[str, str]
    run: Callable[[Path, Forgelet, Path], list[Outcome]]
    program: str | None = None
    options: tuple[str, ...] = ()

    def check(self, folder: Path) -> None:
        """Raise `ConfigError` where something is missing."""
        if self.program and shutil.which(self.program) is None:
            raise ConfigError(f"The program {self.program} was not found; install it and try again")
        for path, what_to_do in self.needs.items():
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
        # the suite starts `gitlab`, and `python`, by their names
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=str(PLUGINS),
        TMPDIR=str(folder),
        **_server(forgelet),
    )
    return from_junit(_written(report), "tests/functional/")


def _gitbeaker(checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
    found: list[Outcome] = []
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
        found += from_vitest(_written(report), checkout / "packages")
    return found


def _perl(checkout: Path, forgelet: Forgelet, _folder: Path) -> list[Outcome]:
    forgelet.api.put("users/1", {"password": ROOT_PASSWORD})
    found: list[Outcome] = []
    for file in sorted(checkout.glob("t/*.t")):
        done = _ran(
            ["perl", "-Ilib", str(file.relative_to(checkout))],
            checkout,
            AUTHOR_TESTING="1",
            PERL_STRICTURES_EXTRA="0",
            GITLAB_API_V4_URL=f"{forgelet.url}/api/v4",
            GITLAB_API_V4_PRIVATE_TOKEN=forgelet.root_token,
            GITLAB_API_V4_ROOT_PASSWORD=ROOT_PASSWORD,
        )
        found += from_tap(f"t/{file.name}", done.stdout, done.returncode)
    return found


def _program(*command: str) -> Callable[[Path, Forgelet, Path], list[Outcome]]:
    """Run a program of ours; `{folder}` in its `command` is the folder that was named."""

    def run(checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
        words = [word.format(folder=checkout) for word in command]
        done = _ran(words, PROGRAMS, TMPDIR=str(folder), GOCACHE=str(folder / "go"), **_server(forgelet))
        return from_calls(done.stdout, done.returncode, done.stderr)

    return run


def _ansible(checkout: Path, forgelet: Forgelet, folder: Path) -> list[Outcome]:
    programs = checkout / "bin"
    found: list[Outcome] = []
    for again in (False, True):
        done = _ran(
            [f"{programs}/ansible-playbook", "--inventory=localhost,", "ansible.yml"],
            PROGRAMS,
            ANSIBLE_HOME=str(folder),
            ANSIBLE_PYTHON_INTERPRETER=f"{programs}/python",
            ANSIBLE_STDOUT_CALLBACK="ansible.posix.json",
            ANSIBLE_LOCALHOST_WARNING="false",
            **_server(forgelet),
        )
        found += from_playbook(done.stdout, done.stderr, changes_nothing=again)
    return found


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


def _mcp(package: str) -> Suite:
    return Suite(
        package,
        {f"node_modules/{package}": f"name a folder where npm has installed {package}"},
        _program("node", "mcp.mjs", "{folder}", package),
        "node",
        _RUNNER,
    )


#: Jobs come to their end.
_RUNNER = ("--runner",)

SUITES = {
    "python-gitlab": Suite(
        "python-gitlab",
        {
            "tests/functional/conftest.py": "name a checkout of python-gitlab",
            ".venv/bin/gitlab": "install it and its requirements-docker.txt into .venv there",
        },
        _python_gitlab,
    ),
    "gitbeaker": Suite(
        "gitbeaker",
        {
            "packages/rest/test/e2e/nodejs": "name a checkout of gitbeaker",
            "node_modules/vitest/vitest.mjs": "run pnpm install there",
            "packages/cli/dist/index.mjs": "run pnpm build there",
        },
        _gitbeaker,
        program="node",
    ),
    "perl": Suite(
        "GitLab::API::v4", {"t/regression.t": "name a checkout of GitLab-API-v4"}, _perl, program="perl"
    ),
    "ruby-gitlab": Suite("Ruby's gitlab", {}, _program("ruby", "ruby_gitlab.rb"), "ruby", _RUNNER),
    "go-gitlab": Suite(
        "go-gitlab",
        {f"{GOPATH}/src/github.com/xanzy/go-gitlab": "install golang-github-xanzy-go-gitlab-dev"},
        _program("env", f"GOPATH={GOPATH}", "GO111MODULE=off", "go", "run", "go_gitlab.go"),
        "go",
        _RUNNER,
    ),
    "dulwich": Suite(
        "dulwich",
        {"bin/dulwich": "name a virtual environment with dulwich in it"},
        _program("{folder}/bin/python", "dulwich_git.py"),
    ),
    "isomorphic-git": Suite(
        "isomorphic-git",
        {"node_modules/isomorphic-git": "name a folder where npm has installed isomorphic-git"},
        _program("node", "isomorphic_git.mjs", "{folder}"),
        "node",
    ),
    "git-lfs": Suite("git-lfs", {}, _program(sys.executable, "git_lfs.py"), "git-lfs"),
    "semantic-release": Suite(
        "semantic-release",
        {
            f"node_modules/{name}": f"name a folder where npm has installed {name}"
            for name in ("semantic-release", "@semantic-release/gitlab")
        },
        _program("node", "semantic_release.mjs", "{folder}"),
        "node",
    ),
    "mcp-gitlab": _mcp("@zereight/mcp-gitlab"),
    "mcp-server-gitlab": _mcp("@modelcontextprotocol/server-gitlab"),
    "ansible": Suite(
        "Ansible's community.general",
        {
            "bin/ansible-playbook": "name a virtual environment with ansible in it",
            "bin/gitlab": "install python-gitlab there too",
        },
        _ansible,
    ),
}
