"""How each suite is run: what has to be there, its command, and what its report says."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from common.mistakes import Mistake
from forgelet.testing.server import Forgelet
from scripts.clients.outcomes import Outcome, from_junit, from_tap, from_vitest

PLUGINS = Path(__file__).with_name("plugins")
#: Longer than the longest suite takes on a small machine.
PATIENCE_SECONDS = 1800
#: Set for the test that signs in on a page.
ROOT_PASSWORD = "correct-horse-battery-9"


@attrs.frozen
class Suite:
    """`needs` are files below the checkout; `run` is given the checkout, a server and a folder for reports."""

    title: str
    needs: Mapping[str, str]
    run: Callable[[Path, Forgelet, Path], list[Outcome]]
    program: str | None = None

    def check(self, checkout: Path) -> None:
        """Raises `Mistake` where something is missing."""
        if self.program and shutil.which(self.program) is None:
            raise Mistake(f"The program {self.program} was not found; install it and try again")
        for path, what_to_do in self.needs.items():
            if not (checkout / path).exists():
                raise Mistake(f"{checkout} has no {path}: {what_to_do}")


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
        FORGELET_URL=forgelet.url,
        FORGELET_TOKEN=forgelet.root_token,
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


def _ran(command: list[str], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def _written(report: Path) -> Path:
    if not report.exists():
        raise Mistake(f"The suite ended before it wrote its report {report.name}; run it by hand to see why")
    return report


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
        "GitLab::API::v4",
        {"t/regression.t": "name a checkout of GitLab-API-v4"},
        _perl,
        program="perl",
    ),
}
