"""The unchanged python-gitlab creates and reads the basic entities of all areas."""

import asyncio

import gitlab
import pytest

from tests.support.forge import Forge, new_name


async def test_a_service_is_set_up_with_python_gitlab(forge: Forge) -> None:
    name = new_name("py")

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
            client.auth()
            assert client.user is not None
            assert client.user.username == "root"
            assert len(client.version()[0].split(".")) == 3
            user = client.users.create(
                email=f"{name}@example.org", username=name, name="P", password="longenough"
            )
            user.bio = "about her"
            user.save()
            assert client.users.list(username=name)[0].bio == "about her"
            assert user.block()
            assert user.unblock()
            group = client.groups.create({"name": name, "path": f"{name}-group"})
            subgroup = client.groups.create({"name": "Sub", "path": "sub", "parent_id": group.id})
            assert [item.id for item in group.subgroups.list()] == [subgroup.id]
            project = client.projects.create({"name": "My App", "namespace_id": subgroup.id})
            assert client.projects.get(f"{name}-group/sub/my-app").id == project.id
            assert project.id in [item.id for item in client.projects.list(owned=True, get_all=True)]
            project.description = "changed"
            project.save()
            project.archive()
            project.unarchive()
            project.refresh()
            assert (project.description, project.archived) == ("changed", False)
            assert client.namespaces.exists(name).exists is True
            assert client.projects.head(project.id)["Content-Type"] == "application/json"
            client.projects.delete(project.id)
            group.delete()
            user.delete()
            with pytest.raises(gitlab.GitlabGetError, match="404 Project Not Found"):
                client.projects.get(project.id)

    await asyncio.to_thread(use)


@pytest.mark.parametrize(
    "options", [{"per_page": 2}, {"pagination": "keyset", "order_by": "id", "per_page": 2}]
)
async def test_lists_are_walked_in_both_modes(forge: Forge, options: dict) -> None:
    group = await forge.group()
    projects = {(await forge.project(namespace_id=group["id"]))["id"] for _ in range(5)}

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token, **options) as client:
            of_group = client.groups.get(group["id"])
            walked = [item.id for item in of_group.projects.list(iterator=True)]
            assert sorted(walked) == sorted(projects)
            for manager in (
                client.users,
                client.groups,
                client.projects,
                client.namespaces,
                of_group.members_all,
            ):
                ids = [item.id for item in manager.list(iterator=True)]
                assert ids
                assert len(ids) == len(set(ids))

    await asyncio.to_thread(use)
