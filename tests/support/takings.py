"""Every way to take a right from a user while she uses it, and the refusals that follow."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from api_server.namespaces.access import ProjectAccess
from api_server.web.routes import ResourceAccess, Role, Route
from tests.support.forge import Answer, Forge, Person
from tests.support.furnished import Furnished
from tests.support.rights import BODIES, PATHS
from tests.support.route_table import name_of, required


@attrs.define
class Stage:
    """A furnished project and group. Root takes rights from the `owner` of both and from an administrator on the
    server `one`; both make their requests to the `other`."""

    one: Forge
    other: Forge
    furnished: Furnished
    owner: Person
    admin: Person

    @property
    def project(self) -> str:
        return f"/projects/{self.furnished.ids['id']}"

    def person(self, route: Route) -> Person:
        return self.admin if route.access.kind == "administrator" else self.owner

    async def call(self, route: Route) -> Answer:
        """Send the route's request with valid values, as the person who has the right."""
        ids = self.furnished.ids
        body = self._filled(required(route) | BODIES.get(name_of(route), {}))
        furnished = attrs.evolve(self.furnished, ids=ids | self._filled(PATHS.get(name_of(route), {})))
        client = attrs.evolve(self.person(route).api, base=self.other.base)
        return await client.request(route.method, furnished.path_to(route), json=body)

    def _filled(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with ids for their names."""
        return {
            name: self.furnished.ids[value[1:-1]]
            if isinstance(value, str) and value.startswith("{")
            else value
            for name, value in values.items()
        }

    async def do(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """Send a request as root, who takes the right away."""
        answer = await self.one.root.request(method, path, json=body or {})
        assert answer.status in (200, 201, 204), answer
        return answer

    async def warm(self) -> None:
        """Let the other server cache the callers, and note that their tokens are used."""
        self.other.database.note_change()  # its cache is of the test before
        for person in (self.owner, self.admin):
            client = attrs.evolve(person.api, base=self.other.base)
            assert (await client.get(self.project)).status == 200


Step = Callable[[Stage], Awaitable[object]]


@attrs.frozen
class Taking:
    """How a right is taken away and given back, which routes need it, and how they are refused without it."""

    take: Step
    give: Step
    needs: Callable[[Route], bool]
    refusals: tuple[tuple[int, Any], ...]


def _members(method: str, body: dict[str, Any] | None = None, one: str = "/{}") -> Step:
    async def step(stage: Stage) -> None:
        ids = stage.furnished.ids
        for place in (f"projects/{ids['id']}", f"groups/{ids['group_id']}"):
            sent = {"user_id": stage.owner.id} | body if body and method == "POST" else body
            await stage.do(method, f"/{place}/members" + one.format(stage.owner.id), sent)

    return step


def _users(what: str, method: str = "POST", body: dict[str, Any] | None = None) -> Step:
    async def step(stage: Stage) -> None:
        for person in (stage.owner, stage.admin) if what else (stage.admin,):
            await stage.do(method, f"/users/{person.id}{what}", body)

    return step


async def _revoke_tokens(stage: Stage) -> None:
    for person in (stage.owner, stage.admin):
        own = await person.api.get("/personal_access_tokens/self")
        await stage.do("DELETE", f"/personal_access_tokens/{own.body['id']}")


async def _new_tokens(stage: Stage) -> None:
    for name in ("owner", "admin"):
        person: Person = getattr(stage, name)
        api = attrs.evolve(person.api, token=await stage.one.token(person.id))
        setattr(stage, name, attrs.evolve(person, api=api))


def _project(method: str, path: str, body: dict[str, Any] | None = None) -> Step:
    async def step(stage: Stage) -> None:
        await stage.do(method, stage.project + path, body)

    return step


#: Routes of a feature that remain possible in archived projects.
_KEEPS = {
    "POST /projects/{id}/jobs/{job_id}/artifacts/keep",
    "DELETE /projects/{id}/jobs/{job_id}/artifacts",
    "DELETE /projects/{id}/pipelines/{pipeline_id}",
}


def _opens(route: Route) -> bool:
    return isinstance(route.access, ProjectAccess) and route.access.feature is not None


_SCHEDULE = "/projects/{id}/pipeline_schedules/{pipeline_schedule_id}"
#: Routes of schedules that run on the branch.
_SCHEDULES_MAIN = {"POST /projects/{id}/pipeline_schedules", f"PUT {_SCHEDULE}", f"POST {_SCHEDULE}/play"}


def _needs_main(route: Route) -> bool:
    """Return whether the route changes the branch, or runs jobs on it."""
    path = route.path.removeprefix("/projects/{id}/")
    if path.startswith("pipeline_schedules"):
        return name_of(route) in _SCHEDULES_MAIN
    parts = ("repository/files", "repository/commits", "pipeline", "jobs")
    return (_opens(route) and path.startswith(parts) and name_of(route) not in _KEEPS) or path.endswith(
        "/merge"
    )


_LEVELS = ("repository_access_level", "builds_access_level")
_PROTECTION = ("push_access_level", "merge_access_level")
PUSH = (403, "403 Forbidden - You are not allowed to push into this branch")
NEW_TAG = "POST /projects/{id}/repository/tags"
TAG = "You are not allowed to create this tag as it is protected."
RUN = (400, {"base": ["You do not have sufficient permission to run a pipeline on 'main'."]})
CREATE, UPDATE = (
    (400, {"base": [f"The current user is not authorized to {verb} the pipeline schedule"]})
    for verb in ("create", "update")
)
FORBIDDEN = (403, "403 Forbidden")
GONE = ((404, "404 Project Not Found"), (404, "404 Group Not Found"))
TAKINGS = {
    "block the user": Taking(
        _users("/block"),
        _users("/unblock"),
        lambda _: True,
        ((403, "403 Forbidden - Your account has been blocked."),),
    ),
    "revoke the token": Taking(_revoke_tokens, _new_tokens, lambda _: True, ((401, "invalid_token"),)),
    "be no administrator any more": Taking(
        _users("", "PUT", {"admin": False}),
        _users("", "PUT", {"admin": True}),
        lambda route: route.access.kind == "administrator",
        (FORBIDDEN,),
    ),
    "remove the member": Taking(
        _members("DELETE"),
        _members("POST", {"access_level": 50}, ""),
        lambda route: isinstance(route.access, ResourceAccess),
        (FORBIDDEN, *GONE),
    ),
    "give the member a smaller role": Taking(
        _members("PUT", {"access_level": 10}),
        _members("PUT", {"access_level": 50}),
        lambda route: isinstance(route.access, ResourceAccess) and route.access.role > Role.GUEST,
        (FORBIDDEN,),
    ),
    "close the feature": Taking(
        _project("PUT", "", dict.fromkeys(_LEVELS, "disabled")),
        _project("PUT", "", dict.fromkeys(_LEVELS, "enabled")),
        _opens,
        (FORBIDDEN,),
    ),
    "archive the project": Taking(
        _project("POST", "/archive"),
        _project("POST", "/unarchive"),
        lambda route: _opens(route) and name_of(route) not in _KEEPS,
        (FORBIDDEN, PUSH, RUN),
    ),
    "protect the branch": Taking(
        _project("PATCH", "/protected_branches/main", dict.fromkeys(_PROTECTION, 60)),
        _project("PATCH", "/protected_branches/main", dict.fromkeys(_PROTECTION, 40)),
        _needs_main,
        (FORBIDDEN, PUSH, RUN, CREATE, UPDATE),
    ),
    "protect the tag": Taking(
        _project("POST", "/protected_tags", {"name": "*", "create_access_level": 60}),
        _project("DELETE", "/protected_tags/*"),
        lambda route: route.path.startswith("/projects/{id}/releases") or name_of(route) == NEW_TAG,
        (FORBIDDEN, (403, TAG), (403, f"403 Forbidden - {TAG}")),
    ),
}
