"""docs/install.md: its settings and units exist, and its nginx forwards to the service."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import pytest

from forgelet.local import variables
from tests.support.checkout import CHECKOUT
from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.git_client import Git
from tests.support.nginx import needs_nginx, nginx_before

PAGE = (CHECKOUT / "docs/install.md").read_text()
UNITS = CHECKOUT / "docs/systemd"
SERVICES = sorted(UNITS.glob("*.service"))
#: The path at which the page installs the program.
PROGRAM = "/opt/forgelet/bin/forgelet"
#: In tenths, of systemd's scale from 0 (closed) to 10 (open).
EXPOSED_AT_MOST = 20


def settings_of_the_page(folder: Path) -> dict[str, str]:
    """The page's file of settings, as the variable that names it; its secrets are in the folder."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (folder / "purge-token").write_text("a" * 64)
    (folder / "forgelet.toml").write_text(text.replace("/etc/forgelet", str(folder)))
    return {"FORGELET_SETTINGS": str(folder / "forgelet.toml")}


def test_the_settings_are_settings_and_fit_each_other_and_the_units(tmp_path: Path) -> None:
    environment = settings_of_the_page(tmp_path)
    api = variables.API.sources(environment).settings()
    edge = variables.EDGE.sources(environment).settings()
    assert api.edge_purge_token == "a" * 64
    assert edge.origin == f"http://{api.host}:{api.port}"
    assert api.edge_urls == [f"http://{edge.host}:{edge.port}"]
    assert f"\nStateDirectory={api.data_dir.relative_to('/var/lib')}\n" in _unit("api")
    assert edge.data_dir is not None
    assert f"\nCacheDirectory={edge.data_dir.relative_to('/var/cache')}\n" in _unit("edge")
    assert f"\nUser={re.findall(r'useradd .* (.*)', PAGE)[0]}\n" in _unit("api")


def test_units_start_what_there_is_and_read_what_the_page_makes() -> None:
    edge, api = (attrs.fields_dict(known.settings_class) for known in (variables.EDGE, variables.API))
    names = {f"FORGELET_EDGE_{name.upper()}" for name in edge} | {
        f"FORGELET_API_{name.upper()}" for name in api
    }
    for unit in SERVICES:
        text = unit.read_text()
        assert f"ExecStart={PROGRAM} {unit.stem.removeprefix('forgelet-')}\n" in text
        assert set(re.findall(r"^Environment=(\w+)", text, re.MULTILINE)) <= names | {"FORGELET_SETTINGS"}
        assert "/etc/forgelet/" in text
        stop = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        assert int(stop[0]) > edge["shutdown_timeout"].default + 4


def _unit(name: str) -> str:
    return (UNITS / f"forgelet-{name}.service").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_systemd_takes_the_units_and_finds_them_closed(unit: Path, tmp_path: Path) -> None:
    shutil.copytree(UNITS, tmp_path / "units")
    here = tmp_path / "units" / unit.name
    here.write_text(here.read_text().replace(PROGRAM, shutil.which("true") or ""))
    for command in (
        ["verify", "--man=no"],
        ["security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}"],
    ):
        ran = subprocess.run(
            ["systemd-analyze", *command, str(here)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        if command[0] == "verify":
            assert ran.stdout == ""


def test_nginx_leaves_other_sites_as_they_are() -> None:
    lines = (CHECKOUT / "docs/nginx/forgelet.conf").read_text().splitlines()
    outside = {line.split()[0] for line in lines if line and not line.startswith((" ", "#", "}"))}
    assert outside == {"upstream", "server"}


@needs_nginx
async def test_people_and_git_reach_the_service_through_nginx(
    new_forge: Callable[..., AbstractAsyncContextManager[Forge]], tmp_path: Path
) -> None:
    host = "forge.example.org"
    async with (
        new_forge(
            work=True,
            external_url=f"https://{host}",
            trusted_proxies=["127.0.0.1"],
            data_dir=tmp_path / "data",
        ) as forge,
        nginx_before(tmp_path, api_port=forge.server.port) as nginx,
    ):
        home = await nginx.get(host, "/")
        assert (home.version, home.status) == ("HTTP/1.1", 200)  # git may hang with HTTP/2
        root = ("-H", f"PRIVATE-TOKEN: {ROOT_TOKEN}")
        client = ("-H", "X-Forwarded-For: 198.51.100.7")  # here, curl has a trusted proxy's address
        made = await nginx.get(host, "/api/v4/projects?name=app", "-X", "POST", *root, *client)
        assert (made.status, json.loads(made.body)["web_url"]) == (201, f"https://{host}/root/app")
        events = await nginx.get(host, "/api/v4/audit_events", *root)
        assert "198.51.100.7" in {event["details"]["ip_address"] for event in json.loads(events.body)}
        assert (await nginx.get(host, "/-/readiness", *client)).status == 404

        git = Git(tmp_path / "work")
        await git.init()
        sha = await git.commit_files({"large": os.urandom(3 * 2**20)})
        options = "-c", "http.sslVerify=false", "-c", f"http.curloptResolve={host}:{nginx.port}:127.0.0.1"
        url = f"https://root:{ROOT_TOKEN}@{host}:{nginx.port}/root/app.git"
        await git(*options, "push", "--quiet", url, "HEAD:main")
        assert (await git(*options, "ls-remote", url, "main")).split()[0] == sha
