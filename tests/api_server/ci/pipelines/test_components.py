"""Components of this service's projects by their versions, and the operator's templates."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.yaml_text import MAX_BYTES
from api_server.ci.pipelines.other_files import newest, templates
from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Client, Forge
from tests.support.waiting import until

TAGS = ("1.0.0", "v1.2.0", "1.10.1", "1.10.0", "2.0.0-rc1", "2.0.0+build", "0.9", "1", "latest", "１.99.0")


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("1", "1.10.1"),
        ("1.2", "v1.2.0"),
        ("1.10", "1.10.1"),
        ("2", "2.0.0+build"),
        ("~latest", "2.0.0+build"),
        ("1.3", None),
        ("3", None),
    ],
)
def test_the_newest_of_the_versions_that_are_meant(version, tag):
    assert newest(TAGS, version) == tag
    assert newest((), version) is None


def test_templates_are_regular_files_inside_the_folder(tmp_path: Path):
    folder, outside = tmp_path / "templates", tmp_path / "outside.gitlab-ci.yml"
    (folder / "Jobs").mkdir(parents=True)
    (folder / "Jobs/A.gitlab-ci.yml").write_text("a: {script: x}")
    (folder / "Large.gitlab-ci.yml").write_bytes(b"#" * (MAX_BYTES + 1))
    (folder / "Link.gitlab-ci.yml").symlink_to("Jobs/A.gitlab-ci.yml")
    (folder / "Out.gitlab-ci.yml").symlink_to(outside)
    (folder / "Round.gitlab-ci.yml").symlink_to("Round.gitlab-ci.yml")
    (folder / "Folder.gitlab-ci.yml").mkdir()
    os.mkfifo(folder / "Pipe.gitlab-ci.yml")
    outside.write_text("secret: {script: x}")
    read = templates(folder)
    assert read("Jobs/A.gitlab-ci.yml") == read("Link.gitlab-ci.yml") == "a: {script: x}"
    assert read("Jobs/../Jobs/A.gitlab-ci.yml") == "a: {script: x}"
    for refused in (
        "No",
        "Out",
        "Round",
        "Folder",
        "Pipe",
        "../outside",
        str(outside)[:-14],
        "a\0",
        "a" * 5000,
    ):
        assert read(f"{refused}.gitlab-ci.yml") is None, refused
    with pytest.raises(CiConfigError) as caught:
        read("Large.gitlab-ci.yml")
    said = f"The YAML file is too big: {MAX_BYTES + 1} bytes of at most {MAX_BYTES}"
    assert caught.value.errors == (said,)


async def verdict(project: CiProject, include: str, by: Client | None = None) -> dict[str, Any]:
    body = {"content": f"include: {include}\n", "include_jobs": True}
    answer = await (by or project.api).post(f"{project.url}/ci/lint", body, expect=200)
    return dict(answer.body)


def host(forge: Forge) -> str:
    return urlsplit(forge.settings.base_url).netloc


@attrs.frozen
class Components:
    """A project whose component `say` prints its version."""

    library: CiProject
    project: CiProject

    def address(self, version: str) -> str:
        return f"{host(self.library.forge)}/{self.library.path}/say@{version}"

    async def script(self, version: str) -> Any:
        """Return the script of the job that this version gives, or the error."""
        address = self.address(version)
        said = await verdict(self.project, f"{{component: '{address}'}}")
        return said["jobs"][0]["script"] if said["valid"] else said["errors"][0].removeprefix(
            f"Component '{address}' - "
        )  # fmt: skip

    async def write(self, what: str, branch: str = "main") -> str:
        """Commit the component and return the commit."""
        await self.library.commit(f"say:\n  script: {what}\n", path="templates/say.yml", branch=branch)
        answer = await self.library.forge.root.get(f"{self.library.url}/repository/branches/{branch}")
        return str(answer.body["commit"]["id"])

    async def tag(self, name: str, sha: str) -> None:
        await self.library.forge.root.post(
            f"{self.library.url}/repository/tags", {"tag_name": name, "ref": sha}, expect=201
        )

    async def release(self, name: str, sha: str) -> None:
        await self.library.forge.root.post(
            f"{self.library.url}/releases", {"tag_name": name, "ref": sha}, expect=201
        )

    def move_tag(self, name: str, sha: str) -> None:
        repositories = self.library.forge.server.app[SERVICES][REPOSITORIES]
        repositories.open(self.library.id).references.create(f"refs/tags/{name}", sha, force=True)


@pytest.fixture
async def components(forge: Forge) -> Components:
    return Components(await ci_project(forge, visibility="public"), await ci_project(forge))


async def test_a_version_is_a_commit_a_release_a_tag_or_a_branch(components: Components) -> None:
    first, second = await components.write("first"), await components.write("second")
    missing = "content not found"
    assert await components.script(first) == ["first"]
    assert await components.script("main") == await components.script("HEAD") == ["second"]
    assert [await components.script(version) for version in ("~latest", "1", "gone", "", "0" * 40)] == [
        missing
    ] * 5
    await components.tag("1.0.0", first)
    await components.tag("1.1.0", second)
    await components.tag("2.0.0-rc", second)
    await components.library.commit("", path="b.md", branch="branch")
    await components.tag("branch", first)
    assert await components.script("1.0") == ["first"]
    assert await components.script("1") == await components.script("~latest") == ["second"]
    assert await components.script("2") == missing
    assert await components.script("2.0.0-rc") == ["second"]
    assert await components.script("branch") == ["first"], "a tag comes before a branch"


async def test_versions_are_those_of_releases_if_there_are_some(components: Components) -> None:
    first, second = await components.write("first"), await components.write("second")
    await components.release("1.0.0", first)
    await components.tag("1.1.0", second)
    await components.tag("2.0.0", second)
    assert await components.script("~latest") == await components.script("1") == ["first"]
    assert await components.script("2") == "content not found"
    assert await components.script("1.1.0") == ["second"]
    await components.tag("2", second)
    assert await components.script("2") == ["second"], "what no version is may be a tag"
    components.move_tag("1.0.0", second)
    assert await components.script("1.0.0") == ["first"], "a release stays at its commit"


async def test_components_are_read_with_the_rights_of_who_makes_the_pipeline(forge: Forge) -> None:
    components = Components(await ci_project(forge), await ci_project(forge))
    sha = await components.write("hidden")
    refused = "project does not exist or you don't have sufficient permissions"
    assert await components.script(sha) == refused
    await forge.member("projects", components.library.id, components.project.developer, Role.GUEST)
    assert await components.script(sha) == refused
    member = f"{components.library.url}/members/{components.project.developer.id}"
    await forge.root.put(member, {"access_level": Role.REPORTER}, expect=200)
    assert await components.script(sha) == ["hidden"]
    said = await verdict(components.project, f"{{component: {components.address(sha)}}}")
    at = f"{forge.settings.base_url}/{components.library.path}/-"
    (included,) = said["includes"]
    assert included == {
        "type": "component",
        "location": components.address(sha),
        "blob": f"{at}/blob/{sha}/templates/say.yml",
        "raw": None,
        "extra": {},
        "context_project": components.project.path,
        "context_sha": included["context_sha"],
    }
    text = f"include: {{component: $CI_SERVER_FQDN/{components.library.path}/say@main}}"
    pipeline = await components.project.pipeline(text)
    assert set(await components.project.jobs(pipeline)) == {"say"}


async def test_a_project_that_moved_keeps_its_components(components: Components) -> None:
    await components.write("moved")
    await components.library.forge.root.put(components.library.url, {"path": "elsewhere"}, expect=200)
    assert await components.script("main") == ["moved"]


async def test_templates_are_those_of_the_operators_folder(forge: Forge, tmp_path: Path) -> None:
    project = await ci_project(forge)
    (tmp_path / "Jobs").mkdir()
    (tmp_path / "Jobs/Check.gitlab-ci.yml").write_text("check:\n  script: check\n")
    include = "{template: Jobs/Check.gitlab-ci.yml}"
    without = await verdict(project, include)
    assert without["errors"] == [
        "Template file `Jobs/Check.gitlab-ci.yml`: this service has no templates, "
        "because its setting ci_templates_dir is not set"
    ]
    with forge.changed_settings(ci_templates_dir=tmp_path):
        said = await verdict(project, include)
        assert [job["name"] for job in said["jobs"]] == ["check"]
        (included,) = said["includes"]
        assert included == {
            "type": "template",
            "location": "Jobs/Check.gitlab-ci.yml",
            "blob": None,
            "raw": None,
            "extra": {},
            "context_project": project.path,
            "context_sha": included["context_sha"],
        }
        empty = await forge.project()
        body = {"content": f"include: {include}"}
        assert (await forge.root.post(f"/projects/{empty['id']}/ci/lint", body)).body["valid"] is True


async def test_child_pipelines_are_made_of_components_and_templates(
    components: Components, tmp_path: Path
) -> None:
    project, forge = components.project, components.library.forge
    await components.write("child")
    (tmp_path / "Check.gitlab-ci.yml").write_text("check:\n  script: check\n")
    text = (
        "start:\n  trigger:\n    include:\n"
        f"      - component: $CI_SERVER_FQDN/{components.library.path}/say@main\n"
        "      - template: Check.gitlab-ci.yml\n"
    )
    with forge.changed_settings(ci_templates_dir=tmp_path):
        pipeline = await project.pipeline(text)

        async def downstream() -> Any:
            return (await project.bridges(pipeline))["start"]["downstream_pipeline"]

        child = await until(downstream)
    assert set(await project.jobs(child)) == {"say", "check"}
