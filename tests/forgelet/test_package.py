"""What is installed: one package with everything that the service reads, and nothing beside it."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT

SERVERS = ("api_server", "common", "storage_edge")
#: Folders whose files git knows are in the sdist, so that its tests can be run.
OF_THE_SDIST = (*SERVERS, "docs", "forgelet", "scripts", "tests")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a sdist, built without asking any registry."""
    pytest.importorskip("hatchling", reason="the extra `test` installs it")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    return folder


def in_checkout(*folders: str) -> set[str]:
    """The files of these folders, but for what programs leave there."""
    found = {
        str(path.relative_to(CHECKOUT))
        for folder in folders
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file()
        and not re.search(r"__pycache__|/\.|\.egg-info|\.pyc$", str(path.relative_to(CHECKOUT)))
    }
    assert len(found) > len(folders)
    return found


def test_the_wheel_holds_one_package_with_both_processes(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        (entry_points,) = (name for name in opened.namelist() if name.endswith("/entry_points.txt"))
        assert "forgelet = forgelet.__main__:main" in opened.read(entry_points).decode()
        hook = opened.getinfo("forgelet/servers/api_server/git/hooks/pre-receive")
        assert hook.external_attr >> 16 & 0o111, "git runs no hook that is not executable"
    assert {name.partition("/")[0] for name in names} == {"forgelet"}
    expected = {f"forgelet/servers/{name}" for name in in_checkout(*SERVERS)} | in_checkout("forgelet")
    assert names == expected


def test_the_sdist_holds_the_sources_with_their_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    assert in_checkout(*OF_THE_SDIST) <= names
    assert {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md"} <= names


def test_an_installed_forgelet_finds_both_processes_in_itself(built: Path, tmp_path: Path) -> None:
    """Unpacked into a folder with a space, beside a `common` of somebody else."""
    site = tmp_path / "site packages"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    (site / "common.py").write_text("raise SystemExit('the wrong one')\n")
    command = [sys.executable, "-P", "-c", "from forgelet.__main__ import main; main()", "api", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("Usage: forgelet api [OPTIONS]\n"), done.stderr
