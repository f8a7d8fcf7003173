"""Where an instance keeps what a backup has of it."""

from collections.abc import Mapping
from pathlib import Path

import attrs

from api_server.git.repositories import Repositories
from api_server.settings import Settings
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.state.secrets import KEY_FILE as SECRET_KEY
from forgelet.local.data_directory import RUNNING

#: Of a `forgelet up`, below its folder: what belongs to the machine is made anew on the next one.
_OF_UP = ("secrets", "state")
_OF_THE_MACHINE = frozenset({"postgres-password", RUNNING})
_LARGEST_FILE = 64 * 1024


@attrs.frozen
class Places:
    """The database, the API server's data directory, and of a `forgelet up` its folder around that."""

    database_url: str = attrs.field(repr=False)
    data_dir: Path
    object_store_url: str = ""
    object_store_timeout: float = 20.0
    up: Path | None = None

    @classmethod
    def of(cls, settings: Settings, database_url: str, up: Path | None) -> "Places":
        return cls(
            database_url=database_url,
            data_dir=settings.data_dir,
            object_store_url=settings.object_store_url,
            object_store_timeout=settings.object_store_timeout,
            up=up,
        )

    @property
    def repositories(self) -> Repositories:
        return Repositories(self.data_dir / "repositories")

    def objects(self) -> Objects:
        return open_objects(self.object_store_url, self.data_dir, timeout=self.object_store_timeout)

    def small_files(self) -> dict[str, str]:
        """What is sealed in a backup, by its place: the secret key, and the secrets and notes of a `forgelet up`."""
        found = {SECRET_KEY: (self.data_dir / SECRET_KEY).read_text()}
        for folder in _OF_UP if self.up is not None else ():
            for file in sorted((self.up / folder).glob("*")) if self.up is not None else ():
                if _is_kept(file):
                    found[f"{folder}/{file.name}"] = file.read_text()
        return found


def _is_kept(file: Path) -> bool:
    return (
        file.name not in _OF_THE_MACHINE
        and not file.name.startswith(".")
        and file.is_file()
        and file.stat().st_size <= _LARGEST_FILE
    )


def small_files_of_up(found: Mapping[str, str]) -> dict[str, str]:
    """Those that are a `forgelet up`'s alone."""
    return {name: text for name, text in found.items() if name.partition("/")[0] in _OF_UP}


async def is_without_objects(objects: Objects) -> bool:
    """Whether nothing is in an object store where objects of forgelet are."""
    for folder in ("projects", "audit"):
        async for batch in objects.listed(folder):
            if batch:
                return False
    return True
