"""The service that is attacked, as `scripts/up` runs it, in a folder that goes away; with users and repositories."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from forgelet.local.api_client import Api, encoded
from forgelet.local.data_directory import DataDirectory
from forgelet.local.supervisor import Forgelet, Plan
from forgelet.local.variables import Addresses
from scripts.abuse import repositories
from scripts.abuse.place import Place
from scripts.abuse.repositories import Sizes
from scripts.abuse.watching import Held, Watched, process_in
from tests.support.ports import free_port

CHECKOUT = Path(__file__).resolve().parents[2]


@attrs.frozen
class Ground:
    """The running service: where it is attacked, the token of somebody innocent, and its two processes."""

    place: Place
    innocent: str
    api: Watched
    edge: Watched

    def held(self) -> tuple[Held, Held]:
        """What both processes hold now."""
        return self.api.held(), self.edge.held()

    @property
    def innocent_urls(self) -> list[str]:
        """What the innocent client asks for, by turns."""
        project = self.place.project(self.place.public)
        file = "src/1/1.txt"
        return [
            project,
            f"{project}/pipelines",
            f"{project}/repository/files/{encoded(file)}?ref=main",
            f"{self.place.edge_url}/{self.place.public}/-/raw/main/{file}",
        ]


@contextlib.contextmanager
def prepared(tell: Callable[[str], None], sizes: Sizes) -> Iterator[Ground]:
    """Starts everything and furnishes it; ends all of it."""
    with tempfile.TemporaryDirectory(prefix="forgelet-abuse-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL may have to run as another account
        data = DataDirectory(Path(folder, "data"))
        plan = Plan(data, Addresses(free_port(), free_port()))
        with data.opened(), Forgelet(plan, tell) as forgelet:
            tell("Making repositories ...")
            scratch = Path(folder, "scratch")
            scratch.mkdir()
            yield _furnished(forgelet, scratch, sizes)


def _furnished(forgelet: Forgelet, scratch: Path, sizes: Sizes) -> Ground:
    root, plan = forgelet.api(), forgelet.plan
    alice, bob = (Api(plan.api_url, new_user(root, name)) for name in ("alice", "bob"))
    public, mine = new_project(alice, "alice", "large"), new_project(bob, "bob", "mine")
    host = plan.api_url.partition("://")[2]
    large_change = repositories.make(scratch, public, sizes, host=host, token=alice.token)
    place = Place(
        api_url=plan.api_url,
        edge_url=plan.edge_url or "",
        attacker=bob.token,
        public=public,
        mine=mine,
        large_change=large_change,
    )
    api, edge = (Watched(process_in(plan.data.part(name))) for name in ("api", "edge"))
    return Ground(place, alice.token, api, edge)


def new_user(root: Api, name: str) -> str:
    """Makes a user; her token."""
    user = {"username": name, "name": name, "email": f"{name}@example.org", "skip_confirmation": True}
    made = root.post("users", {**user, "force_random_password": True})
    token = {"name": "abuse", "scopes": ["api"], "expires_at": "2099-01-01"}
    return str(root.post(f"users/{made['id']}/personal_access_tokens", token)["token"])


def new_project(owner: Api, name: str, path: str) -> str:
    """Makes a public project; its full path."""
    owner.post("projects", {"name": path, "visibility": "public", "initialize_with_readme": path == "mine"})
    return f"{name}/{path}"
