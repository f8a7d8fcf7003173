"""The Containerfile, held against what it names: no registry is asked, and nothing is built."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from common.operations import ROUTES
from forgelet.commands.up import up
from forgelet.local import data_directory, variables
from tests.support.checkout import CHECKOUT


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile, each on one line: name and text."""
    text = (CHECKOUT / "Containerfile").read_text()
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found = []
    for line in filter(None, lines):
        name, _, rest = line.partition(" ")
        found.append((name, rest))
    return found


ALL = instructions()
#: Of the image, without those of the stage that only builds.
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
    assert ".git" not in ignored, "the version is the tag's"
    if not (CHECKOUT / ".git").exists():
        pytest.skip("an unpacked sdist has no list of tracked files")
    done = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    tops = {name.partition("/")[0] for name in done.stdout.splitlines()}
    assert not tops & {name.removeprefix("**/") for name in ignored}
